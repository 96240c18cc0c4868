//! Commands and options that users of docker, kubectl and shells type, and what they are here.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Replacement for words of other programs.
struct ForeignWord {
    /// Command in which the word is typed; empty for the program itself, and for options in any command.
    command: &'static str,
    /// Words that have this replacement; empty for a command without its arguments. Of several short options in one
    /// word the first unknown one counts.
    words: &'static [&'static str],
    /// Completes a sentence that begins with "use".
    instead: &'static str,
}

const fn foreign(
    command: &'static str,
    words: &'static [&'static str],
    instead: &'static str,
) -> ForeignWord {
    ForeignWord {
        command,
        words,
        instead,
    }
}

#[rustfmt::skip]
const FOREIGN_WORDS: &[ForeignWord] = &[
    foreign("", &["help", "options", "man"], "`skillctl --help` and `skillctl COMMAND --help`"),
    foreign("", &["doctor"], "`skilld doctor` on the daemon's host; from here `skillctl health` and `skillctl problems`"),
    foreign("", &["describe", "inspect", "get", "show", "explain"], "`skillctl workspace get ID`, `skillctl skill show NAME`, `skillctl ps ID` or `skillctl server info`"),
    foreign("", &["top", "stats"], "`skillctl ps ID` for the commands of a workspace, `skillctl usage` for all that you hold"),
    foreign("", &["events", "watch"], "`skillctl logs ID/EXEC --follow` for one command; nothing else is followed"),
    foreign("", &["config"], "`skillctl context` for endpoints and credentials; `skilld --check` prints the daemon's configuration"),
    foreign("", &["login", "auth"], "`skillctl context set NAME --endpoint URL --token-file FILE`, then `skillctl context use NAME`"),
    foreign("", &["logout"], "`skillctl context delete NAME`"),
    foreign("", &["pull", "push", "build", "buildx", "tag", "rmi", "images", "import", "load", "save", "commit", "history", "manifest"], "the image's engine, for example `docker pull` on the daemon's host; `skillctl pool list` shows the images in use, `skillctl image check IMAGE` examines one"),
    foreign("", &["create", "start", "up", "pod", "pods", "container", "containers"], "`skillctl workspace create` or `skillctl workspace list`, and `skillctl exec ID COMMAND`"),
    foreign("", &["stop", "terminate", "down"], "`skillctl kill ID/EXEC` for a command, `skillctl rm ID` for a workspace"),
    foreign("", &["delete", "remove", "destroy", "prune", "rmdir"], "`skillctl rm ID`, `skillctl rm ID/EXEC`, `skillctl skill delete` or `skillctl artifact delete`"),
    foreign("", &["restart", "pause", "unpause", "rename"], "`skillctl rm ID` and a new workspace: one is never restarted, paused or renamed"),
    foreign("", &["info", "status", "system", "ping", "cluster-info", "api-resources", "api-versions"], "`skillctl server info`, `skillctl health` and `skillctl problems`"),
    foreign("", &["list"], "`skillctl workspace list`, `skillctl skill list`, `skillctl artifact list` or `skillctl pool list`"),
    foreign("", &["workspaces", "skills", "artifacts", "pools", "tools", "tenants", "tokens", "contexts"], "the singular and `list`, for example `skillctl skill list`"),
    foreign("", &["upload", "put", "add"], "`skillctl cp FILE ID:work/` or `skillctl stage ID FILE`"),
    foreign("", &["download", "export"], "`skillctl cp ID:PATH .` or `skillctl collect ID GLOB`"),
    foreign("", &["diff"], "`skillctl ls ID -R` for the files of a workspace"),
    foreign("", &["search", "find"], "`skillctl skill search WORDS`"),
    foreign("", &["publish", "install"], "`skillctl skill publish DIR`"),
    foreign("", &["renew", "extend", "update", "set", "edit", "patch", "replace", "apply"], "`skillctl workspace renew ID`; other properties are those of `workspace create`"),
    foreign("", &["label", "annotate"], "`skillctl workspace label ID KEY=VALUE`"),
    foreign("", &["scale", "autoscale"], "`skillctl pool resize NAME N`"),
    foreign("", &["compose", "service", "services", "stack", "swarm", "node", "nodes", "deploy", "rollout"], "`skillctl pool list` and `skillctl pool resize NAME N`: a daemon has pools of containers on one host"),
    foreign("", &["shell", "sh", "bash", "ssh", "enter", "debug"], "`skillctl exec ID -it bash`"),
    foreign("", &["port", "port-forward", "proxy", "expose", "network"], "`skillctl exec` and `skillctl cp`: commands in a workspace have no network"),
    foreign("", &["volume", "mount"], "`skillctl cp` or `skillctl stage`"),
    foreign("", &["secret", "secrets", "configmap"], "`skillctl cp FILE ID:work/`; `--env KEY=VALUE` of `exec` and `workspace create` shows the value in the host's list of processes"),
    foreign("", &["plugin", "plugins"], "`skillctl skill list`: a plugin's skills are listed like others; `skillctl skill publish DIR` publishes a skill"),
    foreign("", &["namespace", "namespaces", "ns"], "`skillctl tenant list`, and --tenant NAME in other commands"),
    foreign("", &["cordon", "taint"], "`skillctl drain`"),
    foreign("", &["uncordon"], "`skillctl undrain`"),
    foreign("", &["call"], "`skillctl tool call NAME JSON`"),
    foreign("workspace", &["inspect", "describe", "show", "info"], "`skillctl workspace get ID`"),
    foreign("workspace", &["new", "start", "run"], "`skillctl workspace create`"),
    foreign("workspace", &["stop", "kill", "destroy", "remove"], "`skillctl workspace delete ID`"),
    foreign("workspace delete", &["-f", "--force", "-r", "-R", "-v"], "the command without it; --allow-missing succeeds for what does not exist"),
    foreign("workspace", &["exec", "ps", "logs", "cp", "stage"], "the command without `workspace`, for example `skillctl exec ID COMMAND`"),
    foreign("skill", &["get", "inspect", "describe", "info", "cat"], "`skillctl skill show NAME`, or `skillctl skill read NAME PATH`"),
    foreign("skill", &["add", "install", "upload", "push", "create", "update"], "`skillctl skill publish DIR`"),
    foreign("skill", &["run", "exec"], "`skillctl run NAME COMMAND`"),
    foreign("skill", &["remove", "uninstall"], "`skillctl skill delete NAME@VERSION`"),
    foreign("artifact", &["get", "download", "cat", "show"], "`skillctl artifact load NAME`"),
    foreign("artifact", &["put", "upload", "add", "create"], "`skillctl artifact save NAME FILE`"),
    foreign("image", &["ls", "list", "pull", "push", "build", "rm", "tag", "inspect", "history", "load", "save", "import", "prune"], "the image's engine, for example `docker pull` on the daemon's host; `skillctl pool list` shows the images in use"),
    foreign("tool", &["run", "exec", "invoke"], "`skillctl tool call NAME JSON`"),
    foreign("pool", &["scale", "set"], "`skillctl pool resize NAME N`"),
    foreign("context", &["current", "get", "show"], "`skillctl context list`, where the one in use has a star"),
    foreign("context", &["create", "add"], "`skillctl context set NAME --endpoint URL`"),
    foreign("ps", &[], "`skillctl workspace list` for workspaces, `skillctl ps ID` for the commands of one"),
    foreign("ls", &[], "`skillctl workspace list` for workspaces, `skillctl ls ID` for the files of one"),
    foreign("logs", &[], "`skillctl logs ID/EXEC`; `skillctl ps ID` lists the commands of a workspace"),
    foreign("run", &[], "`skillctl run -- COMMAND`; `skillctl run SKILL COMMAND` for a skill"),
    foreign("ps", &["-a", "--all", "-l", "--latest", "-n", "--last", "-s", "--size", "-f", "--filter", "-e", "--no-trunc"], "`skillctl ps ID` alone: it lists all commands, ended ones too"),
    foreign("ls", &["-l", "-a", "--all"], "`skillctl ls ID` alone: it shows modes, sizes and hidden files"),
    foreign("logs", &["--tail", "-n", "--since", "--until", "-t", "--timestamps"], "`skillctl logs ID/EXEC | tail`, or --offset to skip a number of bytes"),
    foreign("logs", &["-p", "--previous"], "`skillctl logs ID/EXEC` of an ended command, which `skillctl ps ID` lists"),
    foreign("logs", &["-c", "--container"], "ID/EXEC: output belongs to a command"),
    foreign("exec", &["-w", "--workdir"], "--cwd DIR"),
    foreign("exec", &["-u", "--user"], "the command without it: commands run as the user of their workspace"),
    foreign("exec", &["-c", "--container", "--privileged"], "the command without it: a workspace has one container"),
    foreign("attach", &["-t", "--tty"], "-i alone: the terminal is that of the command"),
    foreign("run", &["--rm"], "the command without it: the workspace is deleted in any case, unless --keep is given"),
    foreign("run", &["-d", "--detach"], "`skillctl workspace create`, and `skillctl exec ID` with this option"),
    foreign("run", &["-v", "--volume", "--mount"], "--input SRC=DEST for files that go in, --to DIR for results"),
    foreign("run", &["-p", "--publish", "--network", "--net"], "the command without it: commands have no network"),
    foreign("run", &["--name", "--id"], "`skillctl workspace create --id NAME`, and `skillctl exec NAME COMMAND`"),
    foreign("run", &["-w", "--workdir", "--cwd"], "`cd DIR && COMMAND` as one word"),
    foreign("run", &["-m"], "--memory SIZE"),
    foreign("run", &["-u", "--privileged", "--entrypoint", "--init", "--read-only", "--platform", "--gpus", "--restart"], "the command without it: the configuration of a pool decides that"),
    foreign("cp", &["-r", "-R", "-a", "-p", "--recursive", "--archive", "--preserve"], "the command without it: directories, modes and times are copied in any case"),
    foreign("cp", &["-L", "--follow-link"], "the command without it: a file that a link leads to is copied in any case"),
    foreign("rm", &["-f", "--force", "-r", "-R", "-v"], "the command without it; --allow-missing succeeds for what does not exist"),
    foreign("kill", &["-s", "--signal", "-1", "-2", "-3", "-6", "-9", "-A", "-C", "-H", "-I", "-K", "-Q", "-S", "-T", "-U"], "`skillctl signal ID/EXEC SIGNAL`"),
    foreign("signal", &["-s", "--signal", "-1", "-2", "-3", "-6", "-9", "-A", "-C", "-H", "-I", "-K", "-Q", "-S", "-T", "-U"], "the signal without a dash: `skillctl signal ID/EXEC TERM`"),
    foreign("workspace list", &["-a", "--all", "-A", "--all-namespaces"], "the command without it: it lists all workspaces"),
    foreign("workspace list", &["-l", "--selector", "-f", "--filter"], "--label KEY=VALUE"),
    foreign("workspace create", &["--name", "-n"], "--id NAME"),
    foreign("workspace create", &["--image"], "--pool NAME: a pool decides the image"),
    foreign("", &["-n", "--namespace"], "--tenant NAME"),
    foreign("", &["-H", "--host", "--server", "-s"], "--endpoint URL"),
    foreign("", &["--format", "--json"], "-o json"),
    foreign("", &["--interactive"], "-i"),
    foreign("", &["--env-file"], "--env KEY=VALUE, once for each variable"),
    foreign("", &["-v", "--verbose", "--debug"], "the command without it; `skillctl --version` prints the version"),
];

