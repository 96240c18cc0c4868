//! Hostile text: no reader panics, and none takes longer than a deadline.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::super::{commands, install_lines, node_imports, python_imports, python_requirements};
use super::{check, compatible};

/// Deadline of reading one text, which usually takes less than a second. If the time grew with the square of the
/// length, 256 KiB would take minutes.
const DEADLINE: Duration = Duration::from_secs(60);

/// Pieces of text to which the readers give a meaning.
const PIECES: [&str; 44] = [
    "pip install ",
    "npm install ",
    "uv add ",
    "'a[b]>=1' ",
    "sudo ",
    "A=1 ",
    "echo ",
    "gh ",
    "$(",
    "${",
    "`",
    "```bash\n",
    "```\n",
    "~~~",
    "\"",
    "'",
    "'''",
    "\"\"\"",
    "\\",
    "\n",
    "\r",
    " #",
    "|",
    ";",
    "(",
    "[",
    "subprocess.run(",
    "['gh",
    "f\"",
    "try:\n",
    "if TYPE_CHECKING:\n",
    "    ",
    "import a",
    "from b import c",
    "from a import (\n",
    "b, ",
    ")\n",
    "function f ",
    "require('",
    "import {",
    "} from '",
    "\u{1f600}",
    "\0",
    "# /// script\n",
];

fn read_as_everything(text: &str) {
    let lines: Vec<(&str, usize)> = text.lines().zip(1..).collect();
    commands::find_shell_programs(&lines);
    commands::find_code(text);
    commands::find_subprocess_programs(text);
    // Without that word, the reader returns at once.
    commands::find_subprocess_programs(&format!("{text} subprocess"));
    install_lines::find_installed_packages(&lines);
    node_imports::find_imports(text);
    python_imports::find_imports(text);
    python_requirements::read_script_block(text);
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
    let read_in_time = |name: &str, read: &dyn Fn()| {
        let started = Instant::now();
        read();
        let elapsed = started.elapsed();
        assert!(elapsed < DEADLINE, "{name:?}: {elapsed:?}");
    };
    for piece in PIECES {
        let text = piece.repeat((256 << 10) / piece.len());
        read_in_time(piece, &|| read_as_everything(&text));
    }
    let front = compatible(&"git ".repeat(250_000));
    read_in_time("compatibility", &|| {
        check(&front, &[], &[]);
    });
}
