//! `skillctl image`: checks images before a pool uses them.

use clap::Args;
use skilld_client::Client;
use skilld_client::v1::{CheckImageRequest, CheckImageResponse};

use crate::commands::command_group::command_group;
use crate::output::{self, value_formats};

command_group! {
    /// Check an image before a pool uses it.
    #[command(after_help = "Example:\n  skillctl image check skilld/base:latest")]
    Image {
        Check(Check),
    }
}

/// Check whether a pool can use an image, and what skills would miss in it.
///
/// The daemon starts a container of the image as the pool would, looks for programs and packages, and removes it. Docker
/// must have the image: build it or `docker pull` it first. Exit code 1 if a pool can't use the image, or shell commands
/// do not run in it; missing programs are warnings.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  skillctl image check skilld/base:latest\n  skillctl image check skilld/base:latest --pool default"
)]
pub(crate) struct Check {
    /// Image as Docker names it: NAME:TAG, REGISTRY/NAME:TAG or NAME@sha256:DIGEST.
    image: String,
    /// Pool whose limits and OCI runtime the container gets; the server's default if left out.
    #[arg(long, default_value = "", hide_default_value = true)]
    pool: String,
}

impl Check {
    async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let request = CheckImageRequest {
            image: self.image.clone(),
            pool: self.pool,
        };
        let answer = client.check_image(request).await?;
        let text = format!("{}{}", image_details(&answer), finding_table(&answer));
        output::print_message(&answer, &text)?;
        if !output::is_json() {
            let usable = if answer.usable {
                "usable"
            } else {
                "not usable"
            };
            output::note!("{} is {usable}", self.image);
        }
        Ok(u8::from(!answer.usable))
    }
}

fn image_details(answer: &CheckImageResponse) -> String {
    let mut fields = vec![("image", answer.image_id.clone())];
    if !answer.image_id.is_empty() {
        fields.push(("size", value_formats::format_size(answer.size_bytes)));
        fields.push(("digests", answer.repo_digests.join(", ")));
    }
    if answer.start_duration.is_some() {
        let start = value_formats::format_duration(answer.start_duration.as_ref());
        let python = match answer.python_version.as_str() {
            "" => "does not run".to_owned(),
            version => format!("{version}, {} packages", answer.python_package_count()),
        };
        fields.push(("started in", start));
        fields.push(("programs", answer.program_count().to_string()));
        fields.push(("python", python));
        fields.push(("node", format!("{} packages", answer.node_package_count())));
    }
    output::text_fields(&fields)
}

fn finding_table(answer: &CheckImageResponse) -> String {
    if answer.findings.is_empty() {
        return String::new();
    }
    let rows = answer.findings.iter().map(|finding| {
        [
            value_formats::enum_words(finding.severity().as_str_name(), "PROBLEM_SEVERITY_"),
            finding.code.clone(),
            finding.message.clone(),
        ]
    });
    output::text_table(["SEVERITY", "FINDING", "WHAT TO DO"], rows)
}
