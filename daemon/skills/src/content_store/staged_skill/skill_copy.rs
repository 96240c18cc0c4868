//! Copies a stored skill into a workspace's folder and adds the links; with its plugin's files, if it has some.
//!
//! Names are composed (NFC), as documents and commands write them. Copies are byte for byte, except that CRLF line ends
//! of a script become LF, that a script has no byte order mark, and that one in UTF-16 becomes UTF-8. Files are 0644, or
//! 0755 if they are executable or their first line names an interpreter: the mount keeps commands from writing, and a
//! copy of a template can be edited, because `cp` copies the mode too.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use skilld_common::text_decoding::decode_text;

use super::node_packages::packages_links;
use super::{StagedSkill, make_directory};
use crate::content_store::skill_files::staged_name;
use crate::error::tolerate;
use crate::interpreter::{interpreter_for_extension, without_mark};
use crate::skill_path::compose_disk_path;

/// Links in a skill's root, so that what its document says works from there: (name, target in the workspace).
pub(super) const LINKS: [(&str, &str); 3] =
    [("out", "out"), ("work", "work"), ("inputs", "work/inputs")];
/// Size of the buffer in bytes. Most files are smaller, and one read and one write are the fastest.
const BUFFER_BYTES: usize = 64 << 10;
/// Maximum size of a script that is repaired, in bytes.
const SCRIPT_BYTES_MAX: u64 = 1 << 20;
/// Mode of a staged file that is executable, and of all others.
const EXECUTABLE_MODE: u32 = 0o755;
const FILE_MODE: u32 = 0o644;
/// Link at the top of a staged plugin to the skill in it. No shared file at the top of a plugin begins with a dot.
pub(super) const SKILL_LINK: &str = ".skill";

/// Copies a stored skill into a new folder, and adds the links unless the skill has files of these names. `depth` is
/// the number of folders from the workspace to the skill's own.
pub(super) fn copy_skill(
    stored: &Path,
    to: &Path,
    skill: &StagedSkill,
    depth: usize,
) -> io::Result<()> {
    copy_without_links(stored, to)?;
    let up = "../".repeat(depth);
    let venv = format!("work/.venvs/{}", skill.name);
    let link = |target: String, path: &str| {
        tolerate(io::ErrorKind::AlreadyExists, symlink(target, to.join(path)))
    };
    for (path, target) in LINKS.into_iter().chain([(".venv", venv.as_str())]) {
        link(format!("{up}{target}"), path)?;
    }
    for packages in packages_links(skill) {
        let up = "../".repeat(depth + packages.depth);
        link(format!("{up}{}", packages.target), &packages.path)?;
    }
    Ok(())
}

/// Copies the shared files of a plugin into a new folder `to`, and the skill to `skill_path` in it, which the link
/// [`SKILL_LINK`] names.
pub(super) fn copy_skill_in_plugin(
    plugin: &Path,
    stored: &Path,
    to: &Path,
    skill_path: &Path,
    skill: &StagedSkill,
) -> io::Result<()> {
    let place = copy_plugin(plugin, to, skill_path)?;
    // skills/, .plugins/ and the plugin are above the skill.
    let depth = 3 + skill_path.components().count();
    copy_skill(stored, &place, skill, depth)?;
    symlink(skill_path, to.join(SKILL_LINK))
}

/// Copies the shared files of a plugin into a new folder `to`. Returns the place for the skill at `skill_path` in it,
/// whose parents exist then.
pub(super) fn copy_plugin(plugin: &Path, to: &Path, skill_path: &Path) -> io::Result<PathBuf> {
    copy_directory(plugin, to, &mut vec![0; BUFFER_BYTES])?;
    let mut parent = to.to_owned();
    for folder in skill_path.parent().into_iter().flat_map(Path::components) {
        parent.push(folder);
        // A link among the shared files must not lead the skill elsewhere.
        match fs::symlink_metadata(&parent) {
            Ok(metadata) if metadata.is_dir() => {}
            Ok(_) => {
                let message = format!("{} is no folder of the plugin", skill_path.display());
                return Err(io::Error::other(message));
            }
            Err(_) => make_directory(&parent)?,
        }
    }
    Ok(to.join(skill_path))
}

