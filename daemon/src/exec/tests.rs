//! Tests of resolving exec specs: environment, placeholders, working directory and effective values.

use prost_types::value::Kind;

use super::image_environment::DEFAULT_PATH;
use super::*;

mod scripts;

const SCRIPT: script::ScriptProgram = script::ScriptProgram {
    interpreter: &["python3"],
    path: String::new(),
};

/// Variables of the image of the workspace's container; all but one are set by the daemon, too.
const IMAGE_ENV: [&str; 4] = [
    "HOME=/root",
    "JAVA_HOME=/opt/jdk",
    "LANG=C",
    "PATH=/usr/bin",
];

fn config() -> ExecConfig {
    let text = "execs.timeout_max = \"10m\"\n";
    crate::config::Config::from_toml(text)
        .expect("good")
        .config
        .execs
}

/// Resolves a spec in a workspace that has the skill `csv-report`.
fn resolve_spec(spec: pb::ExecSpec, start: StartMode) -> Result<guest::StartExecRequest> {
    let skill = StagedSkillRecord::default();
    resolve_spec_with(&[("csv-report", skill)], spec, start)
}

/// Resolves a spec in a workspace that has some skills.
fn resolve_spec_with(
    skills: &[(&str, StagedSkillRecord)],
    spec: pb::ExecSpec,
    start: StartMode,
) -> Result<guest::StartExecRequest> {
    let skills: BTreeMap<_, _> = skills
        .iter()
        .map(|(name, skill)| ((*name).to_owned(), skill.clone()))
        .collect();
    let config = config();
    let env = BTreeMap::from([
        ("TEAM".to_owned(), "a".to_owned()),
        ("BOTH".to_owned(), "workspace".to_owned()),
    ]);
    let script = spec.script.as_ref();
    let program = script::ScriptProgram {
        path: script.map_or_else(String::new, |script| script.path.clone()),
        ..SCRIPT
    };
    resolve_exec(
        "e1".into(),
        vec![1],
        spec,
        start,
        ExecContext {
            image_env: &ImageEnvironment::new(&IMAGE_ENV.map(str::to_owned)),
            cpu_millis: 1500,
            env: &env,
            skills: &skills,
            has_wheelhouse: false,
            has_fonts: false,
            script: Some(&program),
            config: &config,
        },
    )
}

#[test]
fn restricted_exec_loads_nothing_of_a_writable_skill() {
    let spec = pb::ExecSpec {
        argv: vec!["ls".to_owned()],
        skill: "skills/csv-report".to_owned(),
        programs: Some(pb::ExecPrograms {
            allowed: vec!["ls".to_owned()],
            ..pb::ExecPrograms::default()
        }),
        ..pb::ExecSpec::default()
    };
    let searched = |writable: &str, spec: pb::ExecSpec| -> Vec<String> {
        let skills = ["another", "csv-report"].map(|name| {
            let path = format!("work/.skills/{name}");
            let skill = StagedSkillRecord {
                writable_path: (name == writable).then_some(path),
                ..StagedSkillRecord::default()
            };
            (name, skill)
        });
        let request = resolve_spec_with(&skills, spec, StartMode::Run).expect("good");
        let variables = request.env.into_iter();
        let is_search_path =
            |pair: &String| pair.starts_with("PATH=") || pair.starts_with("PYTHONPATH=");
        let paths = variables.filter(is_search_path);
        paths.filter(|pair| pair.contains("csv-report")).collect()
    };
    assert_eq!(searched("", spec.clone()).len(), 2);
    assert_eq!(searched("another", spec.clone()).len(), 2);
    let none: Vec<String> = Vec::new();
    assert_eq!(searched("csv-report", spec.clone()), none);
    let unrestricted = pb::ExecSpec {
        programs: None,
        ..spec
    };
    assert_eq!(searched("csv-report", unrestricted).len(), 2);
}

fn shell(text: &str) -> pb::ExecSpec {
    pb::ExecSpec {
        shell: text.into(),
        ..Default::default()
    }
}

