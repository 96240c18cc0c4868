//! Section `live`: delay from a program's write to its client. Both read the kernel's monotonic clock, which a
//! container shares with its host: the program prints the time of its write, and the client subtracts it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::time::{ClockId, clock_gettime};
use skilld_client::{Client, MessageStream};
use skilld_proto::v1::exec_event::Event;
use skilld_proto::v1::output_event::Content;
use skilld_proto::v1::{
    ExecEvent, ExecSpec, ExecTerminal, OutputEvent, PollExecRequest, RunExecRequest,
    StartExecRequest, StreamOffsets, WriteStdinRequest,
};
use skilld_tests::Daemon;
use skilld_tests::exec::{argv, workspace};

use crate::report::{Budget, FigureSeries, TableRow};
use crate::{BenchOptions, daemon_calls};

/// Program that prints the time again and again, a few milliseconds apart.
const CLOCK: &str = "import os, sys, time
for _ in range(int(sys.argv[1])):
    time.sleep(0.003)
    os.write(1, b'%d\\n' % time.monotonic_ns())";

/// Maximum length of a typed line; a terminal does not echo longer ones.
const LINE_MAX: usize = 50;

const MS: u64 = 1_000_000;

fn now() -> Result<u64> {
    let now = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?);
    Ok(u64::try_from(now.as_nanos())?)
}

/// Measures first bytes on a stream, wake-ups of a poll, and the echo of a terminal.
pub(crate) async fn live(bench: &BenchOptions) -> Result<Vec<TableRow>> {
    let cpus = std::thread::available_parallelism()?.get();
    let options = daemon_calls::daemon_options().set("pools.default.cpus", &format!("{cpus}.0"));
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    daemon_calls::wait_until_warm(client, "default").await?;
    let count = bench.times(1_000, 200);
    let clock = argv(["python3", "-c", CLOCK, &count.to_string()]);
    let streamed = streamed(client, &name, clock.clone()).await?;
    let polled = polled(client, &name, clock).await?;
    let echoed = echoed(client, &name, count).await?;
    daemon.stop().await?;
    let within = |p50, p99| Budget::Soon { p50, p99 };
    Ok(vec![
        TableRow::new(
            "write of a program → its reader",
            &streamed,
            within(Some(MS), Some(5 * MS)),
        ),
        TableRow::new(
            "write of a program → PollExec",
            &polled,
            within(Some(MS), None),
        ),
        TableRow::new(
            "WriteStdin → echo of the terminal",
            &echoed,
            within(None, Some(3 * MS)),
        ),
    ])
}

/// Parser of the printed times, which keeps the beginning of an incomplete line.
#[derive(Default)]
struct TimeParser(Vec<u8>);

impl TimeParser {
    fn take(&mut self, output: &OutputEvent, times: &mut FigureSeries) -> Result<()> {
        let at = now()?;
        if let Some(Content::Data(data)) = &output.content {
            self.0.extend_from_slice(data);
        }
        while let Some(end) = self.0.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.0.drain(..=end).collect();
            let written: u64 = std::str::from_utf8(&line)?.trim().parse()?;
            times.time(Duration::from_nanos(at.saturating_sub(written)))?;
        }
        Ok(())
    }
}

async fn streamed(client: &Client, name: &str, spec: ExecSpec) -> Result<FigureSeries> {
    let request = RunExecRequest {
        parent: name.to_owned(),
        spec: Some(spec),
        ..RunExecRequest::default()
    };
    let (mut times, mut lines) = (FigureSeries::times(), TimeParser::default());
    let mut events = client.run_exec(request).await?;
    while let Some(event) = events.next().await? {
        if let Some(Event::Output(output)) = event.event {
            lines.take(&output, &mut times)?;
        }
    }
    Ok(times)
}

async fn polled(client: &Client, name: &str, spec: ExecSpec) -> Result<FigureSeries> {
    let exec = client.start_exec(start(name, spec)).await?;
    let (mut times, mut lines) = (FigureSeries::times(), TimeParser::default());
    let mut offsets = StreamOffsets::default();
    loop {
        let request = PollExecRequest {
            name: exec.name.clone(),
            offsets: Some(offsets),
            wait: Duration::from_secs(10).try_into().ok(),
            settle_duration: Some(prost_types::Duration::default()),
            ..PollExecRequest::default()
        };
        let answer = client.poll_exec(request).await?;
        for output in &answer.outputs {
            lines.take(output, &mut times)?;
        }
        offsets = answer.next_offsets.context("no offsets")?;
        if answer.result.is_some() && answer.outputs.is_empty() {
            return Ok(times);
        }
    }
}

fn start(name: &str, spec: ExecSpec) -> StartExecRequest {
    StartExecRequest {
        parent: name.to_owned(),
        spec: Some(spec),
        ..StartExecRequest::default()
    }
}

/// Measures the echo of typed characters. The kernel makes the echo, so only the way there and back counts.
async fn echoed(client: &Client, name: &str, count: usize) -> Result<FigureSeries> {
    let spec = ExecSpec {
        open_stdin: true,
        terminal: Some(ExecTerminal::default()),
        ..argv(["sh", "-c", "cat >/dev/null"])
    };
    let request = RunExecRequest {
        parent: name.to_owned(),
        spec: Some(spec),
        ..RunExecRequest::default()
    };
    let mut events = client.run_exec(request).await?;
    let first = events.next().await?.and_then(|event| event.event);
    let Some(Event::Started(started)) = first else {
        anyhow::bail!("not Started: {first:?}");
    };
    let (mut times, mut expected) = (FigureSeries::times(), 0);
    for number in 1..=count {
        let ends = number % LINE_MAX == 0;
        // A line's end is echoed as two bytes.
        expected += 1 + i64::from(ends);
        let began = Instant::now();
        client
            .write_stdin(WriteStdinRequest {
                name: started.name.clone(),
                data: if ends { "\n" } else { "a" }.into(),
                ..WriteStdinRequest::default()
            })
            .await?;
        read_to(&mut events, expected).await?;
        times.time(began.elapsed())?;
    }
    client.kill_exec(&started.name).await?;
    Ok(times)
}

async fn read_to(events: &mut MessageStream<ExecEvent>, end: i64) -> Result<()> {
    loop {
        let event = events.next().await?.and_then(|event| event.event);
        match event.context("the stream ended")? {
            Event::Output(output) => {
                let Some(Content::Data(data)) = output.content else {
                    anyhow::bail!("no bytes");
                };
                let at = output.offset + i64::try_from(data.len())?;
                ensure!(at <= end, "{at} bytes instead of {end}");
                if at == end {
                    return Ok(());
                }
            }
            Event::Heartbeat(_) => {}
            other @ (Event::Started(_)
            | Event::Gap(_)
            | Event::Exited(_)
            | Event::Closed(_)
            | Event::Workspace(_)
            | Event::Staged(_)
            | Event::File(_)
            | Event::FileData(_)
            | Event::FileEnd(_)
            | Event::Summary(_)) => {
                anyhow::bail!("not output: {other:?}")
            }
        }
    }
}
