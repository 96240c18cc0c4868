//! Checks that the code which generators make of the API has no name twice.

use std::collections::BTreeSet;

use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, FileDescriptorProto, FileOptions};

use crate::api_names::public_files;
use crate::generated_members::find_member_collisions;
use crate::generated_types::find_type_collisions;
use crate::samples::{enumeration, field, message, message_with_oneof, repeated, service};

/// Returns the collisions of a message and the messages in it.
fn find_in_message(scope: &str, message: &DescriptorProto, lines: &mut BTreeSet<String>) {
    let place = format!("{scope}{}", message.name());
    lines.extend(find_member_collisions(&place, message));
    for nested in &message.nested_type {
        find_in_message(&format!("{place}."), nested, lines);
    }
}

#[test]
fn no_message_leads_to_two_members_of_one_name() {
    let mut lines = BTreeSet::new();
    for message in public_files().iter().flat_map(|file| &file.message_type) {
        find_in_message("", message, &mut lines);
    }
    assert!(lines.is_empty(), "rename one of the fields: {lines:#?}");
}

#[test]
fn no_two_types_of_the_package_lead_to_one_name() {
    let lines = find_type_collisions(&public_files());
    assert!(lines.is_empty(), "rename one of them: {lines:#?}");
}

/// Checks that a message has exactly these collisions.
fn check_members(message: &DescriptorProto, expected: &[&str]) {
    let found = find_member_collisions("M", message);
    let expected: BTreeSet<String> = expected.iter().map(|line| (*line).to_owned()).collect();
    assert_eq!(found, expected);
}

#[test]
fn fields_that_make_one_member_of_java_are_found() {
    check_members(
        &message(
            "M",
            [
                field("path", Type::String),
                field("path_bytes", Type::Bytes),
            ],
        ),
        &[
            "Java M: getPathBytes of field path and field path_bytes",
            "Java M: setPathBytes of field path and field path_bytes",
        ],
    );
    check_members(
        &message(
            "M",
            [
                repeated("file", Type::Message),
                field("file_count", Type::Int32),
            ],
        ),
        &[
            "Java M: getFileCount of field file and field file_count",
            "Java M: setFileCount of field file and field file_count",
        ],
    );
    check_members(
        &message(
            "M",
            [
                field("state", Type::Enum),
                field("state_value", Type::Int32),
            ],
        ),
        &[
            "Java M: getStateValue of field state and field state_value",
            "Java M: setStateValue of field state and field state_value",
        ],
    );
}

#[test]
fn fields_that_make_one_member_of_cpp_are_found() {
    check_members(
        &message(
            "M",
            [
                field("header", Type::Message),
                field("has_header", Type::Bool),
            ],
        ),
        &[
            "Cpp M: has_header of field has_header and field header",
            "JavaScript M: hasHeader of field has_header and field header",
            "ObjectiveC M: hasHeader of field has_header and field header",
            "Swift M: hasHeader of field has_header and field header",
        ],
    );
    check_members(
        &message(
            "M",
            [
                repeated("entry", Type::Int64),
                field("entry_size", Type::Int64),
            ],
        ),
        &["Cpp M: entry_size of field entry and field entry_size"],
    );
    check_members(
        &message(
            "M",
            [field("note", Type::String), field("clear_note", Type::Bool)],
        ),
        &[
            "Cpp M: clear_note of field clear_note and field note",
            "JavaScript M: clearNote of field clear_note and field note",
        ],
    );
}

#[test]
fn fields_that_differ_only_in_underscores_are_found() {
    let found = find_member_collisions(
        "M",
        &message(
            "M",
            [
                field("sha_256", Type::String),
                field("sha256", Type::String),
            ],
        ),
    );
    for language in ["CSharp", "Go", "Java", "JavaScript", "Php", "Swift"] {
        assert!(
            found.iter().any(|line| line.starts_with(language)),
            "{language}: {found:#?}"
        );
    }
}

#[test]
fn a_oneof_that_is_called_like_a_field_is_found() {
    let mut sample = message_with_oneof("M", "event", [field("output", Type::Message)]);
    sample.field.push(field("event_case", Type::Int32));
    check_members(
        &sample,
        &[
            "Cpp M: event_case of field event_case and oneof event",
            "CSharp M: EventCase of field event_case and oneof event",
            "Java M: getEventCase of field event_case and oneof event",
            "JavaScript M: getEventCase of field event_case and oneof event",
        ],
    );
    let sample = message_with_oneof("M", "content", [field("content", Type::String)]);
    let found = find_member_collisions("M", &sample);
    for language in ["Go", "JavaScript", "Php", "Ruby", "Swift"] {
        assert!(
            found.iter().any(|line| line.starts_with(language)),
            "{language}: {found:#?}"
        );
    }
}

#[test]
fn a_field_that_is_called_like_its_message_is_found() {
    check_members(
        &message("Artifact", [field("artifact", Type::String)]),
        &["CSharp M: Artifact of field artifact and the message itself"],
    );
}

#[test]
fn a_field_that_hides_a_type_of_python_is_found() {
    check_members(
        &message(
            "M",
            [field("bytes", Type::Int64), field("data", Type::Bytes)],
        ),
        &["Python M: field bytes hides the type of another field"],
    );
}

#[test]
fn types_that_lead_to_one_name_are_found() {
    let mut parent = message_with_oneof("ExecEvent", "event", [field("output", Type::Message)]);
    parent.nested_type.push(message("Output", []));
    let first = FileDescriptorProto {
        name: Some("exec.proto".to_owned()),
        message_type: vec![
            parent,
            message("ExecProto", []),
            message("ExecserviceGrpc", []),
        ],
        enum_type: vec![enumeration("OnFull", ["STATE_READY"])],
        service: vec![service("ExecService", ["RunExec"])],
        options: Some(FileOptions {
            java_outer_classname: Some("ExecProto".to_owned()),
            ..FileOptions::default()
        }),
        ..FileDescriptorProto::default()
    };
    let second = FileDescriptorProto {
        message_type: vec![message("ONFULL", []), message("NewExecServiceClient", [])],
        ..FileDescriptorProto::default()
    };
    let found = find_type_collisions(&[first, second]);
    let expected = [
        "Go: ExecEvent_Output of field ExecEvent.output and message ExecEvent_Output",
        "Go: NewExecServiceClient of message NewExecServiceClient and service ExecService",
        "Java: execproto of file exec.proto and message ExecProto",
        "Java: execprotokt of file exec.proto and message ExecProto",
        "Java: execservicegrpc of message ExecserviceGrpc and service ExecService",
        "Java: execservicegrpckt of message ExecserviceGrpc and service ExecService",
        "Java: onfull of enum OnFull and message ONFULL",
        "any case: onfull of enum OnFull and message ONFULL",
    ];
    assert_eq!(found, expected.map(str::to_owned).into());
}