/// Copies a stored skill into a new folder, without links to the workspace.
pub(super) fn copy_without_links(stored: &Path, to: &Path) -> io::Result<()> {
    copy_directory(stored, to, &mut vec![0; BUFFER_BYTES])
}

fn copy_directory(from: &Path, to: &Path, buffer: &mut [u8]) -> io::Result<()> {
    make_directory(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let name = staged_name(from, &entry.file_name());
        let (source, target) = (entry.path(), to.join(name));
        let kind = entry.file_type()?;
        if kind.is_dir() {
            copy_directory(&source, &target, buffer)?;
        } else if kind.is_symlink() {
            let link_target = fs::read_link(&source)?;
            symlink(compose_disk_path(link_target.as_os_str()), target)?;
        } else {
            copy_file(&source, &target, buffer)?;
        }
    }
    Ok(())
}

/// Copies one file, by reflink where the file system can. Never makes a hard link: a lock on a shared inode would cross
/// tenants.
fn copy_file(from: &Path, to: &Path, buffer: &mut [u8]) -> io::Result<()> {
    let mut source = File::open(from)?;
    let mut filled = 0;
    while let Some(free) = buffer.get_mut(filled..).filter(|free| !free.is_empty()) {
        match source.read(free) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let head = buffer.get(..filled).unwrap_or_default();
    let script = ScriptTraits::of(from, head);
    let stored = source.metadata()?;
    let is_executable = script.is_direct || stored.permissions().mode() & 0o111 != 0;
    let mode = if is_executable {
        EXECUTABLE_MODE
    } else {
        FILE_MODE
    };
    let mut target = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(to)?;
    if (script.has_crlf || script.has_mark) && stored.len() <= SCRIPT_BYTES_MAX {
        let mut text = head.to_vec();
        source.read_to_end(&mut text)?;
        let text = plain_text(&text, true);
        match script.has_crlf {
            true => target.write_all(&with_lf(&text))?,
            false => target.write_all(&text)?,
        }
    } else if filled < buffer.len() {
        target.write_all(head)?;
    } else {
        source.seek(SeekFrom::Start(0))?;
        io::copy(&mut source, &mut target)?;
    }
    // Sets the mode regardless of the umask.
    target.set_permissions(Permissions::from_mode(mode))
}

/// Properties of a file that matter if it is a script.
struct ScriptTraits {
    /// `true` if its first line names an interpreter, so that it must be executable.
    is_direct: bool,
    /// `true` if its line ends are converted.
    has_crlf: bool,
    /// `true` if its byte order mark is taken away: the kernel and most interpreters accept none.
    has_mark: bool,
}

impl ScriptTraits {
    fn of(path: &Path, head: &[u8]) -> Self {
        let text = plain_text(head, false);
        let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
        // `#![…]` begins a Rust file.
        let after = line.strip_prefix(b"#!").map(<[u8]>::trim_ascii_start);
        let is_direct = after.is_some_and(|interpreter| interpreter.starts_with(b"/"));
        let extension = path.extension().map(OsStr::to_ascii_lowercase);
        let is_shell = extension.is_some_and(|extension| {
            ["sh", "bash", "zsh"]
                .iter()
                .any(|known| extension == *known)
        });
        let is_script = is_direct || interpreter_for_extension(&path.to_string_lossy()).is_some();
        Self {
            is_direct,
            has_crlf: (is_direct || is_shell) && line.ends_with(b"\r") && line.len() < text.len(),
            has_mark: is_script && *text != *head,
        }
    }
}

/// Returns the text of a script as interpreters read it: in UTF-8, without a byte order mark.
fn plain_text(bytes: &[u8], is_whole: bool) -> Cow<'_, [u8]> {
    if matches!(bytes, [0xff, 0xfe, ..] | [0xfe, 0xff, ..]) {
        let decoded = decode_text(bytes, is_whole);
        if decoded.is_text {
            return Cow::Owned(decoded.text.into_owned().into_bytes());
        }
    }
    Cow::Borrowed(without_mark(bytes))
}

