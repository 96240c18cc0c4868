//! Tests of the programs that JavaScript starts.

use super::*;

#[test]
fn programs_are_found_however_they_are_started() {
    for (source, expected) in [
        ("cp.execFileSync('pandoc', ['-t', x])", &["pandoc"][..]),
        ("execSync(`ffmpeg -i ${x} | sox - y`)", &["ffmpeg", "sox"]),
        ("spawn('npx', ['tsc'], {})", &["npx"]),
        (
            "function run(cmd) { return execSync(cmd) }\nrun('make all'); run(x)",
            &["make"],
        ),
        ("Bun.spawn(['git', 'log'])", &["git"]),
        ("await $`gs x`", &["gs"]),
        (
            "/x/.exec('not this'); re.exec('nor this'); spawn(process.execPath, ['x']); spawn(`${x}`)",
            &[],
        ),
        ("const runner = 1; dryRun('nothing here')", &[]),
    ] {
        let source = format!("const cp = require('child_process'); {source}");
        let found = find_program_calls(&source);
        let found: Vec<String> = found.iter().map(|need| need.names.join("|")).collect();
        assert_eq!(found, expected, "{source}");
    }
    assert_eq!(find_program_calls("exec('ffmpeg x'); spawn('sox')"), []);
}
