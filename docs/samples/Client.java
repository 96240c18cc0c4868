import com.google.gson.Gson;
import com.google.protobuf.Any;
import com.google.protobuf.ByteString;
import com.google.protobuf.Duration;
import com.google.rpc.BadRequest;
import com.google.rpc.ErrorInfo;
import dev.skilld.v1.*;
import io.grpc.CallCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.SecurityLevel;
import io.grpc.Status;
import io.grpc.StatusException;
import io.grpc.netty.shaded.io.grpc.netty.GrpcSslContexts;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.netty.shaded.io.netty.channel.epoll.EpollDomainSocketChannel;
import io.grpc.netty.shaded.io.netty.channel.epoll.EpollEventLoopGroup;
import io.grpc.netty.shaded.io.netty.channel.unix.DomainSocketAddress;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.AbstractStub;
import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;

/**
 * A client of skilld. docs/languages.md says how to generate the package dev.skilld.v1.
 *
 * <p>SKILLD_TARGET is unix:///run/skilld/skilld.sock or host:port. With SKILLD_CA, the PEM file of a certificate
 * authority, the connection uses TLS and every call sends the token SKILLD_TOKEN. SKILLD_SHARE is the directory of
 * skilld's files.
 */
public class Client {
    /** Sends a token with every call, over TLS only. */
    static class BearerToken extends CallCredentials {
        @Override
        public void applyRequestMetadata(RequestInfo call, Executor executor, MetadataApplier applier) {
            if (call.getSecurityLevel() != SecurityLevel.PRIVACY_AND_INTEGRITY) {
                applier.fail(Status.UNAUTHENTICATED.withDescription("a token needs TLS"));
                return;
            }
            Metadata metadata = new Metadata();
            var authorization = Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);
            metadata.put(authorization, "Bearer " + System.getenv("SKILLD_TOKEN"));
            applier.apply(metadata);
        }
    }

    /** Connects over TLS, or to a Unix socket with the threads of {@code loop}. */
    static ManagedChannel connect(String target, String ca, EpollEventLoopGroup loop) throws Exception {
        NettyChannelBuilder builder;
        if (ca != null) {
            var tls = GrpcSslContexts.forClient().trustManager(new File(ca)).build();
            builder = NettyChannelBuilder.forTarget(target).sslContext(tls);
        } else {
            builder = NettyChannelBuilder.forAddress(new DomainSocketAddress(target.replaceFirst("^unix:(//)?", "")))
                    .channelType(EpollDomainSocketChannel.class).eventLoopGroup(loop).usePlaintext();
        }
        // Repeats the calls that may be repeated.
        String share = System.getenv().getOrDefault("SKILLD_SHARE", "/usr/share/skilld");
        @SuppressWarnings("unchecked")
        Map<String, ?> retries = new Gson().fromJson(Files.readString(Path.of(share, "service-config.json")), Map.class);
        return builder.defaultServiceConfig(retries).enableRetry().build();
    }

    /** Returns a stub for a call that does not last as long as a command. */
    static <S extends AbstractStub<S>> S soon(S stub) {
        return stub.withDeadlineAfter(1, TimeUnit.MINUTES);
    }

    static void stageFile(FileServiceGrpc.FileServiceBlockingV2Stub files, String workspace) throws Exception {
        var upload = soon(files).stageFiles();
        // The first message names the file, those that follow have its bytes.
        var header = StageFilesHeader.newBuilder().setWorkspace(workspace).setPath("work/greeting.txt");
        upload.write(StageFilesRequest.newBuilder().setHeader(header).build());
        upload.write(StageFilesRequest.newBuilder().setData(ByteString.copyFromUtf8("hello\n")).build());
        upload.halfClose();
        for (var file : upload.read().getFilesList()) {
            System.out.printf("staged %s, %d bytes%n", file.getPath(), file.getSizeBytes());
        }
    }

    /** Runs a command, and passes its output on as it comes. */
    static void runCommand(ExecServiceGrpc.ExecServiceBlockingV2Stub execs, String workspace) throws Exception {
        var spec = ExecSpec.newBuilder().setShell(
                "cat work/greeting.txt; echo a warning >&2; tr a-z A-Z < work/greeting.txt > $OUTPUT_DIR/shout.txt; exit 3");
        var events = execs.runExec(RunExecRequest.newBuilder().setParent(workspace).setSpec(spec).build());
        while (events.hasNext()) {
            ExecEvent event = events.read();
            switch (event.getEventCase()) {
                case OUTPUT -> {
                    boolean isError = event.getOutput().getStream() == OutputStream.OUTPUT_STREAM_STDERR;
                    event.getOutput().getData().writeTo(isError ? System.err : System.out);
                }
                case EXITED -> {
                    ExecResult result = event.getExited().getResult();
                    System.out.printf("exit code %d, %s%n", result.getExitCode(), result.getReason());
                }
                default -> { }
            }
        }
    }

    /** Starts a command, writes to its stdin, and polls until it has ended and all of its output has arrived. */
    static void feedCommand(ExecServiceGrpc.ExecServiceBlockingV2Stub execs, String workspace) throws Exception {
        var spec = ExecSpec.newBuilder().addArgv("sort").setOpenStdin(true);
        var start = StartExecRequest.newBuilder().setParent(workspace).setSpec(spec).build();
        String name = soon(execs).startExec(start).getName();
        var stdin = execs.streamStdin();
        stdin.write(StreamStdinRequest.newBuilder().setHeader(StreamStdinHeader.newBuilder().setName(name))
                .setData(ByteString.copyFromUtf8("pear\n")).build());
        var apples = ByteString.copyFromUtf8("apple\n".repeat(20_000));
        stdin.write(StreamStdinRequest.newBuilder().setData(apples).setEof(true).build());
        stdin.halfClose();
        stdin.read();
        ByteString sorted = ByteString.EMPTY;
        var poll = PollExecRequest.newBuilder().setName(name).setWait(Duration.newBuilder().setSeconds(10));
        PollExecResponse polled;
        do {
            polled = soon(execs).pollExec(poll.build());
            if (polled.getGapsCount() > 0) throw new IllegalStateException("output was lost");
            for (OutputEvent piece : polled.getOutputsList()) sorted = sorted.concat(piece.getData());
            poll.setOffsets(polled.getNextOffsets());
        } while (polled.getState() != ExecState.EXEC_STATE_CLOSED || polled.getOutputsCount() > 0);
        String[] lines = sorted.toStringUtf8().split("\n");
        System.out.printf("sorted %d bytes, the last line is %s%n", sorted.size(), lines[lines.length - 1]);
    }

    /** Kills a command with everything that it started. */
    static void killCommand(ExecServiceGrpc.ExecServiceBlockingV2Stub execs, String workspace) throws Exception {
        var spec = ExecSpec.newBuilder().addArgv("sleep").addArgv("1000");
        var exec = soon(execs).startExec(StartExecRequest.newBuilder().setParent(workspace).setSpec(spec).build());
        var result = soon(execs).killExec(KillExecRequest.newBuilder().setName(exec.getName()).build()).getResult();
        System.out.printf("killed by signal %d, %s%n", result.getSignal(), result.getReason());
    }

    /** Collects what commands left in their output directory. */
    static void collectFiles(FileServiceGrpc.FileServiceBlockingV2Stub files, String workspace) throws Exception {
        var spec = CollectSpec.newBuilder().addGlobs("$OUTPUT_DIR/**");
        var collected = files.collectOutputs(
                CollectOutputsRequest.newBuilder().setWorkspace(workspace).setSpec(spec).build());
        while (collected.hasNext()) {
            CollectOutputsResponse part = collected.read();
            if (part.hasFile()) System.out.printf("collected %s: ", part.getFile().getPath());
            part.getData().writeTo(System.out);
        }
    }

    /** Prints the reason of an error and, if the request was wrong, its wrong fields. */
    static void explain(Callable<?> call) throws Exception {
        try {
            call.call();
        } catch (StatusException error) {
            var status = StatusProto.fromThrowable(error);
            if (status.getDetailsCount() == 0) {
                // Not an answer of skilld: for example, it cannot be reached.
                System.out.println(error.getMessage());
            }
            for (Any detail : status.getDetailsList()) {
                if (detail.is(ErrorInfo.class)) {
                    ErrorInfo info = detail.unpack(ErrorInfo.class);
                    System.out.printf("%s of %s%n", info.getReason(), info.getDomain());
                } else if (detail.is(BadRequest.class)) {
                    for (var wrong : detail.unpack(BadRequest.class).getFieldViolationsList()) {
                        System.out.println("wrong field: " + wrong.getField());
                    }
                }
            }
        }
    }

    static void runAll(ManagedChannel channel, CallCredentials token) throws Exception {
        var workspaces = WorkspaceServiceGrpc.newBlockingV2Stub(channel).withCallCredentials(token);
        var execs = ExecServiceGrpc.newBlockingV2Stub(channel).withCallCredentials(token);
        var files = FileServiceGrpc.newBlockingV2Stub(channel).withCallCredentials(token);
        String workspace = soon(workspaces).createWorkspace(CreateWorkspaceRequest.getDefaultInstance()).getName();
        try {
            stageFile(files, workspace);
            runCommand(execs, workspace);
            feedCommand(execs, workspace);
            killCommand(execs, workspace);
            collectFiles(files, workspace);
        } finally {
            soon(workspaces).deleteWorkspace(DeleteWorkspaceRequest.newBuilder().setName(workspace).build());
        }
        var missing = GetWorkspaceRequest.newBuilder().setName(workspace).build();
        explain(() -> soon(workspaces).getWorkspace(missing));
        var wrong = CreateWorkspaceRequest.newBuilder().setWorkspaceId("Not an id").build();
        explain(() -> soon(workspaces).createWorkspace(wrong));
    }

    public static void main(String[] arguments) throws Exception {
        String ca = System.getenv("SKILLD_CA");
        // Its threads keep the program alive. Native code for Linux, which TLS does not need.
        var loop = ca == null ? new EpollEventLoopGroup(1) : null;
        try {
            ManagedChannel channel = connect(System.getenv("SKILLD_TARGET"), ca, loop);
            try {
                runAll(channel, ca == null ? null : new BearerToken());
            } finally {
                channel.shutdownNow();
            }
        } finally {
            if (loop != null) loop.shutdownGracefully();
        }
    }
}
