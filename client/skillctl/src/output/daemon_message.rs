//! Translates the daemon's messages for the command line. Fields and calls of the API become options and commands,
//! numbers of bytes become sizes.

use skilld_client::short_id;

use crate::output::value_formats;

/// Words of the API, and what a user of the command line types. A word stands before those that it contains.
const API_WORDS: &[(&str, &str)] = &[
    ("workspaces/{workspace}/execs/{exec}", "ID/EXEC"),
    ("workspaces/{workspace}", "ID"),
    ("skills/{skill}", "NAME"),
    ("pools/{pool}", "POOL"),
    (
        "stage it with StageSkills",
        "stage it with `skillctl stage ID --skill NAME`",
    ),
    ("StageSkills", "`skillctl stage`"),
    ("pack it into a tar for StageFiles", "rename it"),
    ("StageFiles", "`skillctl cp`"),
    ("set allow_existing", "give --allow-existing"),
    ("allow_existing:", "--allow-existing:"),
    ("limits.memory_bytes", "--memory"),
    ("limits.cpu_millis", "--cpus"),
    ("limits.disk_bytes", "--disk"),
    ("idle_timeout:", "--idle-timeout:"),
    ("max_lifetime:", "--max-lifetime:"),
    ("expire_time:", "--expires-in:"),
    ("workspace_id:", "--id:"),
    ("workspace.labels[", "--label ["),
    ("labels[", "--label ["),
    ("spec.timeout", "--timeout"),
    ("spec.cwd", "--cwd"),
    ("spec.skill", "--skill"),
    ("spec.env", "--env"),
    ("spec.terminal.term", "--term"),
    ("spec.script.argv", "an argument of the script"),
    ("spec.script.args", "--arg"),
    ("spec.script", "--script"),
    ("spec.argv", "the command"),
    ("spec.shell", "the command"),
    ("spec.globs", "GLOB"),
    ("spec.max_files", "--max-files"),
    ("spec.max_file_bytes", "--max-file-bytes"),
    ("spec.max_total_bytes", "--max-total-bytes"),
    ("spec.save_as_artifacts.prefix", "--prefix"),
    ("settle_duration:", "--settle:"),
    ("max_bytes:", "--max-bytes:"),
];

/// Words that show that the numbers of a message count bytes.
const OF_BYTES: [&str; 3] = ["bytes", "memory", "disk"];

/// Smallest number of bytes that is written as a size.
const SIZE_MIN: u64 = 1024;

/// Returns a message of the daemon in the words of the command line.
pub(crate) fn for_command_line(message: &str) -> String {
    let counts_bytes = OF_BYTES.iter().any(|word| message.contains(word));
    let mut text = message.to_owned();
    for (word, instead) in API_WORDS {
        text = text.replace(word, instead);
    }
    let words = text.split(' ').map(|word| match counts_bytes {
        true => with_size(with_short_id(word)),
        false => with_short_id(word),
    });
    let text = words.collect::<Vec<_>>().join(" ");
    text.replace("iB bytes", "iB")
}

/// Shortens a resource name to what people type: `workspaces/w/execs/x:` becomes `w/x:`. A path with such components in
/// its middle stays as it is.
fn with_short_id(word: &str) -> String {
    let name = word.trim_start_matches(['"', '(']);
    match name.starts_with("workspaces/") {
        true => word.replacen(name, &short_id(name), 1),
        false => word.to_owned(),
    }
}

/// Writes a number of bytes as a size: `262144;` becomes `256.0 KiB;`.
fn with_size(word: String) -> String {
    let number = word.trim_end_matches([',', ';', ':', '.', ')']);
    match number.parse() {
        Ok(count) if count >= SIZE_MIN => {
            word.replacen(number, &value_formats::format_bytes(count), 1)
        }
        Ok(_) | Err(_) => word,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_options_and_sizes_of_the_command_line() {
        for (message, expected) in [
            (
                "invalid request: spec.timeout: must be longer than 0 s",
                "invalid request: --timeout: must be longer than 0 s",
            ),
            (
                "invalid request: spec.shell: 180026 bytes; at most 131071",
                "invalid request: the command: 175.8 KiB; at most 128.0 KiB",
            ),
            (
                "limits.memory_bytes cannot be enforced here: the pool's limit is 536870912, asked for is 1073741824",
                "--memory cannot be enforced here: the pool's limit is 512.0 MiB, asked for is 1.0 GiB",
            ),
            (
                "name: \"w\" is not of the form workspaces/{workspace}/execs/{exec}",
                "name: \"w\" is not of the form ID/EXEC",
            ),
            ("workspaces/w/execs/x exists already", "w/x exists already"),
            (
                "the guest of workspaces/w: work/workspaces/x is lost",
                "the guest of w: work/workspaces/x is lost",
            ),
            (
                "pool default has no container free: 4096 wait",
                "pool default has no container free: 4096 wait",
            ),
        ] {
            assert_eq!(for_command_line(message), expected);
        }
    }
}
