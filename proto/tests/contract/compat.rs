//! Compares the protobuf API with golden files of one line per field, enum value, rpc and option of a file, so that every
//! change of the API, and of the role that an rpc requires, is a visible diff. After the first release, lines may only be
//! added.

use std::collections::BTreeSet;
use std::path::PathBuf;

use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    FileDescriptorSet, FileOptions, ServiceDescriptorProto,
};
use skilld_proto::find_method;

use crate::methods::role_name;

/// Returns the descriptors of all files of a package.
fn package_files(package: &str) -> Vec<FileDescriptorProto> {
    let set = FileDescriptorSet::decode(skilld_proto::ALL_DESCRIPTORS).expect("decodes");
    let files = set.file.into_iter();
    files.filter(|file| file.package() == package).collect()
}

/// Returns one line per message, field, enum value, rpc and file option of a package.
fn api_lines(package: &str) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for file in package_files(package) {
        if let Some(options) = &file.options {
            lines.extend(option_lines(file.name(), options));
        }
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

/// Returns one line per option of a file on which generated code depends.
fn option_lines(file: &str, options: &FileOptions) -> Vec<String> {
    let named = [
        ("csharp_namespace", &options.csharp_namespace),
        ("go_package", &options.go_package),
        ("java_outer_classname", &options.java_outer_classname),
        ("java_package", &options.java_package),
        ("objc_class_prefix", &options.objc_class_prefix),
        ("php_class_prefix", &options.php_class_prefix),
        ("php_metadata_namespace", &options.php_metadata_namespace),
        ("php_namespace", &options.php_namespace),
        ("ruby_package", &options.ruby_package),
        ("swift_prefix", &options.swift_prefix),
    ];
    let line = |option: &str, value: String| format!("{file} {option} = {value}");
    let texts = named.into_iter().filter_map(|(option, value)| {
        let value = value.as_deref()?;
        Some(line(option, format!("{value:?}")))
    });
    let multiple = options.java_multiple_files;
    let multiple = multiple.map(|value| line("java_multiple_files", value.to_string()));
    texts.chain(multiple).collect()
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
        let path = format!("/{package}.{}/{}", service.name(), method.name());
        // The guest's rpcs have no roles.
        let access = find_method(&path)
            .map(|method| format!(" role {} effect {:?}", role_name(method), method.effect));
        lines.insert(format!(
            "{package}.{}.{}({}) returns ({}){}",
            service.name(),
            method.name(),
            side(method.client_streaming(), method.input_type()),
            side(method.server_streaming(), method.output_type()),
            access.unwrap_or_default(),
        ));
    }
}

/// Returns the lines that only one of two lists has, those of the first with `-` and those of the second with `+`.
fn diff_lines(golden: &BTreeSet<String>, now: &BTreeSet<String>) -> String {
    let gone = golden.difference(now).map(|line| format!("- {line}\n"));
    let new = now.difference(golden).map(|line| format!("+ {line}\n"));
    gone.chain(new).collect()
}

/// Returns the golden file of a package.
fn golden_path(package: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(format!("{package}.txt"))
}

fn read_golden_lines(package: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(golden_path(package)).unwrap_or_default();
    text.lines().map(ToOwned::to_owned).collect()
}

/// Compares a package with its golden file, or rewrites the file if UPDATE_GOLDEN is set.
fn check_golden_file(package: &str) {
    let now = api_lines(package);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        let text: String = now.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(golden_path(package), text).expect("writes");
        return;
    }
    let diff = diff_lines(&read_golden_lines(package), &now);
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
fn a_lowered_role_is_a_change_of_the_golden_file() {
    let golden = api_lines("skilld.v1");
    let lower = |line: &String| {
        let is_drain = line.starts_with("skilld.v1.AdminService.Drain(");
        line.replace(
            "role ADMIN",
            if is_drain { "role USER" } else { "role ADMIN" },
        )
    };
    let now = golden.iter().map(lower).collect();
    let call =
        "skilld.v1.AdminService.Drain(skilld.v1.DrainRequest) returns (skilld.v1.DrainResponse)";
    assert_eq!(
        diff_lines(&golden, &now),
        format!("- {call} role ADMIN effect Release\n+ {call} role USER effect Release\n")
    );
}

#[test]
fn the_api_has_no_extensions() {
    for package in ["skilld.v1", "skilld.guest.v1"] {
        for file in package_files(package) {
            assert_eq!(file.extension, [], "{}", file.name());
            // What options of our own would extend.
            let options = "google/protobuf/descriptor.proto".to_owned();
            assert!(!file.dependency.contains(&options), "{}", file.name());
            for message in &file.message_type {
                let ranges = &message.extension_range;
                assert!(
                    message.extension.is_empty() && ranges.is_empty(),
                    "{}",
                    message.name()
                );
            }
        }
    }
}

/// Returns the name of the text in field 1 of a message, or in field 1 of the message there; the audit log reads it.
fn first_text<'a>(files: &'a [FileDescriptorProto], type_name: &str) -> &'a str {
    let name = type_name.rsplit('.').next().unwrap_or(type_name);
    let mut messages = files.iter().flat_map(|file| &file.message_type);
    let message = messages.find(|message| message.name() == name);
    let message = message.unwrap_or_else(|| panic!("{type_name} is not in the package"));
    let field = message.field.iter().find(|field| field.number() == 1);
    let field = field.unwrap_or_else(|| panic!("{type_name} has no field 1"));
    match field.r#type() {
        Type::Message => first_text(files, field.type_name()),
        _ => field.name(),
    }
}

#[test]
fn requests_for_a_workspace_name_it_in_field_1() {
    let files = package_files("skilld.v1");
    let mut checked = 0;
    for service in files.iter().flat_map(|file| &file.service) {
        if !["WorkspaceService", "ExecService", "FileService"].contains(&service.name()) {
            continue;
        }
        let methods = service.method.iter();
        for method in methods.filter(|method| method.name() != "ListWorkspaces") {
            let expected: &[&str] = match method.name() {
                "CreateWorkspace" => &["workspace_id"],
                _ => &["workspace", "name", "parent"],
            };
            let field = first_text(&files, method.input_type());
            assert!(
                expected.contains(&field),
                "field 1 of {} is {field:?}",
                method.input_type()
            );
            checked += 1;
        }
    }
    assert_eq!(checked, 23, "rpcs of a workspace");
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
