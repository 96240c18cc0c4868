//! Agent Zero's tool: JSON in, JSON out.

mod execute_script_method;
mod load_method;

use prost_types::value::Kind;
use serde_json::{Value, json};
use skilld_client::v1::{
    Problem, ScriptArgStyle, ScriptCwd, SearchSkillsRequest, SkillScoring, SkillState,
};
use skilld_tools::state::agent_zero::{list, scope};
use skilld_tools::state::merge;
use skilld_tools::{Family, Profile, ToolOptions};
use tonic::Code;

use crate::conversation::{
    Conversation, check_fields, check_warning, conversation_about, refusals, tool_call,
};
use skilld_testing::collection_messages::{file, summary};
use skilld_testing::skills::{Kit, digest, invalid, sha256};
use skilld_testing::{Fake, STARTS, refusal};

const METHODS: &str = "list, search, load, read_file, execute_script";

fn options() -> ToolOptions {
    ToolOptions {
        family: Family::AgentZero,
        ..ToolOptions::default()
    }
}

fn kits() -> Vec<Kit> {
    let mut pdf = Kit::new("pdf-editing", "1.2.0")
        .file("SKILL.md", "---\n---\n")
        .file("forms.md", "A form.\n")
        .file("docs/a.md", "é".repeat(60))
        .file("scripts/fill.py", "print()\n")
        .file("scripts/lib/x.py", "\n")
        .file("other/b.txt", "b")
        .file("assets/logo.png", vec![0u8, 1, 2]);
    pdf.skill.tags = vec!["pdf".into(), "forms".into()];
    pdf.skill.author = "Ann".into();
    pdf.skill.triggers = vec!["fill a form".into()];
    pdf.skill.description = format!("Fills forms.\nAnd {}", "more ".repeat(60));
    let mut bad = Kit::new("broken", "");
    bad.skill.state = SkillState::Rejected.into();
    bad.skill.problems = vec![Problem {
        message: "no front matter".into(),
        ..Problem::default()
    }];
    let mut bare = Kit::new("Bare", "");
    bare.skill.body = String::new();
    vec![
        pdf,
        Kit::new("my-notes", "1.0.0"),
        Kit::new("my_notes", "1.0.0"),
        bad,
        bare,
    ]
}

/// Starts a conversation with a change of the family's options.
async fn conversation_with(change: impl FnOnce(&mut ToolOptions)) -> (Fake, Conversation) {
    let mut options = options();
    change(&mut options);
    conversation(options).await
}

async fn conversation(options: ToolOptions) -> (Fake, Conversation) {
    conversation_about(kits(), options).await
}

async fn use_tool(talk: &mut Conversation, arguments: Value) -> Value {
    talk.ok("skills_tool", arguments).await
}

fn text(result: &Value) -> &str {
    result["text"].as_str().expect("text")
}

#[tokio::test]
async fn there_is_one_tool_with_its_methods() {
    let (_fake, talk) = conversation(options()).await;
    let definitions = talk.definitions().await;
    assert_eq!(definitions.len(), 1);
    assert_eq!(definitions[0].name, "skills_tool");
    let parameters = &definitions[0].parameters;
    assert_eq!(parameters["required"], json!(["method"]));
    assert_eq!(
        parameters["properties"]["method"]["enum"],
        json!(METHODS.split(", ").collect::<Vec<_>>())
    );
    for field in [
        "query",
        "skill_name",
        "file_path",
        "script_path",
        "script_args",
        "arg_style",
        "argv",
    ] {
        assert!(parameters["properties"][field].is_object(), "{field}");
    }
    let (_fake, mut talk) =
        conversation_with(|options| options.profile = Profile::KnowledgeOnly).await;
    let definition = talk.definitions().await.remove(0);
    let fields: Vec<&str> = definition.parameters["properties"]
        .as_object()
        .expect("a map")
        .keys()
        .map(String::as_str)
        .collect();
    let methods = &definition.parameters["properties"]["method"]["enum"];
    assert_eq!(methods, &json!(["list", "search", "load", "read_file"]));
    // Nothing of what runs is told.
    let mut known = ["method", "query", "skill_name", "file_path", "offset"];
    known.sort_unstable();
    let mut told = fields.clone();
    told.sort_unstable();
    assert_eq!(told, known);
    assert!(!json!(definition).to_string().contains("execute_script"));
    let run = json!({"method": "execute_script", "skill_name": "pdf-editing", "script_path": "scripts/fill.py"});
    talk.check_refused("skills_tool", run, "INVALID_ARGUMENTS")
        .await;
    let (_fake, mut talk) = conversation_with(|options| options.tools = Some(Vec::new())).await;
    assert!(talk.names().await.is_empty());
    talk.check_refused("skills_tool", json!({"method": "list"}), "UNKNOWN_TOOL")
        .await;
}

