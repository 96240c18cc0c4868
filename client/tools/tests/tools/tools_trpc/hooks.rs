//! Hooks of the host: asked before a skill is loaded or makes room, told after it.

use std::sync::{Arc, Mutex};

use serde_json::json;
use skilld_tools::hooks::{HookFuture, Hooks, LoadedSkill, SkillChoice, UnloadedSkill};
use skilld_tools::{Session, ToolOptions, Toolset};

use super::Talk;
use super::offer::host;
use crate::conversation::check_fields;

/// Writes down what it is told and refuses what it is asked to.
#[derive(Clone, Default)]
struct Watch {
    said: Arc<Mutex<Vec<String>>>,
    refused: Arc<Mutex<String>>,
}

impl Watch {
    fn hears(&self, what: String) -> HookFuture<'static> {
        let refused = self.refused.lock().expect("no panic").clone();
        self.said.lock().expect("no panic").push(what.clone());
        Box::pin(async move {
            match what == refused {
                true => Err(format!("not {what}")),
                false => Ok(()),
            }
        })
    }

    fn said(&self) -> Vec<String> {
        std::mem::take(&mut *self.said.lock().expect("no panic"))
    }
}

impl Hooks for Watch {
    fn before_skill_load<'a>(
        &'a self,
        _: &'a Session,
        choice: &'a mut SkillChoice,
    ) -> HookFuture<'a> {
        if choice.skill_id == "alias" {
            choice.skill_id = "other".into();
        }
        self.hears(format!("load {}", choice.skill_id))
    }

    fn after_skill_load<'a>(
        &'a self,
        _: &'a Session,
        loaded: &'a mut LoadedSkill,
    ) -> HookFuture<'a> {
        if !loaded.content.is_empty() {
            loaded.content.push_str("(checked)");
        }
        let tools = loaded.tools_loaded.join(" ");
        self.hears(format!("loaded {} with {tools}", loaded.skill_id))
    }

    fn before_skill_unload<'a>(
        &'a self,
        _: &'a Session,
        choice: &'a mut SkillChoice,
    ) -> HookFuture<'a> {
        self.hears(format!("unload {}", choice.skill_id))
    }

    fn after_skill_unload<'a>(&'a self, _: &'a Session, gone: &'a UnloadedSkill) -> HookFuture<'a> {
        let tools = gone.tools_unloaded.join(" ");
        self.hears(format!("unloaded {} with {tools}", gone.skill_id))
    }
}

async fn watched(options: ToolOptions) -> (Watch, Talk) {
    let mut talk = Talk::with(options.clone(), host(&["look", "touch"])).await;
    talk.fake.state.lock().kits[1].skill.tools = vec!["look".into()];
    let watch = Watch::default();
    let client = talk.fake.client().await;
    let tools = Toolset::with_hooks(client, options, host(&["look", "touch"]), watch.clone());
    talk.tools = tools.expect("options that fit");
    (watch, talk)
}

#[tokio::test]
async fn hooks_decide_loads_and_evictions_and_learn_the_outcome() {
    let (watch, mut talk) = watched(ToolOptions {
        max_loaded_skills: 1,
        ..ToolOptions::default()
    })
    .await;
    talk.call("skill_load", json!({"skill": "demo"})).await;
    assert_eq!(watch.said(), ["load demo", "loaded demo with look touch"]);
    // It may choose another one. A tool that stays with the new one does not go with the old one.
    let loaded = talk.call("skill_load", json!({"skill": "alias"})).await;
    check_fields(&loaded, &json!({"skill": "other", "evicted": ["demo"]}));
    let said = [
        "load other",
        "unload demo",
        "loaded other with look",
        "unloaded demo with touch",
    ];
    assert_eq!(watch.said(), said);
}

#[tokio::test]
async fn a_hook_that_refuses_leaves_everything_as_it_was() {
    let (watch, mut talk) = watched(ToolOptions {
        max_loaded_skills: 1,
        ..ToolOptions::default()
    })
    .await;
    talk.call("skill_load", json!({"skill": "demo"})).await;
    for what in [
        "load other",
        "unload demo",
        "loaded other with look",
        "unloaded demo with touch",
    ] {
        *watch.refused.lock().expect("no panic") = what.into();
        let refused = talk.refused("skill_load", json!({"skill": "other"})).await;
        assert_eq!(refused, ("REFUSED_BY_HOST".into(), format!("not {what}")));
        assert_eq!(watch.said().last().map(String::as_str), Some(what));
    }
}

#[tokio::test]
async fn a_hook_may_change_the_text_that_a_result_gives() {
    let (_watch, mut talk) = watched(ToolOptions {
        inline_skills: true,
        ..ToolOptions::default()
    })
    .await;
    let loaded = talk.call("skill_load", json!({"skill": "demo"})).await;
    let text = loaded["content"].as_str().expect("text");
    assert!(text.ends_with("(checked)"), "{text}");
}
