//! `skillctl run`: what it asks for in its one call, and when it needs more.

use std::os::unix::fs::PermissionsExt;

use skilld_client::v1::input_spec::Content;
use skilld_client::v1::{ListPoolsResponse, Pool, RunExecRequest};
use skilld_testing::Fake;
use skilld_testing::collection_messages::{file, summary};

use crate::commands::{fake, run, text};

/// Runs words with `run` before them. Returns the request, and the methods that were called.
async fn request(fake: &Fake, words: &[&str]) -> (RunExecRequest, Vec<String>) {
    fake.calls.take();
    let output = run(fake, &[&["run"], words].concat()).await;
    let code = output.status.code();
    assert_eq!(code, Some(0), "{words:?}: {}", text(&output.stderr));
    let request = fake.runs().pop().expect("one");
    let calls = fake.calls.take().into_iter();
    let methods = calls.filter_map(|call| call.rsplit('/').next().map(str::to_owned));
    (request, methods.collect())
}

#[tokio::test]
async fn a_command_after_dashes_runs_without_a_skill() {
    let fake = fake();
    for (words, argv) in [
        (vec!["--", "echo", "-n", "x"], vec!["echo", "-n", "x"]),
        (vec!["-e", "A=1", "--", "hello"], vec!["hello"]),
        (
            vec!["--keep", "--", "echo", "--", "x"],
            vec!["echo", "--", "x"],
        ),
    ] {
        let (request, calls) = request(&fake, &words).await;
        let spec = request.spec.expect("set");
        assert_eq!(
            (spec.argv, spec.cwd.as_str()),
            (argv.iter().map(|&word| word.to_owned()).collect(), ".")
        );
        assert!(request.skills.is_empty() && spec.skill.is_empty());
        assert_eq!(calls, ["RunExec"], "{words:?}");
    }
    for words in [
        ["run", "--writable", "--", "ls"],
        ["run", "--script=x", "--", "ls"],
    ] {
        let output = run(&fake, &words).await;
        assert_eq!(output.status.code(), Some(125), "{words:?}");
        assert!(text(&output.stderr).contains("name it before the command"));
    }
}

#[tokio::test]
async fn a_skill_runs_in_the_folder_of_its_name() {
    let fake = fake();
    for (skill, folder) in [("ok@1", "skills/ok"), ("parent/ok", "skills/ok")] {
        let (request, _) = request(&fake, &[skill, "hello"]).await;
        assert_eq!(request.skills, [format!("skills/{skill}")]);
        assert_eq!(request.spec.expect("set").skill, folder, "{skill}");
    }
}

#[tokio::test]
async fn small_files_are_in_the_request_and_others_are_sent() {
    let fake = fake();
    std::fs::write(fake.path("small.txt"), "x").expect("writes");
    std::fs::write(fake.path("large.bin"), vec![0; (1 << 20) + 1]).expect("writes");
    std::fs::write(fake.path("tool.sh"), "true").expect("writes");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(fake.path("tool.sh"), mode).expect("changes");
    let words = [
        "--input",
        "small.txt=work/a",
        "--input",
        "artifact://b",
        "--",
        "hello",
    ];
    let (whole, calls) = request(&fake, &words).await;
    let [reference, local] = whole.inputs.as_slice() else {
        panic!("{:?}", whole.inputs)
    };
    assert_eq!(
        reference.content,
        Some(Content::Source("artifact://b".into()))
    );
    assert_eq!(local.content, Some(Content::Data("x".into())));
    assert_eq!(local.path, "work/a");
    assert_eq!(calls, ["RunExec"]);
    for name in ["large.bin", "tool.sh"] {
        let words = ["--input", "small.txt", "--input", name, "--", "hello"];
        let (rest, calls) = request(&fake, &words).await;
        let sent = [
            "CreateWorkspace",
            "StageFiles",
            "StageFiles",
            "RunExec",
            "DeleteWorkspace",
        ];
        assert_eq!(calls, sent, "{name}");
        assert!(rest.inputs.is_empty() && rest.workspace_template.is_none());
    }
    assert_eq!(fake.state.lock().workspaces.len(), 1, "none is left");
}

#[tokio::test]
async fn a_large_file_without_a_size_is_refused() {
    let fake = fake();
    // Its metadata has the size 0, and it has more bytes than fit into a request.
    let words = ["run", "--input", "/proc/kallsyms", "--", "hello"];
    let output = run(&fake, &words).await;
    assert_eq!(output.status.code(), Some(125));
    let said = text(&output.stderr);
    assert!(said.contains("/proc/kallsyms has no size"), "{said}");
    assert_eq!(fake.calls.count("CreateWorkspace|RunExec"), 0);
}

#[tokio::test]
async fn an_image_names_the_pool_that_has_it() {
    let fake = fake();
    let pool = |name: &str, image: &str| Pool {
        name: format!("pools/{name}"),
        image: image.to_owned(),
        ..Default::default()
    };
    let pools = vec![
        pool("a", "skilld/base:latest"),
        pool("b", "skilld/office:1"),
    ];
    let listed = ListPoolsResponse {
        pools,
        ..Default::default()
    };
    fake.calls.reply("ListPools", [listed]);
    for (image, pool) in [("skilld/base", "pools/a"), ("skilld/office:1", "pools/b")] {
        let (request, _) = request(&fake, &["--image", image, "--", "hello"]).await;
        assert_eq!(request.workspace_template.expect("set").pool, pool);
    }
    let output = run(&fake, &["run", "--image", "skilld/office", "--", "hello"]).await;
    assert_eq!(output.status.code(), Some(125));
    let said = text(&output.stderr);
    assert!(
        said.contains("no pool has the image skilld/office"),
        "{said}"
    );
}

#[tokio::test]
async fn a_run_that_keeps_its_workspace_names_it() {
    let fake = fake();
    fake.answer_collections([file("out/r", b"result"), vec![summary()]].concat());
    let output = run(&fake, &["run", "--keep", "--to", "to", "--", "hello"]).await;
    let said = text(&output.stderr);
    let name = fake.runs()[0].exec_id.clone();
    assert!(
        said.ends_with(&format!("kept workspace {name}\n")),
        "{said}"
    );
    let kept = format!("workspaces/{name}");
    assert!(fake.state.lock().workspaces.contains_key(&kept));
    // Refused before it was claimed.
    let output = run(&fake, &["run", "--keep", "--pool", "full", "--", "hello"]).await;
    assert_eq!(output.status.code(), Some(125));
    assert!(!text(&output.stderr).contains("kept"));
}
