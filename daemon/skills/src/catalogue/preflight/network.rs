//! Signs that a skill wants a network.

/// Modules of Python that exist to connect to other hosts.
const MODULES: &str = "aiohttp anthropic asyncpg atlassian azure boto3 botocore discord feedparser ftplib github \
    googleapiclient grpc httplib2 httpx huggingface_hub imaplib jira langchain_openai notion_client openai paramiko \
    poplib praw psycopg psycopg2 pymongo pymysql redis requests serpapi slack_sdk smtplib stripe telegram telnetlib \
    tweepy twilio urllib3 websocket websockets yfinance";
/// Programs that exist to connect to other hosts.
const PROGRAMS: &str = "aws az curl doctl flyctl ftp gcloud gh glab gsutil heroku kubectl netlify rclone rsync scp sftp ssh \
    stripe vercel wget yt-dlp";
/// Words of skills that want no network.
const DENIALS: [&str; 9] = [
    "no internet",
    "no network",
    "not need internet",
    "not need network",
    "not require internet",
    "not require network",
    "offline",
    "without internet",
    "without network",
];

/// Returns `true` if a Python module exists to connect to other hosts.
pub(super) fn is_network_module(name: &str) -> bool {
    MODULES.split_whitespace().any(|known| known == name)
}

/// Returns `true` if a program exists to connect to other hosts.
pub(super) fn is_network_program(name: &str) -> bool {
    PROGRAMS.split_whitespace().any(|known| known == name)
}

/// Returns `true` if a text about compatibility states that the skill needs a network.
pub(super) fn states_network(text: &str) -> bool {
    let words = text.split(|c: char| !c.is_alphanumeric());
    let words: Vec<String> = words
        .map(str::to_lowercase)
        // `does not need a network` and `without the internet` are said with an article too.
        .filter(|word| !matches!(word.as_str(), "" | "a" | "the"))
        .collect();
    let says = words
        .iter()
        .any(|word| word == "network" || word == "internet");
    let text = words.join(" ");
    says && !DENIALS.iter().any(|denial| text.contains(denial))
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
