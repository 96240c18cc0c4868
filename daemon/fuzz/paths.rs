//! Fuzz target for paths and globs of clients. Resolved paths stay in the workspace, keep the limits, and resolve to
//! themselves.

use crate::error::{Error, Result};
use crate::workspace_paths::{
    COMPONENT_BYTES_MAX, DEPTH_MAX, PATH_BYTES_MAX, PathContext, SKILL_PATH_BYTES_MAX,
    absolute_path, check_writable, normalise_skill_path, resolve_glob, resolve_path,
};

/// Path scopes, of which the first byte of the data selects one.
const SCOPES: [PathContext<'static>; 4] = [
    PathContext {
        base: "",
        exec: None,
        skill: None,
    },
    PathContext {
        base: "",
        exec: Some("e1"),
        skill: Some("csv-report"),
    },
    PathContext {
        base: "skills/csv-report",
        exec: Some("e1"),
        skill: Some("csv-report"),
    },
    PathContext {
        base: "work",
        exec: None,
        skill: None,
    },
];

/// Resolves a path and a glob and checks the results. The first byte selects the scope.
pub fn paths(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else {
        return;
    };
    let Ok(text) = str::from_utf8(rest) else {
        return;
    };
    let scope = SCOPES.get(usize::from(*first) % SCOPES.len());
    let scope = scope.copied().unwrap_or_default();
    if let Some(path) = value_or_refusal(resolve_path("path", text, scope)) {
        check_normal(&path);
        let long = path.split('/').any(|name| name.len() > COMPONENT_BYTES_MAX);
        assert!(!long, "{path:?} has a name that no file has");
        let again = resolve_path("path", &absolute_path(&path), scope).expect("it was one already");
        assert_eq!(again, path, "{text:?} is not stable");
        let skills = path.split('/').next() == Some("skills");
        assert_eq!(check_writable(&path).is_err(), skills, "{path:?}");
    }
    if let Some(path) = value_or_refusal(normalise_skill_path("path", text)) {
        check_normal(&path);
        assert!(path.len() <= SKILL_PATH_BYTES_MAX, "{path:?} is too long");
        assert_eq!(
            normalise_skill_path("path", &path).expect("it was one"),
            path
        );
    }
    if let Some(pattern) = value_or_refusal(resolve_glob("glob", text, scope)) {
        check_normal(&pattern);
    }
}

/// Returns the value, or `None` for an error. Checks that the error is one for the client and that its text is short.
fn value_or_refusal(result: Result<String>) -> Option<String> {
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

/// Checks that a path is normalised and within the limits.
fn check_normal(path: &str) {
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
