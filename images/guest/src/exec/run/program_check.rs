//! Check of an exec's program against the programs that its spec allows and denies.
//!
//! A rule applies to a file, whatever the path or link that leads to it. The checked file is the one that runs: the
//! check returns a path without links, on a read-only file system where no command can replace the file.

use std::fs::{OpenOptions, metadata};
use std::io::ErrorKind::NotFound;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{SFlag, fstat};
use nix::sys::statvfs::{FsFlags, fstatvfs};
use skilld_common::names::base_name;
use skilld_proto::v1;
use skilld_proto::v1::spawn_failure::Step;
use tonic::codegen::Bytes;

use crate::files::read_slice;
use crate::supervisor::protocol::LaunchSpec;

/// Maximum number of directories of PATH that are searched. Each rule costs a lookup in each of them.
const DIRECTORIES_MAX: usize = 64;
/// Maximum length of a script's first line, in bytes: that of the kernel.
const INTERPRETER_BYTES_MAX: usize = 256;
/// Execute permission bits.
const EXECUTABLE: u32 = 0o111;
/// Byte order marks of UTF-8 and UTF-16.
const BYTE_ORDER_MARKS: [&[u8]; 3] = [b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"];

/// Program file that a name resolves to.
#[derive(Debug, Clone)]
struct FoundProgram {
    path: String,
    file: FileIdentity,
    /// `true` if no command can change or replace the file.
    is_read_only: bool,
}

/// Identity of a file. Two paths with the same identity lead to the same file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileIdentity {
    device: u64,
    inode: u64,
}

/// Returns the path of the launch's program if the rules permit it, and the failure otherwise.
pub(super) fn check_program(
    rules: &v1::ExecPrograms,
    launch: &LaunchSpec,
) -> Result<String, v1::SpawnFailure> {
    let called = launch.argv.first().map_or("", String::as_str);
    let search = ProgramSearch::of(launch);
    let Some(found) = search.find(called) else {
        let errno = Errno::ENOENT;
        // A relative program is missing because its directory is.
        let (stage, about) = match search.directory.try_exists() {
            Ok(false) => (Step::Cwd, describe_directory(&launch.cwd)),
            _ => (Step::Exec, called.to_owned()),
        };
        return Err(v1::SpawnFailure {
            step: stage.into(),
            error_number: errno as i32,
            message: format!("{errno:?} ({}): {about}", errno.desc()),
        });
    };
    match refusal_reason(rules, &search, called, &found) {
        None => Ok(found.path),
        Some(why) => Err(v1::SpawnFailure {
            step: Step::Program.into(),
            error_number: Errno::EACCES as i32,
            message: format!("{called:?} is {}, which {why}", found.path),
        }),
    }
}

/// Describes a program that did not start. If its file exists although the kernel reports that something is missing,
/// that is the interpreter of a script, or the loader of a binary. A file of a format that the kernel does not know may
/// be a script that an editor gave a byte order mark.
pub(super) fn describe_program(launch: &LaunchSpec, errno: i32) -> String {
    let called = launch.argv.first().map_or("", String::as_str);
    let begin = || read_begin(&ProgramSearch::of(launch).find(called)?.path);
    let problem = if errno == Errno::ENOENT as i32 {
        begin().and_then(|begin| describe_missing_part(&begin))
    } else if errno == Errno::ENOEXEC as i32 {
        begin().map(|begin| describe_format(&begin).to_owned())
    } else {
        None
    };
    problem.map_or_else(
        || called.to_owned(),
        |problem| format!("{called}: {problem}"),
    )
}

/// Returns the first bytes of a program file; `None` if it can't be read.
fn read_begin(path: &str) -> Option<Bytes> {
    // A command may have replaced it by a FIFO.
    let nonblocking = OFlag::O_NONBLOCK.bits();
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .custom_flags(nonblocking)
        .open(path)
        .ok()?;
    read_slice(&file, u64::MAX, INTERPRETER_BYTES_MAX).ok()
}

