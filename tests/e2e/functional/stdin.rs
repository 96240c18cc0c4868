//! stdin that clients write to, end to end.
//!
//! Docker: client, daemon and guest relay it to a program in a container.

use anyhow::{Result, ensure};
use skilld_client::Client;
use skilld_client::v1::{
    ErrorReason, ExecSpec, StartExecRequest, StreamOffsets, StreamStdinHeader, StreamStdinRequest,
    WriteStdinRequest,
};
use skilld_tests::exec::{attach, shell};
use skilld_tests::{DefaultDaemon, expect_refusal};

const CHUNK: usize = 256 << 10;

async fn start(client: &Client, workspace: &str, id: &str, spec: ExecSpec) -> Result<String> {
    let request = StartExecRequest {
        parent: workspace.to_owned(),
        exec_id: id.to_owned(),
        spec: Some(ExecSpec {
            open_stdin: true,
            ..spec
        }),
    };
    Ok(client.start_exec(request).await?.name)
}

fn input(name: &str, offset: Option<i64>, data: &[u8], eof: bool) -> WriteStdinRequest {
    WriteStdinRequest {
        name: name.to_owned(),
        offset,
        data: data.to_vec().into(),
        eof,
        ..WriteStdinRequest::default()
    }
}

fn message(name: Option<&str>, data: &[u8], eof: bool) -> StreamStdinRequest {
    StreamStdinRequest {
        header: name.map(|name| StreamStdinHeader {
            name: name.to_owned(),
            offset: None,
        }),
        data: data.to_vec().into(),
        eof,
    }
}

#[tokio::test]
async fn a_stream_of_stdin_arrives_whole() -> Result<()> {
    let (daemon, ws) = DefaultDaemon::with_workspace().await?;
    let client = &daemon.client;
    let name = start(client, &ws, "sum", shell("sha256sum")).await?;
    let chunk: Vec<u8> = (0..CHUNK).map(|n| (n % 251).to_le_bytes()[0]).collect();
    let mut messages = vec![message(Some(&name), &chunk, false)];
    messages.extend(vec![message(None, &chunk, false); 255]);
    messages.push(message(None, b"", true));
    let expected = skilld_tests::files::sha256(&chunk.repeat(256));
    let mut stub = client.execs();
    let answer = stub.stream_stdin(tokio_stream::iter(messages)).await?;
    ensure!(answer.into_inner().committed_offset == 64 << 20);
    let outcome = attach(client, &name, StreamOffsets::default()).await?;
    ensure!(outcome.text() == format!("{expected}  -\n"), "{outcome:?}");

    // A message for another exec, or too large a one, ends the stream and leaves stdin open.
    let name = start(client, &ws, "strict", shell("cat")).await?;
    let wrong = [
        message(Some(&format!("{ws}/execs/sum")), b"x", false),
        message(None, &vec![0; CHUNK + 1], false),
    ];
    for second in wrong {
        let messages = vec![message(Some(&name), b"a", false), second];
        let answer = stub.stream_stdin(tokio_stream::iter(messages)).await;
        expect_refusal(answer, ErrorReason::InvalidRequest)?;
    }
    let empty = stub.stream_stdin(tokio_stream::iter(Vec::new())).await;
    expect_refusal(empty, ErrorReason::InvalidRequest)?;
    client.write_stdin(input(&name, None, b"!", true)).await?;
    let outcome = attach(client, &name, StreamOffsets::default()).await?;
    ensure!(
        ["!", "a!", "aa!"].contains(&&*outcome.text()),
        "{outcome:?}"
    );
    daemon.stop().await
}
