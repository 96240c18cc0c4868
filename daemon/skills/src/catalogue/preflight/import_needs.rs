//! Needs of the imports in Python and JavaScript source: modules or packages, and a network for those that connect. Pure.

use super::{NeedKind, network_signs, node_imports, python_requirements};

/// Maximum number of needs of the programs in one text; further ones are not reported.
const NEEDS_MAX: usize = 10_000;
/// Maximum number of names in one need.
pub(super) const NAMES_MAX: usize = 32;

/// Conclusion from a text: a kind, names of which any one suffices, and the line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConcludedNeed {
    pub(super) kind: NeedKind,
    pub(super) names: Vec<String>,
    pub(super) line: usize,
}

/// Returns `true` if a text has as many needs as are reported.
pub(super) fn is_full(found: &[ConcludedNeed]) -> bool {
    found.len() >= NEEDS_MAX
}

/// Adds needs of a text, up to the maximum number. A variable or a function is used often, and each use repeats all of
/// its needs.
pub(super) fn add_needs(
    found: &mut Vec<ConcludedNeed>,
    needs: impl IntoIterator<Item = ConcludedNeed>,
) {
    let left = NEEDS_MAX.saturating_sub(found.len());
    found.extend(needs.into_iter().take(left));
}

/// Adds names of which any one suffices, up to the maximum number.
pub(super) fn add_names(need: &mut ConcludedNeed, names: impl IntoIterator<Item = String>) {
    let left = NAMES_MAX.saturating_sub(need.names.len());
    need.names.extend(names.into_iter().take(left));
}

/// Returns the needs of the imports of Python source whose first line has the number `line`.
pub(super) fn find_python_import_needs(source: &str, line: usize) -> Vec<ConcludedNeed> {
    let imports = python_requirements::find_imports(source).into_iter();
    let modules = imports.map(|import| ConcludedNeed {
        kind: NeedKind::PythonModule,
        names: import.names,
        line: line + import.line - 1,
    });
    with_networks(modules.collect(), source, network_signs::is_network_module)
}

/// Returns the needs of the imports of JavaScript source whose first line has the number `line`.
pub(super) fn find_node_import_needs(source: &str, line: usize) -> Vec<ConcludedNeed> {
    let imports = node_imports::find_imports(source).into_iter();
    let packages = imports.map(|import| ConcludedNeed {
        kind: NeedKind::NodePackage,
        names: import.names,
        line: line + import.line - 1,
    });
    with_networks(
        packages.collect(),
        source,
        network_signs::is_network_package,
    )
}

/// Adds a network for each import that exists to connect, unless the source only connects to the host itself.
fn with_networks(
    mut needs: Vec<ConcludedNeed>,
    source: &str,
    connects: fn(&str) -> bool,
) -> Vec<ConcludedNeed> {
    if network_signs::names_only_this_host(source) {
        return needs;
    }
    let is_network = |need: &&ConcludedNeed| match need.names.as_slice() {
        [name] => connects(name),
        _ => false,
    };
    let networks: Vec<ConcludedNeed> = needs.iter().filter(is_network).cloned().collect();
    needs.extend(networks.into_iter().map(|need| ConcludedNeed {
        kind: NeedKind::Network,
        ..need
    }));
    needs
}
