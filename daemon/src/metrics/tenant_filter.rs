//! Page of metrics as one tenant may see it.

/// Start of the label that names a tenant. Names of tenants have no character that is escaped.
const LABEL: &str = "tenant=\"";

/// Returns a page without the samples of other tenants.
pub(super) fn retain_tenant(page: &str, tenant: &str) -> String {
    let is_visible = |line: &&str| {
        let mut labels = line.match_indices(LABEL).map(|(at, _)| line.split_at(at));
        let named = labels.find(|(before, _)| before.ends_with(['{', ',']));
        let named = named.and_then(|(_, label)| label.split('"').nth(1));
        named.is_none_or(|named| named == tenant)
    };
    let lines = page.lines().filter(is_visible);
    lines.flat_map(|line| [line, "\n"]).collect()
}
