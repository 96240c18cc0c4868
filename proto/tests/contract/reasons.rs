//! Checks that the table in docs/README.md lists every error reason of the API once, and no other.

use std::path::Path;

use prost::Message;
use prost_types::FileDescriptorSet;

/// Returns the values of `skilld.v1.ErrorReason` without their prefix, sorted.
fn list_api_reasons() -> Vec<String> {
    let set = FileDescriptorSet::decode(skilld_proto::ALL_DESCRIPTORS).expect("decodes");
    let files = set.file.iter().filter(|file| file.package() == "skilld.v1");
    let mut enums = files.flat_map(|file| &file.enum_type);
    let reasons = enums.find(|kind| kind.name() == "ErrorReason");
    let values = &reasons.expect("skilld.v1 has the enum ErrorReason").value;
    let mut names: Vec<_> = values
        .iter()
        .filter_map(|value| value.name().strip_prefix("ERROR_REASON_"))
        .filter(|name| *name != "UNSPECIFIED")
        .map(str::to_owned)
        .collect();
    names.sort();
    names
}

/// Returns the words in the first cells of the section "Error reasons", sorted.
fn list_documented_reasons() -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/README.md");
    let text = std::fs::read_to_string(path).expect("docs/README.md exists");
    let (_, rest) = text
        .split_once("\n## Error reasons\n")
        .expect("docs/README.md has the section");
    let section = rest.split("\n## ").next().unwrap_or_default();
    let cells = section.lines().filter_map(|line| {
        let (name, _) = line.strip_prefix("| `")?.split_once('`')?;
        Some(name.to_owned())
    });
    let mut names: Vec<_> = cells.collect();
    names.sort();
    names
}

#[test]
fn every_error_reason_is_documented_once_and_no_other() {
    let reasons = list_api_reasons();
    assert!(reasons.len() > 30, "{reasons:?}");
    assert_eq!(list_documented_reasons(), reasons);
}
