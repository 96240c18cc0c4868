//! Commands that install software, and what they say that a skill needs. Pure.

use super::program_names::{is_known_program, programs_of_package};
use super::python_requirements::parse_requirement;
use super::shell_words::ShellWord;
use super::{NeedKind, package_json};

/// Software that a command installs: a kind, and names of which any one shows that it is installed.
pub(super) type InstalledSoftware = (NeedKind, Vec<String>);

/// Names of packages in examples.
const PLACEHOLDERS: &str =
    "package package-name package_name packages name pkg some-package your-package";

/// Returns what a command installs, from its program and arguments; `None` if it installs nothing of a name, as
/// `npm install` does. Empty if what it installs is nothing that preflight looks for.
pub(super) fn read_install_command(
    program: &str,
    args: &[ShellWord],
) -> Option<Vec<InstalledSoftware>> {
    let args: Vec<&str> = args
        .iter()
        .filter(|word| !word.is_dynamic)
        .map(|word| word.text.as_str())
        .collect();
    let mut words = args.iter().copied().filter(|arg| !arg.starts_with('-'));
    let first = words.next().unwrap_or_default();
    let second = words.next().unwrap_or_default();
    let after = |word: &str| -> Vec<&str> {
        let at = args.iter().position(|arg| *arg == word);
        args.get(at.map_or(0, |at| at + 1)..)
            .unwrap_or_default()
            .to_vec()
    };
    let found = match (program, first, second) {
        ("pip" | "pip3", "install", _) => python_packages(&after("install")),
        ("uv", "pip", "install") => python_packages(&after("install")),
        ("uv" | "poetry" | "pdm" | "rye", "add", _) => python_packages(&after("add")),
        ("conda" | "mamba" | "micromamba", "install", _) => python_packages(&after("install")),
        ("pipx", "install", _) => programs(&after("install")),
        ("uv", "tool", "install") => programs(&after("install")),
        ("npm" | "pnpm" | "bun", "install" | "i" | "add", named) if !named.is_empty() => {
            node_packages(&after(first))
        }
        ("yarn", "global", "add") | ("yarn", "add", _) => node_packages(&after("add")),
        ("apt" | "apt-get" | "brew" | "dnf" | "yum" | "zypper", "install" | "reinstall", _)
        | ("apk", "add", _) => system_packages(&after(first)),
        ("pacman", _, _) if args.iter().any(|arg| arg.starts_with("-S")) => system_packages(&args),
        ("cargo" | "go" | "gem" | "snap" | "flatpak", "install", _) => {
            built_programs(program, &after("install"))
        }
        (
            "apt" | "apt-get" | "brew" | "dnf" | "apk",
            "update" | "upgrade" | "tap" | "services",
            _,
        )
        | (
            "choco" | "winget" | "scoop" | "port" | "nix-env" | "xcode-select" | "asdf" | "nvm",
            _,
            _,
        )
        | ("claude" | "gemini" | "codex", "plugin" | "extensions" | "mcp" | "skill", _)
        | ("npx" | "bunx", "skills" | "add-skill" | "clawhub", _)
        | ("clawhub", _, _) => Vec::new(),
        _ => return None,
    };
    Some(found)
}

/// Returns the package that a command downloads to run it; `None` for tools that projects have themselves.
pub(super) fn fetched_package<'a>(program: &str, args: &'a [ShellWord]) -> Option<&'a str> {
    let is_operand = |word: &&ShellWord| !word.text.starts_with('-');
    let mut operands = args.iter().filter(is_operand);
    let mut next = || operands.next().filter(|word| !word.is_dynamic);
    let subcommand = match program {
        "npx" | "bunx" | "uvx" => "",
        "pipx" => "run",
        "npm" => "exec",
        "pnpm" | "yarn" => "dlx",
        "uv" => (next()?.text == "tool").then_some("run")?,
        _ => return None,
    };
    if !subcommand.is_empty() && next()?.text != subcommand {
        return None;
    }
    let package = next()?.text.as_str();
    let agrees = args
        .iter()
        .any(|arg| matches!(arg.text.as_str(), "-y" | "--yes"));
    let is_of_project = matches!(program, "npx" | "npm" | "bunx") && is_known_program(package);
    let is_package = !package.starts_with(['.', '/', '<', '[']);
    (is_package && (agrees || !is_of_project)).then_some(package)
}

/// Returns the arguments that are no options and no values of options.
fn operands<'a>(args: &[&'a str], options_with_value: &str) -> Vec<&'a str> {
    let mut operands = Vec::new();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if super::has_word(options_with_value, arg) {
            args.next();
        } else if !arg.starts_with('-') && !super::has_word(PLACEHOLDERS, arg) {
            operands.push(*arg);
        }
    }
    operands
}

fn python_packages(args: &[&str]) -> Vec<InstalledSoftware> {
    let options = "-r --requirement -c --constraint -i --index-url --extra-index-url -t --target -f --find-links -e \
        --editable --python --prefix --group --channel -n --name";
    let named = operands(args, options)
        .into_iter()
        .filter(|arg| !arg.contains(['/', '\\']) && *arg != ".");
    let names = named.filter_map(parse_requirement);
    names
        .map(|name| (NeedKind::PythonPackage, vec![name]))
        .collect()
}

fn node_packages(args: &[&str]) -> Vec<InstalledSoftware> {
    let names = operands(args, "--prefix --registry -C -w --workspace").into_iter();
    let names = names.filter_map(package_json::package_of_specifier);
    names
        .map(|name| (NeedKind::NodePackage, vec![name]))
        .collect()
}

fn system_packages(args: &[&str]) -> Vec<InstalledSoftware> {
    // An application with windows is of no use in a container.
    if args.contains(&"--cask") {
        return Vec::new();
    }
    let names = operands(args, "-t --target-release -o").into_iter();
    let names = names.map(|name| name.rsplit('/').next().unwrap_or(name));
    let programs = names
        .map(programs_of_package)
        .filter(|programs| !programs.is_empty());
    let owned = |programs: Vec<&str>| programs.into_iter().map(str::to_owned).collect();
    programs
        .map(|programs| (NeedKind::Binary, owned(programs)))
        .collect()
}

/// Returns the programs of Python packages that are programs.
fn programs(args: &[&str]) -> Vec<InstalledSoftware> {
    let names = operands(args, "--python --with")
        .into_iter()
        .filter_map(parse_requirement);
    names.map(|name| (NeedKind::Binary, vec![name])).collect()
}

/// Returns the programs that a language's own package manager builds.
fn built_programs(program: &str, args: &[&str]) -> Vec<InstalledSoftware> {
    // The programs of a gem, a snap and a flatpak have names of their own.
    if !matches!(program, "cargo" | "go") {
        return Vec::new();
    }
    let names = operands(args, "--version --git --path --features").into_iter();
    let names = names.filter_map(|arg| arg.split('@').next()?.rsplit('/').next());
    system_packages(&names.collect::<Vec<_>>())
}
