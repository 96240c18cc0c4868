//! `skillctl run`: a whole job in one command. Create, stage, exec, collect, and delete whatever happened.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use prost_types::Duration;
use serde_json::{Map, Value};
use skilld_client::v1::{
    ArtifactScope, CollectOutputsRequest, CreateWorkspaceRequest, ExecSpec, PreflightSkillRequest,
    RunExecRequest, StageMode, StageSkillsRequest,
};
use skilld_client::{Client, new_workspace_id, short_id, workspace_name};

use crate::commands::artifact::Scope;
use crate::commands::collect::{self, CopyLimits};
use crate::commands::command_args::CommandArgs;
use crate::commands::input_arg::{self, Input};
use crate::commands::skill::check;
use crate::commands::workspace_limit_args::WorkspaceLimitArgs;
use crate::commands::{complete, stage};
use crate::output::event_follower::{self, EventFollower, FollowOutcome, OnLeave};
use crate::output::{self, proto_json, value_formats};
use crate::terminal::attach_input;
use crate::terminal::interrupt::{InterruptSignals, InterruptedError};

/// Run a command of a skill in a fresh workspace: create, stage, exec, collect, delete.
///
/// The command starts in the skill's root; inputs are in inputs/ ($INPUTS_DIR), results belong to out/ ($OUTPUT_DIR).
/// Flags of this program come before the command; -- is needed only before a command that begins with a dash. The
/// workspace is deleted at the end, also after an error, Ctrl-C, SIGTERM, and the end of the terminal or session.
///
/// The exit code is the command's own, or 1 if it is 0 and results are missing; 125 if skillctl itself failed.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  skillctl run csv-report --input sales.csv --to results -- \\
      'python3 scripts/csv_report.py $INPUTS_DIR/sales.csv'
  skillctl run csv-report --writable 'echo done > last-run.txt'
  skillctl run text-stats -i --collect out/sorted.txt 'sort > out/sorted.txt' < names.txt
  skillctl run python-math --script scripts/python_math.py -- --json factor 360")]
pub(crate) struct Run {
    /// The skill: name, name@version or name@sha256:DIGEST.
    #[arg(add = ArgValueCompleter::new(complete::offer_skills))]
    skill: String,
    /// Let the command change the files of the skill. The changes go with the workspace: --keep keeps it.
    #[arg(long)]
    writable: bool,
    /// Give the command our stdin, as it comes.
    #[arg(short = 'i', long)]
    stdin: bool,
    /// A file or directory; it goes to $INPUTS_DIR unless DEST says else; may be repeated.
    #[arg(long, value_name = "SRC[=DEST]", value_parser = input_arg::parse_input, allow_hyphen_values = true)]
    input: Vec<Input>,
    #[command(flatten)]
    scope: Scope,
    /// Files to copy out; may be repeated. `out/**` if only --to is given.
    #[arg(long, value_name = "GLOB")]
    collect: Vec<String>,
    /// Directory to copy them to. The current directory if only --collect is given.
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
    #[command(flatten)]
    limits: CopyLimits,
    /// Kill the command after this long. The server's default is 5 minutes.
    #[arg(long, value_name = "DURATION", value_parser = value_formats::parse_duration)]
    timeout: Option<Duration>,
    /// Environment; may be repeated.
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = value_formats::parse_pair)]
    env: Vec<(String, String)>,
    /// Pool to claim from; the server's default if left out.
    #[arg(long, default_value = "", hide_default_value = true)]
    pool: String,
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
    pub(crate) async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let keep = self.keep;
        input_arg::check_destinations(&self.input)?;
        if self.stdin && self.input.iter().any(Input::is_stdin) {
            anyhow::bail!("stdin can be an --input or the command's own, not both: leave out -i");
        }
        let mut job = RunJob {
            client,
            clock: TimingPrinter { say: self.timing },
            // Known before it exists, so that it can be deleted whatever became of its creation.
            workspace: workspace_name(&new_workspace_id()),
            interrupt: InterruptSignals::new()?,
            printed_problems: Vec::new(),
        };
        let mut object = Map::new();
        let ended = job.work(self, &mut object).await;
        let deleted = if keep {
            output::note!("kept workspace {}", short_id(&job.workspace));
            Ok(())
        } else {
            job.delete().await
        };
        // Also after a failure: the output of the command is nowhere else once the workspace is deleted.
        let mut printed = Ok(());
        if output::is_json() && !object.is_empty() {
            printed = output::print_value(&Value::Object(object));
        }
        let code = ended?;
        deleted.and(printed)?;
        Ok(code)
    }
}

