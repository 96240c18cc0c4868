//! The samples for agent frameworks in docs/integrations.md, with the packages that the page names. These are hundreds of
//! megabytes: `make compat` runs this module, and `make test` the two cheapest samples, which are in `integrations.rs`.

use anyhow::Result;

use skilld_tests::binaries;

use crate::foreign::model::Project;
use crate::foreign::python_package::run_tests;

const DOCUMENT: &str = "docs/integrations.md";

/// Runs the tests of the adapters, which also run the samples of "docs/python.md".
#[tokio::test]
async fn adapters_for_python_work_with_the_real_frameworks() -> Result<()> {
    let directory = binaries::repository().join("client/python/tests/adapters");
    let requirements = directory.join("requirements.txt").display().to_string();
    run_tests(&["--requirement", &requirements], directory, &[]).await
}

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
