//! Compatibility cases as tests/skills-compat/README.md describes them, read from their `case.toml`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use skilld_tests::{binaries, docker};
use toml::{Table, Value};

/// Folder of the cases, relative to the repository.
const CASES: &str = "tests/skills-compat/cases";

/// Compatibility case.
#[derive(Debug)]
pub(crate) struct Case {
    /// Name of the case's folder.
    pub(crate) name: String,
    /// Folder of the case.
    pub(crate) folder: PathBuf,
    /// Image whose pool the workspaces come from.
    pub(crate) image: Image,
    /// Names of the staged skills.
    pub(crate) skills: Vec<String>,
    /// Commands may write in the skill's folder.
    pub(crate) is_writable: bool,
    /// Packages that the skill declares must be installed before the first step.
    pub(crate) needs_environment: bool,
    /// Globs of the collected files, relative to the workspace.
    pub(crate) outputs: Vec<String>,
    /// Commands in their order.
    pub(crate) steps: Vec<Step>,
}

/// Image of the project that a case needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Image {
    /// skilld/base:latest, in the pool `default`.
    Base,
    /// skilld/office:latest, in the pool `office`.
    Office,
    /// skilld/web:latest, in the pool `web`.
    Web,
}

impl Image {
    /// Returns the name of the pool with this image.
    pub(crate) const fn pool(self) -> &'static str {
        match self {
            Self::Base => "default",
            Self::Office => "office",
            Self::Web => "web",
        }
    }

    /// Returns the image's name for Docker.
    pub(crate) const fn reference(self) -> &'static str {
        match self {
            Self::Base => docker::BASE_IMAGE,
            Self::Office => docker::OFFICE_IMAGE,
            Self::Web => docker::WEB_IMAGE,
        }
    }
}

/// Command of a case with the expected result.
#[derive(Debug)]
pub(crate) struct Step {
    /// Shell text.
    pub(crate) command: String,
    /// Skill in whose folder the command runs.
    pub(crate) skill: String,
    /// Text for its stdin; `None` for no stdin.
    pub(crate) stdin: Option<String>,
    /// Expected exit code.
    pub(crate) exit_code: i32,
    /// Texts that its stdout must contain.
    pub(crate) stdout_contains: Vec<String>,
}

impl Case {
    /// Reads all cases, in the order of their names.
    pub(crate) fn read_all() -> Result<Vec<Self>> {
        let directory = binaries::repository().join(CASES);
        let mut cases = Vec::new();
        for entry in std::fs::read_dir(&directory)? {
            let folder = entry?.path();
            let name = folder.file_name().unwrap_or_default().to_string_lossy();
            let text = std::fs::read_to_string(folder.join("case.toml"))
                .with_context(|| format!("read {CASES}/{name}/case.toml"))?;
            let case = parse_case(&name, &folder, &text).with_context(|| format!("case {name}"))?;
            cases.push(case);
        }
        cases.sort_by(|a, b| a.name.cmp(&b.name));
        ensure!(!cases.is_empty(), "{CASES} has no cases");
        Ok(cases)
    }
}

fn parse_case(name: &str, folder: &Path, text: &str) -> Result<Case> {
    let mut table: Table = text.parse()?;
    take_string(&mut table, "shape")?.context("`shape` is missing")?;
    let skills = take_strings(&mut table, "skills")?;
    let first = skills.first().context("`skills` is missing")?.clone();
    let entries = match table.remove("steps") {
        Some(Value::Array(entries)) => entries,
        other => bail!("`steps` must be a list of tables: {other:?}"),
    };
    let steps = entries.into_iter().map(|step| parse_step(step, &first));
    let case = Case {
        name: name.to_owned(),
        folder: folder.to_owned(),
        image: match take_string(&mut table, "pool")?.as_deref() {
            Some("base") => Image::Base,
            Some("office") => Image::Office,
            Some("web") => Image::Web,
            other => bail!("`pool` must be \"base\", \"office\" or \"web\": {other:?}"),
        },
        is_writable: take_bool(&mut table, "writable")?,
        needs_environment: take_bool(&mut table, "environment")?,
        outputs: take_strings(&mut table, "outputs")?,
        steps: steps.collect::<Result<_>>()?,
        skills,
    };
    refuse_unknown_keys(&table)?;
    Ok(case)
}

fn parse_step(step: Value, first_skill: &str) -> Result<Step> {
    let Value::Table(mut table) = step else {
        bail!("a step must be a table: {step:?}");
    };
    let exit_code = match table.remove("exit_code") {
        None => 0,
        Some(Value::Integer(code)) => i32::try_from(code)?,
        Some(other) => bail!("`exit_code` must be a number: {other:?}"),
    };
    let step = Step {
        command: take_string(&mut table, "command")?.context("`command` is missing")?,
        skill: take_string(&mut table, "skill")?.unwrap_or_else(|| first_skill.to_owned()),
        stdin: take_string(&mut table, "stdin")?,
        exit_code,
        stdout_contains: take_strings(&mut table, "stdout_contains")?,
    };
    refuse_unknown_keys(&table)?;
    Ok(step)
}

fn take_string(table: &mut Table, key: &str) -> Result<Option<String>> {
    match table.remove(key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => bail!("`{key}` must be a text: {other:?}"),
    }
}

fn take_strings(table: &mut Table, key: &str) -> Result<Vec<String>> {
    let Some(value) = table.remove(key) else {
        return Ok(Vec::new());
    };
    let items = value.as_array().cloned().unwrap_or_default();
    let texts = items
        .iter()
        .map(|item| item.as_str().map(str::to_owned))
        .collect::<Option<Vec<_>>>();
    texts
        .filter(|texts| !texts.is_empty())
        .with_context(|| format!("`{key}` must be a list of texts: {value:?}"))
}

fn take_bool(table: &mut Table, key: &str) -> Result<bool> {
    match table.remove(key) {
        None => Ok(false),
        Some(Value::Boolean(value)) => Ok(value),
        Some(other) => bail!("`{key}` must be true or false: {other:?}"),
    }
}

/// Refuses what nothing has taken out of a table, so that a misspelt key changes no case in silence.
fn refuse_unknown_keys(rest: &Table) -> Result<()> {
    let keys: Vec<_> = rest.keys().collect();
    ensure!(
        keys.is_empty(),
        "unknown keys {keys:?}: tests/skills-compat/README.md lists the known ones"
    );
    Ok(())
}

#[test]
fn misspelt_key_is_refused() {
    let text = "shape = \"s\"\npool = \"base\"\nskills = [\"a\"]\n[[steps]]\ncommand = \"true\"\n";
    let good = parse_case("x", Path::new("x"), text).expect("a case");
    assert_eq!((good.steps.len(), good.steps[0].skill.as_str()), (1, "a"));
    let misspelt = parse_case("x", Path::new("x"), &format!("{text}exitcode = 1\n"));
    let error = misspelt.expect_err("an unknown key").to_string();
    assert!(error.contains("exitcode"), "{error}");
}