#[test]
fn environment_without_skill_is_the_documented_minimum() {
    let request = resolve_spec(shell("env"), StartMode::Run).expect("good");
    let names: Vec<&str> = request
        .env
        .iter()
        .filter_map(|pair| Some(pair.split_once('=')?.0))
        .collect();
    let documented = "
        BOTH CLAUDE_PROJECT_DIR GOMAXPROCS HOME INPUTS_DIR JAVA_HOME LANG OMP_NUM_THREADS
        OPENBLAS_NUM_THREADS OUTPUT_DIR PATH PIP_DISABLE_PIP_VERSION_CHECK PIP_NO_INDEX POLARS_MAX_THREADS
        PYTHONPATH PYTHONUNBUFFERED PYTHON_CPU_COUNT RAYON_NUM_THREADS RUN_DIR SHELL SKILLS_DIR TEAM TMPDIR
        USER UV_OFFLINE UV_PYTHON_DOWNLOADS WORKSPACE WORKSPACE_DIR WORK_DIR";
    let expected: Vec<&str> = documented.split_whitespace().collect();
    assert_eq!(names, expected);
    for pair in [
        "RUN_DIR=/workspace/runs/e1",
        "HOME=/workspace/work",
        "JAVA_HOME=/opt/jdk",
        "LANG=C.UTF-8",
        "PYTHONPATH=/run/skilld/python",
        "PYTHONUNBUFFERED=1",
        // The container has one and a half cores.
        "OMP_NUM_THREADS=2",
        "PYTHON_CPU_COUNT=2",
    ] {
        assert!(request.env.contains(&pair.to_owned()), "{pair}");
    }
    assert_eq!(request.argv, ["bash", "-c", "env"]);
}

#[test]
fn placeholders_for_the_skill_folder_are_replaced_in_commands() {
    let root = "/workspace/skills/csv-report";
    let of_skill = |spec: pb::ExecSpec| pb::ExecSpec {
        skill: "skills/csv-report".into(),
        ..spec
    };
    let argv = |args: &[&str]| pb::ExecSpec {
        argv: args.iter().map(|arg| (*arg).to_owned()).collect(),
        ..Default::default()
    };
    let args = [
        "{baseDir}/bin/x",
        "__BASE_DIR__",
        "${CLAUDE_PLUGIN_ROOT}/y",
        "$CLAUDE_SKILL_DIR",
        "${baseDir}",
    ];
    let request = resolve_spec(of_skill(argv(&args)), StartMode::Run).expect("good");
    let (program, last) = (format!("{root}/bin/x"), format!("{root}/y"));
    let expected = [program.as_str(), root, last.as_str(), root, "${baseDir}"];
    assert_eq!(request.argv, expected);
    assert_eq!(request.spec.expect("a spec").argv, expected);

    // A shell expands its variables itself, subject to quoting.
    let text = "cat {baseDir}/a '${CLAUDE_PLUGIN_ROOT}'";
    let request = resolve_spec(of_skill(shell(text)), StartMode::Run).expect("good");
    let replaced = format!("cat {root}/a '${{CLAUDE_PLUGIN_ROOT}}'");
    assert_eq!(request.argv, ["bash", "-c", replaced.as_str()]);

    // Without a skill there is no folder to insert, and values of a script are passed unchanged.
    let request = resolve_spec(argv(&args), StartMode::Run).expect("good");
    assert_eq!(request.argv, args);
    let script = pb::ExecScript {
        path: "scripts/report.py".into(),
        argv: vec!["{baseDir}".into()],
        ..Default::default()
    };
    let spec = pb::ExecSpec {
        script: Some(script),
        ..Default::default()
    };
    let request = resolve_spec(of_skill(spec), StartMode::Run).expect("good");
    assert_eq!(request.argv.last().map(String::as_str), Some("{baseDir}"));

    let long = "{baseDir}".repeat(2000);
    let many = vec![long.as_str(); 50];
    let refused = resolve_spec(of_skill(argv(&many)), StartMode::Run).expect_err("too long");
    assert!(refused.to_string().contains("spec.argv"), "{refused}");
}

