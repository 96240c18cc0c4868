//! sherma's tools under sherma's names: what there is, load, unload, references, assets. Loading a skill brings the
//! tools that its card names, of the host and of MCP servers; unloading it takes them away.
//!
//! What is loaded is the state's ([`crate::state::sherma`]); `card` is what a card asks for, `load` and `unload` the two
//! transitions, which happen wholly or not at all. `preload` loads for the host what it knows the model will need.

mod arguments;
mod brought;
mod card;
mod content;
mod files;
mod list;
mod load;
mod preload;
mod resolve;
mod script;
mod unload;

use serde_json::Value;

pub use preload::{Preloaded, Skipped};

use crate::state::SessionState;
use crate::state::sherma::Loaded;
use crate::tools::arguments::{decode, result_schema, schema};
use crate::tools::{Answer, Call, Definition, Inner, Options, Profile, Session, ToolError};
use arguments as args;

/// One tool of the family.
struct Tool {
    name: &'static str,
    description: &'static str,
    parameters: fn() -> Value,
    returns: fn() -> Value,
    needs: Needs,
}

/// What the options must say for a tool to be offered.
#[derive(PartialEq)]
enum Needs {
    Nothing,
    Additions,
    /// Additions, and a profile with tools that run something.
    Running,
}

/// In the order in which they are offered.
const TOOLS: [Tool; 10] = [
    Tool {
        name: "list_skills",
        description: "Lists the skills that there are: id, version, name and what each is for. Load one with \
                      load_skill_md before you use it.",
        parameters: schema::<args::Nothing>,
        returns: result_schema::<Vec<list::Listed>>,
        needs: Needs::Nothing,
    },
    Tool {
        name: "load_skill_md",
        description: "Loads a skill: returns its instructions and makes the tools that it brings available. Loading \
                      what is loaded returns a short note; set reload to read the instructions again.",
        parameters: schema::<args::Load>,
        returns: result_schema::<load::Report>,
        needs: Needs::Nothing,
    },
    Tool {
        name: "unload_skill",
        description: "Unloads a skill that is not needed any more; the tools that only it brought go with it.",
        parameters: schema::<args::Skill>,
        returns: result_schema::<unload::Unloaded>,
        needs: Needs::Nothing,
    },
    Tool {
        name: "list_skill_resources",
        description: "Lists the reference documents of a skill (its references/ folder).",
        parameters: schema::<args::Skill>,
        returns: result_schema::<Vec<String>>,
        needs: Needs::Nothing,
    },
    Tool {
        name: "load_skill_resource",
        description: "Reads a reference document of a skill, or another text file of it.",
        parameters: schema::<args::Resource>,
        returns: result_schema::<files::Content>,
        needs: Needs::Nothing,
    },
    Tool {
        name: "list_skill_assets",
        description: "Lists the assets of a skill (its assets/ folder): templates, data, images.",
        parameters: schema::<args::Skill>,
        returns: result_schema::<Vec<String>>,
        needs: Needs::Nothing,
    },
    Tool {
        name: "load_skill_asset",
        description: "Reads an asset of a skill. Of a binary file it tells type, size and sha256 only.",
        parameters: schema::<args::Asset>,
        returns: result_schema::<files::Content>,
        needs: Needs::Nothing,
    },
    Tool {
        name: "list_skill_scripts",
        description: "Lists the scripts of a skill that run_skill_script can run.",
        parameters: schema::<args::Skill>,
        returns: result_schema::<Vec<String>>,
        needs: Needs::Additions,
    },
    Tool {
        name: "run_skill_script",
        description: "Runs a script of a skill in this conversation's workspace and returns its exit code, its output \
                      and the files that it wrote.",
        parameters: schema::<args::Run>,
        returns: result_schema::<crate::tools::scripts::Ran>,
        needs: Needs::Running,
    },
    Tool {
        name: "search_skills",
        description: "Finds skills by words, best first.",
        parameters: schema::<args::Search>,
        returns: result_schema::<Vec<list::Found>>,
        needs: Needs::Additions,
    },
];

impl Tool {
    fn is_offered(&self, tools: &Inner) -> bool {
        tools.options.lists(self.name) && self.lacks(&tools.options).is_none()
    }

    /// What the options do not have that it needs.
    fn lacks(&self, options: &Options) -> Option<&'static str> {
        match self.needs {
            Needs::Additions | Needs::Running if !options.additions => Some("additions"),
            Needs::Running if options.profile != Profile::Full => Some("the profile full"),
            Needs::Nothing | Needs::Additions | Needs::Running => None,
        }
    }

    fn definition(&self) -> Definition {
        Definition {
            name: self.name.to_owned(),
            description: self.description.to_owned(),
            parameters: (self.parameters)(),
            returns: (self.returns)(),
        }
    }
}

