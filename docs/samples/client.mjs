// A client of skilld in Node.js, with @grpc/grpc-js and @grpc/proto-loader. Nothing is generated: the loader reads
// skilld.binpb. Fields have their names of the .proto files.
//
// SKILLD_TARGET is unix:///run/skilld/skilld.sock or host:port. With SKILLD_CA, the PEM file of a certificate
// authority, the connection uses TLS and every call sends the token SKILLD_TOKEN. SKILLD_SHARE is the directory of
// skilld's files.
import { readFileSync } from "node:fs";
import { promisify } from "node:util";
import grpc from "@grpc/grpc-js";
import { loadFileDescriptorSetFromBuffer } from "@grpc/proto-loader";

const { SKILLD_TARGET, SKILLD_CA, SKILLD_TOKEN, SKILLD_SHARE = "/usr/share/skilld" } = process.env;
// Repeats the calls that may be repeated.
const options = { "grpc.service_config": readFileSync(`${SKILLD_SHARE}/service-config.json`, "utf8") };
const definition = loadFileDescriptorSetFromBuffer(readFileSync(`${SKILLD_SHARE}/skilld.binpb`), {
    longs: String, // JavaScript's numbers lose the precision of int64 beyond 2^53
    enums: String,
    defaults: true,
    oneofs: true,
});
const { skilld } = grpc.loadPackageDefinition(definition);

function credentials() {
    if (!SKILLD_CA) return grpc.credentials.createInsecure();
    const token = grpc.credentials.createFromMetadataGenerator((_, done) => {
        const metadata = new grpc.Metadata();
        metadata.set("authorization", `Bearer ${SKILLD_TOKEN}`);
        done(null, metadata);
    });
    return grpc.credentials.combineChannelCredentials(grpc.credentials.createSsl(readFileSync(SKILLD_CA)), token);
}

/**
 * Makes a client of a service. `client.async.method(request)` calls a method that has one request and one response, with
 * a deadline, and returns a promise.
 */
function connect(service) {
    const client = new skilld.v1[service](SKILLD_TARGET, credentials(), options);
    const call = (method, request) => promisify(client[method]).call(client, request, { deadline: Date.now() + 60_000 });
    const async = new Proxy({}, { get: (_, method) => (request) => call(method, request) });
    return Object.assign(client, { async });
}

/** Sends messages to a method that takes a stream, and returns its response. */
function send(client, method, messages) {
    return new Promise((resolve, reject) => {
        const call = client[method]((error, response) => (error ? reject(error) : resolve(response)));
        for (const message of messages) call.write(message);
        call.end();
    });
}

async function stageFile(files, workspace) {
    // The first message names the file, those that follow have its bytes.
    const header = { workspace, path: "work/greeting.txt" };
    const staged = await send(files, "stageFiles", [{ header }, { data: Buffer.from("hello\n") }]);
    for (const file of staged.files) console.log(`staged ${file.path}, ${file.size_bytes} bytes`);
}

/** Runs a command, and passes its output on as it comes. */
async function runCommand(execs, parent) {
    const shell = "cat work/greeting.txt; echo a warning >&2; tr a-z A-Z < work/greeting.txt > $OUTPUT_DIR/shout.txt; exit 3";
    for await (const { event, output, exited } of execs.runExec({ parent, spec: { shell } })) {
        if (event === "output") {
            const stream = output.stream === "OUTPUT_STREAM_STDERR" ? process.stderr : process.stdout;
            stream.write(output.data);
        } else if (event === "exited") {
            console.log(`exit code ${exited.result.exit_code}, ${exited.result.reason}`);
        }
    }
}

/** Starts a command, writes to its stdin, and polls until it has ended and all of its output has arrived. */
async function feedCommand(execs, parent) {
    const { name } = await execs.async.startExec({ parent, spec: { argv: ["sort"], open_stdin: true } });
    await send(execs, "streamStdin", [
        { header: { name }, data: Buffer.from("pear\n") },
        { data: Buffer.from("apple\n".repeat(20_000)), eof: true },
    ]);
    const pieces = [];
    let polled = { next_offsets: null };
    do {
        polled = await execs.async.pollExec({ name, wait: { seconds: 10 }, offsets: polled.next_offsets });
        for (const gap of polled.gaps) throw new Error(`output was lost from byte ${gap.start_offset} to ${gap.end_offset}`);
        for (const piece of polled.outputs) pieces.push(piece.data);
    } while (polled.state !== "EXEC_STATE_CLOSED" || polled.outputs.length > 0);
    const sorted = Buffer.concat(pieces);
    console.log(`sorted ${sorted.length} bytes, the last line is ${sorted.toString().trim().split("\n").pop()}`);
}

/** Kills a command with everything that it started. */
async function killCommand(execs, parent) {
    const { name } = await execs.async.startExec({ parent, spec: { argv: ["sleep", "1000"] } });
    const { result } = await execs.async.killExec({ name });
    console.log(`killed by signal ${result.signal}, ${result.reason}`);
}

/** Collects what commands left in their output directory. */
async function collectFiles(files, workspace) {
    for await (const part of files.collectOutputs({ workspace, spec: { globs: ["$OUTPUT_DIR/**"] } })) {
        if (part.payload === "file") process.stdout.write(`collected ${part.file.path}: `);
        if (part.payload === "data") process.stdout.write(part.data);
    }
}

/** Prints the reason of an error and, if the request was wrong, its wrong fields. */
async function explain(call) {
    const error = await call.then(() => null, (error) => error);
    const [status] = error?.metadata?.get("grpc-status-details-bin") ?? [];
    if (!status) {
        // Not an answer of skilld: for example, it cannot be reached.
        console.log(String(error));
        return;
    }
    for (const { type_url, value } of definition["google.rpc.Status"].deserialize(status).details) {
        const type = type_url.split("/").pop();
        const detail = definition[type].deserialize(value);
        if (type === "google.rpc.ErrorInfo") console.log(`${detail.reason} of ${detail.domain}`);
        if (type === "google.rpc.BadRequest") {
            for (const { field } of detail.field_violations) console.log(`wrong field: ${field}`);
        }
    }
}

const [workspaces, execs, files] = ["WorkspaceService", "ExecService", "FileService"].map(connect);
const { name: workspace } = await workspaces.async.createWorkspace({});
try {
    await stageFile(files, workspace);
    await runCommand(execs, workspace);
    await feedCommand(execs, workspace);
    await killCommand(execs, workspace);
    await collectFiles(files, workspace);
} finally {
    await workspaces.async.deleteWorkspace({ name: workspace });
}
await explain(workspaces.async.getWorkspace({ name: workspace }));
await explain(workspaces.async.createWorkspace({ workspace_id: "Not an id" }));
for (const client of [workspaces, execs, files]) client.close();
