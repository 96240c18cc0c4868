//! The command line: flags of every command, the list of commands, and how each is run.

use std::ffi::OsString;

use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::commands::command_group::command_group;
use crate::commands::connection_args::ConnectionArgs;
use crate::commands::context::ContextCommand;
use crate::commands::token::TokenCommand;
use crate::commands::{
    artifact, audit, collect, complete, copy, exec, exec_output, execs, files, health, identity,
    image, man_pages, mcp, remove, run, server, skill, stage, stdin, tenant, tool, version,
    workspace,
};
use crate::output::error_report;
use crate::output::{self, OutputFormat, OutputOptions};

/// Run Agent Skills in warm, locked-down containers.
#[derive(Debug, Parser)]
#[command(name = "skillctl", version, disable_help_subcommand = true, after_help = EXAMPLE)]
pub(crate) struct Cli {
    #[command(flatten)]
    connection: ConnectionArgs,
    /// Format of results.
    #[arg(short, long, global = true, value_enum, default_value_t = OutputFormat::Text)]
    output: OutputFormat,
    /// Print no remarks on stderr, and only the ids of lists.
    #[arg(short, long, global = true)]
    quiet: bool,
    #[command(subcommand)]
    command: Command,
}

const EXAMPLE: &str = "\
Paths: every path in a workspace is relative to /workspace, which is also where commands start. With --skill a command
starts in the skill's root, where out/, work/ and inputs/ lead to the workspace's; inputs/ is short for work/inputs/.

Example:
  skillctl run csv-report --input sales.csv --to results -- \\
      'python3 scripts/csv_report.py $INPUTS_DIR/sales.csv'

Exit codes: 0 ok, 1 failed, 2 usage; exec, run, attach and wait pass on the program's own code, or
128 + the signal that killed it, and have 125 if skillctl itself failed or its command line is wrong.";

/// Commands that pass on the exit code of a program.
const PASS_CODE: [&str; 4] = ["attach", "exec", "run", "wait"];

#[derive(Debug, Subcommand)]
#[expect(clippy::large_enum_variant, reason = "there is one in a process")]
enum Command {
    #[command(flatten)]
    Daemon(DaemonCommand),
    #[command(subcommand)]
    Audit(audit::Audit),
    #[command(subcommand)]
    Context(ContextCommand),
    #[command(subcommand)]
    Token(TokenCommand),
    Health(health::Health),
    /// Show the version of this program and of the daemon.
    #[command(after_help = "Example:\n  skillctl version")]
    Version,
    Completion(complete::Completion),
    #[command(hide = true)]
    ManPages(man_pages::ManPages),
}

// Without a doc comment, which would replace the help text of the program.
command_group! {
    DaemonCommand {
        Run(run::Run),
        #[command(subcommand, visible_alias = "ws")]
        Workspace(workspace::Workspace),
        Stage(stage::Stage),
        Cp(copy::Cp),
        Exec(exec::Exec),
        Ps(execs::Ps),
        Logs(exec_output::Logs),
        Attach(exec_output::Attach),
        Poll(exec_output::Poll),
        Wait(exec_output::Wait),
        Stdin(stdin::Stdin),
        Signal(execs::Signal),
        Kill(execs::Kill),
        Forget(remove::ForgetExecs),
        Rm(remove::Rm),
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
        Image(image::Image),
        #[command(subcommand)]
        Pool(server::Pool),
        #[command(subcommand)]
        Server(server::Server),
        /// Show who the daemon takes you for: your tenant, role and credential.
        #[command(after_help = "Example:\n  skillctl whoami")]
        Whoami => identity::print_caller,
        /// Show what your tenant holds now, its quotas, and what it has used.
        ///
        /// Amounts used are counted since the start of the daemon and per UTC day.
        #[command(after_help = "Example:\n  skillctl usage")]
        Usage => tenant::print_own_usage,
        #[command(subcommand)]
        Tenant(tenant::Tenant),
        /// List problems of skills, roots and pools. Exits with 1 if one of them is an error; warnings do not count.
        #[command(after_help = "Example:\n  skillctl problems")]
        Problems => server::print_problems,
        Drain(server::Drain),
        /// Accept new work again after a drain.
        #[command(after_help = "Example:\n  skillctl undrain")]
        Undrain => server::undrain,
    }
}

