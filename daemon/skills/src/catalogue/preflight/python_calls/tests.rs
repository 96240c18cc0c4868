//! Tests of the programs that Python source starts.

use super::*;
use crate::catalogue::preflight::NeedKind;

fn programs(source: &str) -> Vec<String> {
    let found = find_program_calls(source);
    let programs = found.iter().filter(|need| need.kind == NeedKind::Binary);
    programs.map(|need| need.names.join("|")).collect()
}

#[test]
fn programs_are_found_however_they_are_started() {
    for (source, expected) in [
        (
            "subprocess.run([\"soffice\", \"--headless\"], check=True)",
            &["soffice"][..],
        ),
        (
            "subprocess.run(\n    [\n        'gs',\n        x,\n    ]\n)",
            &["gs"],
        ),
        (
            "subprocess.check_output('sox a | lame -', shell=True)",
            &["sox", "lame"],
        ),
        ("os.system(f\"convert {x} {y}\")", &["convert"]),
        ("sp.Popen(args=[\"ffprobe\", x])", &["ffprobe"]),
        (
            "await asyncio.create_subprocess_exec(\"node\", \"x.js\")",
            &["node"],
        ),
        ("subprocess.run(shlex.split('pdftk x'))", &["pdftk"]),
        ("from subprocess import run\nrun(['tool1'])", &["tool1"]),
        (
            "cmd = ['ffmpeg', '-i', x]\ncmd += ['-y']\nsubprocess.run(cmd)",
            &["ffmpeg"],
        ),
        (
            "cmd: list[str] = ['ffmpeg']\nsubprocess.run(cmd)",
            &["ffmpeg"],
        ),
        (
            "def a():\n    cmd = ['one1']\ndef b(cmd):\n    subprocess.run(cmd)\nb(['two2'])",
            &["two2"],
        ),
        (
            "def _run(cmd):\n    subprocess.run(cmd)\ndef out(cmd, x=1):\n    return _run(cmd)\nout(['gh', 'pr'])",
            &["gh"],
        ),
        (
            "class A:\n    def sh(self, cmd):\n        os.system(cmd)\n    def b(self):\n        self.sh('make x')",
            &["make"],
        ),
        (
            "subprocess.run([sys.executable, 'x.py'])\nsubprocess.run([tool, 'x'])\nsubprocess.run(f'{tool} x')",
            &[],
        ),
        (
            "trainer.run(['train'])\nrun(['x1'])\nprint('ffmpeg x')\nx = ['ffmpeg']",
            &[],
        ),
        (
            "# subprocess.run(['x1'])\n'''\nsubprocess.run(['y1'])\n'''",
            &[],
        ),
    ] {
        assert_eq!(programs(source), expected, "{source}");
    }
}

#[test]
fn a_program_that_is_looked_for_is_needed_unless_there_is_another_way() {
    for (source, expected) in [
        (
            "tool = shutil.which('pandoc')\nif not tool:\n    sys.exit(1)",
            &["pandoc"][..],
        ),
        (
            "if not shutil.which('pandoc'):\n    sys.exit(1)",
            &["pandoc"],
        ),
        (
            "if shutil.which('rg'):\n    subprocess.run(['rg'])\nelse:\n    subprocess.run(['grep'])",
            &["grep"],
        ),
        ("x = 'fd' if shutil.which('fd') else 'find'", &[]),
        ("x = shutil.which('a1') or shutil.which('b1')", &["a1|b1"]),
        (
            "if sys.platform == 'darwin':\n    subprocess.run(['open', x])\nelse:\n    subprocess.run(['xdg-open'])",
            &["xdg-open"],
        ),
    ] {
        assert_eq!(programs(source), expected, "{source}");
    }
}
