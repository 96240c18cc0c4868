//! Stand-in for a model, `model.py` beside this file, and a project of a reader who has a key for its API.

use std::process::Stdio;

use anyhow::{Context, Result};
use skilld_client::v1::ListWorkspacesRequest;
use skilld_tests::{binaries, wait};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::foreign::recipes::Place;
use crate::foreign::{LIMIT, venv};

/// Stand-in for a model. Dropping the value ends its process.
pub(crate) struct Model {
    _child: Child,
    /// Base of its APIs.
    pub(crate) url: String,
}

impl Model {
    pub(crate) async fn start() -> Result<Self> {
        let mut child = Command::new(venv::program("python").await?)
            .arg("-B")
            .arg(binaries::repository().join("tests/e2e/foreign/model.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stdout = child.stdout.take().context("stdout")?;
        let mut lines = BufReader::new(stdout).lines();
        let port = tokio::time::timeout(LIMIT, lines.next_line())
            .await??
            .context("it says its port")?;
        Ok(Self {
            _child: child,
            url: format!("http://127.0.0.1:{port}"),
        })
    }
}

/// Project of a reader who has a key for the API of a model. The stand-in answers.
pub(crate) struct Project {
    place: Place,
    _model: Model,
}

impl Project {
    pub(crate) async fn new() -> Result<Self> {
        let model = Model::start().await?;
        let mut place = Place::new().await?;
        // Without it, npm takes a directory above for the project.
        std::fs::write(place.directory.path().join("package.json"), "{}")?;
        // Node.js is where the host has it.
        let host = std::env::var_os("PATH").unwrap_or_default();
        place.path = format!("{}:{}", place.path, host.to_string_lossy());
        let downloads = binaries::target_dir()?.join("downloads");
        let downloads_of = |program: &str| downloads.join(program).display().to_string();
        place.env = vec![
            ("OPENAI_BASE_URL", format!("{}/v1", model.url)),
            ("OPENAI_API_KEY", "none".to_owned()),
            ("OPENAI_AGENTS_DISABLE_TRACING", "1".to_owned()),
            ("MASTRA_TELEMETRY_DISABLED", "1".to_owned()),
            ("PIP_CACHE_DIR", downloads_of("pip")),
            ("npm_config_cache", downloads_of("npm")),
            ("npm_config_audit", "false".to_owned()),
        ];
        Ok(Self {
            place,
            _model: model,
        })
    }

    /// Returns a project with a Python environment of its own: the packages of some frameworks exclude those of other
    /// tests.
    pub(crate) async fn with_own_python() -> Result<Self> {
        let mut project = Self::new().await?;
        let place = &mut project.place;
        place.run("python3 -m venv own").await?;
        let programs = place.directory.path().join("own/bin");
        place.path = format!("{}:{}", programs.display(), place.path);
        Ok(project)
    }

    /// Types a section of a page. Its program prints the model's last words, and its server leaves no workspace.
    pub(crate) async fn check_sample(self, document: &str, title: &str) -> Result<()> {
        let printed = self.place.run_of(document, title).await?;
        // npm prints lines of its own before.
        let words = printed.lines().next_back();
        assert_eq!(words, Some("It is 354224848179261915075."), "{printed}");
        wait::until("the server's workspace is deleted", LIMIT, async || {
            let request = ListWorkspacesRequest::default();
            let left = self.place.daemon.client.list_workspaces(request).await?;
            // The one of the place.
            Ok((left.workspaces.len() == 1).then_some(()))
        })
        .await?;
        self.place.daemon.stop().await
    }
}
