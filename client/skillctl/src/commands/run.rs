//! `skillctl run`: a whole job in one call, which claims a workspace, stages, runs, collects and deletes.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, bail};
use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use prost_types::Duration;
use serde_json::{Map, Value};
use skilld_client::v1::{
    CreateWorkspaceRequest, ExecSpec, ListPoolsRequest, PreflightSkillRequest, RunExecRequest,
    RunOutputs, StageMode, WorkspaceTemplate,
};
use skilld_client::{
    Client, CollectedFiles, new_workspace_id, short_id, staged_skill_name, workspace_name,
};

use crate::commands::artifact::Scope;
use crate::commands::collect::{self, CopyLimits};
use crate::commands::command_args::CommandArgs;
use crate::commands::input_arg::{self, Input};
use crate::commands::skill::check;
use crate::commands::terminal_args::TerminalArgs;
use crate::commands::workspace_limit_args::WorkspaceLimitArgs;
use crate::commands::{complete, exec};
use crate::output::event_follower::{self, EventFollower, FollowOutcome, OnLeave};
use crate::output::{self, proto_json, value_formats};
use crate::terminal::interrupt::{InterruptSignals, InterruptedError};

/// Idle timeout of a workspace that this program creates and does not keep, as of one that the daemon claims for a run.
const TEMPORARY_IDLE_TIMEOUT: Duration = Duration {
    seconds: 60,
    nanos: 0,
};

/// Run a command in a fresh workspace, of a skill or any other: claim, stage, run, collect, delete.
///
/// A command of a skill starts in the skill's root. Without a skill the command follows -- and starts in /workspace.
/// Inputs are in inputs/ ($INPUTS_DIR), results belong to out/ ($OUTPUT_DIR). Flags of this program come before the
/// command. The workspace is deleted at the end, also after an error, Ctrl-C, SIGTERM, and the end of the terminal or
/// session. With -it the command runs in this terminal: all keys go to it, and the detach keys leave it running.
///
/// The exit code is the command's own, or 1 if it is 0 and results are missing; 125 if skillctl itself failed.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  skillctl run csv-report --input sales.csv --to results -- \\
      'python3 scripts/csv_report.py $INPUTS_DIR/sales.csv'
  skillctl run csv-report --writable 'echo done > last-run.txt'
  skillctl run text-stats -i --collect out/sorted.txt 'sort > out/sorted.txt' < names.txt
  skillctl run python-math --script scripts/python_math.py -- --json factor 360
  skillctl run -- python3 -c 'print(6 * 7)'
  skillctl run --input names.txt --keep -- 'sort $INPUTS_DIR/names.txt > out/sorted.txt'
  skillctl run -it -- bash")]
pub(crate) struct Run {
    /// The skill: name, name@version or name@sha256:DIGEST. None if the command follows -- at once.
    #[arg(add = ArgValueCompleter::new(complete::offer_skills))]
    skill: Option<String>,
    /// Let the command change the files of the skill. The changes go with the workspace: --keep keeps it.
    #[arg(long)]
    writable: bool,
    /// Give the command our stdin, as it comes.
    #[arg(short = 'i', long)]
    stdin: bool,
    #[command(flatten)]
    terminal: TerminalArgs,
    /// A file or directory; it goes to $INPUTS_DIR unless DEST says else; may be repeated.
    #[arg(long, value_name = "SRC[=DEST]", value_parser = input_arg::parse_input, allow_hyphen_values = true)]
    input: Vec<Input>,
    #[command(flatten)]
    scope: Box<Scope>,
    /// Files to copy out; may be repeated. `out/**` if only --to is given.
    #[arg(long, value_name = "GLOB")]
    collect: Vec<String>,
    /// Directory to copy them to. The current directory if only --collect is given.
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
    #[command(flatten)]
    limits: CopyLimits,
    /// Kill the command after this long. The server's default is 5 minutes, and its maximum with -t.
    #[arg(long, value_name = "DURATION", value_parser = value_formats::parse_duration)]
    timeout: Option<Duration>,
    /// Environment; may be repeated.
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = value_formats::parse_pair)]
    env: Vec<(String, String)>,
    /// Pool to claim from; the server's default if left out.
    #[arg(long, default_value = "", hide_default_value = true)]
    pool: String,
    /// Claim from the pool that has this image; only an admin may look for it.
    #[arg(long, conflicts_with = "pool")]
    image: Option<String>,
    #[command(flatten)]
    size: WorkspaceLimitArgs,
    /// Do not say beforehand what the skill needs and the image does not have.
    #[arg(long)]
    no_check: bool,
    /// Leave the workspace there and print its id on stderr.
    #[arg(long)]
    keep: bool,
    /// Say on stderr how long each step took.
    #[arg(long)]
    timing: bool,
    #[command(flatten)]
    command: CommandArgs,
}

