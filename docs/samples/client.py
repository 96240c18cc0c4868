"""A client of skilld in Python. docs/languages.md says how to generate the modules skilld.v1.

SKILLD_TARGET is unix:///run/skilld/skilld.sock or host:port. With SKILLD_CA, the PEM file of a certificate authority,
the connection uses TLS and every call sends the token SKILLD_TOKEN. SKILLD_SHARE is the directory of skilld's files.
"""

import os
import sys
from pathlib import Path

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from skilld.v1 import exec_pb2, exec_pb2_grpc, file_pb2, file_pb2_grpc, workspace_pb2, workspace_pb2_grpc

# Deadline of calls that do not last as long as a command, in seconds.
SOON = 60


def connect():
    target, ca = os.environ["SKILLD_TARGET"], os.environ.get("SKILLD_CA")
    share = Path(os.environ.get("SKILLD_SHARE", "/usr/share/skilld"))
    # Repeats the calls that may be repeated.
    options = [("grpc.service_config", (share / "service-config.json").read_text())]
    if not ca:
        return grpc.insecure_channel(target, options)
    tls = grpc.ssl_channel_credentials(Path(ca).read_bytes())
    token = grpc.access_token_call_credentials(os.environ["SKILLD_TOKEN"])
    return grpc.secure_channel(target, grpc.composite_channel_credentials(tls, token), options)


def stage_file(files, workspace):
    # The first message names the file, those that follow have its bytes.
    header = file_pb2.StageFilesHeader(workspace=workspace, path="work/greeting.txt")
    messages = [file_pb2.StageFilesRequest(header=header), file_pb2.StageFilesRequest(data=b"hello\n")]
    for staged in files.StageFiles(iter(messages), timeout=SOON).files:
        print(f"staged {staged.path}, {staged.size_bytes} bytes", flush=True)


def run_command(execs, workspace):
    """Runs a command, and passes its output on as it comes."""
    shell = "cat work/greeting.txt; echo a warning >&2; tr a-z A-Z < work/greeting.txt > $OUTPUT_DIR/shout.txt; exit 3"
    request = exec_pb2.RunExecRequest(parent=workspace, spec=exec_pb2.ExecSpec(shell=shell))
    for event in execs.RunExec(request):
        if event.HasField("output"):
            is_error = event.output.stream == exec_pb2.OUTPUT_STREAM_STDERR
            stream = sys.stderr if is_error else sys.stdout
            stream.buffer.write(event.output.data)
            stream.flush()
        elif event.HasField("exited"):
            result = event.exited.result
            print(f"exit code {result.exit_code}, {exec_pb2.ExitReason.Name(result.reason)}")


def feed_command(execs, workspace):
    """Starts a command, writes to its stdin, and polls until it has ended and all of its output has arrived."""
    spec = exec_pb2.ExecSpec(argv=["sort"], open_stdin=True)
    name = execs.StartExec(exec_pb2.StartExecRequest(parent=workspace, spec=spec), timeout=SOON).name
    messages = [
        exec_pb2.StreamStdinRequest(header=exec_pb2.StreamStdinHeader(name=name), data=b"pear\n"),
        exec_pb2.StreamStdinRequest(data=b"apple\n" * 20_000, eof=True),
    ]
    execs.StreamStdin(iter(messages))
    output = bytearray()
    poll = exec_pb2.PollExecRequest(name=name, wait={"seconds": 10})
    while True:
        polled = execs.PollExec(poll, timeout=SOON)
        for gap in polled.gaps:
            sys.exit(f"output was lost from byte {gap.start_offset} to {gap.end_offset}")
        for piece in polled.outputs:
            output += piece.data
        poll.offsets.CopyFrom(polled.next_offsets)
        if polled.state == exec_pb2.EXEC_STATE_CLOSED and not polled.outputs:
            break
    print(f"sorted {len(output)} bytes, the last line is {output.decode().splitlines()[-1]}")


def kill_command(execs, workspace):
    """Kills a command with everything that it started."""
    spec = exec_pb2.ExecSpec(argv=["sleep", "1000"])
    name = execs.StartExec(exec_pb2.StartExecRequest(parent=workspace, spec=spec), timeout=SOON).name
    result = execs.KillExec(exec_pb2.KillExecRequest(name=name), timeout=SOON).result
    print(f"killed by signal {result.signal}, {exec_pb2.ExitReason.Name(result.reason)}")


def collect_files(files, workspace):
    """Collects what commands left in their output directory."""
    spec = file_pb2.CollectSpec(globs=["$OUTPUT_DIR/**"])
    for part in files.CollectOutputs(file_pb2.CollectOutputsRequest(workspace=workspace, spec=spec)):
        if part.HasField("file"):
            print(f"collected {part.file.path}: ", end="", flush=True)
        sys.stdout.buffer.write(part.data)


def explain(call, request):
    """Prints the reason of an error and, if the request was wrong, its wrong fields."""
    try:
        call(request, timeout=SOON)
    except grpc.RpcError as error:
        status = rpc_status.from_call(error)
        if status is None:
            # Not an answer of skilld: for example, it cannot be reached.
            print(f"{error.code()}: {error.details()}")
            return
        for detail in status.details:
            info, wrong = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
            if detail.Unpack(info):
                print(f"{info.reason} of {info.domain}")
            elif detail.Unpack(wrong):
                for violation in wrong.field_violations:
                    print(f"wrong field: {violation.field}")


def main():
    with connect() as channel:
        workspaces = workspace_pb2_grpc.WorkspaceServiceStub(channel)
        execs = exec_pb2_grpc.ExecServiceStub(channel)
        files = file_pb2_grpc.FileServiceStub(channel)
        workspace = workspaces.CreateWorkspace(workspace_pb2.CreateWorkspaceRequest(), timeout=SOON).name
        try:
            stage_file(files, workspace)
            run_command(execs, workspace)
            feed_command(execs, workspace)
            kill_command(execs, workspace)
            collect_files(files, workspace)
        finally:
            workspaces.DeleteWorkspace(workspace_pb2.DeleteWorkspaceRequest(name=workspace), timeout=SOON)
        explain(workspaces.GetWorkspace, workspace_pb2.GetWorkspaceRequest(name=workspace))
        explain(workspaces.CreateWorkspace, workspace_pb2.CreateWorkspaceRequest(workspace_id="Not an id"))


main()