/// Removes the carriage returns before line feeds.
fn with_lf(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        match line.strip_suffix(b"\r\n") {
            Some(line) => {
                out.extend_from_slice(line);
                out.push(b'\n');
            }
            None => out.extend_from_slice(line),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::content_store::content_hashing::ContentSummary;
    use crate::parse::front_matter::FrontMatter;

    /// The staged copy of one file of a skill: its bytes and mode.
    fn staged(name: &str, bytes: &[u8], mode: u32) -> (Vec<u8>, u32) {
        let dir = tempfile::tempdir().expect("temp dir");
        let stored = dir.path().join("stored");
        fs::create_dir(&stored).expect("mkdir");
        fs::write(stored.join(name), bytes).expect("write");
        fs::set_permissions(stored.join(name), Permissions::from_mode(mode)).expect("chmod");
        let to = dir.path().join("to");
        let content = ContentSummary::default();
        let skill = StagedSkill::new("s", &FrontMatter::default(), content);
        copy_skill(&stored, &to, &skill, 2).expect("prepared");
        let mode = fs::metadata(to.join(name))
            .expect("there")
            .permissions()
            .mode();
        (fs::read(to.join(name)).expect("read"), mode & 0o777)
    }

    #[test]
    fn scripts_are_made_fit_to_run_and_nothing_else_is_touched() {
        let long = "x".repeat(BUFFER_BYTES);
        let long_script = format!("#!/bin/sh\r\n{long}\r\n");
        let long_fixed = format!("#!/bin/sh\n{long}\n");
        let cases: [(&str, &str, u32, &str, u32); 18] = [
            (
                "a.py",
                "\u{feff}#!/usr/bin/env python3\nprint()\n",
                0o444,
                "#!/usr/bin/env python3\nprint()\n",
                0o755,
            ),
            ("a.sh", "\u{feff}echo\n", 0o444, "echo\n", 0o644),
            (
                "a.js",
                "\u{feff}#!/usr/bin/env node\n",
                0o555,
                "#!/usr/bin/env node\n",
                0o755,
            ),
            ("a.AWK", "\u{feff}{ print }", 0o444, "{ print }", 0o644),
            // What a script reads may need its mark.
            ("a.csv", "\u{feff}a,b\n", 0o444, "\u{feff}a,b\n", 0o644),
            (
                "a.sh",
                "#!/bin/bash\necho\n",
                0o444,
                "#!/bin/bash\necho\n",
                0o755,
            ),
            (
                "a.sh",
                "#!/bin/bash\r\necho\r\n",
                0o444,
                "#!/bin/bash\necho\n",
                0o755,
            ),
            (
                "a.sh",
                "\u{feff}#! /bin/sh\r\na\rb\r\n",
                0o444,
                "#! /bin/sh\na\rb\n",
                0o755,
            ),
            ("a.sh", "echo\r\n", 0o444, "echo\n", 0o644),
            ("a.SH", "echo\r\n\r\n", 0o555, "echo\n\n", 0o755),
            ("a.sh", "echo", 0o444, "echo", 0o644),
            ("a.sh", "echo\r", 0o444, "echo\r", 0o644),
            (
                "tool",
                "#!/usr/bin/env python3\r\nx\r\n",
                0o444,
                "#!/usr/bin/env python3\nx\n",
                0o755,
            ),
            ("a.py", "print()\r\n", 0o444, "print()\r\n", 0o644),
            ("a.csv", "a,b\r\n1,2\r\n", 0o444, "a,b\r\n1,2\r\n", 0o644),
            ("bin", "\0\r\n", 0o555, "\0\r\n", 0o755),
            ("a.sh", &long_script, 0o444, &long_fixed, 0o755),
            (
                "a.txt",
                &long_script[11..],
                0o444,
                &long_script[11..],
                0o644,
            ),
        ];
        for (name, text, mode, expected, expected_mode) in cases {
            let (bytes, mode) = staged(name, text.as_bytes(), mode);
            assert!(bytes == expected.as_bytes(), "{name} {:?}", text.get(..40));
            assert_eq!(mode, expected_mode, "{name} {:?}", text.get(..40));
        }
    }

    #[test]
    fn names_of_macos_are_staged_composed() {
        let dir = tempfile::tempdir().expect("temp dir");
        let (stored, to) = (dir.path().join("stored"), dir.path().join("to"));
        let decomposed = "Gro\u{308}\u{df}e/u\u{308}ber.txt";
        fs::create_dir_all(stored.join("Gro\u{308}\u{df}e")).expect("mkdir");
        fs::write(stored.join(decomposed), "x").expect("write");
        symlink(decomposed, stored.join("link")).expect("symlink");
        copy_without_links(&stored, &to).expect("copied");
        for path in ["Gr\u{f6}\u{df}e/\u{fc}ber.txt", "link"] {
            assert_eq!(fs::read_to_string(to.join(path)).expect(path), "x");
        }
        assert!(!to.join(decomposed).exists());
    }

    #[test]
    fn scripts_in_utf_16_become_utf_8_and_other_files_stay() {
        let encoded = |text: &str| {
            let units = || text.encode_utf16();
            let little = units().flat_map(u16::to_le_bytes);
            let big = units().flat_map(u16::to_be_bytes);
            let little: Vec<u8> = [0xff, 0xfe].into_iter().chain(little).collect();
            [little, [0xfe, 0xff].into_iter().chain(big).collect()]
        };
        // The buffer ends within a character.
        let long = format!("#!/bin/sh\n{}\n", "x😀".repeat(BUFFER_BYTES / 4));
        for (name, text, expected, expected_mode) in [
            ("a.py", "print('北京')\r\n", "print('北京')\r\n", 0o644),
            ("a.ps1", "Write-Host ü\n", "Write-Host ü\n", 0o644),
            ("a.sh", "#!/bin/sh\r\nö\r\n", "#!/bin/sh\nö\n", 0o755),
            (
                "tool",
                "#!/usr/bin/env node\n",
                "#!/usr/bin/env node\n",
                0o755,
            ),
            ("a.sh", &long, &long, 0o755),
        ] {
            for bytes in encoded(text) {
                let (bytes, mode) = staged(name, &bytes, 0o444);
                assert!(bytes == expected.as_bytes(), "{name} {:?}", text.get(..9));
                assert_eq!(mode, expected_mode, "{name} {:?}", text.get(..9));
            }
        }
        let [table, _] = encoded("a,b\r\n");
        let others: [(&str, &[u8]); 3] = [
            ("a.csv", &table),
            ("a.py", b"\xff\xfe\0\xd8"),
            ("a.py", b"\xff\xfe\0\0"),
        ];
        for (name, bytes) in others {
            let copy = staged(name, bytes, 0o444);
            assert_eq!(copy, (bytes.to_vec(), 0o644), "{name}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn files_other_than_scripts_keep_their_bytes_and_exec_bit(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            repeat in 1_usize..700,
            executable in any::<bool>(),
        ) {
            let content = bytes.repeat(repeat);
            prop_assume!(!without_mark(&content).starts_with(b"#!"));
            let mode = if executable { 0o555 } else { 0o444 };
            let staged_mode = if executable { 0o755 } else { 0o644 };
            prop_assert_eq!(staged("data.bin", &content, mode), (content, staged_mode));
        }
    }
}