impl Run {
    pub(crate) async fn run(mut self, client: &Client) -> anyhow::Result<u8> {
        input_arg::check_destinations(&self.input)?;
        if self.stdin && self.input.iter().any(Input::is_stdin) {
            bail!("stdin can be an --input or the command's own, not both: leave out -i");
        }
        // It is empty in a command line without one.
        self.skill = self.skill.filter(|skill| !skill.is_empty());
        if self.skill.is_none() && (self.writable || self.command.has_script()) {
            bail!("--script and --writable are about a skill: name it before the command");
        }
        if self.terminal.tty {
            exec::need_terminal("leave out -t")?;
        }
        if self.to.is_none() && !self.collect.is_empty() {
            self.to = Some(PathBuf::from("."));
        }
        let interrupt = match self.terminal.tty {
            true => InterruptSignals::with_hangup()?,
            false => InterruptSignals::new()?,
        };
        let mut job = RunJob {
            client,
            clock: TimingPrinter { say: self.timing },
            // This program chooses the name, and so can delete the workspace also if no answer named it.
            workspace: workspace_name(&new_workspace_id()),
            interrupt,
            follower: EventFollower::new(client, OnLeave::KillOrDropCall),
            is_created: false,
        };
        let mut object = Map::new();
        let ended = job.work(&self, &mut object).await;
        let deleted = job.clean_up(&ended, self.keep).await;
        // Also after a failure: the output of the command is nowhere else once the workspace is deleted.
        let mut printed = Ok(());
        if output::is_json() && !object.is_empty() {
            printed = output::print_value(&Value::Object(object));
        }
        let ending = ended?;
        // This notes how the command ended, also if a later step failed.
        let code = event_follower::exit_code(&ending);
        deleted.and(printed)?;
        if let FollowOutcome::Detached(at) = ending {
            let name = short_id(&job.workspace);
            event_follower::note_detached(&format!("{name}/{name}"), at);
        }
        let collected = job.follower.run.collected.take();
        let is_complete = collected.is_none_or(|files| collect::is_complete(&files));
        // The program's own failure says more than a cut file.
        Ok(if code == 0 && !is_complete { 1 } else { code })
    }

    /// Returns the request without its inputs. The workspace and the exec have the same id.
    async fn request(&self, client: &Client, id: &str) -> anyhow::Result<RunExecRequest> {
        let globs = match self.collect.is_empty() {
            true => vec!["out/**".to_owned()],
            false => self.collect.clone(),
        };
        let outputs = match self.to {
            None => None,
            Some(_) => Some(RunOutputs {
                spec: Some(collect::collect_spec(client, globs, &self.limits).await?),
                ..RunOutputs::default()
            }),
        };
        let template = WorkspaceTemplate {
            pool: match &self.image {
                Some(image) => find_pool(client, image).await?,
                None => self.pool.clone(),
            },
            limits: self.size.request(),
            keep: self.keep,
            ..WorkspaceTemplate::default()
        };
        Ok(RunExecRequest {
            exec_id: id.to_owned(),
            spec: Some(self.spec()),
            workspace_template: Some(template),
            skills: self.skill.iter().cloned().collect(),
            writable_skills: self.writable,
            outputs,
            ..RunExecRequest::default()
        })
    }

