//! Signs that a skill wants a network.

use super::has_word;

/// Modules of Python that exist to connect to other hosts.
const MODULES: &str = "aiohttp anthropic arxiv asyncpg asyncssh atlassian boto3 botocore cohere discord exa_py \
    exchangelib fabric feedparser firecrawl ftplib geopy github gitlab googleapiclient googlemaps google.genai \
    google.generativeai groq grpc gspread httplib2 httpx hubspot huggingface_hub imaplib instaloader jira kubernetes langchain_openai litellm mistralai notion_client openai paramiko \
    pinecone poplib praw psycopg psycopg2 pymongo pymysql redis replicate requests scholarly serpapi shopify slack_bolt \
    slack_sdk smtplib snowflake stripe tavily telegram telethon telnetlib \
    tweepy twilio urllib3 websocket websockets yfinance";
/// Programs that exist to connect to other hosts.
const PROGRAMS: &str = "aria2c aws az claude codex curl dig doctl eksctl flyctl ftp gallery-dl gcloud gemini gh glab gsutil \
    helm heroku hf http httpie huggingface-cli jira kubectl lftp linear lynx mosh netlify nslookup ping pulumi railway rclone \
    scp sftp ssh stripe supabase telnet terraform terragrunt traceroute vercel w3m wget whois wrangler xh youtube-dl yt-dlp";
/// Packages of Node.js that exist to connect to other hosts.
const PACKAGES: &str = "@anthropic-ai/sdk @google/genai @notionhq/client @octokit/rest @slack/bolt @slack/web-api \
    @supabase/supabase-js axios discord.js firebase-admin got googleapis ioredis ky mongodb mysql2 node-fetch nodemailer \
    octokit openai pg redis resend stripe superagent twilio undici ws";
/// Commands of git that connect to other hosts.
const GIT_COMMANDS: &str = "clone fetch ls-remote pull push";
/// Words before `network` or `internet` in texts of skills that want none.
const DENIALS: [&str; 4] = ["no", "not need", "not require", "without"];

/// Returns `true` if a Python module exists to connect to other hosts.
pub(super) fn is_network_module(name: &str) -> bool {
    let families = ["google.cloud.", "azure.", "opentelemetry.exporter."];
    has_word(MODULES, name) || families.iter().any(|family| name.starts_with(family))
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

/// Returns `true` if source names addresses, and all of them are of the host itself.
pub(super) fn names_only_this_host(source: &str) -> bool {
    let hosts = ["localhost", "127.0.0.1", "0.0.0.0", "[::1]"];
    let mut addresses = source.split("://").skip(1).peekable();
    addresses.peek().is_some()
        && addresses.all(|address| hosts.iter().any(|host| address.starts_with(host)))
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