#[tokio::test]
async fn methods_ignore_case_and_argument_errors_list_valid_values() {
    let (_fake, mut talk) = conversation(options()).await;
    for method in ["list", " LIST ", "List"] {
        use_tool(&mut talk, json!({"method": method})).await;
    }
    let cases = r#"
        skills_tool {"method": "run"} => INVALID_ARGUMENTS list, search, load, read_file, execute_script
        skills_tool {} => INVALID_ARGUMENTS list, search, load, read_file, execute_script
        skills_tool {"method": "load"} => INVALID_ARGUMENTS skill_name is empty
        skills_tool {"method": "load", "skill_name": "** **"} => INVALID_ARGUMENTS skill_name is empty
        skills_tool {"method": "search", "query": " "} => INVALID_ARGUMENTS query is empty
        skills_tool {"method": "read_file", "skill_name": "pdf-editing"} => INVALID_ARGUMENTS file_path is empty
        skills_tool {"method": "execute_script", "skill_name": "pdf-editing"} => INVALID_ARGUMENTS script_path is empty
        skills_tool {"method": "execute_script", "skill_name": "pdf-editing", "script_path": "x", "arg_style": "flags"} => INVALID_ARGUMENTS positional, named, named_repeated, env
        skills_tool {"method": "execute_script", "skill_name": "pdf-editing", "script_path": "x", "cwd": "home"} => INVALID_ARGUMENTS workspace, skill_root, script_dir
        skills_tool {"method": "execute_script", "skill_name": "pdf-editing", "script_path": "x", "script_args": "a b"} => INVALID_ARGUMENTS script_args must be a map
        skills_tool {"method": "execute_script", "skill_name": "pdf-editing", "script_path": "x", "timeout": -1} => INVALID_ARGUMENTS timeout -1
        skills_tool {"method": [7]} => INVALID_ARGUMENTS method must be a text, not a list
    "#;
    for case in refusals(cases) {
        let message = talk.check_refusal(&case).await;
        for choice in [METHODS, "positional, named, named_repeated, env"] {
            assert_eq!(
                message.matches(choice).count(),
                1,
                "{}: {message}",
                case.line
            );
        }
    }
}

#[tokio::test]
async fn every_result_is_one_that_the_definition_describes() {
    let (_fake, mut talk) = conversation(options()).await;
    let returns = talk.definitions().await.remove(0).returns;
    assert_eq!(returns["type"], "object");
    let schemas = returns["anyOf"].as_array().expect("schemas").clone();
    let pdf = json!({"skill_name": "pdf-editing"});
    for (method, schema) in METHODS.split(", ").zip([0, 1, 2, 3, 4]) {
        let mut call = pdf.clone();
        call["method"] = method.into();
        call["query"] = "pdf".into();
        call["file_path"] = "forms.md".into();
        call["script_path"] = "scripts/fill.py".into();
        call["argv"] = json!(["hello"]);
        let result = use_tool(&mut talk, call).await;
        let schema = &schemas[schema];
        let fields = result.as_object().expect("a map");
        for field in fields.keys() {
            assert!(schema["properties"][field].is_object(), "{method}: {field}");
        }
        let required = schema["required"].as_array().expect("names");
        assert!(required.contains(&json!("text")), "{method}");
        for field in required {
            let field = field.as_str().expect("a name");
            assert!(fields.contains_key(field), "{method}: {field}");
        }
    }
}

