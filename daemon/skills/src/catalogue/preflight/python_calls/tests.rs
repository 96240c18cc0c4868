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
            &["python3"],
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
fn programs_in_variables_are_found() {
    for (source, expected) in [
        (
            "PANDOC = 'pandoc'\nsubprocess.run([PANDOC, x])",
            &["pandoc"][..],
        ),
        (
            "class A:\n    TOOL = 'pandoc'\n    def x(self):\n        args = [self.TOOL, '-o']\n        subprocess.call(args)",
            &["pandoc"],
        ),
        (
            "class A:\n    def __init__(self):\n        self.tool = 'gs'\n    def x(self):\n        subprocess.run([self.tool])",
            &["gs"],
        ),
        (
            "cmd = 'sox a b'\nsubprocess.run(cmd.split())\nrun(shlex.split(cmd))",
            &["sox"],
        ),
        (
            "cmd = ['sox']\nasyncio.create_subprocess_exec(*cmd)",
            &["sox"],
        ),
        ("for cmd in (['gs'], ['sox']):\n    pass", &[]),
        (
            "def tool(name, *args):\n    subprocess.run([name, *args])\ntool('gs', 'x')",
            &["gs"],
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
        (
            "x = 'fd' if shutil.which('fd') else 'find'\nsubprocess.run([x, 'y'])",
            &["find|fd"],
        ),
        ("x = shutil.which('a1') or 'b1'", &["a1|b1"]),
        (
            "x = shutil.which('a1')\nif x:\n    subprocess.run([x])",
            &[],
        ),
        (
            "for name in ('a1', 'b1'):\n    if shutil.which(name):\n        return name",
            &["a1|b1"],
        ),
        (
            "for name in ['a1', 'b1']:\n    if not shutil.which(name):\n        sys.exit(1)",
            &["a1", "b1"],
        ),
        (
            "NEEDED = ['a1', 'b1']\nmissing = [t for t in NEEDED if not shutil.which(t)]",
            &["a1", "b1"],
        ),
        (
            "if not any(shutil.which(t) for t in ('a1', 'b1')):\n    exit(1)",
            &["a1|b1"],
        ),
        (
            "def have(name):\n    return shutil.which(name) is not None\nif have('a1'):\n    os.system('a1')\n\
             if not have('b1'):\n    sys.exit(1)",
            &["b1"],
        ),
        (
            "try:\n    subprocess.run(['a1'])\nexcept FileNotFoundError:\n    print('skipped')",
            &[],
        ),
        (
            "try:\n    subprocess.run(['a1'])\nexcept FileNotFoundError:\n    sys.exit('needs a1')",
            &["a1"],
        ),
        (
            "try:\n    subprocess.run(['a1'])\nexcept subprocess.CalledProcessError:\n    pass",
            &["a1"],
        ),
        ("x = shutil.which('a1') or shutil.which('b1')", &["a1|b1"]),
        (
            "if sys.platform == 'darwin':\n    subprocess.run(['open', x])\nelse:\n    subprocess.run(['xdg-open'])",
            &["xdg-open"],
        ),
    ] {
        assert_eq!(programs(source), expected, "{source}");
    }
}

#[test]
fn modules_that_are_imported_by_name_and_connections_are_found() {
    let needs = |source: &str| -> Vec<(NeedKind, String)> {
        let found = find_python_needs(source, 1).into_iter();
        let found = found.map(|need| (need.kind, need.names.join("|")));
        found
            .filter(|(_, name)| !matches!(name.as_str(), "importlib" | "urllib" | "sys"))
            .collect()
    };
    let module = |name: &str| (NeedKind::PythonModule, name.to_owned());
    let network = |name: &str| (NeedKind::Network, name.to_owned());
    assert_eq!(
        needs("importlib.import_module('yaml.nodes')\n__import__('rich')"),
        [module("yaml"), module("rich")]
    );
    assert_eq!(
        needs("try:\n    importlib.import_module('rich')\nexcept ImportError:\n    pass"),
        []
    );
    assert_eq!(
        needs("subprocess.run([sys.executable, '-m', 'build'])"),
        [(NeedKind::Binary, "python3".to_owned()), module("build")]
    );
    assert_eq!(
        needs("urllib.request.urlopen('https://x.example')"),
        [network("urlopen()")]
    );
    assert_eq!(needs("urlopen('http://localhost:80')"), []);
    assert_eq!(
        needs("import requests"),
        [module("requests"), network("requests")]
    );
    assert_eq!(
        needs("import requests\nrequests.get('http://127.0.0.1/x')"),
        [module("requests")]
    );
}