    fn spec(&self) -> ExecSpec {
        let command = self.command.clone();
        let mut spec = command.spec(&self.env, self.timeout, self.stdin);
        match &self.skill {
            Some(skill) => staged_skill_name(skill).clone_into(&mut spec.skill),
            None => exec::WORKSPACE_ROOT.clone_into(&mut spec.cwd),
        }
        self.terminal.set_terminal(&mut spec);
        spec
    }
}

/// Returns the pool whose containers have an image.
async fn find_pool(client: &Client, image: &str) -> anyhow::Result<String> {
    let listed = client.read_all_pages(ListPoolsRequest::default()).await;
    let pools = listed.context("--image looks for a pool: name it with --pool")?;
    let tagged = |image: &str| image.trim_end_matches(":latest").to_owned();
    let mut found = pools.pools.iter();
    match found.find(|pool| tagged(&pool.image) == tagged(image)) {
        Some(pool) => Ok(short_id(&pool.name)),
        None => bail!("no pool has the image {image}: `skillctl pool list` shows what there is"),
    }
}

/// Run of a command in a workspace of its own.
struct RunJob<'a> {
    client: &'a Client,
    clock: TimingPrinter,
    workspace: String,
    interrupt: InterruptSignals,
    follower: EventFollower<'a>,
    /// `true` once this program began to create the workspace, which it deletes itself unless it is kept.
    is_created: bool,
}

