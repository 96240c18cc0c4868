//! Classes of a glob, `[a-z]`, `[!a]`: one character of one component. globset would let `[!a]` and `[+-0]` match a
//! slash, and takes a character that is not ASCII for its bytes.

/// A glob whose classes match no slash.
///
/// # Errors
/// What is wrong with a class.
pub(super) fn without_slash(glob: &str) -> Result<String, &'static str> {
    let mut text = String::with_capacity(glob.len() + 8);
    let mut rest = glob;
    while let Some(at) = rest.find(['[', '\\']) {
        let (before, special) = rest.split_at(at);
        text.push_str(before);
        let escaped = special.starts_with('\\');
        let end = if escaped {
            special.chars().take(2).map(char::len_utf8).sum()
        } else {
            end(special)
        };
        let (special, after) = special.split_at(end);
        if escaped {
            text.push_str(special);
        } else {
            class(special, &mut text)?;
        }
        rest = after;
    }
    text.push_str(rest);
    Ok(text)
}

/// Behind the bracket that closes a class; all of it if none does.
fn end(class: &str) -> usize {
    let inside = class.get(1..).unwrap_or_default();
    let body = inside.trim_start_matches(['!', '^']);
    // At most one of these negates.
    let negation = usize::from(body.len() < inside.len());
    let first = 1 + negation;
    // A bracket in the first place is a character like others.
    let skip = class.get(first..).and_then(|body| body.chars().next());
    let from = first + skip.map_or(0, char::len_utf8);
    let close = class.get(from..).and_then(|rest| rest.find(']'));
    close.map_or(class.len(), |close| from + close + 1)
}

fn class(class: &str, text: &mut String) -> Result<(), &'static str> {
    let Some(inside) = class
        .strip_prefix('[')
        .and_then(|class| class.strip_suffix(']'))
    else {
        // globset says that it is not closed.
        text.push_str(class);
        return Ok(());
    };
    if !inside.is_ascii() {
        return Err("has a class with a character that is not ASCII; write {ä,ö} instead of [äö]");
    }
    let (negation, body) = match inside.strip_prefix(['!', '^']) {
        Some(body) => ("!", body),
        None => ("", inside),
    };
    let spans = |(from, to): &(char, char)| *from <= '/' && '/' <= *to;
    if ranges(body).iter().any(spans) {
        return Err("has a class with a slash in it, which no name has; write {a/b,c} instead");
    }
    text.push('[');
    text.push_str(negation);
    match (negation, body.strip_suffix('-')) {
        ("", _) => text.push_str(body),
        // A dash is a character of its own only in the last place.
        (_, Some(others)) if !others.is_empty() => {
            text.push_str(others);
            text.push_str("/-");
        }
        _ => {
            text.push_str(body);
            text.push('/');
        }
    }
    text.push(']');
    Ok(())
}

/// As globset reads them.
fn ranges(body: &str) -> Vec<(char, char)> {
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
    fn a_class_matches_one_character_of_a_component() {
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
            assert_eq!(without_slash(glob).ok().as_deref(), expected, "{glob}");
        }
    }

    proptest! {
        #[test]
        fn no_class_matches_a_slash(body in "[]!^a/.0\\-]{1,6}") {
            let Ok(glob) = without_slash(&format!("x[{body}y")) else { return Ok(()); };
            let built = globset::GlobBuilder::new(&glob).literal_separator(true).build();
            let Ok(built) = built else { return Ok(()); };
            let matcher = built.compile_matcher();
            let slash = body.rsplit(']').next().unwrap_or_default();
            // Only what stands outside of the class may bring a slash.
            if !slash.contains('/') {
                prop_assert!(!matcher.is_match(format!("x/{slash}y")), "{glob}");
            }
        }
    }
}
