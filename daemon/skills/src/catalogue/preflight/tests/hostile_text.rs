//! Hostile text: no reader panics, and none takes longer than a deadline.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::super::command_needs::{CommandPlace, ConcludedNeed, find_command_needs};
use super::super::{
    markdown_commands, node_calls, node_imports, python_calls, python_requirements,
    shell_translation,
};

/// Deadline of reading one text, which usually takes less than a second. If the time grew with the square of the length,
/// 256 KiB would take minutes, but 64 KiB perhaps less than the deadline.
const DEADLINE: Duration = Duration::from_secs(60);

/// Maximum number of names in one need of a text.
const NAMES_MAX: usize = 64;

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
fn hostile_text_is_read_before_a_deadline() {
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
        // Longer texts for all pieces and readers would take the gate minutes.
        let text = piece.repeat((64 << 10) / piece.len());
        read_in_time(&format!("{piece:?}"), || read_as_everything(&text));
    }
}

/// Reads a text; panics if that took longer than the deadline.
fn read_in_time<T>(name: &str, read: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let result = read();
    let elapsed = started.elapsed();
    assert!(elapsed < DEADLINE, "{name}: {elapsed:?}");
    result
}

/// Text whose two halves together are hostile: what the first half defines, the second half repeats.
struct HostileText {
    begin: &'static str,
    /// Fills the first half.
    filler: &'static str,
    middle: &'static str,
    /// Fills the second half.
    piece: &'static str,
    read: fn(&str) -> Vec<ConcludedNeed>,
}

impl HostileText {
    fn with_length(&self, bytes: usize) -> String {
        let half = |part: &str| part.repeat(bytes / 2 / part.len());
        let (filler, piece) = (half(self.filler), half(self.piece));
        [self.begin, &filler, self.middle, &piece].concat()
    }

    /// Checks the time that it takes to read a text of a length, and the size of the result.
    fn check_with_length(&self, bytes: usize) {
        let text = self.with_length(bytes);
        let place = format!("{:?}, {:?}", self.begin, self.piece);
        let needs = read_in_time(&place, || (self.read)(&text));
        assert!(needs.len() <= text.len(), "{place}: {} needs", needs.len());
        let names = needs.iter().map(|need| need.names.len()).max();
        assert!(names <= Some(NAMES_MAX), "{place}: {names:?} names");
    }
}

fn read_shell(text: &str) -> Vec<ConcludedNeed> {
    find_command_needs(text, 1, CommandPlace::Script, &mut HashSet::new())
}

fn read_ruby(text: &str) -> Vec<ConcludedNeed> {
    read_shell(&shell_translation::translate_ruby_or_perl(text))
}

fn read_python(text: &str) -> Vec<ConcludedNeed> {
    python_calls::find_python_needs(text, 1)
}

fn read_node(text: &str) -> Vec<ConcludedNeed> {
    node_calls::find_node_needs(text, 1)
}

fn read_markdown(text: &str) -> Vec<ConcludedNeed> {
    let code = markdown_commands::find_code(text).into_iter();
    code.flat_map(|code| read_shell(&code.text)).collect()
}

const HOSTILE_TEXTS: [HostileText; 16] = [
    // A function that looks for many programs.
    hostile_text("f() { command -v ", "aa ", "; }\n", "f;", read_shell),
    hostile_text(
        "f() { command -v $1; }\nX='",
        "a",
        "'\n",
        "f $X;",
        read_shell,
    ),
    hostile_text(
        "for t in ",
        "aa ",
        "; do :; done; command -v ",
        "$t ",
        read_shell,
    ),
    hostile_text(
        "if ",
        "! command -v aa && ",
        "true; then exit 1; fi\n",
        "aa;",
        read_shell,
    ),
    // Long words, and long lines.
    hostile_text("", "a", "", "a", read_ruby),
    hostile_text("", "a", "\n", "system 'a'; ", read_ruby),
    // Handlers of one long body, and bodies within it.
    hostile_text("try:\n", "\n", "", "except OSError:\n 1\n", read_python),
    hostile_text(
        "try:\n",
        " try:\n  1\n",
        "",
        "except OSError:\n 1\n",
        read_python,
    ),
    // Variables with long values, or with many of them.
    hostile_text("x = ['", "a", "']\n", "subprocess.run(x)\n", read_python),
    hostile_text(
        "x = ['a', '",
        "a",
        "']\n",
        "subprocess.run(x)\n",
        read_python,
    ),
    hostile_text(
        "",
        "x = 'aa;aa;aa;aa;aa;aa;aa;aa'\n",
        "",
        "subprocess.run(x)\n",
        read_python,
    ),
    hostile_text(
        "x = [\"aa\"]\n",
        "x = ['aa;aa;aa;aa', x x x x x x x x]\n",
        "",
        "which(x) or ",
        read_python,
    ),
    hostile_text(
        "require('child_process');",
        "x = 'aa; aa;aa;aa;aa;aa;aa;aa;aa;aa;aa;aa;aa;aa;aa;aa;aa;aa;aa;aa';",
        "",
        "exec(x);",
        read_node,
    ),
    // A long line above blocks of code.
    hostile_text("", "a ", ":\n\n", "    x\n", read_markdown),
    hostile_text("", "a ", ":\n\n", "    x\n\n", read_markdown),
    hostile_text("", "a ", ":\n\n", "\n", read_markdown),
];

const fn hostile_text(
    begin: &'static str,
    filler: &'static str,
    middle: &'static str,
    piece: &'static str,
    read: fn(&str) -> Vec<ConcludedNeed>,
) -> HostileText {
    HostileText {
        begin,
        filler,
        middle,
        piece,
        read,
    }
}

#[test]
fn text_that_repeats_what_it_defines_has_bounded_needs_and_is_read_in_time() {
    for text in &HOSTILE_TEXTS {
        for bytes in [32 << 10, 256 << 10] {
            text.check_with_length(bytes);
        }
    }
}
