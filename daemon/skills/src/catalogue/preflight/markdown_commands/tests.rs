//! Tests of which code in a document is evidently meant to run.

use super::*;

fn code(document: &str) -> Vec<(CodeKind, String, usize)> {
    let found = find_code(document).into_iter();
    found
        .map(|code| (code.kind, code.text, code.line))
        .collect()
}

fn shell(text: &str, line: usize) -> (CodeKind, String, usize) {
    (CodeKind::Shell, text.to_owned(), line)
}

#[test]
fn blocks_are_commands_by_their_language_prompts_or_programs() {
    for (document, expected) in [
        (
            "---\nname: x\n---\n```bash\nmytool x\n```\n",
            vec![shell("mytool x\n", 5)],
        ),
        ("- item\n  ~~~sh\n  a1\n  ~~~", vec![shell("  a1\n", 3)]),
        (
            "```console\n$ a1 \\\n  b\noutput here\n```",
            vec![shell("a1 \\\n  b\n\n", 2)],
        ),
        ("```text\n$ a1\nout\n```", vec![shell("a1\n\n", 2)]),
        (
            "```\ngit log --oneline\n# why\nffmpeg -i x y\n```",
            vec![shell("git log --oneline\n# why\nffmpeg -i x y\n", 2)],
        ),
        ("```\nmake yourself at home\n```", vec![]),
        (
            "```\nsrc/\n  main.rs\n```\n```text\ngit log\n```\n```json\n{}\n```",
            vec![],
        ),
        ("````md\n```bash\nnot this\n```\n````", vec![]),
        ("```bash\nunclosed", vec![]),
    ] {
        assert_eq!(code(document), expected, "{document}");
    }
}

#[test]
fn inline_code_is_a_command_only_if_evidently_one() {
    for (line, expected) in [
        ("Run `pip install x` first.", &["pip install x"][..]),
        (
            "Then `psql -h localhost` or `gh auth login`",
            &["psql -h localhost", "gh auth login"],
        ),
        (
            "Use `ffmpeg`, `tone: formal`, `make sure`, `git`, `find it`, `unknown -x`",
            &[],
        ),
        (
            "Never run `npm publish x`. Use ``sed -i x`` now",
            &["sed -i x"],
        ),
        ("If installed, `ctags -x` helps", &[]),
        ("`unclosed git log", &[]),
    ] {
        let found = find_code(line);
        let found: Vec<&str> = found.iter().map(|code| code.text.as_str()).collect();
        assert_eq!(found, expected, "{line}");
    }
}

#[test]
fn recipes_run_and_files_of_projects_do_not() {
    for (language, text, expected) in [
        ("python", "import a\na.x()\n", Some(CodeKind::Python)),
        ("python", "import a\ndef f():\n    a.x()\n", None),
        ("python", "import a\n@app.get('/')\n", None),
        (
            "js",
            "const a = require('a');\na();\n",
            Some(CodeKind::Node),
        ),
        (
            "javascript",
            "import a from 'a';\nexport default a;\n",
            None,
        ),
        ("js", "import a from 'a';\n", None),
        ("tsx", "import a from 'a';\na();\n", None),
    ] {
        let found = find_code(&format!("```{language}\n{text}```"));
        let kinds: Vec<CodeKind> = found.iter().map(|code| code.kind).collect();
        assert_eq!(kinds, Vec::from_iter(expected), "{text}");
    }
}