/// Returns `true` if the command line asks for JSON output, for errors that occur before it has been parsed.
pub(crate) fn asks_for_json(words: impl Iterator<Item = OsString>) -> bool {
    // A word that is not UTF-8 is no format.
    let mut words = words
        .take_while(|word| word != "--")
        .filter_map(|word| word.into_string().ok());
    while let Some(word) = words.next() {
        let format = match format_of(&word) {
            Some("") => words.next(),
            Some(format) => Some(format.to_owned()),
            None => continue,
        };
        if matches!(format.as_deref(), Some("json" | "jsonl")) {
            return true;
        }
    }
    false
}

/// Returns the output format in a word of the command line, also in `-qojson`; empty if the next word has it.
fn format_of(word: &str) -> Option<&str> {
    if let Some(rest) = word.strip_prefix("--output") {
        return match rest {
            "" => Some(""),
            rest => rest.strip_prefix('='),
        };
    }
    let letters = word.strip_prefix('-')?;
    let (before, format) = letters.split_once('o')?;
    let is_flags = before.bytes().all(|byte| byte.is_ascii_alphabetic());
    is_flags.then(|| format.strip_prefix('=').unwrap_or(format))
}

/// Returns the command that the words of the command line name, such as `workspace get`; of a wrong line as much of it
/// as is known.
pub(crate) fn typed_command() -> Vec<String> {
    let parsed = Cli::command().ignore_errors(true).try_get_matches();
    let mut names = Vec::new();
    let mut rest = parsed.as_ref().ok().and_then(ArgMatches::subcommand);
    while let Some((name, matches)) = rest {
        names.push(name.to_owned());
        rest = matches.subcommand();
    }
    names
}

/// Returns the words of the command line. A `run` whose first word comes after `--` has no skill, and gets an empty
/// one: clap does not tell where `--` was.
fn command_line() -> Vec<OsString> {
    let mut words: Vec<OsString> = std::env::args_os().collect();
    if let Some(dashes) = words.iter().position(|word| word == "--") {
        let before = words.iter().take(dashes);
        let parsed = Cli::command()
            .ignore_errors(true)
            .try_get_matches_from(before);
        let run = parsed.as_ref().ok();
        let run = run.and_then(|parsed| parsed.subcommand_matches("run"));
        if run.is_some_and(|run| run.get_one::<String>("skill").is_none()) {
            words.insert(dashes, OsString::new());
        }
    }
    words
}

/// Returns the exit code for a failure of this program: 125 for a command that passes on a program's code, else `code`.
pub(crate) fn failure_code(command: &[String], code: u8) -> u8 {
    match command.first() {
        Some(name) if PASS_CODE.contains(&name.as_str()) => error_report::NO_PROGRAM,
        Some(_) | None => code,
    }
}

impl Cli {
    /// Parses the command line of this process.
    ///
    /// # Errors
    /// Help, the version, or what is wrong with the line.
    pub(crate) fn parse_line() -> Result<Self, clap::Error> {
        let matches = Self::command().try_get_matches_from(command_line())?;
        let parsed = Self::from_arg_matches(&matches);
        parsed.map_err(|error| error.format(&mut Self::command()))
    }

    /// Runs the command of the command line and returns the exit code of this program.
    pub(crate) async fn run(self) -> anyhow::Result<u8> {
        output::set_style(OutputOptions {
            format: self.output,
            quiet: self.quiet,
        });
        match self.command {
            Command::Daemon(command) => command.run(&self.connection.connect().await?).await,
            Command::Audit(command) => command.run(),
            Command::Context(command) => command.run(&self.connection),
            Command::Token(command) => command.run(),
            Command::Health(command) => command.run(&self.connection).await,
            Command::Version => version::print_versions(&self.connection).await,
            Command::Completion(command) => command.run(),
            Command::ManPages(command) => command.run(Self::command()),
        }
    }
}
