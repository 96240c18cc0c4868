//! Quotas of one tenant, as the file of tenants gives them.

use std::num::NonZeroU32;
use std::time::Duration;

use bytesize::ByteSize;
use serde::Deserialize;

/// Largest rate, per second or minute.
const RATE_MAX: u32 = 1_000_000;
/// Text of a quota without a limit.
const UNLIMITED: &str = "unlimited";
/// Largest weight in the queue of a pool.
const WEIGHT_MAX: u32 = 1000;

/// Rate of calls per second of tenants for which no section has one: five calls for each of 40 commands a second, as
/// hundreds of conversations make them. Each call writes 1 to 2 KiB of the audit log, so no tenant calls as fast as it
/// can.
const REQUESTS_DEFAULT: f64 = 200.0;
/// Number of calls that may come at once at that rate.
const REQUESTS_BURST_DEFAULT: u32 = 1000;
/// Number of artifact versions of tenants for which no section has one. On disk each takes a few files and directories, of
/// which a file system has only so many.
const ARTIFACTS_DEFAULT: f64 = 100_000.0;
/// Size of the copies of skills of tenants for which no section has one. Every user makes such copies, in each workspace.
/// One tenant gets as much of `skills.environments_disk` by default.
const STAGED_DEFAULT: &str = "10GiB";

/// Quotas of a tenant. `None` means unlimited. A number of 0 permits none at all; rates and `weight` are at least 1. Bytes
/// on disk count as [`skilld_skills::held_bytes`] says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantLimits {
    /// Number of workspaces.
    pub workspaces: Option<u64>,
    /// Memory of all workspaces together, in bytes.
    pub memory_bytes: Option<u64>,
    /// Processor time of all workspaces together, in thousandths of a core.
    pub cpu_millis: Option<u64>,
    /// Number of execs that run at the same time.
    pub execs: Option<u64>,
    /// Number of open streams.
    pub streams: Option<u64>,
    /// Number of artifact versions.
    pub artifacts: Option<u64>,
    /// Bytes of all artifacts together.
    pub artifact_bytes: Option<u64>,
    /// Bytes of all published skills together.
    pub published_bytes: Option<u64>,
    /// Bytes of the copies of skills in all workspaces together.
    pub staged_bytes: Option<u64>,
    /// Bytes of all environments together.
    pub environment_bytes: Option<u64>,
    /// Number of open connections.
    pub connections: Option<u64>,
    /// Rate of CreateWorkspace, per minute.
    pub creates: Option<RateLimit>,
    /// Rate of all calls, per second.
    pub requests: Option<RateLimit>,
    /// Longest lifetime of a workspace.
    pub workspace_lifetime_max: Option<Duration>,
    /// Weight among the tenants that wait for a container; at least 1.
    pub weight: u32,
}

/// Rate with a burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    /// Number of calls per period.
    pub count: NonZeroU32,
    /// Length of the period.
    pub period: Duration,
    /// Number of calls that may come at once.
    pub burst: NonZeroU32,
}

/// Keys of a tenant's section, as they are written.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawLimits {
    pub(super) pools: Option<std::collections::BTreeSet<String>>,
    pub(super) roots: Option<std::collections::BTreeSet<String>>,
    pub(super) allowed_programs: Option<Vec<String>>,
    pub(super) denied_programs: Option<Vec<String>>,
    pub(super) allowed_env: Option<Vec<String>>,
    workspaces: Option<RawAmount>,
    memory: Option<RawAmount>,
    cpus: Option<RawAmount>,
    execs: Option<RawAmount>,
    streams: Option<RawAmount>,
    artifacts: Option<RawAmount>,
    artifact_bytes: Option<RawAmount>,
    published_bytes: Option<RawAmount>,
    staged_bytes: Option<RawAmount>,
    environment_bytes: Option<RawAmount>,
    connections: Option<RawAmount>,
    workspace_creates_per_minute: Option<RawAmount>,
    workspace_creates_burst: Option<u32>,
    requests_per_second: Option<RawAmount>,
    requests_burst: Option<u32>,
    workspace_lifetime_max: Option<String>,
    weight: Option<u32>,
}

/// Number, or a text such as `"unlimited"` or `"8GiB"`.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum RawAmount {
    Number(f64),
    Text(String),
}

/// Amount of a quota: `None` means unlimited.
type Amount = Option<u64>;
/// Returns an amount of a section as it is written.
type AmountOf = fn(&RawLimits) -> Option<&RawAmount>;
/// Parses an amount; an absent one is unlimited.
type ParseAmount = fn(Option<&RawAmount>) -> Result<Amount, String>;

impl Default for TenantLimits {
    fn default() -> Self {
        Self {
            workspaces: None,
            memory_bytes: None,
            cpu_millis: None,
            execs: None,
            streams: None,
            artifacts: None,
            artifact_bytes: None,
            published_bytes: None,
            staged_bytes: None,
            environment_bytes: None,
            connections: None,
            creates: None,
            requests: None,
            workspace_lifetime_max: None,
            weight: 1,
        }
    }
}

