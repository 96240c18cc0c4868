import html
import json
import sys
import webbrowser
from datetime import datetime

from dateutil import tz
from jinja2 import Environment, PackageLoader

messages = json.load(open(sys.argv[1]))
env = Environment(loader=PackageLoader("chat"))
for message in messages:
    stamp = datetime.fromtimestamp(float(message["ts"]), tz.UTC)
    print(stamp, html.escape(message["text"]))
webbrowser.open("out.html")