/// Replaces the suggestions of a usage error by what to type, where the user typed a word of another program. `command`
/// has the names of the command that was typed.
pub(crate) fn explain(mut error: clap::Error, command: &[String]) -> clap::Error {
    let word = typed_word(&error);
    let instead = word.and_then(|word| find_instead(&command.join(" "), &word));
    if let Some(instead) = instead {
        error.remove(ContextKind::SuggestedSubcommand);
        error.remove(ContextKind::SuggestedArg);
        let tip = StyledStr::from(format!("use {instead}"));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    }
    error
}

/// Returns the word that is wrong in a command line; empty if one is missing.
fn typed_word(error: &clap::Error) -> Option<String> {
    if error.kind() == ErrorKind::MissingRequiredArgument {
        return Some(String::new());
    }
    let place = if error.kind() == ErrorKind::UnknownArgument {
        ContextKind::InvalidArg
    } else {
        ContextKind::InvalidSubcommand
    };
    match error.get(place) {
        Some(ContextValue::String(word)) => Some(word.clone()),
        Some(_) | None => None,
    }
}

/// Returns what to type instead of a word in a command. `--flag=value` is known by its flag.
fn find_instead(command: &str, word: &str) -> Option<&'static str> {
    let word = word.split('=').next().unwrap_or(word);
    let is_option = word.starts_with('-');
    let has_word = |entry: &ForeignWord| match word {
        "" => entry.words.is_empty(),
        word => entry.words.contains(&word),
    };
    let find = |command: &str| {
        let mut entries = FOREIGN_WORDS.iter();
        entries.find(|entry| entry.command == command && has_word(entry))
    };
    let anywhere = || is_option.then(|| find("")).flatten();
    let found = find(command).or_else(anywhere);
    found.map(|entry| entry.instead)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{Command, CommandFactory as _};

    use super::*;
    use crate::cli::Cli;

    /// Returns `true` if a command has a subcommand or an option of this name.
    fn is_ours(command: &Command, word: &str) -> bool {
        command.find_subcommand(word).is_some()
            || command.get_arguments().any(|arg| {
                let long = arg.get_long().map(|name| format!("--{name}"));
                let short = arg.get_short().map(|letter| format!("-{letter}"));
                [long, short].iter().flatten().any(|name| name == word)
            })
    }

    #[test]
    fn each_foreign_word_is_explained_once_and_is_not_ours() {
        let mut seen = BTreeSet::new();
        for entry in FOREIGN_WORDS {
            let mut ours = Cli::command();
            ours.build();
            for name in entry.command.split(' ').filter(|name| !name.is_empty()) {
                ours = ours.find_subcommand(name).expect(name).clone();
            }
            for word in entry.words {
                assert!(seen.insert((entry.command, word)), "{word} twice");
                assert!(!is_ours(&ours, word), "{word} is ours");
            }
            for named in entry.instead.split('`').skip(1).step_by(2) {
                let Some(named) = named.strip_prefix("skillctl ") else {
                    continue;
                };
                let verb = named.split(' ').next().unwrap_or_default();
                let known = verb.starts_with('-') || verb == "COMMAND";
                assert!(
                    known || Cli::command().find_subcommand(verb).is_some(),
                    "{named}"
                );
            }
        }
    }

    #[test]
    fn options_of_any_command_are_found_after_those_of_one() {
        assert_eq!(find_instead("logs", "--tail=5"), find_instead("logs", "-n"));
        for command in ["ls", "exec"] {
            assert_eq!(find_instead(command, "-n"), Some("--tenant NAME"));
        }
        // The last ones, and no namespace.
        assert_eq!(find_instead("ps", "-n"), find_instead("ps", "--all"));
        // SIGHUP is no endpoint.
        assert_eq!(find_instead("kill", "-H"), find_instead("kill", "-9"));
        assert_eq!(find_instead("skill show", "frobnicate"), None);
        assert!(find_instead("ps", "").is_some_and(|instead| instead.contains("workspace list")));
        assert!(find_instead("run", "").is_some_and(|instead| instead.contains("run -- COMMAND")));
        assert_eq!(find_instead("skill show", ""), None);
    }
}