#[test]
fn command_length_is_limited_after_placeholders_are_replaced() {
    let of_skill = |argv: &[&str], shell: &str| pb::ExecSpec {
        skill: "skills/csv-report".into(),
        argv: argv.iter().map(|arg| (*arg).to_owned()).collect(),
        shell: shell.into(),
        ..Default::default()
    };
    let growth = "/workspace/skills/csv-report".len() - "{baseDir}".len();
    let fill = |length: usize| format!("{{baseDir}}{}", "x".repeat(length - "{baseDir}".len()));
    let longest = fill(ARG_BYTES_MAX - growth);
    let longer = format!("{longest}x");
    assert!(longer.len() < ARG_BYTES_MAX);
    for (argv, shell, field) in [
        (vec!["cat", longer.as_str()], "", "spec.argv[1]"),
        (vec![], longer.as_str(), "spec.shell"),
    ] {
        let refused = resolve_spec(of_skill(&argv, shell), StartMode::Run).expect_err("too long");
        let message = refused.to_string();
        for part in [
            field,
            "131072 bytes after its placeholders were replaced",
            "at most 131071",
        ] {
            assert!(message.contains(part), "{part}: {message}");
        }
    }
    for spec in [of_skill(&["cat", &longest], ""), of_skill(&[], &longest)] {
        let request = resolve_spec(spec, StartMode::Run).expect("just short enough");
        let last = request.argv.last().map(String::len);
        assert_eq!(last, Some(ARG_BYTES_MAX));
    }
}

#[test]
fn a_skill_sets_cwd_and_its_variables() {
    let spec = pb::ExecSpec {
        skill: "skills/csv-report".into(),
        ..shell("x")
    };
    let request = resolve_spec(spec, StartMode::Run).expect("good");
    assert_eq!(request.cwd, "/workspace/skills/csv-report");
    for pair in [
        "SKILL_NAME=csv-report",
        "SKILL_DIR=/workspace/skills/csv-report",
        "SKILL_ROOT=/workspace/skills/csv-report",
        "WORKSPACE=/workspace",
        "PYTHONPATH=/workspace/skills/csv-report:/run/skilld/python",
        "PYTHONDONTWRITEBYTECODE=1",
        "CLAUDE_SKILL_DIR=/workspace/skills/csv-report",
        "CLAUDE_PLUGIN_ROOT=/workspace/skills/csv-report",
        "VIRTUAL_ENV=/workspace/skills/csv-report/.venv",
    ] {
        assert!(request.env.contains(&pair.to_owned()), "{pair}");
    }
    let path = request
        .env
        .iter()
        .find(|pair| pair.starts_with("PATH="))
        .expect("PATH");
    assert!(
        path.starts_with("PATH=/workspace/skills/csv-report/.venv/bin:"),
        "{path}"
    );
    assert!(
        path.ends_with(":/workspace/skills/csv-report/bin"),
        "{path}"
    );
}

#[test]
fn every_path_of_a_skill_in_a_plugin_is_the_one_without_links() {
    let plugin = "/workspace/skills/.plugins/csv-report";
    let root = format!("{plugin}/skills/csv");
    let skill = StagedSkillRecord {
        path_in_plugin: Some("skills/csv".to_owned()),
        ..StagedSkillRecord::default()
    };
    let skills = [("csv-report", skill)];
    let resolve = |spec: pb::ExecSpec| {
        let spec = pb::ExecSpec {
            skill: "skills/csv-report".into(),
            ..spec
        };
        resolve_spec_with(&skills, spec, StartMode::Run).expect("good")
    };
    let request = resolve(shell("{baseDir}/x"));
    assert_eq!(request.cwd, root);
    assert_eq!(request.argv[2], format!("{root}/x"));
    for pair in [
        format!("SKILL_DIR={root}"),
        format!("SKILL_ROOT={root}"),
        format!("CLAUDE_SKILL_DIR={root}"),
        format!("CLAUDE_PLUGIN_ROOT={plugin}"),
        format!("VIRTUAL_ENV={root}/.venv"),
        format!("PYTHONPATH={root}:/run/skilld/python"),
        format!("PATH={root}/.venv/bin:{DEFAULT_PATH}:{root}/bin"),
    ] {
        assert!(request.env.contains(&pair), "{pair}");
    }
    for (cwd, expected) in [
        ("scripts", format!("{root}/scripts")),
        ("$SKILL_DIR/scripts", format!("{root}/scripts")),
        ("../../shared", format!("{plugin}/shared")),
        ("${SKILL_DIR}/../..", plugin.to_owned()),
        (
            "$SKILLS_DIR/$SKILL_NAME",
            "/workspace/skills/csv-report".to_owned(),
        ),
    ] {
        let spec = pb::ExecSpec {
            cwd: cwd.into(),
            ..shell("x")
        };
        assert_eq!(resolve(spec).cwd, expected, "{cwd}");
    }
    let script = pb::ExecSpec {
        script: Some(pb::ExecScript {
            path: "scripts/x.py".into(),
            cwd: pb::ScriptCwd::ScriptDir.into(),
            ..pb::ExecScript::default()
        }),
        ..pb::ExecSpec::default()
    };
    let request = resolve(script);
    assert_eq!(
        request.argv,
        ["python3".to_owned(), format!("{root}/scripts/x.py")]
    );
    assert_eq!(request.cwd, format!("{root}/scripts"));
}

