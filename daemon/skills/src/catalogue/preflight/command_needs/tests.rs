//! Tests of what commands need.

use super::*;

/// Kinds and names, `a|b` where either suffices, sorted.
fn needs_in(text: &str, place: CommandPlace) -> Vec<String> {
    let found = find_command_needs(text, 1, place, &mut HashSet::new());
    let show = |need: &ConcludedNeed| {
        let kind = match need.kind {
            NeedKind::Binary => "",
            NeedKind::PythonPackage => "pip ",
            NeedKind::PythonModule => "import ",
            NeedKind::NodePackage => "npm ",
            NeedKind::Network => "net ",
            NeedKind::Interpreter | NeedKind::AnyBinary | NeedKind::Env => "other ",
        };
        format!("{kind}{}", need.names.join("|"))
    };
    let mut found: Vec<String> = found.iter().map(show).collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn check(place: CommandPlace, cases: &[(&str, &[&str])]) {
    for (text, expected) in cases {
        assert_eq!(needs_in(text, place), *expected, "{text:?}");
    }
}

#[test]
fn programs_of_scripts_are_those_that_run() {
    check(
        CommandPlace::Script,
        &[
            ("cd x && ffmpeg -i a b", &["ffmpeg"]),
            (
                "sudo -u me env A=1 timeout -k 3 5 pandoc x",
                &["env", "pandoc", "timeout"],
            ),
            (
                "find . -name x -exec jpegoptim {} +",
                &["find", "jpegoptim"],
            ),
            (
                "ls | xargs -n 1 -P 4 pngquant",
                &["ls", "pngquant", "xargs"],
            ),
            ("bash -c 'sox a b | lame -'", &["bash", "lame", "sox"]),
            ("trap 'rm -f x' EXIT; eval \"gs x\"", &["gs", "rm"]),
            (
                "/usr/bin/qpdf x; ./own.sh; scripts/x.py; ~/bin/y; \"$TOOL\" z; ${X} y",
                &["qpdf"],
            ),
            ("helper() { :; }; helper x; exec helper", &[]),
            ("own.sh a; x.py; -v; 3; \u{e4}; Usage: x", &[]),
            ("docker run x", &["docker"]),
            (
                "git push; curl http://localhost/x; curl https://x.example",
                &["curl", "git", "net curl", "net git"],
            ),
        ],
    );
}

#[test]
fn a_program_that_is_looked_for_is_needed_unless_there_is_another_way() {
    check(
        CommandPlace::Script,
        &[
            (
                "if command -v fd >/dev/null; then fd x; else find . -name x; fi",
                &["find"],
            ),
            ("command -v pv && P=pv", &[]),
            (
                "command -v pandoc >/dev/null || { echo no; exit 1; }",
                &["pandoc"],
            ),
            ("if ! command -v gpg; then exit 1; fi", &["gpg"]),
            ("which soffice", &["soffice"]),
            ("sha256sum x || shasum -a 256 x", &["sha256sum|shasum"]),
            ("xdg-open x || open x || true", &[]),
            ("test -f x || wget y", &["net wget", "wget"]),
            ("pandoc x || exit 1", &["pandoc"]),
            ("pandoc x || rm y", &["pandoc", "rm"]),
        ],
    );
}

#[test]
fn branches_tell_whether_a_text_does_without_a_program() {
    check(
        CommandPlace::Script,
        &[
            // Any one of several, or a failure.
            (
                "if command -v magick >/dev/null; then magick x; elif command -v gm; then gm x; else echo no; exit 1; fi",
                &["magick|gm"],
            ),
            (
                "if command -v pandoc; then pandoc x; else exit 1; fi",
                &["pandoc"],
            ),
            (
                "if ! command -v aria2c && ! command -v wget2; then exit 1; fi",
                &["aria2c|wget2"],
            ),
            (
                "if ! command -v gs || ! command -v qpdf; then exit 1; fi",
                &["gs", "qpdf"],
            ),
            (
                "if command -v gs && command -v qpdf; then gs x; else exit 1; fi",
                &["gs", "qpdf"],
            ),
            // The text goes on.
            (
                "if ! command -v jpegoptim; then return 0; fi; jpegoptim x",
                &[],
            ),
            ("if ! command -v fd; then find x; else fd x; fi", &["find"]),
            (
                "for x in *; do command -v cwebp || continue; cwebp $x; done",
                &[],
            ),
            ("command -v shfmt || exit 0\nshfmt x", &[]),
            ("command -v pigz && pigz x || gzip x", &["gzip|pigz"]),
        ],
    );
}

#[test]
fn a_check_counts_in_a_substitution_a_loop_or_a_function() {
    check(
        CommandPlace::Script,
        &[
            ("if [ -z \"$(command -v gpg)\" ]; then exit 1; fi", &["gpg"]),
            (
                "if ! [ -x \"$(command -v gpg)\" ]; then exit 1; fi",
                &["gpg"],
            ),
            ("if [ -x \"$(command -v pigz)\" ]; then pigz x; fi", &[]),
            (
                "for t in xmllint yq; do if ! command -v \"$t\"; then exit 1; fi; done",
                &["xmllint", "yq"],
            ),
            (
                "NEEDED=(xmllint yq)\nfor t in \"${NEEDED[@]}\"; do command -v \"$t\" || exit 1; done",
                &["xmllint", "yq"],
            ),
            (
                "for t in magick gm; do if command -v $t; then IM=$t; break; fi; done; \"$IM\" x",
                &["magick|gm"],
            ),
            (
                "have() { command -v \"$1\" >/dev/null; }\nif have pv; then pv x; fi",
                &[],
            ),
            (
                "need() { for c; do command -v \"$c\" || exit 1; done; }\nneed gpg yq",
                &["gpg", "yq"],
            ),
            (
                "ls | xargs shellcheck > out || true; dot x >/dev/null || true",
                &["ls", "shellcheck", "xargs"],
            ),
            (
                "have() { command -v \"$1\"; }\nhave gpg || exit 1",
                &["gpg"],
            ),
            (
                "need() {\n  local tool=$1\n  if ! command -v \"$tool\"; then exit 1; fi\n}\nneed gpg",
                &["gpg"],
            ),
            (
                "need() { for t in \"$@\"; do command -v \"$t\" || exit 1; done; }\nneed gpg yq",
                &["gpg", "yq"],
            ),
            (
                "has_gpu() { command -v nvidia-smi >/dev/null; }\nif has_gpu; then nvidia-smi; fi",
                &[],
            ),
            (
                "die() { echo \"$*\"; exit 1; }\nif command -v gs; then gs x; else die no; fi",
                &["gs"],
            ),
        ],
    );
}

#[test]
fn programs_in_variables_are_found() {
    check(
        CommandPlace::Script,
        &[
            ("PDF=pdftk\n$PDF x", &["pdftk"]),
            (
                "\"${PYTHON:-python3}\" -m build",
                &["import build", "python3"],
            ),
            (
                "T=convert; command -v magick && T=magick; \"$T\" x",
                &["convert|magick"],
            ),
            ("local t=${1:-sox}; $UNKNOWN x; \"$@\"", &[]),
            ("CMD=(ffmpeg -i x); \"${CMD[@]}\" y", &["ffmpeg"]),
            ("$SUDO apt-get install -y pandoc", &["pandoc"]),
        ],
    );
}

#[test]
fn what_runs_on_other_systems_only_is_not_needed() {
    check(
        CommandPlace::Script,
        &[
            (
                "if [[ \"$OSTYPE\" == darwin* ]]; then pbcopy x; else xclip x; fi",
                &["xclip"],
            ),
            ("if [ \"$(uname)\" = Darwin ]; then sips x; fi", &["uname"]),
            (
                "case \"$(uname -s)\" in\n Darwin*) open x ;;\n Linux*) xdg-open x ;;\nesac",
                &["uname", "xdg-open"],
            ),
        ],
    );
    check(
        CommandPlace::Document,
        &[
            (
                "# macOS\nsips -x a\nbrew install gs\n\nqpdf x",
                &["gs", "qpdf"],
            ),
            ("pngquant x  # optional\nqpdf x", &["qpdf"]),
            ("# Linux and macOS\nqpdf x", &["qpdf"]),
        ],
    );
}

#[test]
fn commands_in_arguments_and_here_documents_are_found() {
    check(
        CommandPlace::Script,
        &[
            (
                "bash -lc 'sox a'; sh -euc 'gs b'",
                &["bash", "gs", "sh", "sox"],
            ),
            ("bash <<'X'\nqpdf a\nX", &["bash", "qpdf"]),
            (
                "xvfb-run -a inkscape x; ls | parallel gs {}",
                &["gs", "inkscape", "ls", "parallel", "xvfb-run"],
            ),
            (
                "python3 - <<'X'\nimport requests\nX",
                &["import requests", "net requests", "python3"],
            ),
            (
                "npx --yes @redocly/cli lint x",
                &["net npx @redocly/cli", "npx"],
            ),
            (
                "npx tsc; npx ./x; pipx run build",
                &["net pipx build", "npx", "pipx"],
            ),
            (
                "uvx ruff check; uv tool run ruff",
                &["net uv ruff", "net uvx ruff", "uv", "uvx"],
            ),
        ],
    );
}

#[test]
fn installation_is_advice_about_what_is_needed() {
    check(
        CommandPlace::Document,
        &[
            (
                "pip install -q 'markitdown[pptx]>=1' PyYAML -r x.txt -e . git+https://x.example/y",
                &["pip markitdown", "pip pyyaml"],
            ),
            (
                "python3 -m pip install --upgrade rich && uv pip install httpx",
                &["pip httpx", "pip rich", "python3"],
            ),
            (
                "uv add polars; pipx install yt-dlp",
                &["pip polars", "yt-dlp"],
            ),
            (
                "npm install -g docx @mermaid-js/mermaid-cli@latest; npm install; npm ci",
                &["npm", "npm @mermaid-js/mermaid-cli", "npm docx"],
            ),
            (
                "sudo apt-get update && sudo apt-get install -y poppler-utils ffmpeg libmagic1 python3-dev",
                &["ffmpeg", "pdftotext|pdftoppm|pdfimages|pdfinfo|pdfseparate"],
            ),
            (
                "brew install ripgrep; brew install --cask mactex; cargo install ast-grep",
                &["ast-grep", "rg"],
            ),
            (
                "pip install <package>; pip install package-name; npx skills add a/b; docker run x",
                &[],
            ),
        ],
    );
}

#[test]
fn python_and_node_are_asked_what_they_import() {
    check(
        CommandPlace::Document,
        &[
            (
                "python -m markitdown x.pptx",
                &["import markitdown", "python"],
            ),
            (
                "python3 - <<'PY'\nimport tomlkit\nPY",
                &["import tomlkit", "python3"],
            ),
            (
                "python3 -c \"import yaml; print(1)\"",
                &["import yaml", "python3"],
            ),
            ("python3 x.py -m not_this", &["python3"]),
            (
                "uv run --with rich x.py; uv run pytest; uv run python -m build",
                &["import build", "pip rich", "python", "uv"],
            ),
            ("node -e \"require('sharp')\"", &["node", "npm sharp"]),
        ],
    );
}

#[test]
fn lines_are_those_of_the_text() {
    let found = find_command_needs(
        "a1\n\nb1 $(c1) <<X\nX\nd1",
        10,
        CommandPlace::Script,
        &mut HashSet::new(),
    );
    let found: Vec<(&str, usize)> = found
        .iter()
        .map(|need| (need.names[0].as_str(), need.line))
        .collect();
    assert_eq!(found, [("a1", 10), ("c1", 12), ("b1", 12), ("d1", 14)]);
}