/// Run of a skill in a workspace of its own, which is deleted at the end.
struct RunJob<'a> {
    client: &'a Client,
    clock: TimingPrinter,
    workspace: String,
    interrupt: InterruptSignals,
    /// Messages of the problems that the staging printed.
    printed_problems: Vec<String>,
}

impl RunJob<'_> {
    /// Runs all steps but the deletion; adds to `object` what `-o json` prints. Returns the exit code.
    async fn work(&mut self, run: Run, object: &mut Map<String, Value>) -> anyhow::Result<u8> {
        let client = self.client;
        let (start, pool) = (Instant::now(), run.pool);
        let request = CreateWorkspaceRequest {
            workspace_id: self.workspace.clone(),
            pool: pool.clone(),
            limits: run.size.request(),
            ..Default::default()
        };
        self.interrupt
            .race(client.create_workspace(request))
            .await??;
        self.clock.lap("claim", start);

        let start = Instant::now();
        let request = StageSkillsRequest {
            workspace: self.workspace.clone(),
            skills: vec![run.skill.clone()],
            writable: run.writable,
        };
        let skill = self.stage(request, &run.input, run.scope.into()).await?;
        self.clock.lap("stage", start);
        if !run.no_check {
            self.check(&run.skill, &pool, &run.env).await?;
        }

        let spec = ExecSpec {
            skill,
            ..run.command.spec(&run.env, run.timeout, run.stdin)
        };
        let ending = self.exec(spec, object).await?;
        let code = event_follower::exit_code(&ending);
        if !matches!(ending, FollowOutcome::Finished { .. }) {
            return Ok(code);
        }

        let to = match (run.to, run.collect.is_empty()) {
            (None, true) => return Ok(code),
            (to, _) => to.unwrap_or_else(|| PathBuf::from(".")),
        };
        let globs = if run.collect.is_empty() {
            vec!["out/**".to_owned()]
        } else {
            run.collect
        };
        let start = Instant::now();
        let complete = self.collect(globs, &run.limits, &to, object).await?;
        self.clock.lap("collect", start);
        // The program's own failure says more than a cut file.
        Ok(if code == 0 && !complete { 1 } else { code })
    }

    /// Stages the skill and the inputs; returns the skill's name without its version.
    async fn stage(
        &mut self,
        skills: StageSkillsRequest,
        inputs: &[Input],
        scope: ArtifactScope,
    ) -> anyhow::Result<String> {
        let client = self.client;
        let named = skills.skills.concat();
        let staging = client.stage_skills_with(skills);
        let staged = self.interrupt.race(staging).await??;
        stage::print_skill_problems(&staged);
        let problems = staged.iter().flat_map(|skill| &skill.problems);
        self.printed_problems = problems.map(|problem| problem.message.clone()).collect();
        if let Some(request) =
            input_arg::references_request(&self.workspace, inputs, StageMode::Copy, scope)
        {
            self.interrupt.race(client.stage_inputs(request)).await??;
        }
        for input in inputs {
            if let Input::Local(local) = input {
                let sending = local.send(client, &self.workspace);
                self.interrupt.race(sending).await??;
            }
        }
        let first = staged.into_iter().next();
        Ok(first.map_or(named, |staged| staged.name))
    }

    /// Notes on stderr what the skill needs and the image lacks. The command may do without it, so it runs in any case.
    async fn check(
        &mut self,
        skill: &str,
        pool: &str,
        env: &[(String, String)],
    ) -> anyhow::Result<()> {
        let start = Instant::now();
        let request = PreflightSkillRequest {
            name: skill.to_owned(),
            pool: pool.to_owned(),
            env_names: env.iter().map(|(name, _)| name.clone()).collect(),
        };
        let checking = self.client.preflight_skill(request);
        if let Ok(answer) = self.interrupt.race(checking).await? {
            let notes = check::missing_notes(&answer, &self.printed_problems);
            notes.iter().for_each(|line| output::print_note(line));
        }
        self.clock.lap("check", start);
        Ok(())
    }

    async fn exec(
        &mut self,
        spec: ExecSpec,
        object: &mut Map<String, Value>,
    ) -> anyhow::Result<FollowOutcome> {
        let start = Instant::now();
        let client = self.client;
        let has_stdin = spec.open_stdin;
        let events = client.run_resuming(RunExecRequest {
            parent: self.workspace.clone(),
            spec: Some(spec),
            ..Default::default()
        });
        let name = events.name().to_owned();
        let input = match has_stdin {
            true => attach_input::AttachInput::Stream(client.stdin_at(&name, 0)),
            false => attach_input::AttachInput::None,
        };
        let mut follower = EventFollower::new(client, OnLeave::Kill);
        let ended = follower.converse(events, input, &mut self.interrupt).await;
        let mut kept = Ok(());
        match follower.take_transcript(&name, ended.is_err()) {
            Ok(Some(transcript)) => *object = transcript,
            Ok(None) if ended.is_ok() => drop(object.insert("exec".into(), name.into())),
            Ok(None) => {}
            Err(error) => kept = Err(error),
        }
        if !object.is_empty() {
            object.insert("collected".into(), Value::Null);
        }
        let ending = ended?;
        kept?;
        if let Some(first) = follower.first_output {
            self.clock.say("first output", first - start);
        }
        self.clock.lap("exec", start);
        Ok(ending)
    }

    /// Copies the command's results into a local directory. Returns `true` if something matched and nothing was cut.
    async fn collect(
        &mut self,
        globs: Vec<String>,
        limits: &CopyLimits,
        to: &Path,
        object: &mut Map<String, Value>,
    ) -> anyhow::Result<bool> {
        let client = self.client;
        let collecting = async {
            let request = CollectOutputsRequest {
                workspace: self.workspace.clone(),
                spec: Some(collect::collect_spec(client, globs, limits).await?),
            };
            collect::collect_to_dir(client, request, to).await
        };
        let collected = self.interrupt.race(collecting).await??;
        let size = value_formats::format_bytes(collected.bytes);
        let count = collected.files.len() + collected.links.len();
        output::note!("collected {count} files ({size}) into {}", to.display());
        let summary = proto_json::from_message(&collected.summary)?;
        object.insert("collected".into(), summary);
        Ok(collect::is_complete(&collected))
    }

    /// Deletes the workspace. Ctrl-C stops the wait, and the workspace's idle timeout does the rest.
    async fn delete(&mut self) -> anyhow::Result<()> {
        let start = Instant::now();
        let client = self.client;
        let deleting = client.delete_workspace_if_exists(&self.workspace);
        match self.interrupt.race(deleting).await {
            Ok(deleted) => deleted?,
            Err(InterruptedError) => {
                let id = short_id(&self.workspace);
                output::note!("did not wait for the end of workspace {id}");
                return Err(InterruptedError.into());
            }
        }
        self.clock.lap("delete", start);
        Ok(())
    }
}

/// Printer of how long each step of a run took, if the user asked for that.
struct TimingPrinter {
    say: bool,
}

impl TimingPrinter {
    fn lap(&self, step: &str, start: Instant) {
        self.say(step, start.elapsed());
    }

    fn say(&self, step: &str, took: std::time::Duration) {
        if self.say {
            output::note!("{step} took {:.1} ms", took.as_secs_f64() * 1000.0);
        }
    }
}
