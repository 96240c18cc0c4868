//! Signs that a skill wants a network.

/// Modules of Python that are there to connect. Sorted.
const MODULES: [&str; 42] = [
    "aiohttp",
    "anthropic",
    "asyncpg",
    "atlassian",
    "azure",
    "boto3",
    "botocore",
    "discord",
    "feedparser",
    "ftplib",
    "github",
    "googleapiclient",
    "grpc",
    "httplib2",
    "httpx",
    "huggingface_hub",
    "imaplib",
    "jira",
    "langchain_openai",
    "notion_client",
    "openai",
    "paramiko",
    "poplib",
    "praw",
    "psycopg",
    "psycopg2",
    "pymongo",
    "pymysql",
    "redis",
    "requests",
    "serpapi",
    "slack_sdk",
    "smtplib",
    "stripe",
    "telegram",
    "telnetlib",
    "tweepy",
    "twilio",
    "urllib3",
    "websocket",
    "websockets",
    "yfinance",
];
/// Programs that are there to connect. Sorted.
const PROGRAMS: [&str; 22] = [
    "aws", "az", "curl", "doctl", "flyctl", "ftp", "gcloud", "gh", "glab", "gsutil", "heroku",
    "kubectl", "netlify", "rclone", "rsync", "scp", "sftp", "ssh", "stripe", "vercel", "wget",
    "yt-dlp",
];
/// Said of skills that want none.
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

/// Whether a module is there to connect.
pub(super) fn is_module(name: &str) -> bool {
    MODULES.binary_search(&name).is_ok()
}

/// Whether a program is there to connect.
pub(super) fn is_program(name: &str) -> bool {
    PROGRAMS.binary_search(&name).is_ok()
}

/// Whether a text about what a skill needs says that it is a network.
pub(super) fn is_said(text: &str) -> bool {
    let words: Vec<String> = text
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect();
    let text = words.join(" ");
    // `does not need a network` and `without the internet` are said with an article too.
    let text = text
        .replace(" a network", " network")
        .replace(" the internet", " internet");
    let says = words
        .iter()
        .any(|word| word == "network" || word == "internet");
    says && !DENIALS.iter().any(|denial| text.contains(denial))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_about_a_network_is_understood() {
        assert!(MODULES.is_sorted() && PROGRAMS.is_sorted() && DENIALS.is_sorted());
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
            assert_eq!(is_said(text), expected, "{text:?}");
        }
    }
}
