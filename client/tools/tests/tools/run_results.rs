//! Results of runs in every family: the text of a run as a terminal would show it at the end, and warnings about what
//! was ended, was full or is not there.

use serde_json::{Value, json};
use skilld_client::v1;
use skilld_testing::Fake;
use skilld_testing::skills::Kit;
use skilld_tools::{Family, ToolOptions};

use crate::conversation::{Conversation, all_tools, check_fields, conversation_about, rows};
use crate::tools_trpc::{file, summary};

async fn conversation(family: Family) -> (Fake, Conversation) {
    let kit = Kit::new("demo", "1.0.0").file("scripts/run.sh", "#!/bin/sh\n");
    conversation_about(vec![kit], all_tools(family)).await
}

/// Returns the call of a script that is this program, for sherma and Agent Zero.
fn script_call(family: Family, program: &str, stdin: &str) -> (&'static str, Value) {
    let mut run = json!({
        "skill_id": "demo", "script_path": "scripts/run.sh", "argv": [program], "stdin": stdin,
    });
    if family == Family::Sherma {
        return ("run_skill_script", run);
    }
    let fields = run.as_object_mut().expect("an object");
    fields.remove("skill_id");
    fields.insert("skill_name".into(), "demo".into());
    fields.insert("method".into(), "execute_script".into());
    ("skills_tool", run)
}

/// Runs a program by each tool that runs one to its end. Returns the family, the tool and its result.
async fn run_everywhere(program: &str, stdin: &str) -> Vec<(Family, &'static str, Value)> {
    let mut results = Vec::new();
    for family in Family::ALL {
        let (_fake, mut talk) = conversation(family).await;
        let calls = match family {
            Family::Trpc => {
                let shell = json!({"command": program, "stdin": stdin});
                let run = json!({"skill": "demo", "command": program, "stdin": stdin});
                vec![("skill_run", run), ("workspace_exec", shell)]
            }
            Family::Sherma | Family::AgentZero => vec![script_call(family, program, stdin)],
        };
        for (tool, arguments) in calls {
            results.push((family, tool, talk.ok(tool, arguments).await));
        }
    }
    results
}

/// Returns the warnings of a result.
fn warnings(result: &Value) -> Vec<&str> {
    let warnings = result
        .get("warnings")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    warnings.filter_map(Value::as_str).collect()
}

/// Returns what a program with progress bars prints, more than results show of an output, and the text that is left of it.
fn progress() -> (String, String) {
    let mut printed = String::from("\u{1b}[1mbuild started\u{1b}[0m\n");
    let mut text = String::from("build started\n");
    for step in 0..3 {
        for number in 0..500 {
            printed += &format!("\r\u{1b}[2K\u{1b}[32m{number:5}% |##########|\u{1b}[0m");
        }
        printed += &format!("\nstep {step}: \u{1b}[31mERROR\u{1b}[0m\n");
        text += &format!("  499% |##########|\nstep {step}: ERROR\n");
    }
    (printed, text)
}

#[tokio::test]
async fn a_result_has_the_text_that_a_terminal_would_show_at_the_end() {
    let (printed, text) = progress();
    assert!(printed.len() > 2 * ToolOptions::default().output_bytes_max);
    for (family, tool, result) in run_everywhere("cat", &printed).await {
        let field = if tool == "workspace_exec" {
            "output"
        } else {
            "stdout"
        };
        assert_eq!(result[field], text, "{tool}");
        assert_eq!(warnings(&result), Vec::<&str>::new(), "{tool}");
        assert!(!result.to_string().contains("u001b"), "{tool}: {result}");
        if family == Family::AgentZero {
            let shown = result["text"].as_str().expect("text");
            assert!(shown.contains(&text), "{shown}");
        }
    }
}

#[tokio::test]
async fn a_session_hands_over_the_text_that_a_terminal_would_show() {
    let (printed, text) = progress();
    let (_fake, mut talk) = conversation(Family::Trpc).await;
    let whole = json!({"skill": "demo", "command": "cat", "stdin": printed, "eof": true});
    let ended = talk.ok("skill_exec", whole).await;
    check_fields(
        &ended,
        &json!({"output": text, "next_offset": printed.len()}),
    );
    assert_eq!(ended["result"]["stdout"], text);
    let skill = json!({"skill": "demo", "command": "cat", "yield_ms": 1});
    let shell = json!({"command": "cat", "background": true});
    for (start, arguments, write, kill) in [
        (
            "skill_exec",
            skill,
            "skill_write_stdin",
            "skill_kill_session",
        ),
        (
            "workspace_exec",
            shell,
            "workspace_write_stdin",
            "workspace_kill_session",
        ),
    ] {
        let id = talk.ok(start, arguments).await["session_id"].clone();
        let chars = json!({"session_id": id, "chars": printed, "yield_ms": 1});
        let written = talk.ok(write, chars).await;
        check_fields(&written, &json!({"output": text, "more": null}));
        // A sequence that is not whole yet comes with the rest of it.
        for (chars, output) in [("a\u{1b}[3", "a"), ("1mb\u{1b}[0m\n", "b\n")] {
            let chars = json!({"session_id": id, "chars": chars, "yield_ms": 1});
            assert_eq!(talk.ok(write, chars).await["output"], output, "{write}");
        }
        let killed = talk.ok(kill, json!({"session_id": id})).await;
        check_fields(&killed, &json!({"status": "killed", "output": ""}));
    }
}

