//! Spawns a program again and again and prints how long that took: the reference "inside" of the benchmarks. The bench
//! compiles this file alone, as a static program, and runs it in a workspace, so it uses nothing but std.
//!
//! `spawner each COUNT PROGRAM [ARGUMENT]...` prints one line per spawn; `spawner together COUNT PROGRAM [ARGUMENT]...`
//! spawns COUNT times from each of 16 threads and prints one line for all of them. Lines are nanoseconds.

use std::error::Error;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::Instant;

const USAGE: &str = "usage: spawner each|together COUNT PROGRAM [ARGUMENT]...";
const THREADS: usize = 16;

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

fn main() -> Outcome {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [mode, count, argv @ ..] = args.as_slice() else {
        return Err(USAGE.into());
    };
    let count: usize = count.parse()?;
    let mut lines = String::new();
    match mode.as_str() {
        "each" => {
            for _ in 0..count {
                let started = Instant::now();
                run_to_end(argv)?;
                lines.push_str(&format!("{}\n", started.elapsed().as_nanos()));
            }
        }
        "together" => {
            let started = Instant::now();
            spawn_from_threads(count, argv)?;
            lines = format!("{}\n", started.elapsed().as_nanos());
        }
        _ => return Err(USAGE.into()),
    }
    Ok(std::io::stdout().write_all(lines.as_bytes())?)
}

fn spawn_from_threads(count: usize, argv: &[String]) -> Outcome {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| scope.spawn(|| (0..count).try_for_each(|_| run_to_end(argv))))
            .collect();
        for thread in threads {
            thread.join().map_err(|_| "a thread panicked")??;
        }
        Ok(())
    })
}

/// Spawns a program with pipes on both outputs, reads them to their ends and waits for the exit. std does this with
/// posix_spawn, as nothing here needs a fork.
fn run_to_end(argv: &[String]) -> Outcome {
    let (program, arguments) = argv.split_first().ok_or(USAGE)?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut output = Vec::with_capacity(64);
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_end(&mut output)?;
    }
    if let Some(mut stderr) = child.stderr.take() {
        stderr.read_to_end(&mut output)?;
    }
    let status = child.wait()?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("{program} ended with {status}").into()),
    }
}
