"""A client in another language that knows skilld by reflection only: no generated code, no .proto file.

Takes the daemon's socket, the version of the reflection service and a table. Does what an agent does: claims a workspace,
stages a skill and the table, runs the skill with its output streaming, collects the report, deletes the workspace.
Prints what it saw as JSON. grpcio and grpcio-reflection only.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase


class Version:
    """The channel, for a reflection client that only knows v1alpha: v1 has the same messages under another name."""

    def __init__(self, channel, version):
        self.channel, self.version = channel, version

    def stream_stream(self, method, **options):
        return self.channel.stream_stream(method.replace(".v1alpha.", f".{self.version}."), **options)


class Server:
    def __init__(self, socket, version):
        # With a service config that it can't read, gRPC's core makes no call.
        config = (Path(__file__).parents[3] / "docs/service-config.json").read_text()
        self.channel = grpc.insecure_channel(f"unix:{socket}", options=[("grpc.service_config", config)])
        self.database = ProtoReflectionDescriptorDatabase(Version(self.channel, version))
        self.pool = DescriptorPool(self.database)

    def call(self, method, requests):
        """Calls `Service/Method` with a dict, or a list of them for a stream; returns a message or an iterator."""
        service, name = method.split("/")
        rpc = self.pool.FindServiceByName(f"skilld.v1.{service}").FindMethodByName(name)
        request = GetMessageClass(rpc.input_type)
        make = getattr(
            self.channel,
            f"{'stream' if rpc.client_streaming else 'unary'}_{'stream' if rpc.server_streaming else 'unary'}",
        )
        invoke = make(
            f"/skilld.v1.{service}/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=GetMessageClass(rpc.output_type).FromString,
        )
        if rpc.client_streaming:
            return invoke((request(**fields) for fields in requests), timeout=240)
        return invoke(request(**requests), timeout=240)


def stage(server, workspace, path, data):
    digest = hashlib.sha256(data).hexdigest()
    header = {"header": {"workspace": workspace, "format": "STAGE_FORMAT_FILE", "path": path, "sha256": digest}}
    chunks = [{"data": data[at : at + 262144]} for at in range(0, len(data), 262144)]
    return server.call("FileService/StageFiles", [header, *chunks])


def run(server, workspace, spec, on_first_output=None):
    """Runs a spec and calls a function when the first piece of output comes; returns exit code and output per stream."""
    output, result, closed, kinds = {1: b"", 2: b""}, None, None, []
    for event in server.call("ExecService/RunExec", {"parent": workspace, "spec": spec}):
        kind = event.WhichOneof("event")
        kinds.append(kind)
        if kind == "output":
            assert event.output.offset == len(output[event.output.stream]), "bytes are missing or come twice"
            output[event.output.stream] += event.output.data
            if on_first_output:
                on_first_output()
                on_first_output = None
        elif kind == "exited":
            result = event.exited.result
        elif kind == "closed":
            closed = event.closed.total
    assert kinds[0] == "started" and kinds[-2:] == ["exited", "closed"] or "exited" in kinds, kinds
    assert (closed.stdout_bytes, closed.stderr_bytes) == (len(output[1]), len(output[2])), "Closed says another size"
    assert result.success == (result.exit_code == 0), result
    return result.exit_code, output[1].decode(), output[2].decode()


def collect(server, workspace, globs):
    files, current, summary = {}, None, None
    for message in server.call("FileService/CollectOutputs", {"workspace": workspace, "spec": {"globs": globs}}):
        kind = message.WhichOneof("payload")
        if kind == "file":
            current = message.file.path
            files[current] = b""
        elif kind == "data":
            files[current] += message.data
        elif kind == "file_end":
            assert hashlib.sha256(files[current]).hexdigest() == message.file_end.sha256, current
        else:
            summary = message.summary
    assert summary.returned_count == len(files) and not summary.limits_hit, summary
    return files


def main():
    socket, version, table = sys.argv[1:]
    server = Server(socket, version)
    services = sorted(server.database.get_services())
    info = server.call("ServerService/GetServerInfo", {})
    with open(table, "rb") as file:
        data = file.read()

    workspace = server.call("WorkspaceService/CreateWorkspace", {"workspace_id": f"foreign-{version}-{os.getpid()}"})
    name = workspace.name
    staged = server.call("FileService/StageSkills", {"workspace": name, "skills": ["skills/csv-report"]})
    written = stage(server, name, "inputs/sales.csv", data)
    spec = {
        "skill": "skills/csv-report",
        "argv": ["python", "scripts/csv_report.py", "--group-by", "region", "--sum", "revenue", "inputs/sales.csv"],
    }
    code, stdout, stderr = run(server, name, spec)
    assert code == 0, stderr

    # The command goes on only once the client has seen the first line: output comes while it runs.
    def go_on():
        assert run(server, name, {"shell": "touch go"})[0] == 0

    waiting = "echo first; until [ -e go ]; do sleep 0.1; done; echo second"
    _, lines, _ = run(server, name, {"shell": waiting}, go_on)
    files = collect(server, name, ["out/**"])
    server.call("WorkspaceService/DeleteWorkspace", {"name": name})
    try:
        server.call("WorkspaceService/GetWorkspace", {"name": name})
        gone = None
    except grpc.RpcError as error:
        details = dict(error.trailing_metadata()).get("grpc-status-details-bin", b"")
        gone = [error.code().name, b"WORKSPACE_NOT_FOUND" in details and b"skilld.dev" in details]
    print(
        json.dumps(
            {
                "services": services,
                "version": info.version,
                "skill": [staged.skills[0].name, staged.skills[0].file_count],
                "staged": [[file.path, file.size_bytes, file.sha256] for file in written.files],
                "stdout": stdout,
                "lines": lines,
                "files": {path: content.decode() for path, content in files.items()},
                "gone": gone,
            }
        )
    )


main()