impl RunJob<'_> {
    /// Runs the command; adds to `object` what `-o json` prints.
    async fn work(
        &mut self,
        run: &Run,
        object: &mut Map<String, Value>,
    ) -> anyhow::Result<FollowOutcome> {
        let id = short_id(&self.workspace);
        let asking = run.request(self.client, &id);
        let mut request = self.interrupt.race(asking).await??;
        if let Some(skill) = run.skill.as_deref().filter(|_| !run.no_check) {
            self.check(skill, &request, &run.env).await?;
        }
        request.inputs = input_arg::reference_specs(&run.input, StageMode::Copy);
        match input_arg::local_specs(&run.input)? {
            Some(specs) => request.inputs.extend(specs),
            None => self.upload(&run.input, &mut request).await?,
        }
        if !request.inputs.is_empty() {
            request.scope = Some(Scope::clone(&run.scope).into());
        }
        self.follower.run.directory.clone_from(&run.to);
        let start = Instant::now();
        let spec = request.spec.clone().unwrap_or_default();
        let events = self.client.run_resuming(request);
        let name = events.name().to_owned();
        let input = run.terminal.clone().input(self.client, &name, &spec);
        let follower = &mut self.follower;
        let ended = follower.converse(events, input, &mut self.interrupt).await;
        let mut kept = Ok(());
        match follower.take_transcript(&name, ended.is_err()) {
            Ok(Some(transcript)) => *object = transcript,
            Ok(None) if ended.is_ok() => drop(object.insert("exec".into(), name.into())),
            Ok(None) => {}
            Err(error) => kept = Err(error),
        }
        let summary = self.report_collected(run)?;
        if !object.is_empty() {
            object.insert("collected".into(), summary);
        }
        let ending = ended?;
        kept?;
        self.report_times(start, run.to.is_some());
        Ok(ending)
    }

    /// Sends local inputs into the workspace, which this program creates for them.
    async fn upload(
        &mut self,
        inputs: &[Input],
        request: &mut RunExecRequest,
    ) -> anyhow::Result<()> {
        let (client, start) = (self.client, Instant::now());
        let template = request.workspace_template.take().unwrap_or_default();
        let create = CreateWorkspaceRequest {
            workspace_id: self.workspace.clone(),
            pool: template.pool,
            limits: template.limits,
            idle_timeout: (!template.keep).then_some(TEMPORARY_IDLE_TIMEOUT),
            ..CreateWorkspaceRequest::default()
        };
        request.parent.clone_from(&self.workspace);
        self.is_created = true;
        self.interrupt
            .race(client.create_workspace(create))
            .await??;
        self.follower.run.has_workspace = true;
        for input in inputs {
            if let Input::Local(local) = input {
                let sending = local.send(client, &self.workspace);
                self.interrupt.race(sending).await??;
            }
        }
        self.clock.lap("upload", start.elapsed());
        Ok(())
    }

    /// Notes on stderr what the skill needs and the image lacks. The command may do without it, so it runs in any case.
    async fn check(
        &mut self,
        skill: &str,
        request: &RunExecRequest,
        env: &[(String, String)],
    ) -> anyhow::Result<()> {
        let start = Instant::now();
        let template = request.workspace_template.as_ref();
        let request = PreflightSkillRequest {
            name: skill.to_owned(),
            pool: template.map_or_else(String::new, |template| template.pool.clone()),
            env_names: env.iter().map(|(name, _)| name.clone()).collect(),
        };
        let checking = self.client.preflight_skill(request);
        if let Ok(answer) = self.interrupt.race(checking).await? {
            self.follower.run.noted = check::note_missing(&answer);
        }
        self.clock.lap("check", start.elapsed());
        Ok(())
    }

    /// Notes on stderr which files were written. Returns the summary for `-o json`.
    fn report_collected(&self, run: &Run) -> anyhow::Result<Value> {
        let run_files = self.follower.run.collected.as_ref();
        let (Some(collected), Some(to)) = (run_files, &run.to) else {
            return Ok(Value::Null);
        };
        let CollectedFiles { files, links, .. } = collected;
        collect::warn_about_files(collected);
        let size = value_formats::format_bytes(collected.bytes);
        let count = files.len() + links.len();
        output::note!("collected {count} files ({size}) into {}", to.display());
        proto_json::from_message(&collected.summary)
    }

    fn report_times(&self, start: Instant, collects: bool) {
        let (run, end) = (&self.follower.run, Instant::now());
        let started = run.start.unwrap_or(end);
        let ended = run.end.unwrap_or(end);
        self.clock.lap("start", started - start);
        if let Some(first) = self.follower.first_output {
            self.clock.lap("first output", first - start);
        }
        self.clock.lap("exec", ended - started);
        if collects {
            self.clock.lap("collect", end - ended);
        }
    }

    /// Deletes the workspace unless it is kept or the daemon deletes it. One that is not known to exist is deleted also
    /// with `keep`, because its id is not printed. Ctrl-C stops the wait, and the idle timeout does the rest.
    async fn clean_up(
        &mut self,
        ended: &anyhow::Result<FollowOutcome>,
        keep: bool,
    ) -> anyhow::Result<()> {
        let id = short_id(&self.workspace);
        if keep && self.follower.run.has_workspace {
            output::note!("kept workspace {id}");
            return Ok(());
        }
        match ended {
            Ok(FollowOutcome::Detached(_)) => return Ok(()),
            Ok(FollowOutcome::Finished { .. }) if !self.is_created => return Ok(()),
            Ok(_) | Err(_) => {}
        }
        let deleting = self.client.delete_workspace_if_exists(&self.workspace);
        match self.interrupt.race(deleting).await {
            Ok(deleted) => Ok(deleted?),
            Err(InterruptedError) => {
                output::note!("did not wait for the end of workspace {id}");
                Err(InterruptedError.into())
            }
        }
    }
}

/// Printer of how long each step of a run took, if the user asked for that.
struct TimingPrinter {
    say: bool,
}

impl TimingPrinter {
    fn lap(&self, step: &str, took: std::time::Duration) {
        if self.say {
            output::note!("{step} took {:.1} ms", took.as_secs_f64() * 1000.0);
        }
    }
}
