//! Packages that are added to a skill, as needs that an image or the skill's environment has to meet.

use crate::skills::preflight::{Need, NeedKind};
use crate::skills::{AddedPackages, Severity};

/// Place that findings about these packages name.
const SOURCE: &str = "added packages";

/// Returns the needs of a skill and those of the packages that are added to it, which count as if the skill stated them.
pub(super) fn with_added(needs: &[Need], added: &AddedPackages) -> Vec<Need> {
    let python = added.python_names();
    let python = python.map(|name| (NeedKind::PythonPackage, name));
    let node = added.node.keys();
    let node = node.map(|name| (NeedKind::NodePackage, name.clone()));
    let added = python.chain(node).map(|(kind, name)| Need {
        kind,
        names: vec![name],
        severity: Severity::Error,
        source: SOURCE.to_owned(),
    });
    needs.iter().cloned().chain(added).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_packages_are_needed_like_stated_ones() {
        let mut added = AddedPackages::default();
        for text in ["Ruamel_yaml[jinja2]>=0.17,<1", "simpy", "npm:@s/x@^1"] {
            added.add(text).expect("valid");
        }
        let needs = with_added(&[], &added);
        let found = needs
            .iter()
            .map(|need| (need.kind, need.severity, need.names.join(",")));
        let expected = [
            (NeedKind::PythonPackage, "ruamel-yaml"),
            (NeedKind::PythonPackage, "simpy"),
            (NeedKind::NodePackage, "@s/x"),
        ];
        let expected = expected.map(|(kind, name)| (kind, Severity::Error, name.to_owned()));
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }
}
