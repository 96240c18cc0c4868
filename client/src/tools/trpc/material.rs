//! What a prompt of a session is made of: every skill in a line, and the texts of those that are loaded.

use skilld_proto::v1::ReadSkillFileRequest;

use crate::prompt::{self, Doc, Loaded, Material, Summary};
use crate::state::{Scope, Selection, SessionState, agent_zero, loading};
use crate::tools::trpc::{knowledge, loads, skills};
use crate::tools::{Family, Inner, Profile, Session, ToolError};

/// Bytes of one document that are read; what follows is left to `read_file`. No document of a skill that people wrote is
/// nearly as long.
const DOC_BYTES_MAX: i64 = 1024 * 1024;

/// Of all skills that the model may see, and of those that are loaded. A loaded skill that is not there any more is left
/// out, which materialising reports.
pub(in crate::tools) async fn material(
    tools: &Inner,
    session: &Session,
    state: &SessionState,
) -> Result<Material, ToolError> {
    let scope = match tools.options.family {
        Family::AgentZero => agent_zero::scope(&session.agent),
        Family::Trpc | Family::Sherma => loads::scope(session, &tools.options),
    };
    let overview = skills::all(tools).await?.into_iter().map(|skill| Summary {
        name: skills::id(&skill.name).to_owned(),
        description: skill.description,
    });
    let mut loaded = Vec::new();
    for name in loading::loaded(state, scope) {
        match of(tools, state, scope, &name).await {
            Ok(skill) => loaded.push(skill),
            Err(ToolError::UnknownSkill { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Material {
        overview: overview.collect(),
        loaded,
    })
}

/// The text of a loaded skill as a prompt would show it, for hosts that take it from a result; none unless the options ask
/// for it.
pub(super) async fn inline(
    tools: &Inner,
    state: &SessionState,
    scope: Scope<'_>,
    name: &str,
) -> Result<Option<String>, ToolError> {
    if !tools.options.inline_skills {
        return Ok(None);
    }
    let skill = of(tools, state, scope, name).await?;
    Ok(Some(prompt::loaded_text(&skill, state, scope)))
}

async fn of(
    tools: &Inner,
    state: &SessionState,
    scope: Scope<'_>,
    name: &str,
) -> Result<Loaded, ToolError> {
    let skill = skills::one(tools, name).await?;
    let paths = match loading::docs(state, scope, name) {
        None => Vec::new(),
        Some(Selection::All) => knowledge::docs(tools, name).await?,
        Some(Selection::These(paths)) => paths,
    };
    let mut docs = Vec::with_capacity(paths.len());
    for path in paths {
        docs.push(Doc {
            content: text(tools, name, &path).await?,
            path,
        });
    }
    Ok(Loaded {
        name: name.to_owned(),
        digest: skill.digest,
        body: skill.body,
        docs,
        tools: skill.tools,
        dir: match tools.options.profile {
            Profile::Full => format!("/workspace/skills/{name}"),
            Profile::KnowledgeOnly => String::new(),
        },
    })
}

async fn text(tools: &Inner, skill: &str, path: &str) -> Result<String, ToolError> {
    let request = ReadSkillFileRequest {
        name: skill.to_owned(),
        path: path.to_owned(),
        length: DOC_BYTES_MAX,
        ..ReadSkillFileRequest::default()
    };
    let mut reader = tools.client.read_skill_file(request).await?;
    let mut bytes = Vec::new();
    while let Some(data) = reader.next().await? {
        bytes.extend_from_slice(&data);
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
