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
        (
            "function has(t) {}\nconst tool = has('rsvg') ? 'rsvg' : 'convert'; spawnSync(tool, ['x'])",
            &["convert|rsvg"],
        ),
        ("const TOOL = 'gs';\nexecFile(TOOL, [x])", &["gs"]),
        ("const cmd = `gs ${x}`; execSync(cmd)", &["gs"]),
        (
            "const has = (t) => 1; if (has('gs')) { spawn('gs') } if (!has('sox')) { process.exit(1) }",
            &["sox"],
        ),
        (
            "try { execSync('gs x') } catch (e) { console.warn('skipped') }",
            &[],
        ),
        (
            "try { execSync('gs x') } catch { process.exit(1) }",
            &["gs"],
        ),
        (
            "const r = spawnSync('gs', []);\nif (r.error) console.warn('x');",
            &[],
        ),
        (
            "const r = spawnSync('gs', []);\nif (r.error) { throw r.error; }",
            &["gs"],
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

#[test]
fn connections_are_found_unless_they_stay_on_the_host() {
    for (source, expected) in [
        ("await fetch('https://x.example')", &["fetch()"][..]),
        ("https.get(url, f)", &["https()"]),
        ("import axios from 'axios'", &["axios", "axios"]),
        ("await fetch('http://localhost:3000/x')", &[]),
        ("store.fetch('x'); async function fetch(x) {}", &[]),
    ] {
        let found = find_node_needs(source, 1);
        let found: Vec<String> = found.iter().map(|need| need.names.join("|")).collect();
        assert_eq!(found, expected, "{source}");
    }
}
