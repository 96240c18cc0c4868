//! Specifiers: which versions are meant by `name@…`. What npm, Cargo and Python write is understood; all of it
//! becomes a list of conditions that must all hold.

use super::{TEXT_BYTES_MAX, Version, without_v};

/// Maximum number of comparisons of one specifier.
const COMPARISONS_MAX: usize = 16;

/// Text that is not a specifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a version: write an exact one (1.2.3), a range (^1.2, ~1.2.3, >=1,<3, 1.x, 1.2.*), one as \
     Python does (==1.2, ==1.*, ~=1.4, !=2.0), * or latest; at most {TEXT_BYTES_MAX} bytes"
)]
pub struct SpecifierError {
    /// The part that is not understood, cut.
    pub text: String,
}

/// Parsed version specifier.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Specifier {
    /// Specifier as written, trimmed.
    text: String,
}

/// Meaning of a specifier.
enum SpecifierMeaning {
    /// `*`, `latest`, nothing.
    Any,
    /// Exact version: this text, else an equal version.
    Exact(String, Option<Version>),
    /// All of these hold.
    All(Vec<VersionCondition>),
}

/// Condition that a version must meet.
struct VersionCondition {
    relation: VersionRelation,
    bound: Version,
}

/// Relation of a version to a bound.
#[derive(Clone, Copy)]
enum VersionRelation {
    Equal,
    NotEqual,
    AtLeast,
    Above,
    AtMost,
    Below,
    /// The first so many numbers are the same.
    SamePrefix(usize),
    OtherPrefix(usize),
}

impl Specifier {
    /// Parses a specifier.
    ///
    /// # Errors
    /// When it is none, or too long.
    pub fn parse(text: &str) -> Result<Self, SpecifierError> {
        let text = text.trim();
        if text.len() > TEXT_BYTES_MAX {
            return Err(not_a_specifier(text));
        }
        parse_meaning(text)?;
        Ok(Self {
            text: text.to_owned(),
        })
    }

    /// Returns the specifier that every version fits.
    pub fn any() -> Self {
        Self {
            text: "*".to_owned(),
        }
    }

    /// Returns `true` if the specifier excludes no version.
    pub fn is_any(&self) -> bool {
        matches!(parse_meaning(&self.text), Ok(SpecifierMeaning::Any))
    }

    /// Returns the index of the version that is meant: the highest that fits, the first of those that are equal. One that
    /// comes before its release is meant only when the specifier names such a one, or when nothing else fits. A
    /// skill without a version, or with text that is none, fits `*`; the text also fits itself.
    pub fn choose<'a>(&self, versions: impl IntoIterator<Item = &'a str>) -> Option<usize> {
        let wanted = parse_meaning(&self.text).ok()?;
        let asked_for = wanted.names_prerelease();
        let fitting = versions
            .into_iter()
            .enumerate()
            .filter_map(|(index, text)| {
                let version = Version::parse(text);
                let same_text = wanted.is_text(text);
                let fits = same_text || wanted.fits(version.as_ref());
                let early = version.as_ref().is_some_and(Version::is_prerelease);
                let order = version.map(|version| (version.public, version.local));
                let rank = (same_text, !early || asked_for, order);
                fits.then_some((rank, index))
            });
        let best = fitting.reduce(|best, next| if next.0 > best.0 { next } else { best });
        best.map(|(_, index)| index)
    }

    /// Returns `true` if a version fits; pre-releases are treated like all others.
    pub fn accepts(&self, version: &str) -> bool {
        self.choose([version]).is_some()
    }

    /// Returns the specifier as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl std::fmt::Display for Specifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

// === parsing ===

/// Makes the error of a text that is not a specifier.
fn not_a_specifier(text: &str) -> SpecifierError {
    SpecifierError {
        text: text.chars().take(80).collect(),
    }
}

fn is_operator(c: char) -> bool {
    matches!(c, '^' | '~' | '>' | '<' | '=' | '!')
}

fn parse_meaning(text: &str) -> Result<SpecifierMeaning, SpecifierError> {
    if matches!(text, "" | "*" | "latest" | "x" | "X") {
        return Ok(SpecifierMeaning::Any);
    }
    let is_range = text.starts_with(is_operator)
        || text.contains([',', ' '])
        || wildcard_prefix(text).is_some();
    if !is_range {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '+' | '-' | '!');
        if !text.chars().all(plain) {
            return Err(not_a_specifier(text));
        }
        return Ok(SpecifierMeaning::Exact(
            without_v(text).to_owned(),
            Version::parse(text),
        ));
    }
    let comparisons = split_comparisons(text);
    if comparisons.len() > COMPARISONS_MAX {
        return Err(not_a_specifier(text));
    }
    let mut conditions = Vec::new();
    for comparison in &comparisons {
        conditions.extend(parse_comparison(comparison).ok_or_else(|| not_a_specifier(comparison))?);
    }
    Ok(SpecifierMeaning::All(conditions))
}

/// Cuts at commas and white space, except after an operator: `>= 1.0 <3` is two.
fn split_comparisons(text: &str) -> Vec<String> {
    let mut comparisons = Vec::new();
    for part in text.split(',') {
        let mut comparison = String::new();
        for word in part.split_whitespace() {
            comparison.push_str(word);
            if !word.ends_with(is_operator) {
                comparisons.push(std::mem::take(&mut comparison));
            }
        }
        // An operator without a version, or nothing between two commas, is refused when it is parsed.
        if !comparison.is_empty() || part.trim().is_empty() {
            comparisons.push(comparison);
        }
    }
    comparisons
}