impl RawLimits {
    /// Returns the quotas that no section has to name.
    fn built_in() -> Self {
        Self {
            artifacts: Some(RawAmount::Number(ARTIFACTS_DEFAULT)),
            staged_bytes: Some(RawAmount::Text(STAGED_DEFAULT.to_owned())),
            requests_per_second: Some(RawAmount::Number(REQUESTS_DEFAULT)),
            ..Self::default()
        }
    }

    /// Checks the quotas of a section, with those of `default` in place of absent ones, and those that are built in.
    /// `config_key` names the section in faults.
    pub(super) fn check(
        &self,
        default: Option<&Self>,
        config_key: &str,
        faults: &mut Vec<String>,
    ) -> TenantLimits {
        let built_in = Self::built_in();
        let mut take = |key: &str, of: AmountOf, parse: ParseAmount| {
            let amount = of(self).or(default.and_then(of)).or(of(&built_in));
            parse(amount).unwrap_or_else(|why| {
                faults.push(format!("{config_key}.{key}: {why}"));
                None
            })
        };
        let (number, size, rate) = (parse_whole_number, parse_size, parse_rate);
        let limits = TenantLimits {
            workspaces: take("workspaces", |raw| raw.workspaces.as_ref(), number),
            memory_bytes: take("memory", |raw| raw.memory.as_ref(), size),
            cpu_millis: take("cpus", |raw| raw.cpus.as_ref(), parse_cores),
            execs: take("execs", |raw| raw.execs.as_ref(), number),
            streams: take("streams", |raw| raw.streams.as_ref(), number),
            artifacts: take("artifacts", |raw| raw.artifacts.as_ref(), number),
            artifact_bytes: take("artifact_bytes", |raw| raw.artifact_bytes.as_ref(), size),
            published_bytes: take("published_bytes", |raw| raw.published_bytes.as_ref(), size),
            staged_bytes: take("staged_bytes", |raw| raw.staged_bytes.as_ref(), size),
            environment_bytes: take(
                "environment_bytes",
                |raw| raw.environment_bytes.as_ref(),
                size,
            ),
            connections: take("connections", |raw| raw.connections.as_ref(), number),
            ..TenantLimits::default()
        };
        let creates = "workspace_creates_per_minute";
        let creates = take(
            creates,
            |raw| raw.workspace_creates_per_minute.as_ref(),
            rate,
        );
        let requests = "requests_per_second";
        let requests = take(requests, |raw| raw.requests_per_second.as_ref(), rate);
        let weight = self
            .weight
            .or(default.and_then(|raw| raw.weight))
            .unwrap_or(1);
        if !(1..=WEIGHT_MAX).contains(&weight) {
            faults.push(format!(
                "{config_key}.weight: must be between 1 and {WEIGHT_MAX}"
            ));
        }
        let mut burst = |key: &str, burst: fn(&Self) -> Option<u32>| {
            let burst = burst(self).or(default.and_then(burst));
            if burst == Some(0) {
                faults.push(format!(
                    "{config_key}.{key}: must be at least 1; without it the burst is as large as the rate"
                ));
            }
            burst
        };
        let creates_burst = burst("workspace_creates_burst", |raw| raw.workspace_creates_burst);
        let requests_burst =
            burst("requests_burst", |raw| raw.requests_burst).or(self.built_in_burst(default));
        TenantLimits {
            creates: RateLimit::new(creates, Duration::from_secs(60), creates_burst),
            requests: RateLimit::new(requests, Duration::from_secs(1), requests_burst),
            workspace_lifetime_max: self.parse_lifetime(default, config_key, faults),
            weight: weight.clamp(1, WEIGHT_MAX),
            ..limits
        }
    }

    /// Returns the burst of the built-in rate of calls; `None` if a section has a rate.
    fn built_in_burst(&self, default: Option<&Self>) -> Option<u32> {
        let rate_of: AmountOf = |raw| raw.requests_per_second.as_ref();
        let rate = rate_of(self).or(default.and_then(rate_of));
        rate.is_none().then_some(REQUESTS_BURST_DEFAULT)
    }

    /// Checks the longest lifetime of a workspace.
    fn parse_lifetime(
        &self,
        default: Option<&Self>,
        config_key: &str,
        faults: &mut Vec<String>,
    ) -> Option<Duration> {
        let text = self
            .workspace_lifetime_max
            .as_ref()
            .or(default.and_then(|raw| raw.workspace_lifetime_max.as_ref()))?;
        if text == UNLIMITED {
            return None;
        }
        let parsed = humantime::parse_duration(text).ok();
        let lifetime = parsed.filter(|time| !time.is_zero());
        if lifetime.is_none() {
            faults.push(format!(
                "{config_key}.workspace_lifetime_max: {text:?} is not a time over zero; write it like \"8h\", or \
                 \"unlimited\""
            ));
        }
        lifetime
    }
}

