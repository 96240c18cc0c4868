//! Paths and globs as clients write them: what comes out stays in the workspace, is bounded, and a path means the same
//! when it is written again.

use crate::error::{Error, Result};
use crate::paths::{
    COMPONENT_BYTES_MAX, DEPTH_MAX, PATH_BYTES_MAX, SKILL_PATH_BYTES_MAX, Scope, absolute, glob,
    in_skill, resolve, writable,
};

/// What a path may be relative to, and which variables it has.
const SCOPES: [Scope<'static>; 4] = [
    Scope {
        base: "",
        exec: None,
        skill: None,
    },
    Scope {
        base: "",
        exec: Some("e1"),
        skill: Some("csv-report"),
    },
    Scope {
        base: "skills/csv-report",
        exec: Some("e1"),
        skill: Some("csv-report"),
    },
    Scope {
        base: "work",
        exec: None,
        skill: None,
    },
];

/// A path or a glob after a byte that chooses what it is relative to.
pub fn paths(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else {
        return;
    };
    let Ok(text) = str::from_utf8(rest) else {
        return;
    };
    let scope = SCOPES.get(usize::from(*first) % SCOPES.len());
    let scope = scope.copied().unwrap_or_default();
    if let Some(path) = answered(resolve("path", text, scope)) {
        is_normal(&path);
        let long = path.split('/').any(|name| name.len() > COMPONENT_BYTES_MAX);
        assert!(!long, "{path:?} has a name that no file has");
        let again = resolve("path", &absolute(&path), scope).expect("it was one already");
        assert_eq!(again, path, "{text:?} is not stable");
        let skills = path.split('/').next() == Some("skills");
        assert_eq!(writable(&path).is_err(), skills, "{path:?}");
    }
    if let Some(path) = answered(in_skill("path", text)) {
        is_normal(&path);
        assert!(path.len() <= SKILL_PATH_BYTES_MAX, "{path:?} is too long");
        assert_eq!(in_skill("path", &path).expect("it was one"), path);
    }
    if let Some(pattern) = answered(glob("glob", text, scope)) {
        is_normal(&pattern);
        compiles(&pattern);
    }
}

/// A value, or `None` of a refusal that is the client's fault and says so briefly.
fn answered(result: Result<String>) -> Option<String> {
    match result {
        Ok(value) => Some(value),
        Err(
            error @ (Error::PathEscapes { .. } | Error::LeavesSkill { .. } | Error::Invalid(_)),
        ) => {
            assert!(error.to_string().len() <= 3 * PATH_BYTES_MAX, "{error}");
            None
        }
        Err(error) => panic!("{error} is not the client's fault"),
    }
}

fn is_normal(path: &str) {
    let components: Vec<&str> = path.split('/').filter(|_| !path.is_empty()).collect();
    assert!(
        path.len() <= PATH_BYTES_MAX && components.len() <= DEPTH_MAX,
        "{path:?} has no bound"
    );
    for component in components {
        assert!(
            !matches!(component, "" | "." | ".."),
            "{path:?} is not normal"
        );
        assert!(!component.contains('\0'), "{path:?} has a NUL");
    }
}

/// As the guest will do it.
fn compiles(pattern: &str) {
    let built = globset::GlobBuilder::new(pattern)
        .literal_separator(true)
        .backslash_escape(true)
        .empty_alternates(true)
        .build();
    assert!(built.is_ok(), "{pattern:?} is no glob: {built:?}");
}
