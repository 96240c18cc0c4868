// A client of skilld in C++20. docs/languages.md says how to generate the headers.
//
// SKILLD_TARGET is unix:///run/skilld/skilld.sock or host:port. With SKILLD_CA, the PEM file of a certificate
// authority, the connection uses TLS and every call sends the token SKILLD_TOKEN. SKILLD_SHARE is the directory of
// skilld's files.
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>

#include <grpcpp/grpcpp.h>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "skilld/v1/exec.grpc.pb.h"
#include "skilld/v1/file.grpc.pb.h"
#include "skilld/v1/workspace.grpc.pb.h"

using namespace skilld::v1;
using grpc::ClientContext;

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::shared_ptr<grpc::Channel> open_channel() {
  const char* ca = std::getenv("SKILLD_CA");
  const char* share = std::getenv("SKILLD_SHARE");
  auto credentials = grpc::InsecureChannelCredentials();
  if (ca != nullptr) {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = read_file(ca);
    credentials = grpc::CompositeChannelCredentials(grpc::SslCredentials(options),
                                                    grpc::AccessTokenCredentials(std::getenv("SKILLD_TOKEN")));
  }
  grpc::ChannelArguments arguments;
  // Repeats the calls that may be repeated.
  arguments.SetServiceConfigJSON(read_file(std::string(share ? share : "/usr/share/skilld") + "/service-config.json"));
  return grpc::CreateCustomChannel(std::getenv("SKILLD_TARGET"), credentials, arguments);
}

void check(const grpc::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.error_message());
}

// Prints the reason of an error and, if the request was wrong, its wrong fields.
void explain(const grpc::Status& error) {
  google::rpc::Status status;
  if (error.error_details().empty() || !status.ParseFromString(error.error_details())) {
    // Not an answer of skilld: for example, it cannot be reached.
    std::cout << error.error_code() << ": " << error.error_message() << "\n";
  }
  for (const auto& detail : status.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::BadRequest wrong;
    if (detail.UnpackTo(&info)) {
      std::cout << info.reason() << " of " << info.domain() << "\n";
    } else if (detail.UnpackTo(&wrong)) {
      for (const auto& violation : wrong.field_violations()) std::cout << "wrong field: " << violation.field() << "\n";
    }
  }
}

// Makes a call that has one request and one response, with a deadline. Every call needs a context of its own.
template <typename Stub, typename Request, typename Response>
Response call(Stub& stub, grpc::Status (Stub::*method)(ClientContext*, const Request&, Response*),
              const Request& request) {
  ClientContext context;
  Response response;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  check((stub.*method)(&context, request, &response));
  return response;
}

void stage_file(FileService::Stub& files, const std::string& workspace) {
  ClientContext context;
  StageFilesRequest request;
  StageFilesResponse response;
  auto upload = files.StageFiles(&context, &response);
  // The first message names the file, those that follow have its bytes.
  request.mutable_header()->set_workspace(workspace);
  request.mutable_header()->set_path("work/greeting.txt");
  upload->Write(request);
  request.set_data("hello\n");
  upload->Write(request);
  upload->WritesDone();
  check(upload->Finish());
  std::cout << "staged " << response.files(0).path() << ", " << response.files(0).size_bytes() << " bytes\n";
}

// Runs a command, and passes its output on as it comes.
void run_command(ExecService::Stub& execs, const std::string& workspace) {
  ClientContext context;
  RunExecRequest request;
  ExecEvent event;
  request.set_parent(workspace);
  request.mutable_spec()->set_shell(
      "cat work/greeting.txt; echo a warning >&2; tr a-z A-Z < work/greeting.txt > $OUTPUT_DIR/shout.txt; exit 3");
  auto events = execs.RunExec(&context, request);
  while (events->Read(&event)) {
    if (event.has_output()) {
      (event.output().stream() == OUTPUT_STREAM_STDERR ? std::cerr : std::cout) << event.output().data() << std::flush;
    } else if (event.has_exited()) {
      const ExecResult& result = event.exited().result();
      std::cout << "exit code " << result.exit_code() << ", " << ExitReason_Name(result.reason()) << "\n";
    }
  }
  check(events->Finish());
}

