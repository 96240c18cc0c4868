//! Members that generators make of a message, in ten languages: two names that lead to one member break the code, or make
//! a generator rename one of them.

use std::collections::{BTreeMap, BTreeSet};

use prost_types::DescriptorProto;
use prost_types::field_descriptor_proto::Type;

use crate::api_names::{is_map_entry, list_oneofs};
use crate::generated_accessors::{FieldShape, LANGUAGES, Language, field_members, oneof_members};

/// Returns the collisions of a message's members, one line each.
pub fn find_member_collisions(place: &str, message: &DescriptorProto) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for language in LANGUAGES {
        let mut owners: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (member, owner) in list_members(language, message) {
            owners.entry(member).or_default().insert(owner);
        }
        let shared = owners.into_iter().filter(|(_, owners)| owners.len() > 1);
        lines.extend(shared.map(|(member, owners)| {
            let owners: Vec<String> = owners.into_iter().collect();
            format!("{language:?} {place}: {member} of {}", owners.join(" and "))
        }));
    }
    lines.extend(find_shadowed_types(place, message));
    lines
}

/// Returns the members of a message's class, each with the name that leads to it.
fn list_members(language: Language, message: &DescriptorProto) -> Vec<(String, String)> {
    let mut members = Vec::new();
    for field in &message.field {
        let shape = FieldShape::new(message, field);
        let owner = format!("field {}", field.name());
        let made = field_members(language, &shape);
        members.extend(made.into_iter().map(|member| (member, owner.clone())));
    }
    for (_, oneof) in list_oneofs(message) {
        let owner = format!("oneof {}", oneof.name());
        let made = oneof_members(language, oneof.name());
        members.extend(made.into_iter().map(|member| (member, owner.clone())));
    }
    for member in type_members(language, message) {
        let owner = format!("type or value {member}");
        members.push((member, owner));
    }
    if language == Language::CSharp {
        members.push((message.name().to_owned(), "the message itself".to_owned()));
    }
    members
}

/// Returns the names of nested types, and of nested values where they are members of the message.
fn type_members(language: Language, message: &DescriptorProto) -> Vec<String> {
    let nested = message
        .nested_type
        .iter()
        .filter(|nested| !is_map_entry(nested));
    let mut types: Vec<String> = nested.map(|nested| nested.name().to_owned()).collect();
    types.extend(message.enum_type.iter().map(|kind| kind.name().to_owned()));
    match language {
        Language::Cpp => {
            for kind in &message.enum_type {
                let ends = [
                    "IsValid",
                    "Name",
                    "Parse",
                    "MIN",
                    "MAX",
                    "ARRAYSIZE",
                    "descriptor",
                ];
                types.extend(ends.map(|end| format!("{}_{end}", kind.name())));
            }
            types.extend(list_nested_values(message));
        }
        Language::Python => types.extend(list_nested_values(message)),
        // Nested types are in a class of their own.
        Language::CSharp if types.is_empty() => {}
        Language::CSharp => types = vec!["Types".to_owned()],
        // Nested types are beside the message, not in it.
        Language::Go | Language::ObjectiveC | Language::Php => types.clear(),
        Language::Java | Language::JavaScript | Language::Ruby | Language::Swift => {}
    }
    types
}

fn list_nested_values(message: &DescriptorProto) -> impl Iterator<Item = String> {
    let values = message.enum_type.iter().flat_map(|kind| &kind.value);
    values.map(|value| value.name().to_owned())
}

/// Returns the fields that are called like a type of Python that another field of the message has. In the stubs that
/// protoc makes for type checkers, the field hides the type.
fn find_shadowed_types(place: &str, message: &DescriptorProto) -> BTreeSet<String> {
    let python_type = |kind: Type| match kind {
        Type::Bytes => "bytes",
        Type::String => "str",
        Type::Bool => "bool",
        Type::Double | Type::Float => "float",
        Type::Message | Type::Enum | Type::Group => "",
        _ => "int",
    };
    let types: BTreeSet<&str> = message
        .field
        .iter()
        .map(|field| python_type(field.r#type()))
        .collect();
    let hiding = message.field.iter().filter(|field| {
        types.contains(field.name()) && python_type(field.r#type()) != field.name()
    });
    hiding
        .map(|field| {
            format!(
                "Python {place}: field {} hides the type of another field",
                field.name()
            )
        })
        .collect()
}