/// Names of all of them.
pub(crate) fn all() -> Vec<&'static str> {
    TOOLS.iter().map(|tool| tool.name).collect()
}

/// Says which options contradict each other.
pub(crate) fn check(options: &Options) -> Result<(), ToolError> {
    let listed = TOOLS
        .iter()
        .filter(|tool| options.tools.is_some() && options.lists(tool.name));
    for tool in listed {
        if let Some(needed) = tool.lacks(options) {
            return Err(ToolError::Options {
                problem: format!("tools: {} needs {needed}", tool.name),
            });
        }
    }
    Ok(())
}

/// What the state says is loaded, as far as the options let the model know of it: a state may come from elsewhere.
fn loads(tools: &Inner, session: &Session, state: &SessionState) -> Loaded {
    Loaded::read(state, &session.agent).only(|id| tools.options.shows(id))
}

#[expect(clippy::unused_async, reason = "other families ask the daemon here")]
pub(crate) async fn definitions(
    tools: &Inner,
    session: &Session,
    state: &SessionState,
) -> Result<Vec<Definition>, ToolError> {
    let own = TOOLS.iter().filter(|tool| tool.is_offered(tools));
    let mut definitions: Vec<Definition> = own.map(Tool::definition).collect();
    let loads = loads(tools, session, state);
    let mut names = loads.tools();
    if !tools.options.only_active_skills {
        let known = names.clone();
        let others = tools.host.names().filter(|name| !known.contains(name));
        names.extend(others);
    }
    // Nothing takes the place of one of ours, whatever a state or the host calls it.
    names.retain(|name| TOOLS.iter().all(|tool| tool.name != *name));
    for name in names {
        // A tool that the host has registered no more is not there.
        let host = tools.host.definition(name);
        let remote = || loads.remote(name).map(|(_, remote)| &remote.definition);
        definitions.extend(host.or_else(remote).cloned());
    }
    Ok(definitions)
}

pub(crate) async fn call(
    tools: &Inner,
    session: &Session,
    state: &SessionState,
    call: Call,
) -> Result<Answer, ToolError> {
    let loads = loads(tools, session, state);
    let own = TOOLS.iter().find(|tool| tool.name == call.name);
    match own {
        Some(tool) if tool.is_offered(tools) => {
            own_call(tools, session, &loads, tool.name, call).await
        }
        Some(_) => Err(unknown(tools, &loads, call.name)),
        None => brought::call(tools, session, &loads, call).await,
    }
}

async fn own_call(
    tools: &Inner,
    session: &Session,
    loads: &Loaded,
    name: &str,
    call: Call,
) -> Result<Answer, ToolError> {
    let arguments = call.arguments;
    match name {
        "list_skills" => list::all(tools, loads).await,
        "load_skill_md" => {
            let load: args::Load = decode(arguments, &args::ALIASES)?;
            load::call(tools, session, loads, load).await
        }
        "unload_skill" => {
            let skill: args::Skill = decode(arguments, &args::ALIASES)?;
            unload::call(tools, session, loads, skill.into()).await
        }
        "list_skill_resources" => {
            files::list(
                tools,
                loads,
                &decode(arguments, &args::ALIASES)?,
                "references",
            )
            .await
        }
        "list_skill_assets" => {
            files::list(tools, loads, &decode(arguments, &args::ALIASES)?, "assets").await
        }
        "load_skill_resource" => {
            let resource: args::Resource = decode(arguments, &args::ALIASES)?;
            files::read(tools, loads, &resource.into()).await
        }
        "load_skill_asset" => {
            let asset: args::Asset = decode(arguments, &args::ALIASES)?;
            files::read(tools, loads, &asset.into()).await
        }
        "list_skill_scripts" => {
            files::scripts(tools, loads, &decode(arguments, &args::ALIASES)?).await
        }
        "run_skill_script" => {
            let run: args::Run = decode(arguments, &args::ALIASES)?;
            script::call(tools, session, loads, run, &call.id).await
        }
        "search_skills" => list::search(tools, decode(arguments, &args::ALIASES)?).await,
        _ => Err(unknown(tools, loads, call.name)),
    }
}

fn unknown(tools: &Inner, loads: &Loaded, name: String) -> ToolError {
    let own = TOOLS.iter().filter(|tool| tool.is_offered(tools));
    let mut known: Vec<String> = own.map(|tool| tool.name.to_owned()).collect();
    known.extend(loads.tools().into_iter().map(str::to_owned));
    ToolError::UnknownTool { name, known }
}
