//! Specifiers: which versions are meant by `name@…`. What npm, Cargo and Python write is understood; all of it
//! becomes a list of comparisons that must all hold.

use super::{Public, TEXT_BYTES_MAX, Version, without_v};

/// Comparisons of one specifier.
const PARTS_MAX: usize = 16;

/// Text that is not a specifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a version: write an exact one (1.2.3), a range (^1.2, ~1.2.3, >=1,<3, 1.x, 1.2.*), one as \
     Python does (==1.2, ==1.*, ~=1.4, !=2.0), * or latest; at most {TEXT_BYTES_MAX} bytes"
)]
pub struct BadSpecifier {
    /// The part that is not understood, cut.
    pub text: String,
}

/// Which versions are meant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Specifier {
    /// As it was written, trimmed.
    text: String,
}

/// What a specifier asks for.
enum Wanted {
    /// `*`, `latest`, nothing.
    Any,
    /// One version: this text, else what is equal to it.
    Exact(String, Option<Version>),
    /// All of these hold.
    All(Vec<Comparison>),
}

struct Comparison {
    operator: Operator,
    version: Version,
    /// Numbers that were written: 2 in `~1.2`.
    written: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operator {
    Equal,
    NotEqual,
    /// `==1.2.*`, `1.x`.
    Like,
    NotLike,
    AtLeast,
    Above,
    AtMost,
    Below,
    /// `^1.2`.
    Caret,
    /// `~1.2`.
    Tilde,
    /// `~=1.2`.
    Compatible,
}

/// Longer ones first.
const OPERATORS: [(&str, Operator); 11] = [
    ("===", Operator::Equal),
    ("==", Operator::Equal),
    ("!=", Operator::NotEqual),
    ("~=", Operator::Compatible),
    (">=", Operator::AtLeast),
    ("<=", Operator::AtMost),
    ("^", Operator::Caret),
    ("~", Operator::Tilde),
    (">", Operator::Above),
    ("<", Operator::Below),
    ("=", Operator::Equal),
];

impl Specifier {
    /// Reads a specifier.
    ///
    /// # Errors
    /// When it is none, or too long.
    pub fn parse(text: &str) -> Result<Self, BadSpecifier> {
        let text = text.trim();
        if text.len() > TEXT_BYTES_MAX {
            return Err(bad(text));
        }
        wanted(text)?;
        Ok(Self {
            text: text.to_owned(),
        })
    }

    /// Any version.
    #[must_use]
    pub fn any() -> Self {
        Self {
            text: "*".to_owned(),
        }
    }

    /// Whether it excludes no version.
    #[must_use]
    pub fn is_any(&self) -> bool {
        matches!(wanted(&self.text), Ok(Wanted::Any))
    }

    /// The place of the version that is meant: the highest that fits, the first of those that are equal. One that
    /// comes before its release is meant only when the specifier names such a one, or when nothing else fits. A
    /// skill without a version, or with text that is none, fits `*`; the text also fits itself.
    pub fn choose<'a>(&self, versions: impl IntoIterator<Item = &'a str>) -> Option<usize> {
        let wanted = wanted(&self.text).ok()?;
        let asked_for = wanted.names_prerelease();
        let fitting = versions
            .into_iter()
            .enumerate()
            .filter_map(|(place, text)| {
                let version = Version::parse(text);
                let same_text = wanted.is_text(text);
                let fits = same_text || wanted.fits(version.as_ref());
                let early = version.as_ref().is_some_and(Version::is_prerelease);
                let order = version.map(|version| (version.public, version.local));
                let rank = (same_text, !early || asked_for, order);
                fits.then_some((rank, place))
            });
        let best = fitting.reduce(|best, next| if next.0 > best.0 { next } else { best });
        best.map(|(_, place)| place)
    }

    /// Whether this version fits, pre-releases like all others.
    #[must_use]
    pub fn accepts(&self, version: &str) -> bool {
        self.choose([version]).is_some()
    }

    /// As it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl std::fmt::Display for Specifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

// === reading ===

fn bad(text: &str) -> BadSpecifier {
    BadSpecifier {
        text: text.chars().take(80).collect(),
    }
}

fn wanted(text: &str) -> Result<Wanted, BadSpecifier> {
    if matches!(text, "" | "*" | "latest" | "x" | "X") {
        return Ok(Wanted::Any);
    }
    let is_range = text.starts_with(['^', '~', '>', '<', '=', '!'])
        || text.contains([',', ' '])
        || wildcard(text).is_some();
    if !is_range {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '+' | '-' | '!');
        if !text.chars().all(plain) {
            return Err(bad(text));
        }
        return Ok(Wanted::Exact(
            without_v(text).to_owned(),
            Version::parse(text),
        ));
    }
    let mut parts = Vec::new();
    for part in parts_of(text) {
        if parts.len() == PARTS_MAX {
            return Err(bad(text));
        }
        parts.push(comparison(part).ok_or_else(|| bad(part))?);
    }
    if parts.is_empty() {
        return Err(bad(text));
    }
    Ok(Wanted::All(parts))
}

