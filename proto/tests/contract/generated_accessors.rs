//! Accessors that generators make of one field or oneof, in ten languages.

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto};

use crate::api_names::{is_map_entry, to_camel, to_pascal};

/// Languages for which members are made.
pub const LANGUAGES: [Language; 10] = [
    Language::Cpp,
    Language::CSharp,
    Language::Go,
    Language::Java,
    Language::JavaScript,
    Language::ObjectiveC,
    Language::Php,
    Language::Python,
    Language::Ruby,
    Language::Swift,
];

/// Language with a generator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Language {
    Cpp,
    CSharp,
    Go,
    /// Java, and Kotlin, which uses Java's classes.
    Java,
    JavaScript,
    ObjectiveC,
    Php,
    Python,
    Ruby,
    Swift,
}

/// Field as far as generators make members of it.
pub struct FieldShape<'a> {
    name: &'a str,
    camel: String,
    pascal: String,
    kind: Type,
    is_map: bool,
    is_repeated: bool,
    /// The message knows whether the field is set.
    has_presence: bool,
    is_in_oneof: bool,
}

impl<'a> FieldShape<'a> {
    /// Returns the shape of a field of a message.
    pub fn new(message: &DescriptorProto, field: &'a FieldDescriptorProto) -> Self {
        let mut entries = message
            .nested_type
            .iter()
            .filter(|nested| is_map_entry(nested));
        let is_map =
            entries.any(|entry| field.type_name().ends_with(&format!(".{}", entry.name())));
        let is_in_oneof = field.oneof_index.is_some() && !field.proto3_optional();
        Self {
            name: field.name(),
            camel: to_camel(field.name()),
            pascal: to_pascal(field.name()),
            kind: field.r#type(),
            is_map,
            is_repeated: field.label() == Label::Repeated && !is_map,
            has_presence: field.oneof_index.is_some()
                || (field.label() != Label::Repeated && field.r#type() == Type::Message),
            is_in_oneof,
        }
    }

    fn is_singular(&self) -> bool {
        !self.is_map && !self.is_repeated
    }
}

/// Returns the members that a field makes.
pub fn field_members(language: Language, field: &FieldShape<'_>) -> Vec<String> {
    let (name, camel, pascal) = (field.name, &field.camel, &field.pascal);
    let mut members = match language {
        Language::Cpp => return cpp_members(field),
        Language::Java => return java_members(field),
        Language::JavaScript => return javascript_members(field),
        Language::CSharp => vec![pascal.clone(), format!("{pascal}FieldNumber")],
        Language::Go if field.is_in_oneof => vec![format!("Get{pascal}")],
        Language::Go => vec![pascal.clone(), format!("Get{pascal}")],
        Language::ObjectiveC if field.is_repeated => {
            vec![format!("{camel}Array"), format!("{camel}Array_Count")]
        }
        Language::ObjectiveC if field.is_map => vec![camel.clone(), format!("{camel}_Count")],
        Language::ObjectiveC | Language::Swift => vec![camel.clone()],
        Language::Php => vec![format!("get{pascal}"), format!("set{pascal}")],
        Language::Python => vec![
            name.to_owned(),
            format!("{}_FIELD_NUMBER", name.to_uppercase()),
        ],
        Language::Ruby if field.kind == Type::Enum => {
            vec![name.to_owned(), format!("{name}_const")]
        }
        Language::Ruby => vec![name.to_owned()],
    };
    if field.has_presence {
        members.extend(match language {
            Language::CSharp if field.kind == Type::Message => vec![],
            Language::CSharp => vec![format!("Has{pascal}"), format!("Clear{pascal}")],
            Language::ObjectiveC => vec![format!("has{pascal}")],
            Language::Php | Language::Swift => {
                vec![format!("has{pascal}"), format!("clear{pascal}")]
            }
            Language::Ruby => vec![format!("has_{name}?"), format!("clear_{name}")],
            Language::Cpp
            | Language::Go
            | Language::Java
            | Language::JavaScript
            | Language::Python => vec![],
        });
    }
    if language == Language::Php {
        // PHP does not heed the case of methods.
        return members.iter().map(|member| member.to_lowercase()).collect();
    }
    members
}

fn cpp_members(field: &FieldShape<'_>) -> Vec<String> {
    let name = field.name;
    let mut members = vec![
        name.to_owned(),
        format!("clear_{name}"),
        format!("k{}FieldNumber", field.pascal),
        format!("mutable_{name}"),
        format!("set_{name}"),
    ];
    if field.is_singular() {
        members.extend([format!("release_{name}"), format!("set_allocated_{name}")]);
    } else {
        members.extend([format!("add_{name}"), format!("{name}_size")]);
    }
    if field.has_presence {
        members.push(format!("has_{name}"));
    }
    if field.is_in_oneof {
        members.push(format!("k{}", field.pascal));
    }
    members
}

fn java_members(field: &FieldShape<'_>) -> Vec<String> {
    let pascal = &field.pascal;
    let mut suffixes = vec![""];
    match field.kind {
        Type::String => suffixes.push("Bytes"),
        Type::Enum => suffixes.push("Value"),
        Type::Message => suffixes.extend(["Builder", "OrBuilder"]),
        _ => {}
    }
    if field.is_repeated {
        suffixes.extend(["List", "Count"]);
        match field.kind {
            Type::Enum => suffixes.push("ValueList"),
            Type::Message => suffixes.extend(["BuilderList", "OrBuilderList"]),
            _ => {}
        }
    }
    if field.is_map {
        suffixes.extend(["Map", "Count", "OrDefault", "OrThrow"]);
    }
    let mut members: Vec<String> = suffixes
        .iter()
        .map(|suffix| format!("get{pascal}{suffix}"))
        .collect();
    members.extend(suffixes.iter().map(|suffix| format!("set{pascal}{suffix}")));
    members.push(format!("clear{pascal}"));
    members.push(format!("{}_FIELD_NUMBER", field.name.to_uppercase()));
    if field.has_presence {
        members.push(format!("has{pascal}"));
    }
    if field.is_repeated {
        members.extend([
            format!("add{pascal}"),
            format!("addAll{pascal}"),
            format!("remove{pascal}"),
        ]);
    }
    if field.is_map {
        let verbs = ["contains", "put", "putAll", "remove"];
        members.extend(verbs.map(|verb| format!("{verb}{pascal}")));
    }
    members
}

fn javascript_members(field: &FieldShape<'_>) -> Vec<String> {
    let pascal = &field.pascal;
    let suffix = match (field.is_map, field.is_repeated) {
        (true, _) => "Map",
        (false, true) => "List",
        (false, false) => "",
    };
    let mut members = vec![
        field.camel.clone(),
        format!("get{pascal}{suffix}"),
        format!("clear{pascal}{suffix}"),
    ];
    if !field.is_map {
        members.push(format!("set{pascal}{suffix}"));
    }
    if field.is_repeated {
        members.push(format!("add{pascal}"));
    }
    if field.has_presence {
        members.push(format!("has{pascal}"));
    }
    if field.kind == Type::Bytes {
        let suffixes = ["_asB64", "_asU8"];
        members.extend(suffixes.map(|end| format!("get{pascal}{suffix}{end}")));
    }
    members
}

/// Returns the members that a oneof makes.
pub fn oneof_members(language: Language, name: &str) -> Vec<String> {
    let (camel, pascal) = (to_camel(name), to_pascal(name));
    match language {
        Language::Cpp => vec![
            format!("{name}_case"),
            format!("clear_{name}"),
            format!("has_{name}"),
            format!("{}_NOT_SET", name.to_uppercase()),
            format!("{pascal}Case"),
        ],
        Language::CSharp => vec![
            format!("{pascal}Case"),
            format!("Clear{pascal}"),
            format!("{pascal}OneofCase"),
        ],
        Language::Go => vec![pascal.clone(), format!("Get{pascal}")],
        Language::Java => vec![
            format!("get{pascal}Case"),
            format!("clear{pascal}"),
            format!("{pascal}Case"),
        ],
        Language::JavaScript => vec![camel, format!("get{pascal}Case"), format!("{pascal}Case")],
        Language::ObjectiveC => vec![format!("{camel}OneOfCase")],
        Language::Php => vec![format!("get{pascal}").to_lowercase()],
        Language::Python => vec![],
        Language::Ruby => vec![name.to_owned()],
        Language::Swift => vec![camel, format!("OneOf_{pascal}")],
    }
}