#[test]
fn terminal_gets_a_default_size_and_type() {
    let with = |terminal, env: &[(&str, &str)]| {
        let spec = pb::ExecSpec {
            terminal,
            env: env
                .iter()
                .map(|(name, value)| ((*name).into(), (*value).into()))
                .collect(),
            ..shell("x")
        };
        let request = resolve_spec(spec, StartMode::Run).expect("good");
        let term = request
            .env
            .iter()
            .find_map(|pair| pair.strip_prefix("TERM="))
            .map(str::to_owned);
        (request.spec.expect("spec").terminal, term)
    };
    assert_eq!(with(None, &[]), (None, None));
    let (terminal, term) = with(Some(pb::ExecTerminal::default()), &[]);
    let expected = pb::ExecTerminal {
        rows: 24,
        cols: 80,
        term: "xterm-256color".into(),
    };
    assert_eq!(
        (terminal, term.as_deref()),
        (Some(expected), Some("xterm-256color"))
    );
    let given = pb::ExecTerminal {
        rows: 7,
        cols: 9,
        term: "vt100".into(),
    };
    let (terminal, term) = with(Some(given.clone()), &[]);
    assert_eq!(
        (terminal.as_ref(), term.as_deref()),
        (Some(&given), Some("vt100"))
    );
    let (_, term) = with(Some(given), &[("TERM", "dumb")]);
    assert_eq!(term.as_deref(), Some("dumb"));
}

#[test]
fn exec_variables_replace_workspace_variables() {
    let spec = pb::ExecSpec {
        env: [
            ("BOTH".into(), "own".into()),
            ("HOME".into(), "/tmp".into()),
        ]
        .into(),
        ..shell("x")
    };
    let request = resolve_spec(spec, StartMode::Run).expect("good");
    assert!(request.env.contains(&"BOTH=own".to_owned()));
    assert!(request.env.contains(&"HOME=/tmp".to_owned()));
    assert_eq!(
        request
            .env
            .iter()
            .filter(|pair| pair.starts_with("BOTH="))
            .count(),
        1
    );
}

#[test]
fn cwd_outside_the_workspace_is_rejected() {
    let cases = [
        ("", "/workspace"),
        ("out", "/workspace/out"),
        ("$WORK_DIR/x", "/workspace/work/x"),
        ("/workspace/out/a", "/workspace/out/a"),
        ("$RUN_DIR", "/workspace/runs/e1"),
    ];
    for (cwd, expected) in cases {
        let request = resolve_spec(
            pb::ExecSpec {
                cwd: cwd.into(),
                ..shell("x")
            },
            StartMode::Run,
        )
        .expect(cwd);
        assert_eq!(request.cwd, expected, "{cwd}");
    }
    for cwd in ["..", "/etc", "a/../../..", "/workspace/../etc"] {
        let error = resolve_spec(
            pb::ExecSpec {
                cwd: cwd.into(),
                ..shell("x")
            },
            StartMode::Run,
        )
        .expect_err(cwd);
        assert!(matches!(error, Error::PathEscapes { .. }), "{cwd}: {error}");
    }
}