/// Describes a file with these first bytes whose format the kernel does not know.
fn describe_format(begin: &[u8]) -> &'static str {
    if begin.starts_with(b"\x7fELF") {
        "it was built for another system, or is damaged"
    } else if BYTE_ORDER_MARKS.iter().any(|mark| begin.starts_with(mark)) {
        "it begins with a byte order mark: save it as UTF-8 without one"
    } else {
        "it is no program: a script begins with `#!` and the path of its interpreter"
    }
}

/// Describes the part that an existing program file with these first bytes lacks; `None` if it is neither a script nor
/// a binary.
fn describe_missing_part(start: &[u8]) -> Option<String> {
    if start.starts_with(b"\x7fELF") {
        let problem = "its dynamic loader does not exist: it was built for another system";
        return Some(problem.to_owned());
    }
    let line = start
        .strip_prefix(b"#!")?
        .split(|byte| *byte == b'\n')
        .next()?;
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t'));
    let interpreter = words.find(|word| !word.is_empty())?;
    let interpreter = String::from_utf8_lossy(interpreter);
    Some(format!(
        "its first line names {interpreter:?}, which does not exist"
    ))
}

/// Returns why the rules refuse a program; `None` if they permit it.
fn refusal_reason(
    rules: &v1::ExecPrograms,
    search: &ProgramSearch<'_>,
    called: &str,
    found: &FoundProgram,
) -> Option<String> {
    if !found.is_read_only {
        return Some("commands can write: it could be any program".to_owned());
    }
    let denies = |entry: &&String| {
        let is_name = !entry.contains('/');
        (is_name
            && [called, &found.path]
                .map(base_name)
                .contains(&entry.as_str()))
            || search
                .candidates(entry)
                .any(|path| file_identity(&path) == Some(found.file))
    };
    if let Some(entry) = rules.denied.iter().find(denies) {
        return Some(format!("{entry:?} denies"));
    }
    // A multi-call binary behaves by the name that it is called with, so the names must agree too.
    let allows = |entry: &String| {
        base_name(called) == base_name(entry)
            && search.find(entry).is_some_and(|it| it.file == found.file)
    };
    let is_allowed = rules.allowed.is_empty() || rules.allowed.iter().any(allows);
    (!is_allowed).then(|| "is none of those that are allowed".to_owned())
}

/// Returns the identity of the file at a path, after links.
fn file_identity(path: &Path) -> Option<FileIdentity> {
    let metadata = metadata(path).ok()?;
    Some(FileIdentity {
        device: metadata.dev(),
        inode: metadata.ino(),
    })
}

/// Resolves program names through PATH, as execvp does.
struct ProgramSearch<'a> {
    directory: &'a Path,
    /// Value of PATH in the command's environment.
    path: &'a str,
}

impl<'a> ProgramSearch<'a> {
    /// Returns the search that the launch's working directory and environment define.
    fn of(launch: &'a LaunchSpec) -> Self {
        let path = launch
            .env
            .iter()
            .rev()
            .find_map(|entry| entry.strip_prefix("PATH="));
        Self {
            directory: Path::new(&launch.cwd),
            path: path.unwrap_or_default(),
        }
    }

    /// Returns the paths at which a program of this name may be, in search order.
    fn candidates(&self, name: &str) -> impl Iterator<Item = PathBuf> {
        let is_path = name.contains('/');
        let directories = if is_path { "" } else { self.path };
        directories
            .split(':')
            .filter(move |directory| is_path || !directory.is_empty())
            .take(DIRECTORIES_MAX)
            .map(move |directory| self.directory.join(directory).join(name))
    }

    /// Returns the first program of this name in search order.
    fn find(&self, name: &str) -> Option<FoundProgram> {
        self.candidates(name)
            .find_map(|path| look_up_program(&path))
    }
}