/// Parses an operator and a version into the conditions that they stand for; returns `None` if they stand for none.
fn parse_comparison(text: &str) -> Option<Vec<VersionCondition>> {
    use VersionRelation::{
        Above, AtLeast, AtMost, Below, Equal, NotEqual, OtherPrefix, SamePrefix,
    };
    let operator_end = text.find(|c| !is_operator(c)).unwrap_or(text.len());
    let (operator, operand) = text.split_at(operator_end);
    let wildcard = wildcard_prefix(operand);
    let bound = Version::parse(wildcard.unwrap_or(operand))?;
    let numbers = count_numbers(bound.as_str());
    let is_prefix = wildcard.is_some() && !bound.is_prerelease();
    let relations = match operator {
        // `^1.x` is `^1`.
        "^" => vec![AtLeast, SamePrefix(count_fixed_numbers(&bound, numbers))],
        "~" => vec![AtLeast, SamePrefix(numbers.min(2))],
        "" | "=" | "==" | "===" if is_prefix => vec![SamePrefix(numbers)],
        "!=" if is_prefix => vec![OtherPrefix(numbers)],
        _ if wildcard.is_some() => return None,
        "~=" if numbers >= 2 => vec![AtLeast, SamePrefix(numbers - 1)],
        "" | "=" | "==" | "===" => vec![Equal],
        "!=" => vec![NotEqual],
        ">=" => vec![AtLeast],
        "<=" => vec![AtMost],
        ">" => vec![Above],
        "<" => vec![Below],
        _ => return None,
    };
    let condition = |relation| VersionCondition {
        relation,
        bound: bound.clone(),
    };
    Some(relations.into_iter().map(condition).collect())
}

/// Counts the numbers that were written: 2 in `1.2`, `1!1.2b3` and `1.2-beta.3`.
fn count_numbers(version: &str) -> usize {
    let release = version.rsplit('!').next().unwrap_or_default();
    let end = release
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(release.len());
    let numbers = release.get(..end).unwrap_or_default().split('.');
    numbers.filter(|number| !number.is_empty()).count()
}

/// Counts the numbers that `^` holds fast: those to the first that is not 0, and all `written` ones if there is none.
fn count_fixed_numbers(version: &Version, written: usize) -> usize {
    let mut release = version.public.version.release().iter();
    let first = release.position(|number| *number != 0);
    first.map_or(written, |zeros| zeros + 1)
}

/// Returns the `1.2` of `1.2.*`, `1.2.x` and `1.2.x.x`; `None` without such an end.
fn wildcard_prefix(text: &str) -> Option<&str> {
    let mut prefix = text;
    while let Some(shorter) = [".*", ".x", ".X"]
        .iter()
        .find_map(|end| prefix.strip_suffix(end))
    {
        prefix = shorter;
    }
    (prefix.len() < text.len()).then_some(prefix)
}

// === comparing ===

impl SpecifierMeaning {
    fn names_prerelease(&self) -> bool {
        match self {
            Self::Any => false,
            Self::Exact(_, version) => version.as_ref().is_some_and(Version::is_prerelease),
            Self::All(conditions) => conditions.iter().any(|it| it.bound.is_prerelease()),
        }
    }

    fn is_text(&self, text: &str) -> bool {
        matches!(self, Self::Exact(wanted, _) if without_v(text.trim()) == wanted)
    }

    fn fits(&self, version: Option<&Version>) -> bool {
        match (self, version) {
            (Self::Any, _) => true,
            (_, None) | (Self::Exact(_, None), _) => false,
            (Self::Exact(_, Some(wanted)), Some(version)) => is_equal(version, wanted),
            (Self::All(conditions), Some(version)) => conditions.iter().all(|it| it.holds(version)),
        }
    }
}

/// Compares two versions; the part after `+` counts only if `wanted` has one.
fn is_equal(version: &Version, wanted: &Version) -> bool {
    version.public == wanted.public && (wanted.local.is_empty() || version.local == wanted.local)
}

impl VersionCondition {
    fn holds(&self, version: &Version) -> bool {
        let (this, bound) = (&version.public, &self.bound.public);
        let is_same_release = this.version.epoch() == bound.version.epoch()
            && this.version.only_release() == bound.version.only_release();
        match self.relation {
            VersionRelation::Equal => is_equal(version, &self.bound),
            VersionRelation::NotEqual => !is_equal(version, &self.bound),
            VersionRelation::AtLeast => this >= bound,
            VersionRelation::AtMost => this <= bound,
            // 1.0.post1 is a repackaged 1.0, not a later version.
            VersionRelation::Above => {
                let is_repackaged = this.version.is_post() && !bound.version.is_post();
                this > bound && !(is_repackaged && is_same_release)
            }
            // 2.0b1 precedes 2.0, but `<2.0` does not mean it.
            VersionRelation::Below => {
                this < bound && (self.bound.is_prerelease() || !is_same_release)
            }
            VersionRelation::SamePrefix(numbers) => self.has_prefix_of(version, numbers),
            VersionRelation::OtherPrefix(numbers) => !self.has_prefix_of(version, numbers),
        }
    }

    /// Returns `true` if the first numbers of the bound and of a version are equal.
    fn has_prefix_of(&self, version: &Version, numbers: usize) -> bool {
        let (this, bound) = (&version.public.version, &self.bound.public.version);
        let number = |version: &pep440_rs::Version, index| version.release().get(index).copied();
        this.epoch() == bound.epoch()
            && (0..numbers)
                .all(|index| number(this, index).unwrap_or(0) == number(bound, index).unwrap_or(0))
    }
}