#[tokio::test]
async fn list_sorts_by_name_and_keeps_authors_and_unusable_skills() {
    let (_fake, mut talk) = conversation(options()).await;
    let listed = use_tool(&mut talk, json!({"method": "list"})).await;
    let lines: Vec<&str> = text(&listed).lines().collect();
    assert_eq!(lines[0], "4 skills:");
    assert_eq!(lines[1], "- Bare [main]: What Bare does.");
    assert_eq!(lines[2], "- my-notes v1.0.0 [main]: What my-notes does.");
    assert!(
        lines[4].starts_with(
            "- pdf-editing v1.2.0 [main] tags=pdf,forms by Ann: Fills forms. And more"
        ),
        "{lines:?}"
    );
    assert!(lines[4].ends_with('…') && lines[4].chars().count() < 280);
    assert_eq!(lines[6..], ["Cannot be used:", "- broken: no front matter"]);
    assert_eq!(listed["skills"][3]["author"], "Ann");
    assert_eq!(
        listed["unusable"],
        json!([{"name": "broken", "problem": "no front matter"}])
    );
}

#[tokio::test]
async fn search_scores_as_the_other_system() {
    let (fake, mut talk) = conversation(options()).await;
    let found = use_tool(&mut talk, json!({"method": "search", "query": "pdf"})).await;
    assert_eq!(found["matches"][0]["name"], "pdf-editing");
    assert_eq!(found["matches"][0]["score"], 3.0);
    assert!(text(&found).starts_with("1 skills match \"pdf\":\n- pdf-editing v1.2.0"));
    let none = use_tool(&mut talk, json!({"method": "search", "query": "no such"})).await;
    assert_eq!(none["matches"], json!([]));
    assert_eq!(text(&none), "No skill matches \"no such\".\n");
    let searches = fake.calls.requests::<SearchSkillsRequest>("SearchSkills");
    assert!(
        searches
            .iter()
            .all(|search| search.scoring() == SkillScoring::AgentZero && search.page_size == 25)
    );
}

