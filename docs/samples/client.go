// A client of skilld in Go. docs/languages.md says how to generate the package skilld.dev/api/skilld/v1.
//
// SKILLD_TARGET is unix:///run/skilld/skilld.sock or host:port. With SKILLD_CA, the PEM file of a certificate
// authority, the connection uses TLS and every call sends the token SKILLD_TOKEN. SKILLD_SHARE is the directory of
// skilld's files.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	pb "skilld.dev/api/skilld/v1"
)

type bearerToken string

func (token bearerToken) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(token)}, nil
}

func (bearerToken) RequireTransportSecurity() bool { return true }

func connect() *grpc.ClientConn {
	target, ca, share := os.Getenv("SKILLD_TARGET"), os.Getenv("SKILLD_CA"), os.Getenv("SKILLD_SHARE")
	if share == "" {
		share = "/usr/share/skilld"
	}
	// Repeats the calls that may be repeated.
	retries := grpc.WithDefaultServiceConfig(string(must(os.ReadFile(share + "/service-config.json"))))
	if ca == "" {
		return must(grpc.NewClient(target, retries, grpc.WithTransportCredentials(insecure.NewCredentials())))
	}
	tls := must(credentials.NewClientTLSFromFile(ca, ""))
	token := bearerToken(os.Getenv("SKILLD_TOKEN"))
	return must(grpc.NewClient(target, retries, grpc.WithTransportCredentials(tls), grpc.WithPerRPCCredentials(token)))
}

func main() {
	// The deadline of all calls together.
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	conn := connect()
	defer conn.Close()
	workspaces, execs := pb.NewWorkspaceServiceClient(conn), pb.NewExecServiceClient(conn)
	files := pb.NewFileServiceClient(conn)

	workspace := must(workspaces.CreateWorkspace(ctx, &pb.CreateWorkspaceRequest{})).Name
	defer func() {
		// Not ctx, whose deadline may have passed.
		soon, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		workspaces.DeleteWorkspace(soon, &pb.DeleteWorkspaceRequest{Name: workspace, AllowMissing: true})
	}()

	// Stage a file: the first message names it, those that follow have its bytes.
	upload := must(files.StageFiles(ctx))
	header := &pb.StageFilesHeader{Workspace: workspace, Path: "work/greeting.txt"}
	check(upload.Send(&pb.StageFilesRequest{Payload: &pb.StageFilesRequest_Header{Header: header}}))
	check(upload.Send(&pb.StageFilesRequest{Payload: &pb.StageFilesRequest_Data{Data: []byte("hello\n")}}))
	staged := must(upload.CloseAndRecv()).Files[0]
	fmt.Printf("staged %s, %d bytes\n", staged.Path, staged.SizeBytes)

	// Run a command, and pass its output on as it comes.
	shell := "cat work/greeting.txt; echo a warning >&2; tr a-z A-Z < work/greeting.txt > $OUTPUT_DIR/shout.txt; exit 3"
	events := must(execs.RunExec(ctx, &pb.RunExecRequest{Parent: workspace, Spec: &pb.ExecSpec{Shell: shell}}))
	each(events.Recv, func(event *pb.ExecEvent) {
		if output := event.GetOutput(); output.GetStream() == pb.OutputStream_OUTPUT_STREAM_STDERR {
			os.Stderr.Write(output.GetData())
		} else {
			os.Stdout.Write(output.GetData())
		}
		if exited := event.GetExited(); exited != nil {
			fmt.Printf("exit code %d, %s\n", exited.Result.ExitCode, exited.Result.Reason)
		}
	})

	// Start a command, write to its stdin, and poll until it has ended and all of its output has arrived.
	sorting := &pb.ExecSpec{Argv: []string{"sort"}, OpenStdin: true}
	exec := must(execs.StartExec(ctx, &pb.StartExecRequest{Parent: workspace, Spec: sorting})).Name
	stdin := must(execs.StreamStdin(ctx))
	check(stdin.Send(&pb.StreamStdinRequest{Header: &pb.StreamStdinHeader{Name: exec}, Data: []byte("pear\n")}))
	check(stdin.Send(&pb.StreamStdinRequest{Data: []byte(strings.Repeat("apple\n", 20_000)), Eof: true}))
	must(stdin.CloseAndRecv())
	var sorted strings.Builder
	poll := &pb.PollExecRequest{Name: exec, Wait: durationpb.New(10 * time.Second)}
	for {
		polled := must(execs.PollExec(ctx, poll))
		for _, gap := range polled.Gaps {
			panic(fmt.Sprintf("output was lost from byte %d to %d", gap.StartOffset, gap.EndOffset))
		}
		for _, output := range polled.Outputs {
			sorted.Write(output.GetData())
		}
		poll.Offsets = polled.NextOffsets
		if polled.State == pb.ExecState_EXEC_STATE_CLOSED && len(polled.Outputs) == 0 {
			break
		}
	}
	lines := strings.Fields(sorted.String())
	fmt.Printf("sorted %d bytes, the last line is %s\n", sorted.Len(), lines[len(lines)-1])

	// Kill a command with everything that it started.
	endless := &pb.ExecSpec{Argv: []string{"sleep", "1000"}}
	exec = must(execs.StartExec(ctx, &pb.StartExecRequest{Parent: workspace, Spec: endless})).Name
	killed := must(execs.KillExec(ctx, &pb.KillExecRequest{Name: exec})).Result
	fmt.Printf("killed by signal %d, %s\n", killed.Signal, killed.Reason)

	// Collect what commands left in their output directory.
	globs := &pb.CollectSpec{Globs: []string{"$OUTPUT_DIR/**"}}
	collected := must(files.CollectOutputs(ctx, &pb.CollectOutputsRequest{Workspace: workspace, Spec: globs}))
	each(collected.Recv, func(part *pb.CollectOutputsResponse) {
		if file := part.GetFile(); file != nil {
			fmt.Printf("collected %s: ", file.Path)
		}
		os.Stdout.Write(part.GetData())
	})

	must(workspaces.DeleteWorkspace(ctx, &pb.DeleteWorkspaceRequest{Name: workspace}))
	_, err := workspaces.GetWorkspace(ctx, &pb.GetWorkspaceRequest{Name: workspace})
	explain(err)
	_, err = workspaces.CreateWorkspace(ctx, &pb.CreateWorkspaceRequest{WorkspaceId: "Not an id"})
	explain(err)
}

// explain prints the reason of an error and, if the request was wrong, its wrong fields.
func explain(err error) {
	answer := status.Convert(err)
	if len(answer.Details()) == 0 {
		// Not an answer of skilld: for example, it cannot be reached.
		fmt.Printf("%s: %s\n", answer.Code(), answer.Message())
	}
	for _, detail := range answer.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			fmt.Printf("%s of %s\n", detail.Reason, detail.Domain)
		case *errdetails.BadRequest:
			for _, violation := range detail.FieldViolations {
				fmt.Println("wrong field:", violation.Field)
			}
		}
	}
}

// each calls use with every message of a stream.
func each[T any](receive func() (T, error), use func(T)) {
	for {
		message, err := receive()
		if errors.Is(err, io.EOF) {
			return
		}
		check(err)
		use(message)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

// check ends the program on an error. Deferred calls still delete the workspace.
func check(err error) {
	if err != nil {
		panic(err)
	}
}
