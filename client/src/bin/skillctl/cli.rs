//! The command line: flags for all commands, the list of commands, and the way to each.

use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use skilld_client::{Client, DEFAULT_ENDPOINT};

use crate::context::Context;
use crate::output::Output;
use crate::{
    artifact, attach, collect, exec, execs, files, mcp, poll, run, server, skill, stage, stdin,
    tool, workspace,
};

/// Run Agent Skills in warm, locked-down containers.
#[derive(Debug, Parser)]
#[command(name = "skillctl", version, disable_help_subcommand = true, after_help = EXAMPLE)]
pub(crate) struct Cli {
    /// Where the daemon listens: unix:/path or http://127.0.0.1:PORT.
    #[arg(long, global = true, env = "SKILLD_ENDPOINT", default_value = DEFAULT_ENDPOINT)]
    endpoint: String,
    /// text for people; json prints the API's messages, one per line.
    #[arg(short, long, global = true, value_enum, default_value_t = Format::Text)]
    output: Format,
    #[command(subcommand)]
    command: Command,
}

const EXAMPLE: &str = "\
Example:
  skillctl run csv-report --input sales.csv --to results -- \\
      'python3 scripts/csv_report.py $INPUTS_DIR/sales.csv'

Exit codes: 0 ok, 1 failed, 2 usage; exec, run and attach pass on the program's own code, or
128 + the signal that killed it.";

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Text,
    Json,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Run),
    #[command(subcommand)]
    Workspace(workspace::Workspace),
    Stage(stage::Stage),
    Exec(exec::Exec),
    Ps(execs::Ps),
    Attach(attach::Attach),
    Poll(poll::Poll),
    Stdin(stdin::Stdin),
    Signal(execs::Signal),
    Kill(execs::Kill),
    Forget(execs::Forget),
    Ls(files::Ls),
    Cat(files::Cat),
    Collect(collect::Collect),
    #[command(subcommand)]
    Skill(skill::Skill),
    #[command(subcommand)]
    Artifact(artifact::Artifact),
    #[command(subcommand)]
    Tool(tool::Tool),
    Mcp(mcp::Mcp),
    #[command(subcommand)]
    Pool(server::Pool),
    #[command(subcommand)]
    Server(server::Server),
    Problems(server::Problems),
    Drain(server::Drain),
    Completion(Completion),
}

/// Print a completion script for a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  skillctl completion bash > /etc/bash_completion.d/skillctl")]
struct Completion {
    shell: Shell,
}

impl Cli {
    /// Does what was asked; the code to exit with.
    pub(crate) async fn run(self) -> anyhow::Result<u8> {
        let output = Output::new(self.output);
        if let Command::Completion(Completion { shell }) = self.command {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Self::command(), "skillctl", &mut script);
            output.bytes(&script)?;
            return Ok(0);
        }
        let context = Context {
            client: Client::connect(&self.endpoint).await?,
            output,
        };
        match self.command {
            Command::Run(command) => command.run(&context).await,
            Command::Workspace(command) => command.run(&context).await,
            Command::Stage(command) => command.run(&context).await,
            Command::Exec(command) => command.run(&context).await,
            Command::Ps(command) => command.run(&context).await,
            Command::Attach(command) => command.run(&context).await,
            Command::Poll(command) => command.run(&context).await,
            Command::Stdin(command) => command.run(&context).await,
            Command::Signal(command) => command.run(&context).await,
            Command::Kill(command) => command.run(&context).await,
            Command::Forget(command) => command.run(&context).await,
            Command::Ls(command) => command.run(&context).await,
            Command::Cat(command) => command.run(&context).await,
            Command::Collect(command) => command.run(&context).await,
            Command::Skill(command) => command.run(&context).await,
            Command::Artifact(command) => command.run(&context).await,
            Command::Tool(command) => command.run(&context).await,
            Command::Mcp(command) => command.run(&context).await,
            Command::Pool(command) => command.run(&context).await,
            Command::Server(command) => command.run(&context).await,
            Command::Problems(command) => command.run(&context).await,
            Command::Drain(command) => command.run(&context).await,
            Command::Completion(_) => Ok(0),
        }
    }
}