impl RateLimit {
    /// Makes a rate; a burst of `None` is as large as the count.
    fn new(count: Amount, period: Duration, burst: Option<u32>) -> Option<Self> {
        let count = NonZeroU32::new(u32::try_from(count?).ok()?)?;
        Some(Self {
            count,
            period,
            burst: burst.and_then(NonZeroU32::new).unwrap_or(count),
        })
    }
}

/// Returns `true` if an amount is the text for "no limit".
fn is_unlimited(amount: &RawAmount) -> bool {
    matches!(amount, RawAmount::Text(text) if text == UNLIMITED)
}

fn parse_whole_number(amount: Option<&RawAmount>) -> Result<Amount, String> {
    match amount {
        None => Ok(None),
        Some(amount) if is_unlimited(amount) => Ok(None),
        Some(RawAmount::Number(number))
            if number.fract() == 0.0 && (0.0..1e15).contains(number) =>
        {
            Ok(Some(to_integer(*number)))
        }
        Some(_) => Err("must be a whole number or \"unlimited\"".to_owned()),
    }
}

fn parse_size(amount: Option<&RawAmount>) -> Result<Amount, String> {
    let wrong = || "must be a size like \"8GiB\", 0 or \"unlimited\"".to_owned();
    match amount {
        None => Ok(None),
        Some(amount) if is_unlimited(amount) => Ok(None),
        Some(RawAmount::Number(0.0)) => Ok(Some(0)),
        Some(RawAmount::Text(text)) => {
            let size: ByteSize = text.parse().map_err(|_| wrong())?;
            Ok(Some(size.as_u64()))
        }
        Some(RawAmount::Number(_)) => Err(wrong()),
    }
}

fn parse_cores(amount: Option<&RawAmount>) -> Result<Amount, String> {
    match amount {
        None => Ok(None),
        Some(amount) if is_unlimited(amount) => Ok(None),
        Some(RawAmount::Number(cores)) if (0.0..1e6).contains(cores) => {
            Ok(Some(to_integer((cores * 1000.0).round())))
        }
        Some(_) => Err("must be a number of processor cores or \"unlimited\"".to_owned()),
    }
}

fn parse_rate(amount: Option<&RawAmount>) -> Result<Amount, String> {
    let rate = parse_whole_number(amount)?;
    if rate.is_some_and(|rate| !(1..=u64::from(RATE_MAX)).contains(&rate)) {
        return Err(format!(
            "must be between 1 and {RATE_MAX}, or \"unlimited\""
        ));
    }
    Ok(rate)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "between 0 and 10^15, as the callers check"
)]
fn to_integer(number: f64) -> u64 {
    number as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lifetime_can_be_unlimited_like_every_quota() {
        let raw = |text: &str| toml::from_str::<RawLimits>(text).expect("toml");
        let default = raw("workspace_lifetime_max = \"8h\"");
        let read = |text: &str| {
            let mut faults = Vec::new();
            let limits = raw(text).check(Some(&default), "tenants.a", &mut faults);
            (limits.workspace_lifetime_max, faults.len())
        };
        let hours = |hours: u64| Some(Duration::from_secs(hours * 3600));
        assert_eq!(read(""), (hours(8), 0));
        assert_eq!(read("workspace_lifetime_max = \"2h\""), (hours(2), 0));
        assert_eq!(read("workspace_lifetime_max = \"unlimited\""), (None, 0));
        assert_eq!(read("workspace_lifetime_max = \"0s\""), (None, 1));
    }

    #[test]
    fn writes_to_a_disk_of_all_tenants_are_limited_by_default() {
        let read = |text: &str| {
            let raw: RawLimits = toml::from_str(text).expect("toml");
            let mut faults = Vec::new();
            let limits = raw.check(None, "tenants.a", &mut faults);
            assert_eq!(faults, Vec::<String>::new());
            let rate = limits
                .requests
                .map(|rate| (rate.count.get(), rate.burst.get()));
            (rate, limits.artifacts, limits.staged_bytes)
        };
        let built_in = (Some((200, 1000)), Some(100_000), Some(10 << 30));
        assert_eq!(read(""), built_in);
        assert_eq!(read("requests_burst = 400").0, Some((200, 400)));
        let own = "requests_per_second = 7\nartifacts = 0\nstaged_bytes = \"1KiB\"";
        assert_eq!(read(own), (Some((7, 7)), Some(0), Some(1024)));
        let keys = ["requests_per_second", "artifacts", "staged_bytes"];
        let none = keys.map(|key| format!("{key} = \"unlimited\"\n"));
        assert_eq!(read(&none.concat()), (None, None, None));
    }
}
