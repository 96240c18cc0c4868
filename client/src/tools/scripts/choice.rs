//! What a call may choose of a run by a word. A word that is none of them is an error that lists them.

use skilld_proto::v1::{ArgStyle, ScriptCwd};

use crate::tools::ToolError;

/// How arguments as data become words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Style {
    #[default]
    Positional,
    Named,
    NamedRepeated,
    Env,
}

impl From<Style> for ArgStyle {
    fn from(style: Style) -> Self {
        match style {
            Style::Positional => Self::Positional,
            Style::Named => Self::Named,
            Style::NamedRepeated => Self::NamedRepeated,
            Style::Env => Self::Env,
        }
    }
}

impl Style {
    pub(crate) const NAMES: [(&str, Self); 4] = [
        ("positional", Self::Positional),
        ("named", Self::Named),
        ("named_repeated", Self::NamedRepeated),
        ("env", Self::Env),
    ];

    /// Reads a name, in any case and with blanks around it; none is positional.
    pub(crate) fn read(name: &str) -> Result<Self, ToolError> {
        choose("arg_style", name, &Self::NAMES)
    }
}

/// Where a script starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Cwd {
    #[default]
    Workspace,
    SkillRoot,
    ScriptDir,
}

impl From<Cwd> for ScriptCwd {
    fn from(cwd: Cwd) -> Self {
        match cwd {
            Cwd::Workspace => Self::Workspace,
            Cwd::SkillRoot => Self::SkillRoot,
            Cwd::ScriptDir => Self::ScriptDir,
        }
    }
}

impl Cwd {
    pub(crate) const NAMES: [(&str, Self); 3] = [
        ("workspace", Self::Workspace),
        ("skill_root", Self::SkillRoot),
        ("script_dir", Self::ScriptDir),
    ];

    /// Reads a name as [`Style::read`] does; none is the workspace.
    pub(crate) fn read(name: &str) -> Result<Self, ToolError> {
        choose("cwd", name, &Self::NAMES)
    }
}

fn choose<T: Copy + Default>(field: &str, name: &str, names: &[(&str, T)]) -> Result<T, ToolError> {
    let wanted = name.trim().to_lowercase();
    if wanted.is_empty() {
        return Ok(T::default());
    }
    let found = names.iter().find(|(name, _)| *name == wanted);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
        ToolError::arguments(format!(
            "unknown {field} {name:?}: it is one of {}",
            names.join(", ")
        ))
    })
}
