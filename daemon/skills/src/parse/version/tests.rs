//! Tables of versions and specifiers, and properties of both.

use proptest::prelude::*;

use super::*;

fn chosen<'a>(registered: &[&'a str], specifier: &str) -> Option<&'a str> {
    let specifier = Specifier::parse(specifier).expect("a specifier");
    let place = specifier.choose(registered.iter().copied())?;
    Some(registered[place])
}

#[test]
fn versions_stand_in_one_order() {
    let sorted = [
        "",
        "abc",
        "0.9",
        "1.0.dev1",
        "1.0.0-SNAPSHOT",
        "1.0.0-alpha",
        "1.0a1",
        "1.0.0-alpha.2",
        "1.0b1",
        "1.0.0-next.1",
        "1.0rc1",
        "1",
        "1.0.0+x",
        "1.0.post1",
        "1.2",
        "1.9.0",
        "v1.10.0",
        "2.0.0-1",
        "2.0.0",
        "2024.1.2",
        "1!0.1",
    ];
    for (place, low) in sorted.iter().enumerate() {
        for high in &sorted[place + 1..] {
            assert_eq!(compare_versions(low, high), Ordering::Less, "{low} {high}");
            assert_eq!(
                compare_versions(high, low),
                Ordering::Greater,
                "{high} {low}"
            );
        }
    }
}

#[test]
fn text_that_is_no_version_is_none() {
    for text in [
        "",
        "abc",
        "v",
        "latest",
        "1..2",
        "1.0.0-",
        "99999999999999999999",
        "1 2",
        "-1",
        "1.0+",
        "1.0-é",
        ".",
    ] {
        assert_eq!(Version::parse(text), None, "{text:?}");
    }
    assert_eq!(Version::parse(&"1".repeat(TEXT_BYTES_MAX + 1)), None);
}

/// Registered, asked, chosen.
const CHOICES: &[(&[&str], &str, Option<&str>)] = &[
    // What sherma does, and what it should.
    (&["1.0.0", "1.9.0", "1.10.0"], "*", Some("1.10.0")),
    (&["1.0.0", "1.9.0", "1.10.0"], "latest", Some("1.10.0")),
    (&["1.0.0", "1.9.0", "1.10.0"], "", Some("1.10.0")),
    (&["1.0.0", "2.0.0b1"], "*", Some("1.0.0")),
    (&["2.0.0b1", "2.0.0a1"], "*", Some("2.0.0b1")),
    (&["1.0.0", "2.0.0b1"], ">=2.0.0a1", Some("2.0.0b1")),
    (&["1.0.0"], "1.0", Some("1.0.0")),
    (&["1.0.0"], "~=1.0", Some("1.0.0")),
    (&["1.0.0"], "==1.*", Some("1.0.0")),
    (&["1.0.0"], ">=1.0", Some("1.0.0")),
    (&["1.0.0"], "^1.0", Some("1.0.0")),
    (&["1.0.0"], "v1.0.0", Some("1.0.0")),
    (&["1.0.0", "1.0.0-beta"], "1.0.0-beta", Some("1.0.0-beta")),
    (&["1.0.0"], "1.0.0-beta", None),
    (&["1.0.0+x", "1.0.0"], "==1.0.0", Some("1.0.0+x")),
    (&["1.0.0+x", "1.0.0"], "1.0.0", Some("1.0.0")),
    (&["1.0.0", ""], "==2.0", None),
    (&["abc", "1.0"], "*", Some("1.0")),
    (&["abc", "1.0"], "^1", Some("1.0")),
    (&["abc", "1.0"], "abc", Some("abc")),
    (&["", "abc"], "*", Some("")),
    (&[""], "latest", Some("")),
    (&[], "*", None),
    // Exact.
    (&["1.2.3"], "1.2", None),
    (&["v1.2.0"], "1.2", Some("v1.2.0")),
    (&["1.2.0", "1.2"], "1.2", Some("1.2")),
    (&["1.2.0", "1.2.0.0"], "v1.2", Some("1.2.0")),
    (&["1.0", "1.0.0"], "*", Some("1.0")),
    // Ranges as npm and Cargo write them.
    (&["1.1.9", "1.2.0", "1.9.9", "2.0.0"], "^1.2", Some("1.9.9")),
    (&["0.2.3", "0.2.9", "0.3.0"], "^0.2.3", Some("0.2.9")),
    (&["0.0.3", "0.0.4"], "^0.0.3", Some("0.0.3")),
    (&["0.0.3", "0.1.0"], "^0.0", Some("0.0.3")),
    (&["0.9.0", "1.0.0"], "^0", Some("0.9.0")),
    (&["1.9.0", "2.0.0-rc.1"], "^1.2", Some("1.9.0")),
    (&["2.0.0-rc.1"], "^1.2", None),
    (&["1.2.2", "1.2.9", "1.3.0"], "~1.2.3", Some("1.2.9")),
    (&["1.2.9", "1.3.0"], "~1.2", Some("1.2.9")),
    (&["1.9.0", "2.0.0"], "~1", Some("1.9.0")),
    (&["0.9", "1.0", "2.9", "3.0"], ">=1, <3", Some("2.9")),
    (&["0.9", "1.0", "2.9", "3.0"], ">= 1 < 3", Some("2.9")),
    (&["2.9", "3.0.0-alpha.1"], "<3", Some("2.9")),
    (&["3.0.0-alpha.1"], "<3", None),
    (&["1.0.0", "1.9.0", "2.0.0"], "1.x", Some("1.9.0")),
    (&["1.2.7", "1.3.0"], "1.2.*", Some("1.2.7")),
    (&["1.2.7", "2.3.0"], "1.x.x", Some("1.2.7")),
    (&["1.2.3", "1.2.4"], "=1.2.3", Some("1.2.3")),
    (&["1.5.0"], "^1.x", Some("1.5.0")),
    // As Python writes them.
    (&["1.2.0", "1.2.1"], "==1.2", Some("1.2.0")),
    (&["1.3", "1.4.1", "1.9", "2.0"], "~=1.4", Some("1.9")),
    (&["1.4.1", "1.4.9", "1.5"], "~=1.4.2", Some("1.4.9")),
    (&["1.9", "2.0"], "!=2.0", Some("1.9")),
    (&["1.9", "2.0", "2.1"], "!=2.*", Some("1.9")),
    (&["1.0", "1.5", "2.0"], ">=1.0,<2", Some("1.5")),
    (&["1.7", "1.7.post1"], ">1.7", None),
    (&["1.7", "1.7.1"], ">1.7", Some("1.7.1")),
    (&["1.7+x"], "<=1.7", Some("1.7+x")),
    (&["1!1.0", "2.0"], "==1!1.0", Some("1!1.0")),
    (&["1.0", "1.1"], "===1.0", Some("1.0")),
];

