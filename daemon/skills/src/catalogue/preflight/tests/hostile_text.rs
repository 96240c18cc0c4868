//! Hostile text: no reader panics, and each reads in time that grows with the length.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::super::command_needs::{CommandPlace, find_command_needs};
use super::super::{
    markdown_commands, node_calls, node_imports, python_calls, python_requirements,
    shell_translation,
};

const PIECES: [&str; 80] = [
    "\t@$(X) ",
    "system('x', ",
    "%x(",
    "& x ",
    "Get-Command x ",
    "then ",
    "else ",
    "fi\n",
    "elif ",
    "! ",
    "# macOS\n",
    "except FileNotFoundError:\n",
    "for t in ['x']:\n",
    "for t in a b; do ",
    "if ! command -v $1; then exit 1; ",
    "return ",
    "$(",
    "${",
    "$((",
    "`",
    "\"",
    "'",
    "'''",
    "\\",
    "\n",
    "<<X\n",
    "<<-'X'\n",
    "X\n",
    "case x in ",
    "esac ",
    ") ",
    "(",
    "{",
    "}",
    ";;",
    "[[ ",
    "]] ",
    "function f ",
    "f() ",
    "=(",
    "|| ",
    "true ",
    "|",
    "&&",
    "if ",
    "command -v x ",
    "bash -c ",
    "pip install ",
    "python -m ",
    "uv run --with ",
    "```bash\n",
    "```\n",
    "~~~",
    "$ git x\n",
    "try:\n",
    "try {",
    "catch (e) {",
    "except ImportError:\n",
    "    ",
    "import a",
    "from b import c",
    "def f(x):\n",
    "cmd = [",
    "]",
    "subprocess.run(",
    "f(x)",
    "shutil.which('x')",
    "require(",
    "import {",
    "/",
    "/*",
    "//",
    "\u{e4}",
    "\u{1f600}",
    "\0",
    "\r",
    "a ",
    ", ",
    "if x == 'darwin':\n",
    "spawn('x', [",
];

fn read_as_everything(text: &str) {
    let place = CommandPlace::Document;
    find_command_needs(text, 1, place, &mut HashSet::new());
    find_command_needs(text, 1, CommandPlace::Script, &mut HashSet::new());
    markdown_commands::find_code(text);
    python_requirements::find_imports(text);
    python_calls::find_program_calls(text);
    node_imports::find_imports(text);
    shell_translation::translate_ruby_or_perl(text);
    shell_translation::translate_powershell(text);
    shell_translation::translate_makefile(text);
    // Without the name of such a module, the reader returns at once.
    node_calls::find_program_calls(&format!("{text} child_process"));
}

/// Text made of the pieces to which the readers give a meaning.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(PIECES.as_slice());
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
        "system('x', ",
        "%x(`",
        "& x ",
        "\t$(x) ",
        "if ! command -v a; then exit 1; ",
        "else if a; then ",
        "f() { command -v $1; }; f a; ",
        "for t in a b; do $t; ",
        "X=$X$X; $X; ",
        "x = x if which(x) else 'a'\n",
        "for x in ['a', 'b']: which(x)\n",
        "try:\n  run('a')\nexcept OSError:\n  pass\n",
        "try{spawn('a')}catch{",
        "x = y ? 'a' : 'b'; spawn(x); ",
        "    git log -n 3\n\n",
        "## optional\n",
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
        let (few, many) = (seconds(4 << 10), seconds(16 << 10));
        assert!(
            many < few * 8 + Duration::from_secs(1),
            "{piece:?}: {few:?}, then {many:?}"
        );
    }
}