#[tokio::test]
async fn load_gives_header_body_and_files_and_remembers_the_last_five() {
    let (_fake, mut talk) = conversation_with(|options| options.max_loaded_skills = 2).await;
    let loaded = use_tool(
        &mut talk,
        json!({"method": "load", "skill_name": "pdf-editing"}),
    )
    .await;
    let shown = text(&loaded);
    for line in [
        "Skill: pdf-editing\n",
        "Source: main\n",
        "Path: /workspace/skills/pdf-editing\n",
        "Version: 1.2.0\n",
        "Author: Ann\n",
        "Tags: pdf, forms\n",
        "Triggers: fill a form\n",
        "\n# pdf-editing 1.2.0\n",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    let files: Vec<&str> = shown
        .split("Files:\n")
        .nth(1)
        .expect("files")
        .lines()
        .collect();
    let wanted = [
        "- forms.md",
        "- scripts/fill.py",
        "- scripts/lib/x.py",
        "- assets/logo.png",
        "- docs/a.md",
        "- other/b.txt",
    ];
    assert_eq!(files, wanted);
    assert_eq!(
        loaded["files"][3],
        json!({"path": "assets/logo.png", "size": 3, "binary": true})
    );
    let bare = use_tool(&mut talk, json!({"method": "load", "skill_name": "Bare"})).await;
    assert!(
        text(&bare).contains("\n(empty)\n</skill>\n\nFiles:\n(none)\n"),
        "{bare}"
    );
    let third = use_tool(
        &mut talk,
        json!({"method": "load", "skill_name": "my-notes"}),
    )
    .await;
    assert_eq!(third["evicted"], json!(["pdf-editing"]));
    assert_eq!(list(&talk.state, scope("")), ["Bare", "my-notes"]);
}

#[tokio::test]
async fn five_skills_stay_loaded_and_the_oldest_load_is_evicted() {
    let (fake, mut talk) = conversation(options()).await;
    let names = ["one", "two", "three", "four", "five", "six"];
    fake.state.lock().kits = names.map(|name| Kit::new(name, "1.0.0")).into();
    talk.session.agent = "a/0".into();
    let mut evicted = Vec::new();
    for name in ["one", "two", "three", "four", "five", "one", "six"] {
        let loaded = use_tool(&mut talk, json!({"method": "load", "skill_name": name})).await;
        evicted.push(loaded["evicted"].clone());
    }
    assert_eq!(json!(evicted), json!([[], [], [], [], [], [], ["two"]]));
    assert_eq!(
        list(&talk.state, scope("a/0")),
        ["three", "four", "five", "one", "six"]
    );
    assert!(list(&talk.state, scope("a%2F0")).is_empty());
    // What the next prompt is made of.
    let material = talk
        .tools
        .material(&talk.session, &talk.state)
        .await
        .expect("material");
    let loaded: Vec<&str> = material
        .loaded
        .iter()
        .map(|skill| skill.name.as_str())
        .collect();
    assert_eq!(loaded, ["three", "four", "five", "one", "six"]);
}

#[tokio::test]
async fn skills_that_parallel_branches_load_are_all_loaded() {
    let (_fake, mut talk) = conversation(options()).await;
    use_tool(&mut talk, json!({"method": "load", "skill_name": "Bare"})).await;
    let base = talk.state.clone();
    let mut deltas = Vec::new();
    for skill in ["pdf-editing", "my-notes"] {
        let call = tool_call(
            "",
            "skills_tool",
            json!({"method": "load", "skill_name": skill}),
        );
        let answer = talk.tools.call(&talk.session, &base, call).await;
        deltas.push(answer.expect("an answer").delta);
    }
    let merged = base.with(&merge(&base, &deltas[0], &deltas[1]));
    assert_eq!(
        list(&merged, scope("")),
        ["Bare", "my-notes", "pdf-editing"]
    );
    // As by a host that applies each when it comes.
    let mut applied = list(&base.with(&deltas[0]).with(&deltas[1]), scope(""));
    applied.sort();
    assert_eq!(applied, ["Bare", "my-notes", "pdf-editing"]);
}

#[tokio::test]
async fn more_files_than_a_text_shows_are_counted_and_all_in_the_list() {
    let (fake, mut talk) = conversation(options()).await;
    let many = (0..100).fold(Kit::new("many", "1.0.0"), |kit, at| {
        kit.file(&format!("f{at:03}"), "x")
    });
    fake.state.lock().kits.push(many);
    let loaded = use_tool(&mut talk, json!({"method": "load", "skill_name": "many"})).await;
    assert!(text(&loaded).contains("- f079\nand 20 more, which read_file reads too\n"));
    assert_eq!(loaded["files"].as_array().map(Vec::len), Some(100));
}

#[tokio::test]
async fn a_skills_name_is_found_however_a_model_writes_it() {
    let (_fake, mut talk) = conversation(options()).await;
    for name in [
        "pdf-editing",
        " PDF Editing ",
        "pdf_editing",
        "**pdf-editing**",
        "`pdf-editing`",
        "\"PDF_Editing\"",
        "pdf-editing@1.2.0",
        "PDF Editing@1.2.0",
    ] {
        let loaded = use_tool(&mut talk, json!({"method": "load", "skill_name": name})).await;
        assert_eq!(loaded["name"], "pdf-editing", "{name}");
    }
    // Exact before alike.
    for name in ["my-notes", "my_notes", "**my_notes**"] {
        let loaded = use_tool(&mut talk, json!({"method": "load", "skill_name": name})).await;
        assert_eq!(loaded["name"], name.trim_matches('*'));
    }
    let alike = talk
        .refused(
            "skills_tool",
            json!({"method": "load", "skill_name": "My Notes"}),
        )
        .await;
    assert_eq!(alike.0, "AMBIGUOUS_SKILL");
    assert_eq!(
        alike.1,
        "My Notes may be any of my-notes, my_notes: use one of these names"
    );
    let none = talk
        .refused(
            "skills_tool",
            json!({"method": "load", "skill_name": "pdfs"}),
        )
        .await;
    assert_eq!(none.0, "UNKNOWN_SKILL");
    assert!(
        none.1
            .starts_with("unknown skill: pdfs; did you mean pdf-editing"),
        "{}",
        none.1
    );
    let bad = talk
        .refused(
            "skills_tool",
            json!({"method": "load", "skill_name": "broken"}),
        )
        .await;
    assert_eq!(bad.0, "SKILL_UNUSABLE");
}

#[tokio::test]
async fn read_file_reads_text_in_parts_and_describes_what_is_binary() {
    let (_fake, mut talk) = conversation_with(|options| options.primary_bytes_max = 101).await;
    let read = |path: &str, offset: u64| json!({"method": "read_file", "skill_name": "pdf editing", "file_path": path, "offset": offset});
    let form = use_tool(&mut talk, read("./forms.md", 0)).await;
    let tag = format!(
        "<skill id=\"pdf-editing\" version=\"1.2.0\" digest=\"{}\" doc=",
        digest("pdf-editing", "1.2.0")
    );
    assert_eq!(
        text(&form),
        format!("{tag}\"forms.md\">\nA form.\n</skill>\n")
    );
    check_fields(&form, &json!({"path": "forms.md", "next_offset": null}));
    let first = use_tool(&mut talk, read("docs/a.md", 0)).await;
    assert_eq!(first["next_offset"], 100);
    assert!(
        text(&first).ends_with("é\n</skill>\n[bytes 0 to 100 of 120; go on with offset 100]\n"),
        "{first}"
    );
    let rest = use_tool(&mut talk, read("docs/a.md", 100)).await;
    let last = "é".repeat(10);
    assert_eq!(
        text(&rest),
        format!("{tag}\"docs/a.md\">\n{last}\n</skill>\n")
    );
    let logo = use_tool(&mut talk, read("assets/logo.png", 0)).await;
    assert_eq!(logo["binary"], true);
    let digest = sha256(&[0, 1, 2]);
    let said = format!("assets/logo.png is binary, 3 bytes, sha256 {digest}");
    assert!(text(&logo).starts_with(&said));
    for (path, code) in [
        ("../x", "INVALID_ARGUMENTS"),
        ("/etc/passwd", "INVALID_ARGUMENTS"),
        ("scripts", "INVALID_ARGUMENTS"),
        ("no.md", "FILE_NOT_FOUND"),
    ] {
        let (is, message) = talk.refused("skills_tool", read(path, 0)).await;
        assert_eq!(is, code, "{path}: {message}");
    }
}

fn run(arguments: &Value) -> Value {
    let mut run = json!({
        "method": "execute_script", "skill_name": "pdf-editing", "script_path": "scripts/fill.py",
    });
    let fields = run.as_object_mut().expect("a map");
    fields.extend(arguments.as_object().expect("a map").clone());
    run
}

#[tokio::test]
async fn arguments_reach_the_daemon_as_data_in_their_order() {
    let (fake, mut talk) = conversation(options()).await;
    for (given, style) in [
        (json!(null), ScriptArgStyle::Positional),
        (json!(""), ScriptArgStyle::Positional),
        (json!("positional"), ScriptArgStyle::Positional),
        (json!(" NAMED "), ScriptArgStyle::Named),
        (json!("named_repeated"), ScriptArgStyle::NamedRepeated),
        (json!("env"), ScriptArgStyle::Env),
    ] {
        for args in [
            json!({"z-a": true, "a": 1.0, "m": ["x", null], "o": {"k": "😀"}}),
            json!(r#"{"z-a": true, "a": 1.0, "m": ["x", null], "o": {"k": "😀"}}"#),
        ] {
            let arguments = json!({"script_args": args, "arg_style": given, "argv": ["sub", "--flag"], "cwd": "script_dir", "stdin": "in", "timeout": 7});
            use_tool(&mut talk, run(&arguments)).await;
            let mut state = fake.state.lock();
            let (_, exec) = state.execs.pop_first().expect("one");
            let script = exec.spec.script.expect("a script");
            assert_eq!(script.arg_style(), style, "{given}");
            assert_eq!(script.argv, ["sub", "--flag"]);
            assert_eq!(script.cwd(), ScriptCwd::ScriptDir);
            let keys: Vec<&str> = script.args.iter().map(|arg| arg.key.as_str()).collect();
            assert_eq!(keys, ["z-a", "a", "m", "o"]);
            let kind = |at: usize| {
                script.args[at]
                    .value
                    .as_ref()
                    .and_then(|value| value.kind.as_ref())
            };
            assert_eq!(kind(0), Some(&Kind::BoolValue(true)));
            assert_eq!((script.args[1].literal.as_str(), kind(1)), ("1.0", None));
            assert!(matches!(kind(2), Some(Kind::ListValue(list)) if list.values.len() == 2));
            assert!(matches!(kind(3), Some(Kind::StructValue(_))));
            assert_eq!(exec.spec.timeout.map(|timeout| timeout.seconds), Some(7));
            assert_eq!(exec.spec.skill, "skills/pdf-editing");
        }
    }
    let requests = fake.staged_skills();
    let staged = requests.last().expect("staged");
    let pinned = format!("skills/pdf-editing@{}", digest("pdf-editing", "1.2.0"));
    assert_eq!(staged.skills.last(), Some(&pinned));
}

#[tokio::test]
async fn a_run_has_text_and_exit_code_and_both_streams_and_files() {
    let (fake, mut talk) = conversation(options()).await;
    let mut produced = file("out/form.pdf", b"bytes");
    produced.push(summary());
    fake.answer_collections(produced);
    let ran = use_tool(&mut talk, run(&json!({"argv": ["hello", "there"]}))).await;
    assert_eq!(ran["stdout"], "hello there\n");
    check_fields(&ran, &json!({"exit_code": 0, "timed_out": false}));
    assert_eq!(ran["files"][0]["path"], "out/form.pdf");
    assert_eq!(ran["files"][0]["sha256"].as_str().map(str::len), Some(64));
    let shown = text(&ran);
    assert!(
        shown.starts_with(
            "Executed script: pdf-editing/scripts/fill.py\nEnded: exit code 0, after "
        ),
        "{shown}"
    );
    assert!(shown.contains("\nOutput:\nhello there\n"), "{shown}");
    assert!(
        shown.contains("\nFiles written:\n- out/form.pdf ("),
        "{shown}"
    );
    let spec = fake.collect_spec();
    assert_eq!(spec.globs, ["out/**", "work/**"]);
    let outputs = fake.runs().pop().and_then(|run| run.outputs);
    assert!(outputs.is_some_and(|outputs| outputs.changed_only && outputs.omit_data));
}

#[tokio::test]
async fn a_script_that_fails_is_a_result_and_says_how() {
    let (_fake, mut talk) = conversation(options()).await;
    for (argv, code, outcome, said) in [
        (json!(["exit", "7"]), json!(7), "exited", "exit code 7"),
        (
            json!(["timeout"]),
            json!(null),
            "timeout",
            "timeout, signal 9",
        ),
        (
            json!(["segv"]),
            json!(null),
            "signaled",
            "signaled, signal 11",
        ),
        (
            json!(["missing"]),
            json!(null),
            "spawn_failed",
            "it could not be started: ENOENT: missing",
        ),
    ] {
        let ran = use_tool(&mut talk, run(&json!({"argv": argv}))).await;
        assert_eq!(
            (&ran["exit_code"], &ran["outcome"]),
            (&code, &json!(outcome)),
            "{argv}"
        );
        assert_eq!(ran["timed_out"], outcome == "timeout");
        let shown = text(&ran);
        assert!(
            shown.starts_with("Error: script failed: pdf-editing/scripts/fill.py\n"),
            "{shown}"
        );
        assert!(shown.contains(said), "{shown}");
    }
    let quiet = use_tool(&mut talk, run(&json!({"argv": ["exit", "0"]}))).await;
    check_fields(&quiet, &json!({"stdout": "", "stderr": ""}));
    assert!(text(&quiet).contains("It printed nothing."));
}

#[tokio::test]
async fn long_output_is_cut_in_its_middle_and_counted() {
    let (_fake, mut talk) = conversation_with(|options| options.output_bytes_max = 1000).await;
    let ran = use_tool(&mut talk, run(&json!({"argv": ["flood"]}))).await;
    assert_eq!(ran["stdout_truncated"], true);
    assert_eq!(ran["stdout_bytes"], 64 * 1024 * 1024);
    let stdout = ran["stdout"].as_str().expect("text");
    assert!(
        stdout.len() < 1100 && stdout.contains("[… 67107864 bytes of stdout left out …]"),
        "{stdout}"
    );
}

#[tokio::test]
async fn errors_of_the_script_keep_their_families() {
    let (fake, mut talk) = conversation(options()).await;
    for (status, code, said) in [
        (
            invalid(
                "spec.script.path",
                "nothing here runs \"x.doc\": its extension is none of py sh",
            ),
            "UNSUPPORTED_SCRIPT",
            "unsupported script type: scripts/fill.py: nothing here runs",
        ),
        (
            invalid(
                "spec.script.path",
                "must be relative to the skill's root, without `..`",
            ),
            "INVALID_ARGUMENTS",
            "script.path must be relative",
        ),
        (
            invalid(
                "spec.script.args[1].key",
                "becomes the same variable as another one",
            ),
            "INVALID_ARGUMENTS",
            "script.args[1].key becomes the same variable",
        ),
        (
            refusal(
                Code::NotFound,
                "FILE_NOT_FOUND",
                &[("nearest", "scripts/fill.py")],
            ),
            "FILE_NOT_FOUND",
            "did you mean scripts/fill.py?",
        ),
    ] {
        fake.calls.refuse(STARTS, [status]);
        let (is, message) = talk.refused("skills_tool", run(&json!({}))).await;
        assert_eq!(is, code, "{message}");
        assert!(message.contains(said), "{message}");
    }
}

#[tokio::test]
async fn a_call_that_is_repeated_runs_nothing_twice() {
    let (fake, mut talk) = conversation(options()).await;
    for _ in 0..2 {
        let ran = talk
            .call_as("call-1", "skills_tool", run(&json!({"argv": ["once"]})))
            .await;
        assert_eq!(ran.expect("runs")["stdout"], "once\n");
    }
    assert_eq!(fake.state.lock().starts, 1);
    let other = talk
        .call_as("call-2", "skills_tool", run(&json!({"argv": ["once"]})))
        .await;
    assert!(other.is_ok());
    assert_eq!(fake.state.lock().starts, 2);
}

#[tokio::test]
async fn a_host_that_lists_commands_decides_on_scripts_too() {
    let script = "pdf-editing/scripts/fill.py";
    for (allowed, denied, runs) in [
        (vec![], vec![], true),
        (vec!["pdf-editing/scripts/other.py"], vec![], false),
        (vec![script], vec![], true),
        (vec![], vec![script], false),
    ] {
        let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
        let (fake, mut talk) = conversation(ToolOptions {
            allowed_commands: owned(allowed),
            denied_commands: owned(denied),
            ..options()
        })
        .await;
        for path in [
            "scripts/fill.py",
            "./scripts//fill.py",
            " scripts/./fill.py",
        ] {
            let called = run(&json!({"script_path": path, "skill_name": "PDF editing"}));
            match talk.call("skills_tool", called).await {
                Ok(_) => assert!(runs, "{path}"),
                Err(error) => {
                    assert!(!runs, "{path}");
                    assert_eq!(error["error"], "COMMAND_REFUSED");
                    assert_eq!(fake.state.lock().starts, 0);
                }
            }
        }
    }
}

#[tokio::test]
async fn a_workspace_that_is_gone_is_made_again() {
    let (fake, mut talk) = conversation(options()).await;
    use_tool(&mut talk, run(&json!({"argv": ["one"]}))).await;
    fake.state.lock().workspaces.clear();
    let ran = use_tool(&mut talk, run(&json!({"argv": ["two"]}))).await;
    assert_eq!(ran["stdout"], "two\n");
    assert_eq!(fake.state.lock().workspaces.len(), 1);
    // What is missing in it must not come as a surprise; said once.
    check_warning(&ran, "the workspace is a new one");
    let warning = ran["warnings"][0].as_str().expect("a warning");
    let text = ran["text"].as_str().expect("a text");
    assert!(text.contains(&format!("Note: {warning}\n")), "{text}");
    let ran = use_tool(&mut talk, run(&json!({"argv": ["three"]}))).await;
    assert_eq!(ran.get("warnings"), None);
}