#[test]
fn the_highest_version_that_fits_is_chosen() {
    for (registered, asked, expected) in CHOICES {
        assert_eq!(
            chosen(registered, asked),
            *expected,
            "{asked:?} of {registered:?}"
        );
    }
}

#[test]
fn an_invalid_specifier_is_an_error_that_names_the_forms() {
    let long = "1".repeat(TEXT_BYTES_MAX + 1);
    let many = vec![">=1"; 17].join(",");
    for text in [
        "^",
        ">=",
        "^abc",
        "1.2 - 2.0",
        "1 || 2",
        ">=1,",
        ",",
        "~=1",
        ">=1.*",
        "==1.0b1.*",
        "a/b",
        "1.2.3é",
        "1\n2",
        "!",
        "*.1",
        "sha256:",
        &long,
        &many,
    ] {
        let error = Specifier::parse(text).expect_err(text).to_string();
        for form in ["1.2.3", "^1.2", "~=1.4", "latest"] {
            assert!(error.contains(form), "{error}");
        }
        assert!(error.len() < 600, "{}", error.len());
    }
}

fn versions() -> impl Strategy<Value = String> {
    "v?[0-3](\\.[0-3]){0,3}(-?(a|b|rc|dev|post)[0-2]|-(alpha|next)\\.[0-2])?(\\+[a-c1-3]{1,2})?"
}

proptest! {
    #[test]
    fn the_order_is_total(a in versions(), b in versions(), c in versions()) {
        prop_assert_eq!(compare_versions(&a, &b), compare_versions(&b, &a).reverse());
        if compare_versions(&a, &b).is_le() && compare_versions(&b, &c).is_le() {
            prop_assert!(compare_versions(&a, &c).is_le(), "{} {} {}", a, b, c);
        }
    }

    #[test]
    fn a_choice_is_the_highest_of_those_that_fit(all in proptest::collection::vec(versions(), 0..6), low in versions()) {
        let specifier = Specifier::parse(&format!(">={low}")).expect("a specifier");
        let place = specifier.choose(all.iter().map(String::as_str));
        let fits: Vec<&String> = all.iter().filter(|version| specifier.accepts(version)).collect();
        prop_assert_eq!(place.is_some(), !fits.is_empty());
        if let Some(place) = place {
            let of = |text: &str| Version::parse(text).expect("a version");
            let rank = |version: &Version| {
                let meant = !version.is_prerelease() || of(&low).is_prerelease();
                (meant, version.public.clone(), version.local.clone())
            };
            let chosen = rank(&of(&all[place]));
            for other in fits {
                prop_assert!(rank(&of(other)) <= chosen, "{} of {:?}", all[place], all);
            }
        }
    }

    #[test]
    fn nothing_panics(text in "[0-9.*^~<>=!, xabv+-]{0,40}", version in "\\PC{0,30}") {
        if let Ok(specifier) = Specifier::parse(&text) {
            let _ = specifier.choose([version.as_str(), text.as_str()]);
        }
        let _ = Version::parse(&version);
    }
}
