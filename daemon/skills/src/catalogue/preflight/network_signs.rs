//! Signs that a skill wants a network.

use super::has_word;

/// Modules of Python that exist to connect to other hosts.
const MODULES: &str = "aiohttp anthropic asyncpg atlassian boto3 botocore discord feedparser ftplib github \
    googleapiclient grpc httplib2 httpx huggingface_hub imaplib jira langchain_openai notion_client openai paramiko \
    poplib praw psycopg psycopg2 pymongo pymysql redis requests serpapi slack_sdk smtplib stripe telegram telnetlib \
    tweepy twilio urllib3 websocket websockets yfinance";
/// Programs that exist to connect to other hosts.
const PROGRAMS: &str = "aws az claude codex curl doctl flyctl ftp gcloud gemini gh glab gsutil helm heroku kubectl netlify \
    rclone scp sftp ssh stripe terraform vercel wget yt-dlp";
/// Packages of Node.js that exist to connect to other hosts.
const PACKAGES: &str = "@anthropic-ai/sdk @notionhq/client @octokit/rest @slack/web-api axios got node-fetch octokit openai \
    stripe superagent undici ws";
/// Commands of git that connect to other hosts.
const GIT_COMMANDS: &str = "clone fetch ls-remote pull push";
/// Words before `network` or `internet` in texts of skills that want none.
const DENIALS: [&str; 4] = ["no", "not need", "not require", "without"];

/// Returns `true` if a Python module exists to connect to other hosts.
pub(super) fn is_network_module(name: &str) -> bool {
    has_word(MODULES, name) || name.starts_with("google.cloud.") || name.starts_with("azure.")
}

/// Returns `true` if a program exists to connect to other hosts.
pub(super) fn is_network_program(name: &str) -> bool {
    has_word(PROGRAMS, name)
}

/// Returns `true` if a package of Node.js exists to connect to other hosts.
pub(super) fn is_network_package(name: &str) -> bool {
    has_word(PACKAGES, name)
}

/// Returns `true` if a command exists to connect to other hosts; `argument` is its first operand.
pub(super) fn is_network_command(program: &str, argument: &str) -> bool {
    is_network_program(program) || (program == "git" && has_word(GIT_COMMANDS, argument))
}

/// Returns `true` if a text about compatibility states that the skill needs a network.
pub(super) fn states_network(text: &str) -> bool {
    let words = text.split(|c: char| !c.is_alphanumeric());
    // `does not need a network` and `without the internet` are said with an article too.
    let words = words.filter(|word| !word.is_empty()).map(str::to_lowercase);
    let words: Vec<String> = words.filter(|word| !has_word("a the", word)).collect();
    let says = words.iter().any(|word| has_word("network internet", word));
    let text = words.join(" ");
    let denies = |denial: &&str| {
        text.contains(&format!("{denial} internet")) || text.contains(&format!("{denial} network"))
    };
    says && !text.contains("offline") && !DENIALS.iter().any(denies)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_about_a_network_is_understood() {
        for (text, expected) in [
            ("Requires network access", true),
            ("Python 3.11+, Internet.", true),
            ("needs the internet to fetch prices", true),
            ("no network needed", false),
            ("Works offline; the network is not used", false),
            ("does not require a network", false),
            ("Runs without the internet", false),
            ("neural networks and networking theory", false),
            ("", false),
        ] {
            assert_eq!(states_network(text), expected, "{text:?}");
        }
    }
}