#[tokio::test]
async fn every_tool_names_processes_that_ended_with_their_command() {
    for (family, tool, result) in run_everywhere("server", "").await {
        let advice = match family {
            Family::Trpc => "start servers with workspace_exec and background",
            Family::Sherma | Family::AgentZero => "use a server in the command that starts it",
        };
        let said = format!(
            "1 process was ended with this command (python3 -m http.server 8123): {advice}"
        );
        assert_eq!(warnings(&result), [said], "{tool}");
    }
}

#[tokio::test]
async fn a_full_disk_is_a_warning_with_its_size_and_what_helps() {
    for (_, tool, result) in run_everywhere("full", "").await {
        let said = "/tmp is full (64 MiB): remove files there, or set TMPDIR=$WORK_DIR; what fills it stays for later commands";
        assert_eq!(warnings(&result), [said], "{tool}");
    }
}

/// The program prints to stdout and exits with 0, as the last one of a pipeline does.
#[tokio::test]
async fn signs_of_a_cause_count_on_stdout_and_with_exit_code_0() {
    let causes = "
        ERROR: No matching distribution found for left-pad => commands have no network: pip, npm, npx, pnpm, yarn, uv, git clone and downloads fail.
        fatal: unable to access 'https://a.example/': Could not resolve host: a.example => commands have no network:
        rm: cannot remove '/workspace/skills/demo/a': Read-only file system => skills are read-only: write to out/ or work/
        OSError: [Errno 28] No space left on device => a file system was full while this ran: /tmp is small, so set TMPDIR=$WORK_DIR
    ";
    for (_, printed, beginning) in rows(causes) {
        for (_, tool, result) in run_everywhere("cat", printed).await {
            assert_eq!(result["exit_code"], 0, "{tool}");
            let said = warnings(&result);
            assert_eq!(said.len(), 1, "{tool}: {said:?}");
            assert!(said[0].starts_with(beginning), "{tool}: {said:?}");
        }
    }
}

#[tokio::test]
async fn a_session_warns_once_of_each_cause_in_its_output() {
    let (_fake, mut talk) = conversation(Family::Trpc).await;
    let shell = json!({"command": "cat", "background": true});
    let id = talk.ok("workspace_exec", shell).await["session_id"].clone();
    let mut given = Vec::new();
    for chars in [
        "ERROR: No matching distribution found for left-pad\n",
        "curl: (6) Could not resolve host: a.example\n",
        "OSError: [Errno 28] No space left on device\n",
    ] {
        let typed = json!({"session_id": id, "chars": chars, "yield_ms": 1});
        let result = talk.ok("workspace_write_stdin", typed).await;
        given.push(warnings(&result).len());
    }
    assert_eq!(given, [1, 0, 1]);
    let killed = json!({"session_id": id});
    let killed = talk.ok("workspace_kill_session", killed).await;
    assert_eq!(warnings(&killed), Vec::<&str>::new());
}

#[tokio::test]
async fn only_tools_that_start_commands_mention_the_missing_network() {
    for family in Family::ALL {
        let (_fake, talk) = conversation(family).await;
        for tool in talk.definitions().await {
            let arguments = &tool.parameters["properties"];
            let names = ["command", "script_path"];
            let starts = names.iter().any(|name| arguments.get(name).is_some());
            let description = tool.description.to_lowercase();
            let says = description.contains("there is no network");
            assert_eq!(says, starts, "{}: {description}", tool.name);
        }
    }
}

#[tokio::test]
async fn files_that_a_result_does_not_list_are_counted() {
    for family in [Family::Sherma, Family::AgentZero] {
        let (fake, mut talk) = conversation(family).await;
        let files = (0..1000).flat_map(|number| file(&format!("work/{number:04}"), b"x", 1, true));
        let summary = summary(v1::CollectSummary {
            matched_count: 5000,
            returned_count: 1000,
            limits_hit: true,
            ..Default::default()
        });
        fake.answer_collections(files.chain([summary]).collect());
        let (tool, arguments) = script_call(family, "hello", "");
        let result = talk.ok(tool, arguments).await;
        let listed = result["files"].as_array().map_or(0, Vec::len);
        assert!((50..1000).contains(&listed), "{listed}");
        let said = format!(
            "{listed} of the 5000 files that it wrote are listed; hidden files and caches are the last"
        );
        assert_eq!(warnings(&result), [said], "{tool}");
        assert_eq!(result["limits_hit"], true, "{tool}");
    }
}
