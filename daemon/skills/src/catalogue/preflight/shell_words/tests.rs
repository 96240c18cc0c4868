//! Tests of the splitter of shell text: what is a command, and what only looks like one.

use super::*;

fn commands(text: &str) -> Vec<String> {
    let script = split_commands(text, 1);
    let join = |command: &ShellCommand| {
        let words: Vec<&str> = command
            .words
            .iter()
            .map(|word| word.text.as_str())
            .collect();
        words.join(" ")
    };
    script.commands.iter().map(join).collect()
}

#[test]
fn keywords_functions_and_assignments_are_no_commands() {
    for (text, expected) in [
        (
            "a b; c && d || e | f & g\n",
            &["a b", "c", "d", "e", "f", "g"][..],
        ),
        (
            "if ! a; then b; elif c; then d; else e; fi",
            &["a", "b", "c", "d", "e"],
        ),
        ("for x in one two; do a \"$x\"; done", &["a $x"]),
        ("for ((i = 0; i < 3; i++)); do a; done", &["a"]),
        ("while read -r x; do a; done < in", &["read -r x", "a"]),
        (
            "f() { a; }\nfunction g { b; }\nfunction h() { c; }\nk () { d; }",
            &["a", "b", "c", "d"],
        ),
        ("X=1 Y+=2 a[1]=3 b c", &["b c"]),
        ("X=(one two); a", &["a"]),
        ("{ a; } 2>&1 | (b; c)", &["a", "b", "c"]),
        (
            "case $1 in\n  -h|--help) a ;;\n  (x) b;;\n  *) c ;;\nesac\nd",
            &["a", "b", "c", "d"],
        ),
        (
            "case $1 in a) case $2 in b) x;; esac;; c) y;; esac; z",
            &["x", "y", "z"],
        ),
        (
            "[[ $a =~ ^(x|y)$ && -f b ]] && c",
            &["[[ $a =~ ^(x|y)$ && -f b ]]", "c"],
        ),
        (
            "while [ $# -gt 0 ]; do case \"$1\" in -x) a;; esac; done",
            &["[ $# -gt 0 ]", "a"],
        ),
        ("(( x > 3 )) && a", &["a"]),
        ("a # b; c\nd", &["a", "d"]),
        ("a \\\n  b\r\nc", &["a b", "c"]),
        ("search(x) now\na", &["a"]),
    ] {
        assert_eq!(commands(text), expected, "{text:?}");
    }
    let script = split_commands("f() { a; }\nfunction g { b; }\nh () (c)", 1);
    let function = |name: &str| ShellMark::Function(name.to_owned());
    let is_marked = |name| script.marks.iter().any(|(_, mark)| *mark == function(name));
    assert!(
        ["f", "g", "h"].into_iter().all(is_marked),
        "{:?}",
        script.marks
    );
}

#[test]
fn substitutions_are_commands_and_redirections_are_none() {
    for (text, expected) in [
        ("a $(b c) d", &["b c", "a $ d"][..]),
        ("x=$(a \"$(b)\")", &["b", "a $"]),
        ("a \"x `b c` y\"", &["b c", "a x  y"]),
        ("a <(b) >(c) > out 2>>err <in", &["b", "c", "a"]),
        ("a <<< words; b", &["a", "b"]),
        ("echo ${x:-$(a)} ${y%.*}", &["a", "echo ${x:-$(a)} ${y%.*}"]),
        ("a $((1 + 2)) b", &["a $ b"]),
        ("a 'b; c' \"d | e\" f\\;g", &["a b; c d | e f;g"]),
        ("a &> log; b &>> log", &["a", "b"]),
    ] {
        assert_eq!(commands(text), expected, "{text:?}");
    }
}

#[test]
fn here_documents_belong_to_their_command() {
    let script = split_commands("a <<'END' | b\nc; d\nEND\ne <<-X\n\tf\n\tX\ng", 1);
    let found: Vec<(&str, usize, Option<&str>)> = script
        .commands
        .iter()
        .map(|command| {
            (
                command.words[0].text.as_str(),
                command.line,
                command.here_document.as_deref(),
            )
        })
        .collect();
    assert_eq!(
        found,
        [
            ("a", 1, Some("c; d\n")),
            ("b", 1, None),
            ("e", 4, Some("f\n")),
            ("g", 7, None)
        ]
    );
}

#[test]
fn conditions_and_fallbacks_are_told() {
    let script = split_commands("if a; then b; fi\nif ! c; then d; fi\ne || f || { g; }", 1);
    let conditions: Vec<&str> = script
        .commands
        .iter()
        .map(|command| match (command.is_condition, command.is_negated) {
            (true, true) => "denied",
            (true, false) => "condition",
            (false, _) => "",
        })
        .collect();
    assert_eq!(conditions, ["condition", "", "denied", "", "", "", ""]);
    let fallbacks: Vec<Option<usize>> = script
        .commands
        .iter()
        .map(|command| command.fallback_for)
        .collect();
    assert_eq!(fallbacks, [None, None, None, None, None, Some(4), None]);
}

#[test]
fn commands_of_one_text_are_bounded() {
    for text in [
        "x;".repeat(COMMANDS_MAX * 2),
        "`a`".repeat(COMMANDS_MAX * 2),
    ] {
        let count = split_commands(&text, 1).commands.len();
        assert!(
            (COMMANDS_MAX..=COMMANDS_MAX + 1).contains(&count),
            "{count}"
        );
    }
}
