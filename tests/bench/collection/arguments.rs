//! Command line of the report.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

const USAGE: &str = "usage: collection-report --dir DIR [--pool default|office|web] [-o json]
  --dir DIR    folder with skills, at any depth
  --pool POOL  image to try them in; by default that of office if it exists
  -o json      print one JSON object instead of a table";

/// Parsed command line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Arguments {
    /// Absolute path of the folder with skills.
    pub(crate) directory: PathBuf,
    /// Image to use; `None` for the one that fits.
    pub(crate) image: Option<String>,
    /// Print JSON.
    pub(crate) wants_json: bool,
}

impl Arguments {
    pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Self> {
        let (mut directory, mut image, mut wants_json) = (None, None, false);
        let mut arguments = arguments;
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().context(USAGE);
            match argument.as_str() {
                "--dir" => directory = Some(value()?),
                "--pool" => {
                    let pool = value()?;
                    let name = if pool == "default" { "base" } else { &pool };
                    image = Some(format!("skilld/{name}:latest"));
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
            image,
            wants_json,
        })
    }
}

#[test]
fn folder_image_and_format_are_read_and_others_are_refused() {
    let parse = |line: &str| Arguments::parse(line.split(' ').map(str::to_owned));
    let good = parse("--dir / --pool office -o json").expect("arguments");
    let expected = Arguments {
        directory: PathBuf::from("/"),
        image: Some("skilld/office:latest".to_owned()),
        wants_json: true,
    };
    assert_eq!(good, expected);
    for (line, part) in [
        ("--pool office", "usage"),
        ("--dir / -o xml", "\"xml\""),
        ("--dir /no/such/folder", "/no/such/folder"),
        ("--dir /etc/passwd", "is no folder"),
        ("--dir", "usage"),
    ] {
        let error = format!("{:#}", parse(line).expect_err(line));
        assert!(error.contains(part), "{line}: {error}");
    }
}
