//! Compares the published descriptors of the API, proto/skilld.binpb, with the .proto files.

use std::path::PathBuf;

use prost::Message;
use prost_types::FileDescriptorSet;

/// Returns the encoded descriptors of the API, of the files that it imports and of the details of errors, without
/// comments.
fn encode_descriptor_set() -> Vec<u8> {
    let mut set =
        FileDescriptorSet::decode(skilld_proto::v1::FILE_DESCRIPTOR_SET).expect("decodes");
    let details = FileDescriptorSet::decode(tonic_types::pb::FILE_DESCRIPTOR_SET).expect("decodes");
    for mut file in details.file {
        if file.package() == "google.rpc" {
            // tonic-types has it without the directory that other languages import it from.
            file.name = Some(format!("google/rpc/{}", file.name()));
        }
        if !set.file.iter().any(|known| known.name() == file.name()) {
            set.file.push(file);
        }
    }
    for file in &mut set.file {
        file.source_code_info = None;
    }
    set.encode_to_vec()
}

fn descriptor_set_path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("skilld.binpb")
}

#[test]
fn published_descriptors_are_those_of_the_proto_files() {
    let current = encode_descriptor_set();
    let path = descriptor_set_path();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, current).expect("writes");
        return;
    }
    let published = std::fs::read(&path).unwrap_or_default();
    assert!(
        published == current,
        "proto/skilld.binpb differs from the .proto files: UPDATE_GOLDEN=1 cargo test -p skilld-proto"
    );
}

#[test]
fn published_descriptors_need_no_other_file() {
    let bytes = encode_descriptor_set();
    let set = FileDescriptorSet::decode(bytes.as_slice()).expect("decodes");
    let mut known = Vec::new();
    for file in &set.file {
        let missing = file
            .dependency
            .iter()
            .find(|import| !known.contains(&import.as_str()));
        assert_eq!(
            missing,
            None,
            "{} comes before what it imports",
            file.name()
        );
        assert!(!file.name().starts_with("skilld/guest/"), "{}", file.name());
        known.push(file.name());
    }
}
