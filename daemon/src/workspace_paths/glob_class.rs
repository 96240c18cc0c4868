//! Character classes of a glob, such as `[a-z]` and `[!a]`, restricted to one character of one path component. globset
//! alone lets `[!a]` and `[+-0]` match a slash, and treats a character outside ASCII as its single bytes.

/// Rewrites the character classes of a glob so that none matches a slash.
///
/// # Errors
///
/// A message that describes the invalid class: it contains a slash or a character outside ASCII.
pub(super) fn exclude_slash(glob: &str) -> Result<String, &'static str> {
    let mut text = String::with_capacity(glob.len() + 8);
    let mut rest = glob;
    while let Some(at) = rest.find(['[', '\\']) {
        let (before, special) = rest.split_at(at);
        text.push_str(before);
        let escaped = special.starts_with('\\');
        let end = if escaped {
            special.chars().take(2).map(char::len_utf8).sum()
        } else {
            class_end(special)
        };
        let (special, after) = special.split_at(end);
        if escaped {
            text.push_str(special);
        } else {
            append_class_without_slash(special, &mut text)?;
        }
        rest = after;
    }
    text.push_str(rest);
    Ok(text)
}

/// Returns the length of the character class at the start of a glob, including its brackets. Without a closing bracket
/// it is the length of the whole text.
fn class_end(class: &str) -> usize {
    let inside = class.get(1..).unwrap_or_default();
    let body = inside.trim_start_matches(['!', '^']);
    // Only the first of these characters negates the class.
    let negation = usize::from(body.len() < inside.len());
    let first = 1 + negation;
    // A bracket in the first position is an ordinary character.
    let skip = class.get(first..).and_then(|body| body.chars().next());
    let from = first + skip.map_or(0, char::len_utf8);
    let close = class.get(from..).and_then(|rest| rest.find(']'));
    close.map_or(class.len(), |close| from + close + 1)
}

/// Appends a glob's character class to `rewritten_glob`, rewritten so that it does not match a slash.
fn append_class_without_slash(
    class: &str,
    rewritten_glob: &mut String,
) -> Result<(), &'static str> {
    let Some(inside) = class
        .strip_prefix('[')
        .and_then(|class| class.strip_suffix(']'))
    else {
        // globset reports that the class is not closed.
        rewritten_glob.push_str(class);
        return Ok(());
    };
    if !inside.is_ascii() {
        return Err("has a class with a character outside ASCII: write {ä,ö} instead of [äö]");
    }
    let (negation, body) = match inside.strip_prefix(['!', '^']) {
        Some(body) => ("!", body),
        None => ("", inside),
    };
    let spans = |(from, to): &(char, char)| *from <= '/' && '/' <= *to;
    if character_ranges(body).iter().any(spans) {
        return Err(
            "has a class that contains a slash, which no file name contains: write {a/b,c} instead",
        );
    }
    rewritten_glob.push('[');
    rewritten_glob.push_str(negation);
    match (negation, body.strip_suffix('-')) {
        ("", _) => rewritten_glob.push_str(body),
        // A dash is an ordinary character only in the last position.
        (_, Some(others)) if !others.is_empty() => {
            rewritten_glob.push_str(others);
            rewritten_glob.push_str("/-");
        }
        _ => {
            rewritten_glob.push_str(body);
            rewritten_glob.push('/');
        }
    }
    rewritten_glob.push(']');
    Ok(())
}

/// Returns the character ranges of a class body, by globset's rules.
fn character_ranges(body: &str) -> Vec<(char, char)> {
    let mut ranges: Vec<(char, char)> = Vec::new();
    let mut open = false;
    for c in body.chars() {
        match (c, ranges.last_mut()) {
            (to, Some(last)) if open => {
                last.1 = to;
                open = false;
            }
            ('-', Some(_)) => open = true,
            (single, _) => ranges.push((single, single)),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn classes_are_rewritten_to_match_no_slash() {
        for (glob, expected) in [
            ("out/[a-c]", Some("out/[a-c]")),
            ("out/[!a-c]x", Some("out/[!a-c/]x")),
            ("out/[^a]", Some("out/[!a/]")),
            ("out/[!]]", Some("out/[!]/]")),
            ("out/[!a-]", Some("out/[!a/-]")),
            ("out/[!-]", Some("out/[!-/]")),
            ("out/[]a]", Some("out/[]a]")),
            ("out/[0-9][0-9]", Some("out/[0-9][0-9]")),
            (r"out/\[!a]", Some(r"out/\[!a]")),
            ("out/[a", Some("out/[a")),
            ("out/ü[!a]", Some("out/ü[!a/]")),
            ("out/[a/b]", None),
            ("out/[+-0]", None),
            ("out/[!/]", None),
            ("out/[ä]", None),
        ] {
            assert_eq!(exclude_slash(glob).ok().as_deref(), expected, "{glob}");
        }
    }

    proptest! {
        #[test]
        fn rewritten_class_never_matches_a_slash(body in "[]!^a/.0\\-]{1,6}") {
            let Ok(glob) = exclude_slash(&format!("x[{body}y")) else { return Ok(()); };
            let built = globset::GlobBuilder::new(&glob).literal_separator(true).build();
            let Ok(built) = built else { return Ok(()); };
            let matcher = built.compile_matcher();
            let slash = body.rsplit(']').next().unwrap_or_default();
            // A slash after the class may match; a slash in the class may not.
            if !slash.contains('/') {
                prop_assert!(!matcher.is_match(format!("x/{slash}y")), "{glob}");
            }
        }
    }
}
