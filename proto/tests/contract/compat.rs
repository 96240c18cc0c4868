//! Compares the protobuf API with golden files of one line per field, enum value and rpc, so that every API change is a
//! visible diff. After the first release, lines may only be added.

use std::collections::BTreeSet;
use std::path::PathBuf;

use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    FileDescriptorSet, ServiceDescriptorProto,
};

/// Returns the descriptors of all files of a package.
fn package_files(package: &str) -> Vec<FileDescriptorProto> {
    let set = FileDescriptorSet::decode(skilld_proto::ALL_DESCRIPTORS).expect("decodes");
    let files = set.file.into_iter();
    files.filter(|file| file.package() == package).collect()
}

/// Returns one line per message, field, enum value and rpc of a package.
fn api_lines(package: &str) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for file in package_files(package) {
        for message in &file.message_type {
            message_lines(package, message, &mut lines);
        }
        for kind in &file.enum_type {
            enum_lines(package, kind, &mut lines);
        }
        for service in &file.service {
            service_lines(package, service, &mut lines);
        }
    }
    lines
}

fn message_lines(scope: &str, message: &DescriptorProto, lines: &mut BTreeSet<String>) {
    let name = format!("{scope}.{}", message.name());
    lines.insert(format!("{name} message"));
    for field in &message.field {
        let number = field.number();
        let kind = field_type(message, field);
        lines.insert(format!("{name}.{} = {number} {kind}", field.name()));
    }
    let reserved = message.reserved_range.iter().map(|range| range.start());
    lines.extend(reserved.map(|number| format!("{name} reserves {number}")));
    let nested = message.nested_type.iter();
    for nested in nested.filter(|nested| !is_map_entry(nested)) {
        message_lines(&name, nested, lines);
    }
    for kind in &message.enum_type {
        enum_lines(&name, kind, lines);
    }
}

fn is_map_entry(message: &DescriptorProto) -> bool {
    let options = message.options.as_ref();
    options.is_some_and(|options| options.map_entry())
}

/// Returns the type of a field as written in a .proto file.
fn field_type(message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    let plain = plain_type(field);
    let entry = message.nested_type.iter().find(|nested| {
        is_map_entry(nested) && plain.ends_with(&format!("{}.{}", message.name(), nested.name()))
    });
    if let Some(entry) = entry {
        let types: Vec<_> = entry.field.iter().map(plain_type).collect();
        return format!("map<{}>", types.join(", "));
    }
    if field.label() == Label::Repeated {
        return format!("repeated {plain}");
    }
    if field.proto3_optional() {
        return format!("optional {plain}");
    }
    let oneof = field.oneof_index.and_then(|index| {
        let index = usize::try_from(index).expect("an index");
        message.oneof_decl.get(index)
    });
    match oneof {
        Some(oneof) => format!("{plain} oneof {}", oneof.name()),
        None => plain,
    }
}

fn plain_type(field: &FieldDescriptorProto) -> String {
    match field.r#type() {
        Type::Message | Type::Enum | Type::Group => {
            field.type_name().trim_start_matches('.').to_owned()
        }
        scalar => scalar
            .as_str_name()
            .trim_start_matches("TYPE_")
            .to_lowercase(),
    }
}

fn enum_lines(scope: &str, kind: &EnumDescriptorProto, lines: &mut BTreeSet<String>) {
    for value in &kind.value {
        let number = value.number();
        lines.insert(format!(
            "{scope}.{}.{} = {number}",
            kind.name(),
            value.name()
        ));
    }
}

fn service_lines(package: &str, service: &ServiceDescriptorProto, lines: &mut BTreeSet<String>) {
    for method in &service.method {
        let side = |streams: bool, name: &str| {
            let stream = if streams { "stream " } else { "" };
            format!("{stream}{}", name.trim_start_matches('.'))
        };
        lines.insert(format!(
            "{package}.{}.{}({}) returns ({})",
            service.name(),
            method.name(),
            side(method.client_streaming(), method.input_type()),
            side(method.server_streaming(), method.output_type()),
        ));
    }
}

/// Compares a package with its golden file, or rewrites the file if UPDATE_GOLDEN is set.
fn check_golden_file(package: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(format!("{package}.txt"));
    let now = api_lines(package);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        let text: String = now.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(&path, text).expect("writes");
        return;
    }
    let golden_text = std::fs::read_to_string(&path).unwrap_or_default();
    let golden: BTreeSet<String> = golden_text.lines().map(ToOwned::to_owned).collect();
    let gone = golden.difference(&now).map(|line| format!("- {line}\n"));
    let new = now.difference(&golden).map(|line| format!("+ {line}\n"));
    let diff: String = gone.chain(new).collect();
    assert!(
        diff.is_empty(),
        "the API of {package} changed:\n{diff}\
         A line with - breaks existing clients; it is allowed only before the first release.\n\
         To accept: UPDATE_GOLDEN=1 cargo test -p skilld-proto, and add a line to CHANGELOG.md"
    );
}

#[test]
fn public_api_matches_its_golden_file() {
    check_golden_file("skilld.v1");
}

#[test]
fn guest_protocol_matches_its_golden_file() {
    check_golden_file("skilld.guest.v1");
}

#[test]
fn requests_for_a_workspace_name_it_in_field_1() {
    let files = package_files("skilld.v1");
    let first = |input: &str| {
        let name = input.rsplit('.').next().unwrap_or(input);
        let request = files
            .iter()
            .flat_map(|file| &file.message_type)
            .find(|message| message.name() == name)
            .unwrap_or_else(|| panic!("{input} is not in the package"));
        let field = request.field.iter().find(|field| field.number() == 1);
        field
            .map(|field| field.name().to_owned())
            .unwrap_or_default()
    };
    let mut checked = 0;
    for service in files.iter().flat_map(|file| &file.service) {
        if !["WorkspaceService", "ExecService", "FileService"].contains(&service.name()) {
            continue;
        }
        for method in service
            .method
            .iter()
            .filter(|method| method.name() != "ListWorkspaces")
        {
            let field = first(method.input_type());
            assert!(
                field == "workspace" || field == "name",
                "field 1 of {} is {field:?}",
                method.input_type()
            );
            checked += 1;
        }
    }
    assert_eq!(checked, 22, "rpcs of a workspace");
}

#[test]
fn every_enum_begins_with_unspecified() {
    for package in ["skilld.v1", "skilld.guest.v1"] {
        for line in api_lines(package)
            .iter()
            .filter(|line| line.ends_with(" = 0"))
        {
            assert!(line.ends_with("_UNSPECIFIED = 0"), "{line}");
        }
    }
}
