"""An S3 server in one process, with one empty bucket `skilld`. It says its port, then answers what it is asked on stdin:
`keys` lists the bucket's keys, `uploads` counts those in parts that are under way, `age` makes everything two hours older.

One request at a time, because moto looks whether a key is there and writes it in two steps.
"""

import datetime
import json
import sys
import threading

from moto.backends import get_backend
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

naive = sys.argv[1:] == ["naive"]


class Handler(WSGIRequestHandler):
    def log_request(self, *_):
        pass

    def make_environ(self):
        environ = super().make_environ()
        if naive:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        return environ


app = DomainDispatcherApplication(create_backend_app)
server = make_server("127.0.0.1", 0, app, threaded=False, request_handler=Handler)
buckets = get_backend("s3")["123456789012"]["aws"]
buckets.create_bucket("skilld", "us-east-1")
bucket = buckets.buckets["skilld"]
print(server.port, flush=True)


def answer():
    for line in sys.stdin:
        if line == "keys\n":
            print(json.dumps(sorted(bucket.keys)), flush=True)
        elif line == "uploads\n":
            print(len(bucket.multiparts), flush=True)
        elif line == "age\n":
            for key in list(bucket.keys.values()):
                key.last_modified -= datetime.timedelta(hours=2)
            print("older", flush=True)
    server.shutdown()


threading.Thread(target=answer, daemon=True).start()
server.serve_forever()
