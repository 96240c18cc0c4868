//! Command line of the report.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

const USAGE: &str = "usage: collection-report --dir DIR [--pool default|office] [-o json]
  --dir DIR    folder with skills, at any depth
  --pool POOL  image to try them in; by default that of office if it exists
  -o json      print one JSON object instead of a table";

/// Pool of the project that is named on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pool {
    Default,
    Office,
}

/// Parsed command line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Arguments {
    /// Absolute path of the folder with skills.
    pub(crate) directory: PathBuf,
    /// Pool to use; `None` for the one that fits.
    pub(crate) pool: Option<Pool>,
    /// Print JSON.
    pub(crate) wants_json: bool,
}

impl Arguments {
    pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Self> {
        let (mut directory, mut pool, mut wants_json) = (None, None, false);
        let mut arguments = arguments;
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().context(USAGE);
            match argument.as_str() {
                "--dir" => directory = Some(value()?),
                "--pool" => {
                    pool = Some(match value()?.as_str() {
                        "default" | "base" => Pool::Default,
                        "office" => Pool::Office,
                        other => bail!("unknown pool {other:?}: use default or office"),
                    });
                }
                "-o" => {
                    let format = value()?;
                    ensure!(format == "json", "unknown format {format:?}: use json");
                    wants_json = true;
                }
                _ => bail!("{USAGE}"),
            }
        }
        let directory = PathBuf::from(directory.context(USAGE)?);
        let absolute = directory
            .canonicalize()
            .with_context(|| format!("open the folder {}", directory.display()))?;
        ensure!(
            absolute.is_dir(),
            "{} is no folder: name one that has skills in it",
            absolute.display()
        );
        Ok(Self {
            directory: absolute,
            pool,
            wants_json,
        })
    }
}

#[test]
fn folder_pool_and_format_are_read_and_others_are_refused() {
    let parse = |line: &str| Arguments::parse(line.split(' ').map(str::to_owned));
    let good = parse("--dir / --pool office -o json").expect("arguments");
    let expected = Arguments {
        directory: PathBuf::from("/"),
        pool: Some(Pool::Office),
        wants_json: true,
    };
    assert_eq!(good, expected);
    for (line, part) in [
        ("--pool office", "usage"),
        ("--dir / --pool big", "\"big\""),
        ("--dir / -o xml", "\"xml\""),
        ("--dir /no/such/folder", "/no/such/folder"),
        ("--dir /etc/passwd", "is no folder"),
        ("--dir", "usage"),
    ] {
        let error = format!("{:#}", parse(line).expect_err(line));
        assert!(error.contains(part), "{line}: {error}");
    }
}