/// Returns the program at a path, after resolving all links.
fn look_up_program(path: &Path) -> Option<FoundProgram> {
    let path = path.canonicalize().ok()?;
    // Commands may create links in the meantime, so the kernel follows none from here on.
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let how = OpenHow::new()
        .flags(flags)
        .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let opened = openat2(AT_FDCWD, &path, how).ok()?;
    let status = fstat(&opened).ok()?;
    let is_file = status.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFREG.bits();
    let is_program = is_file && status.st_mode & EXECUTABLE != 0;
    let flags = fstatvfs(&opened).ok()?.flags();
    is_program.then_some(FoundProgram {
        path: path.into_os_string().into_string().ok()?,
        file: FileIdentity {
            device: status.st_dev,
            inode: status.st_ino,
        },
        is_read_only: flags.contains(FsFlags::ST_RDONLY),
    })
}

/// Describes a working directory that could not be entered, with the first missing directory on its path.
pub(super) fn describe_directory(cwd: &str) -> String {
    let missing = |path: &&Path| metadata(path).is_err_and(|error| error.kind() == NotFound);
    let ways: Vec<&Path> = Path::new(cwd).ancestors().collect();
    match ways.into_iter().rev().find(missing) {
        Some(first) if first != Path::new(cwd) => {
            format!("working directory {cwd}: {} is missing", first.display())
        }
        _ => format!("working directory {cwd}"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir, hard_link, set_permissions, write};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// Creates an image with `bin/` and `sbin/` in PATH, `other/` outside of it, and programs under many names.
    fn image() -> tempfile::TempDir {
        let image = tempfile::tempdir().expect("a directory");
        let at = |path: &str| image.path().join(path);
        for directory in ["bin", "sbin", "other"] {
            create_dir(at(directory)).expect("makes it");
        }
        for program in ["bin/tool3.1", "bin/wc", "sbin/wc", "other/wc", "other/own"] {
            write(at(program), program).expect("writes it");
            set_permissions(at(program), PermissionsExt::from_mode(0o755)).expect("its mode");
        }
        write(at("bin/text"), "").expect("writes it");
        symlink("tool3.1", at("bin/tool3")).expect("a link");
        symlink("tool3", at("bin/tool")).expect("a link");
        symlink("../bin/wc", at("other/count")).expect("a link");
        hard_link(at("bin/tool3.1"), at("other/hard")).expect("a link");
        image
    }

    fn launch(image: &Path, program: &str) -> LaunchSpec {
        let image = image.to_str().expect("UTF-8");
        LaunchSpec {
            cwd: format!("{image}/other"),
            argv: vec![program.replace('@', image)],
            env: vec![format!("PATH={image}/none:{image}/bin:{image}/sbin")],
            ..LaunchSpec::default()
        }
    }

    /// Checks a program as if its file system were read-only.
    fn runs(image: &Path, allowed: &[&str], denied: &[&str], program: &str) -> Result<(), String> {
        let launch = launch(image, program);
        let list = |entries: &[&str]| {
            let root = image.to_str().expect("UTF-8");
            entries
                .iter()
                .map(|entry| entry.replace('@', root))
                .collect()
        };
        let rules = v1::ExecPrograms {
            allowed: list(allowed),
            denied: list(denied),
        };
        let search = ProgramSearch::of(&launch);
        let called = launch.argv[0].as_str();
        let mut found = search.find(called).ok_or("not found")?;
        found.is_read_only = true;
        refusal_reason(&rules, &search, called, &found).map_or(Ok(()), Err)
    }

    #[test]
    fn a_denied_program_is_denied_under_each_of_its_names() {
        let image = image();
        for denied in ["tool", "tool3", "tool3.1", "@/bin/tool", "@/other/hard"] {
            for program in [
                "tool",
                "tool3",
                "tool3.1",
                "@/bin/tool",
                "./hard",
                "..//other/hard",
            ] {
                let run = runs(image.path(), &[], &[denied], program);
                assert!(run.is_err(), "{denied} {program}");
            }
            assert_eq!(runs(image.path(), &[], &[denied], "wc"), Ok(()));
        }
    }

    #[test]
    fn a_path_denies_that_file_and_a_name_each_file_of_the_name() {
        let image = image();
        let denied = |entry, program| runs(image.path(), &[], &[entry], program).is_err();
        assert!(denied("@/bin/wc", "wc") && denied("@/bin/wc", "./count"));
        assert!(!denied("@/bin/wc", "@/sbin/wc") && !denied("@/bin/wc", "./wc"));
        assert!(denied("wc", "./wc") && denied("wc", "@/sbin/wc") && denied("wc", "./count"));
        assert!(denied("own", "./own"), "it is not in PATH");
    }

    #[test]
    fn an_allowed_program_is_that_file_called_by_that_name() {
        let image = image();
        let allowed = |entry, program| runs(image.path(), &[entry], &[], program).is_ok();
        for entry in ["wc", "@/bin/wc"] {
            assert!(allowed(entry, "wc") && allowed(entry, "@/bin/wc"));
            assert!(allowed(entry, "../bin/../bin//wc"));
            assert!(!allowed(entry, "@/sbin/wc") && !allowed(entry, "./wc"));
            assert!(!allowed(entry, "./count"), "one file can be many programs");
            assert!(!allowed(entry, "tool"));
        }
        assert!(allowed("tool", "tool") && !allowed("tool", "tool3"));
        assert!(runs(image.path(), &["wc"], &["@/bin/wc"], "wc").is_err());
        assert_eq!(runs(image.path(), &[], &[], "tool"), Ok(()));
    }

    #[test]
    fn programs_that_commands_can_write_are_not_started() {
        let image = image();
        let launch = launch(image.path(), "wc");
        let failure =
            check_program(&v1::ExecPrograms::default(), &launch).expect_err("it is writable");
        assert_eq!(
            (failure.step(), failure.error_number),
            (Step::Program, Errno::EACCES as i32)
        );
        assert!(
            failure.message.contains("commands can write"),
            "{failure:?}"
        );
    }

    #[test]
    fn a_missing_interpreter_or_loader_is_named() {
        let image = image();
        let script = image.path().join("bin/script");
        let binary = image.path().join("bin/binary");
        write(&script, "#! /opt/none/python3 -u\nx\n").expect("writes it");
        write(&binary, b"\x7fELF\x02\x01\x01").expect("writes it");
        for program in [&script, &binary] {
            set_permissions(program, PermissionsExt::from_mode(0o755)).expect("its mode");
        }
        let describe =
            |program, errno| describe_program(&launch(image.path(), program), errno as i32);
        for program in ["script", "@/bin/script", "../bin/script"] {
            let shown = describe(program, Errno::ENOENT);
            assert!(shown.contains("\"/opt/none/python3\""), "{shown}");
        }
        let shown = describe("binary", Errno::ENOENT);
        assert!(shown.starts_with("binary: its dynamic loader"), "{shown}");
        assert_eq!(describe("script", Errno::EACCES), "script");
        assert_eq!(describe("none", Errno::ENOENT), "none");
        assert_eq!(describe("tool3", Errno::ENOENT), "tool3");
    }

    #[test]
    fn a_byte_order_mark_before_a_script_is_named() {
        let image = image();
        let script = image.path().join("bin/script");
        let describe = || describe_program(&launch(image.path(), "script"), Errno::ENOEXEC as i32);
        for (begin, named) in [
            (
                &b"\xef\xbb\xbf#!/usr/bin/env python3\n"[..],
                "byte order mark",
            ),
            (b"\xff\xfe#\0!\0", "byte order mark"),
            (b"print(1)\n", "`#!`"),
            (b"\x7fELF\x02\x01\x01", "another system, or is damaged"),
        ] {
            write(&script, begin).expect("writes it");
            set_permissions(&script, PermissionsExt::from_mode(0o755)).expect("its mode");
            let shown = describe();
            assert!(
                shown.starts_with("script: ") && shown.contains(named),
                "{shown}"
            );
        }
    }

    #[test]
    fn files_that_are_no_programs_are_not_found() {
        let image = image();
        for program in ["text", "none", "@/bin", "@/none/x", ""] {
            let rules = v1::ExecPrograms::default();
            let failure = check_program(&rules, &launch(image.path(), program)).expect_err(program);
            assert_eq!(
                (failure.step(), failure.error_number),
                (Step::Exec, Errno::ENOENT as i32),
                "{program}"
            );
        }
    }
}
