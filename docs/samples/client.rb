# A client of skilld in Ruby. docs/languages.md says how to generate the files beneath skilld/v1.
#
# SKILLD_TARGET is unix:///run/skilld/skilld.sock or host:port. With SKILLD_CA, the PEM file of a certificate authority,
# the connection uses TLS and every call sends the token SKILLD_TOKEN. SKILLD_SHARE is the directory of skilld's files.
require 'grpc'
require 'google/protobuf/well_known_types'
require 'google/rpc/error_details_pb'
require 'skilld/v1/exec_services_pb'
require 'skilld/v1/file_services_pb'
require 'skilld/v1/workspace_services_pb'
include Skilld::V1

def credentials
  ca = ENV['SKILLD_CA']
  return :this_channel_is_insecure unless ca

  authorization = { authorization: "Bearer #{ENV.fetch('SKILLD_TOKEN')}" }
  token = GRPC::Core::CallCredentials.new(->(_) { authorization })
  GRPC::Core::ChannelCredentials.new(File.read(ca)).compose(token)
end

# Returns the deadline of a call that does not last as long as a command.
def soon = Time.now + 60

def stage_file(files, workspace)
  # The first message names the file, those that follow have its bytes.
  header = StageFilesHeader.new(workspace: workspace, path: 'work/greeting.txt')
  messages = [StageFilesRequest.new(header: header), StageFilesRequest.new(data: "hello\n")]
  files.stage_files(messages, deadline: soon).files.each { |staged| puts "staged #{staged.path}, #{staged.size_bytes} bytes" }
end

# Runs a command, and passes its output on as it comes.
def run_command(execs, workspace)
  shell = 'cat work/greeting.txt; echo a warning >&2; tr a-z A-Z < work/greeting.txt > $OUTPUT_DIR/shout.txt; exit 3'
  execs.run_exec(RunExecRequest.new(parent: workspace, spec: ExecSpec.new(shell: shell))).each do |event|
    case event.event
    when :output
      stream = event.output.stream == :OUTPUT_STREAM_STDERR ? $stderr : $stdout
      stream.write(event.output.data)
    when :exited
      result = event.exited.result
      puts "exit code #{result.exit_code}, #{result.reason}"
    end
  end
end

# Starts a command, writes to its stdin, and polls until it has ended and all of its output has arrived.
def feed_command(execs, workspace)
  spec = ExecSpec.new(argv: ['sort'], open_stdin: true)
  name = execs.start_exec(StartExecRequest.new(parent: workspace, spec: spec), deadline: soon).name
  execs.stream_stdin([
    StreamStdinRequest.new(header: StreamStdinHeader.new(name: name), data: "pear\n"),
    StreamStdinRequest.new(data: "apple\n" * 20_000, eof: true)
  ])
  sorted = +''
  poll = PollExecRequest.new(name: name, wait: Google::Protobuf::Duration.new(seconds: 10))
  loop do
    polled = execs.poll_exec(poll, deadline: soon)
    polled.gaps.each { |gap| raise "output was lost from byte #{gap.start_offset} to #{gap.end_offset}" }
    polled.outputs.each { |piece| sorted << piece.data }
    break if polled.state == :EXEC_STATE_CLOSED && polled.outputs.empty?

    poll.offsets = polled.next_offsets
  end
  puts "sorted #{sorted.bytesize} bytes, the last line is #{sorted.lines.last.chomp}"
end

# Kills a command with everything that it started.
def kill_command(execs, workspace)
  spec = ExecSpec.new(argv: %w[sleep 1000])
  name = execs.start_exec(StartExecRequest.new(parent: workspace, spec: spec), deadline: soon).name
  result = execs.kill_exec(KillExecRequest.new(name: name), deadline: soon).result
  puts "killed by signal #{result.signal}, #{result.reason}"
end

# Collects what commands left in their output directory.
def collect_files(files, workspace)
  spec = CollectSpec.new(globs: ['$OUTPUT_DIR/**'])
  files.collect_outputs(CollectOutputsRequest.new(workspace: workspace, spec: spec)).each do |part|
    print "collected #{part.file.path}: " if part.payload == :file
    print part.data if part.payload == :data
  end
end

# Prints the reason of an error and, if the request was wrong, its wrong fields.
def explain
  yield
rescue GRPC::BadStatus => e
  status = e.to_rpc_status
  # Without details it is no answer of skilld: for example, it cannot be reached.
  return puts "#{e.code}: #{e.details}" unless status

  status.details.each do |detail|
    if (info = detail.unpack(Google::Rpc::ErrorInfo))
      puts "#{info.reason} of #{info.domain}"
    elsif (wrong = detail.unpack(Google::Rpc::BadRequest))
      wrong.field_violations.each { |violation| puts "wrong field: #{violation.field}" }
    end
  end
end

share = ENV.fetch('SKILLD_SHARE', '/usr/share/skilld')
# Repeats the calls that may be repeated.
options = { 'grpc.service_config' => File.read("#{share}/service-config.json") }
stubs = [WorkspaceService, ExecService, FileService].map do |service|
  service::Stub.new(ENV.fetch('SKILLD_TARGET'), credentials, channel_args: options)
end
workspaces, execs, files = stubs
workspace = workspaces.create_workspace(CreateWorkspaceRequest.new, deadline: soon).name
begin
  stage_file(files, workspace)
  run_command(execs, workspace)
  feed_command(execs, workspace)
  kill_command(execs, workspace)
  collect_files(files, workspace)
ensure
  workspaces.delete_workspace(DeleteWorkspaceRequest.new(name: workspace), deadline: soon)
end
explain { workspaces.get_workspace(GetWorkspaceRequest.new(name: workspace), deadline: soon) }
explain { workspaces.create_workspace(CreateWorkspaceRequest.new(workspace_id: 'Not an id'), deadline: soon) }