#[test]
fn effective_spec_contains_applied_defaults_and_maximums() {
    let long = Some(prost_types::Duration {
        seconds: 100_000,
        nanos: 0,
    });
    let spec = pb::ExecSpec {
        timeout: long,
        ..shell("x")
    };
    let effective = resolve_spec(spec, StartMode::Detached)
        .expect("good")
        .spec
        .expect("spec");
    assert_eq!(effective.timeout.map(|timeout| timeout.seconds), Some(600));
    assert_eq!(effective.on_full(), pb::OutputFullPolicy::DropOldest);
    assert_eq!(effective.stragglers(), pb::StragglerPolicy::Kill);
    assert_eq!(
        effective.retention.map(|retain| retain.stdout_bytes),
        Some(4 << 20)
    );
    let run = resolve_spec(shell("x"), StartMode::Run)
        .expect("good")
        .spec
        .expect("spec");
    assert_eq!(run.on_full(), pb::OutputFullPolicy::Block);
    assert_eq!(run.timeout.map(|timeout| timeout.seconds), Some(300));
}

#[test]
fn effective_spec_has_no_value_of_a_secret_variable() {
    let spec = pb::ExecSpec {
        env: [("TOKEN", "a secret"), ("PLAIN", "shown")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        secret_env: vec!["TOKEN".to_owned()],
        ..shell("x")
    };
    let request = resolve_spec(spec, StartMode::Run).expect("good");
    assert!(request.env.contains(&"TOKEN=a secret".to_owned()));
    let effective = request.spec.expect("spec").env;
    assert_eq!(effective["TOKEN"], "***");
    assert_eq!(effective["PLAIN"], "shown");
}

#[test]
fn a_skill_that_is_not_staged_is_not_found() {
    let error = resolve_spec(
        pb::ExecSpec {
            skill: "other".into(),
            ..shell("x")
        },
        StartMode::Run,
    )
    .expect_err("not staged");
    assert!(matches!(error, Error::SkillNotStaged { .. }), "{error}");
}

#[test]
fn a_skill_within_a_skill_is_named_as_it_is_staged() {
    let staged = ["a", "b", "chart", "child", "parent"]
        .map(|name| (name.to_owned(), StagedSkillRecord::default()))
        .into();
    let error = require_staged_skill("parent-child", &staged).expect_err("not staged");
    let message = error.to_string();
    assert!(
        message.ends_with("; did you mean child, parent, chart?"),
        "{message}"
    );
}

#[test]
fn a_skills_own_folders_stay_in_path_and_pythonpath() {
    let spec = pb::ExecSpec {
        skill: "skills/csv-report".into(),
        env: [
            ("PATH".into(), "/opt/bin".into()),
            ("PYTHONPATH".into(), "/opt/lib".into()),
        ]
        .into(),
        ..shell("x")
    };
    let request = resolve_spec(spec, StartMode::Run).expect("good");
    let dir = "/workspace/skills/csv-report";
    for pair in [
        format!("PATH={dir}/.venv/bin:/opt/bin:{dir}/bin"),
        format!("PYTHONPATH=/opt/lib:{dir}:/run/skilld/python"),
    ] {
        assert!(request.env.contains(&pair), "{pair}");
    }
    // Without a skill, PATH is unchanged.
    let spec = pb::ExecSpec {
        env: [("PATH".into(), "/opt/bin".into())].into(),
        ..shell("x")
    };
    let request = resolve_spec(spec, StartMode::Run).expect("good");
    assert!(request.env.contains(&"PATH=/opt/bin".to_owned()));
}

#[test]
fn the_name_of_the_skill_is_known_in_a_directory() {
    for (cwd, expected) in [
        ("$SKILLS_DIR/$SKILL_NAME", "/workspace/skills/csv-report"),
        (
            "${SKILLS_DIR}/${SKILL_NAME}/scripts",
            "/workspace/skills/csv-report/scripts",
        ),
        ("$SKILL_DIR/scripts", "/workspace/skills/csv-report/scripts"),
        ("x$SKILL_NAME", "/workspace/skills/csv-report/x$SKILL_NAME"),
    ] {
        let spec = pb::ExecSpec {
            skill: "skills/csv-report".into(),
            cwd: cwd.into(),
            ..shell("x")
        };
        assert_eq!(resolve_spec(spec, StartMode::Run).expect(cwd).cwd, expected);
    }
}
