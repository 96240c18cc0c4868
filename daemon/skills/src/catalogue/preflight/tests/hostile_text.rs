//! Hostile text: no reader panics, and each reads in time that grows with the length.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::super::command_needs::{CommandPlace, find_command_needs};
use super::super::{
    markdown_commands, node_calls, node_imports, python_calls, python_requirements,
};

fn read_as_everything(text: &str) {
    let place = CommandPlace::Document;
    find_command_needs(text, 1, place, &mut HashSet::new());
    find_command_needs(text, 1, CommandPlace::Script, &mut HashSet::new());
    markdown_commands::find_code(text);
    python_requirements::find_imports(text);
    python_calls::find_program_calls(text);
    node_imports::find_imports(text);
    // Without the name of such a module, the reader returns at once.
    node_calls::find_program_calls(&format!("{text} child_process"));
}

/// Text made of the pieces to which the readers give a meaning.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("$("),
        Just("${"),
        Just("$(("),
        Just("`"),
        Just("\""),
        Just("'"),
        Just("'''"),
        Just("\\"),
        Just("\n"),
        Just("<<X\n"),
        Just("<<-'X'\n"),
        Just("X\n"),
        Just("case x in "),
        Just("esac "),
        Just(") "),
        Just("("),
        Just("{"),
        Just("}"),
        Just(";;"),
        Just("[[ "),
        Just("]] "),
        Just("function f "),
        Just("f() "),
        Just("=("),
        Just("|| "),
        Just("true "),
        Just("|"),
        Just("&&"),
        Just("if "),
        Just("command -v x "),
        Just("bash -c "),
        Just("pip install "),
        Just("python -m "),
        Just("uv run --with "),
        Just("```bash\n"),
        Just("```\n"),
        Just("~~~"),
        Just("$ git x\n"),
        Just("try:\n"),
        Just("try {"),
        Just("catch (e) {"),
        Just("except ImportError:\n"),
        Just("    "),
        Just("import a"),
        Just("from b import c"),
        Just("def f(x):\n"),
        Just("cmd = ["),
        Just("]"),
        Just("subprocess.run("),
        Just("f(x)"),
        Just("shutil.which('x')"),
        Just("require("),
        Just("import {"),
        Just("/"),
        Just("/*"),
        Just("//"),
        Just("\u{e4}"),
        Just("\u{1f600}"),
        Just("\0"),
        Just("\r"),
        Just("a "),
        Just(", "),
        Just("if x == 'darwin':\n"),
        Just("spawn('x', ["),
    ];
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn no_text_makes_a_reader_panic(text in pieces(), other in any::<String>()) {
        read_as_everything(&text);
        read_as_everything(&other);
    }
}

#[test]
fn hostile_text_is_read_in_time_that_grows_with_its_length() {
    let pieces = [
        "$(",
        "${",
        "$((",
        "`",
        "\"",
        "'",
        "\\",
        "((",
        "(",
        "{",
        "[",
        "<(",
        "<<X\n",
        "case x in ",
        "a || ",
        "a(",
        "a=(",
        "x;",
        "f() {",
        "\"$(",
        "bash -c '",
        "bash -c \"",
        "env ",
        "sudo ",
        "find -exec ",
        "`a",
        "``a",
        "```\n",
        "```bash\n",
        "try:\n",
        "try{",
        "try{require('a')}catch{",
        "import {",
        "import ",
        "export ",
        "import a,",
        "/",
        "/*",
        "`${",
        "'''",
        "def f(x):\n",
        "subprocess.run(x)\n",
        "x = [\n",
        "x: ",
        "x = ['a']\n",
        "run([",
        "shutil.which('a') or ",
        "require(",
        "spawn('a', [",
        "    if x == 'nt':\n",
        "$ a\n",
        "`pip install a` ",
        "if command -v a; then ",
        "\u{1f600}",
    ];
    for piece in pieces {
        let seconds = |bytes: usize| {
            let text = piece.repeat(bytes / piece.len());
            let started = Instant::now();
            read_as_everything(&text);
            started.elapsed()
        };
        // Four times the length takes at most eight times the time, with a margin for a machine that is busy.
        let (few, many) = (seconds(8 << 10), seconds(32 << 10));
        assert!(
            many < few * 8 + Duration::from_secs(1),
            "{piece:?}: {few:?}, then {many:?}"
        );
    }
}