// Starts a command, writes to its stdin, and polls until it has ended and all of its output has arrived.
void feed_command(ExecService::Stub& execs, const std::string& workspace) {
  StartExecRequest start;
  start.set_parent(workspace);
  start.mutable_spec()->add_argv("sort");
  start.mutable_spec()->set_open_stdin(true);
  const std::string name = call(execs, &ExecService::Stub::StartExec, start).name();

  ClientContext context;
  WriteStdinResponse written;
  StreamStdinRequest first, last;
  auto writer = execs.StreamStdin(&context, &written);
  first.mutable_header()->set_name(name);
  first.set_data("pear\n");
  writer->Write(first);
  for (int line = 0; line < 20'000; ++line) last.mutable_data()->append("apple\n");
  last.set_eof(true);
  writer->Write(last);
  writer->WritesDone();
  check(writer->Finish());

  std::string sorted;
  PollExecRequest poll;
  PollExecResponse polled;
  poll.set_name(name);
  poll.mutable_wait()->set_seconds(10);
  do {
    polled = call(execs, &ExecService::Stub::PollExec, poll);
    if (polled.gaps_size() > 0) throw std::runtime_error("output was lost");
    for (const auto& piece : polled.outputs()) sorted += piece.data();
    *poll.mutable_offsets() = polled.next_offsets();
  } while (polled.state() != EXEC_STATE_CLOSED || polled.outputs_size() > 0);
  std::cout << "sorted " << sorted.size() << " bytes, the last line is "
            << sorted.substr(sorted.rfind('\n', sorted.size() - 2) + 1);
}

// Kills a command with everything that it started.
void kill_command(ExecService::Stub& execs, const std::string& workspace) {
  StartExecRequest start;
  start.set_parent(workspace);
  for (const char* word : {"sleep", "1000"}) start.mutable_spec()->add_argv(word);
  KillExecRequest kill;
  kill.set_name(call(execs, &ExecService::Stub::StartExec, start).name());
  const ExecResult result = call(execs, &ExecService::Stub::KillExec, kill).result();
  std::cout << "killed by signal " << result.signal() << ", " << ExitReason_Name(result.reason()) << "\n";
}

// Collects what commands left in their output directory.
void collect_files(FileService::Stub& files, const std::string& workspace) {
  ClientContext context;
  CollectOutputsRequest request;
  CollectOutputsResponse part;
  request.set_workspace(workspace);
  request.mutable_spec()->add_globs("$OUTPUT_DIR/**");
  auto collected = files.CollectOutputs(&context, request);
  while (collected->Read(&part)) {
    if (part.has_file()) std::cout << "collected " << part.file().path() << ": ";
    std::cout << part.data();
  }
  check(collected->Finish());
}

// Deletes a workspace at the end of a scope, whatever happened.
struct WorkspaceGuard {
  WorkspaceService::Stub& workspaces;
  const std::string name;

  ~WorkspaceGuard() {
    ClientContext context;
    DeleteWorkspaceRequest request;
    google::protobuf::Empty response;
    request.set_name(name);
    const auto deleted = workspaces.DeleteWorkspace(&context, request, &response);
    if (!deleted.ok()) std::cerr << name << " is left: " << deleted.error_message() << "\n";
  }
};

int main() try {
  auto channel = open_channel();
  auto workspaces = WorkspaceService::NewStub(channel);
  auto execs = ExecService::NewStub(channel);
  auto files = FileService::NewStub(channel);
  const std::string workspace = call(*workspaces, &WorkspaceService::Stub::CreateWorkspace, {}).name();
  {
    WorkspaceGuard guard{*workspaces, workspace};
    stage_file(*files, workspace);
    run_command(*execs, workspace);
    feed_command(*execs, workspace);
    kill_command(*execs, workspace);
    collect_files(*files, workspace);
  }

  ClientContext first, second;
  Workspace found;
  GetWorkspaceRequest missing;
  missing.set_name(workspace);
  explain(workspaces->GetWorkspace(&first, missing, &found));
  CreateWorkspaceRequest wrong;
  wrong.set_workspace_id("Not an id");
  explain(workspaces->CreateWorkspace(&second, wrong, &found));
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
