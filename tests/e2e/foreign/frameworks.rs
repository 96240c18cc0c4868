//! The samples for agent frameworks in docs/integrations.md, with the packages that the page names. These are hundreds of
//! megabytes: `make compat` runs this module, and `make test` the two cheapest samples, which are in `integrations.rs`.

use anyhow::Result;

use crate::foreign::model::Project;

const DOCUMENT: &str = "docs/integrations.md";

#[tokio::test]
async fn openai_agents_in_javascript_let_a_model_use_skills() -> Result<()> {
    let project = Project::new().await?;
    project
        .check_sample(DOCUMENT, "OpenAI Agents in JavaScript")
        .await
}

#[tokio::test]
async fn langchain_in_javascript_lets_a_model_use_skills() -> Result<()> {
    let project = Project::new().await?;
    project
        .check_sample(DOCUMENT, "LangChain in JavaScript")
        .await
}

#[tokio::test]
async fn langchain_in_python_lets_a_model_use_skills() -> Result<()> {
    let project = Project::with_own_python().await?;
    project.check_sample(DOCUMENT, "LangChain in Python").await
}

#[tokio::test]
async fn mastra_lets_a_model_use_skills() -> Result<()> {
    let project = Project::new().await?;
    project.check_sample(DOCUMENT, "Mastra").await
}

#[tokio::test]
async fn pydantic_ai_lets_a_model_use_skills() -> Result<()> {
    let project = Project::with_own_python().await?;
    project.check_sample(DOCUMENT, "Pydantic AI").await
}

#[tokio::test]
async fn smolagents_let_a_model_use_skills() -> Result<()> {
    let project = Project::with_own_python().await?;
    project.check_sample(DOCUMENT, "smolagents").await
}
