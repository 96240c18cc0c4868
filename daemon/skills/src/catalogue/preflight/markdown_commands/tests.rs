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
        ("```{bash}\na1\n```", vec![shell("a1\n", 2)]),
        (
            "```\nme@host:~/x$ a1 b\nout\n```",
            vec![shell("a1 b\n\n", 2)],
        ),
        (
            "Text:\n\n    git log -n 3\n\nmore",
            vec![shell("git log -n 3\n", 3)],
        ),
        ("- item\n    and text about git", vec![]),
    ] {
        assert_eq!(code(document), expected, "{document}");
    }
}

#[test]
fn text_around_a_block_tells_whether_it_is_to_be_run() {
    let block = "```sh\na1\n```\n";
    for (before, expected) in [
        ("Run:\n\n", true),
        ("## Linux and macOS\n", true),
        ("Don't forget to check it:\n", true),
        ("# Windows inventory\n", true),
        ("## On macOS\n\nText.\n\n### Details\n", false),
        ("## On macOS\n\n## Next\n", true),
        ("### Compress (optional)\n", false),
        ("If you have it installed, optionally:\n", false),
        ("On Windows:\n\n", false),
        ("**Wrong:**\n", false),
        ("\u{274c} Bad:\n", false),
        ("As a fallback:\n", false),
    ] {
        let found = code(&format!("{before}{block}")).len();
        assert_eq!(found == 1, expected, "{before}");
    }
}

#[test]
fn programs_are_named_where_a_document_says_what_it_requires() {
    for (document, expected) in [
        (
            "## Prerequisites\n\n- `ffmpeg` and `name`\n",
            &["ffmpeg"][..],
        ),
        ("Requires `pandoc` on the PATH.", &["pandoc"]),
        ("`pandoc` is a converter.", &[]),
        ("## Requirements\n\n- `jq` (optional)\n", &[]),
    ] {
        let found = find_code(document);
        let found: Vec<&str> = found.iter().map(|code| code.text.as_str()).collect();
        assert_eq!(found, expected, "{document}");
    }
}

#[test]
fn blocks_of_a_language_are_read_if_they_are_commands() {
    for (document, expected) in [
        (
            "```dockerfile\nRUN a1\n```\n```powershell\nGet-Item x\n```\n```make\nx:\n\ta1\n```",
            vec![],
        ),
        ("```zsh\na1\n```", vec![shell("a1\n", 2)]),
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
        (
            "Ask it, don't guess: `fc-match -f '%x'`; never run: `rm -rf a.b`",
            &["fc-match -f '%x'"],
        ),
        (
            "Then run `epubcheck dist/book.epub`.",
            &["epubcheck dist/book.epub"],
        ),
        ("See `chapter dist/book.epub` and `import a.b`", &[]),
        (
            "Convert with `ogr2ogr -f GeoJSON out.json in.shp`",
            &["ogr2ogr -f GeoJSON out.json in.shp"],
        ),
        (
            "`x --flag`, `key: -v a.b`, `df.head -n a.b`, `return -x a.b`",
            &[],
        ),
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
        (
            "python",
            "import a\ndef f():\n    a.x()\n\nf()\n",
            Some(CodeKind::Python),
        ),
        (
            "python",
            "import a\ndef f():\n    a.x()\nif __name__ == 'x':\n    f()\n",
            None,
        ),
        (
            "js",
            "const a = require('a');\nasync function f() {\n  a();\n}\nf();\n",
            Some(CodeKind::Node),
        ),
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
        (
            "js",
            "// before\nimport a from 'a';\n// after\nimport b from 'b';\n",
            None,
        ),
        ("tsx", "import a from 'a';\na();\n", None),
    ] {
        let found = find_code(&format!("```{language}\n{text}```"));
        let kinds: Vec<CodeKind> = found.iter().map(|code| code.kind).collect();
        assert_eq!(kinds, Vec::from_iter(expected), "{text}");
    }
}
