"""A client with TLS and a credential that knows skilld by reflection only.

Reads one JSON object from stdin: `target` (host:port or unix:PATH), and if needed `ca`, `cert`, `key` (PEM files) and
`token`. Says who it is, runs a command in a workspace of its own, and decodes the details of an error with the descriptors
that the server has of them. Prints what it saw as JSON. grpcio and grpcio-reflection only.
"""

import json
import sys

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase


class WithToken:
    """A channel that sends a token with every call, also with those of the reflection client."""

    def __init__(self, channel, metadata):
        self.channel, self.metadata = channel, metadata

    def stream_stream(self, method, **options):
        call = self.channel.stream_stream(method, **options)
        return lambda requests, **rest: call(requests, metadata=self.metadata, **rest)

    def unary(self, method, request, answer, streams):
        make = self.channel.unary_stream if streams else self.channel.unary_unary
        call = make(method, request_serializer=lambda it: it.SerializeToString(), response_deserializer=answer.FromString)
        return lambda message: call(message, metadata=self.metadata, timeout=240)


def connect(options):
    metadata = [("authorization", f"Bearer {options['token']}")] if "token" in options else []
    if options["target"].startswith("unix:"):
        return WithToken(grpc.insecure_channel(options["target"]), metadata)
    read = lambda name: open(options[name], "rb").read() if name in options else None
    credentials = grpc.ssl_channel_credentials(read("ca"), read("key"), read("cert"))
    return WithToken(grpc.secure_channel(options["target"], credentials), metadata)


def main():
    channel = connect(json.load(sys.stdin))
    pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))

    def call(path, **fields):
        service, name = path.split("/")
        rpc = pool.FindServiceByName(f"skilld.v1.{service}").FindMethodByName(name)
        send = channel.unary(
            f"/skilld.v1.{service}/{name}", None, GetMessageClass(rpc.output_type), rpc.server_streaming
        )
        return send(GetMessageClass(rpc.input_type)(**fields))

    principal = call("AccessService/GetPrincipal")
    workspace = call("WorkspaceService/CreateWorkspace")
    events = call("ExecService/RunExec", parent=workspace.name, spec={"shell": "echo hello"})
    output = b"".join(event.output.data for event in events if event.WhichOneof("event") == "output")
    call("WorkspaceService/DeleteWorkspace", name=workspace.name)
    try:
        call("WorkspaceService/GetWorkspace", name=workspace.name)
        details = None
    except grpc.RpcError as error:
        trailers = dict(error.trailing_metadata())
        status = GetMessageClass(pool.FindMessageTypeByName("google.rpc.Status"))
        status = status.FromString(trailers["grpc-status-details-bin"])
        details = {}
        for packed in status.details:
            name = packed.type_url.rsplit("/", 1)[-1]
            message = GetMessageClass(pool.FindMessageTypeByName(name)).FromString(packed.value)
            details[name] = MessageToDict(message)
    print(
        json.dumps(
            {
                "id": principal.id,
                "tenant": principal.tenant,
                "workspace_tenant": workspace.tenant,
                "output": output.decode(),
                "details": details,
            }
        )
    )


main()