/// Cuts at commas, and where white space is followed by something new: `>= 1.0 <3` is two.
fn parts_of(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    for part in text.split(',') {
        let mut rest = part.trim();
        loop {
            let operator_end = rest
                .find(|c: char| !matches!(c, '^' | '~' | '>' | '<' | '=' | '!' | ' '))
                .unwrap_or(rest.len());
            let operand = rest.get(operator_end..).unwrap_or_default();
            let end = operand
                .find(char::is_whitespace)
                .map_or(rest.len(), |end| operator_end + end);
            let (one, more) = rest.split_at(end);
            parts.push(one);
            rest = more.trim_start();
            if rest.is_empty() {
                break;
            }
        }
    }
    parts
}

fn comparison(text: &str) -> Option<Comparison> {
    let (operator, operand) = OPERATORS
        .iter()
        .find_map(|(sign, operator)| Some((Some(*operator), text.strip_prefix(sign)?)))
        .unwrap_or((None, text));
    let operand = operand.trim();
    let (operator, operand) = match (operator, wildcard(operand)) {
        // `^1.x` is `^1`.
        (Some(operator @ (Operator::Caret | Operator::Tilde)), Some(prefix)) => (operator, prefix),
        (Some(Operator::NotEqual), Some(prefix)) => (Operator::NotLike, prefix),
        (Some(Operator::Equal) | None, Some(prefix)) => (Operator::Like, prefix),
        (Some(_), Some(_)) => return None,
        (operator, None) => (operator.unwrap_or(Operator::Equal), operand),
    };
    let version = Version::parse(operand)?;
    let written = numbers_in(version.as_str());
    let too_vague = operator == Operator::Compatible && written < 2;
    let not_a_prefix =
        matches!(operator, Operator::Like | Operator::NotLike) && version.is_prerelease();
    (!too_vague && !not_a_prefix).then_some(Comparison {
        operator,
        version,
        written,
    })
}

/// 2 in `1.2`, `1!1.2b3` and `1.2-beta.3`.
fn numbers_in(version: &str) -> usize {
    let release = version.rsplit('!').next().unwrap_or_default();
    let end = release
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(release.len());
    let numbers = release.get(..end).unwrap_or_default().split('.');
    numbers.filter(|number| !number.is_empty()).count()
}

/// `1.2` of `1.2.*`, `1.2.x` and `1.2.x.x`.
fn wildcard(text: &str) -> Option<&str> {
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

impl Wanted {
    fn names_prerelease(&self) -> bool {
        match self {
            Self::Any => false,
            Self::Exact(_, version) => version.as_ref().is_some_and(Version::is_prerelease),
            Self::All(parts) => parts.iter().any(|part| part.version.is_prerelease()),
        }
    }

    fn is_text(&self, text: &str) -> bool {
        match self {
            Self::Exact(wanted, _) => without_v(text.trim()) == wanted,
            Self::Any | Self::All(_) => false,
        }
    }

    fn fits(&self, version: Option<&Version>) -> bool {
        match (self, version) {
            (Self::Any, _) => true,
            (_, None) | (Self::Exact(_, None), _) => false,
            (Self::Exact(_, Some(wanted)), Some(version)) => equal(version, wanted),
            (Self::All(parts), Some(version)) => parts.iter().all(|part| part.holds(version)),
        }
    }
}

/// What follows `+` matters only if it was asked for.
fn equal(version: &Version, wanted: &Version) -> bool {
    version.public == wanted.public && (wanted.local.is_empty() || version.local == wanted.local)
}

impl Comparison {
    fn holds(&self, version: &Version) -> bool {
        let (this, bound) = (&version.public, &self.version.public);
        match self.operator {
            Operator::Equal => equal(version, &self.version),
            Operator::NotEqual => !equal(version, &self.version),
            Operator::Like => self.shares(this, self.written),
            Operator::NotLike => !self.shares(this, self.written),
            Operator::AtLeast => this >= bound,
            Operator::AtMost => this <= bound,
            // 1.0.post1 is a 1.0 that was packed again, not a later one.
            Operator::Above => {
                this > bound && (bound.post.is_some() || this.post.is_none() || !same(this, bound))
            }
            // 2.0b1 is below 2.0, and not what `<2.0` asks for.
            Operator::Below => this < bound && (self.version.is_prerelease() || !same(this, bound)),
            Operator::Caret => this >= bound && self.shares(this, self.significant()),
            Operator::Tilde => this >= bound && self.shares(this, self.written.min(2)),
            Operator::Compatible => this >= bound && self.shares(this, self.written - 1),
        }
    }

    /// Whether the first numbers are the same.
    fn shares(&self, other: &Public, numbers: usize) -> bool {
        let number = |public: &Public, place| public.release.get(place).copied().unwrap_or(0);
        let bound = &self.version.public;
        other.epoch == bound.epoch
            && (0..numbers).all(|place| number(other, place) == number(bound, place))
    }

    /// Numbers that `^` holds fast: those to the first that is not 0, and all if there is none.
    fn significant(&self) -> usize {
        let release = &self.version.public.release;
        let zeros = release.iter().take_while(|number| **number == 0).count();
        if release.is_empty() {
            self.written
        } else {
            zeros + 1
        }
    }
}

fn same(a: &Public, b: &Public) -> bool {
    a.release_only() == b.release_only()
}
