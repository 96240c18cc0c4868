//! Signs that a skill wants a network.

use super::has_word;

/// Modules of Python that exist to connect to other hosts.
const MODULES: &str = "aiohttp anthropic asyncpg atlassian azure boto3 botocore discord feedparser ftplib github \
    googleapiclient grpc httplib2 httpx huggingface_hub imaplib jira langchain_openai notion_client openai paramiko \
    poplib praw psycopg psycopg2 pymongo pymysql redis requests serpapi slack_sdk smtplib stripe telegram telnetlib \
    tweepy twilio urllib3 websocket websockets yfinance";
/// Programs that exist to connect to other hosts.
const PROGRAMS: &str = "aws az curl doctl flyctl ftp gcloud gh glab gsutil heroku kubectl netlify rclone rsync scp sftp ssh \
    stripe vercel wget yt-dlp";
/// Words before `network` or `internet` in texts of skills that want none.
const DENIALS: [&str; 4] = ["no", "not need", "not require", "without"];

/// Returns `true` if a Python module exists to connect to other hosts.
pub(super) fn is_network_module(name: &str) -> bool {
    has_word(MODULES, name)
}

/// Returns `true` if a program exists to connect to other hosts.
pub(super) fn is_network_program(name: &str) -> bool {
    has_word(PROGRAMS, name)
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
