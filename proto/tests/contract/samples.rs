//! Descriptors with names that hurt, with which the tests show that their checks find something.

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
    FileDescriptorProto, MethodDescriptorProto, OneofDescriptorProto, ServiceDescriptorProto,
};

/// Reserved names of the sample file, each with a language that reserves it.
pub const RESERVED_NAMES: &[(&str, &str)] = &[
    ("cpp", "requires"),
    ("cpp", "descriptor"),
    ("macros", "errno"),
    ("macros", "stdin"),
    ("macros", "max"),
    ("macros", "major"),
    ("macros", "linux"),
    ("macros", "interface"),
    ("macros", "verify"),
    ("macros", "timeout"),
    ("macros", "SEVERITY_ERROR"),
    ("macros", "ARCHIVE_FORMAT_TAR"),
    ("macros", "SIGTERM"),
    ("macros", "DOMAIN"),
    ("macros", "CreateService"),
    ("java", "package"),
    ("java", "serialized_size"),
    ("java", "Override"),
    ("kotlin", "when"),
    ("csharp", "types"),
    ("csharp", "Timer"),
    ("go", "reset"),
    ("python", "from"),
    ("ruby", "end"),
    ("ruby", "method"),
    ("php", "List"),
    ("php", "Close"),
    ("swift", "description"),
    ("swift", "SEVERITY_NONE"),
    ("swift", "Protocol"),
    ("javascript", "extension"),
    ("javascript", "constructor"),
    ("rust", "match"),
    ("objc", "copy"),
];

/// Returns a file whose fields, types, values and rpcs have the reserved names.
pub fn file_of_reserved_names() -> FileDescriptorProto {
    let names = || RESERVED_NAMES.iter().map(|(_, name)| *name);
    let is_capital = |name: &&str| name.starts_with(|letter: char| letter.is_ascii_uppercase());
    let is_value = |name: &&str| *name == name.to_uppercase();
    let fields = names().filter(|name| !is_capital(name));
    let values = names().filter(is_value);
    let types = names().filter(|name| is_capital(name) && !is_value(name));
    let mut file = FileDescriptorProto {
        message_type: vec![message(
            "Sample",
            fields.map(|name| field(name, Type::Int32)),
        )],
        enum_type: vec![enumeration("Severity", values)],
        service: vec![service("SampleService", ["CreateService", "Close"])],
        ..FileDescriptorProto::default()
    };
    file.message_type
        .extend(types.map(|name| message(name, [])));
    file
}

/// Returns a message.
pub fn message(
    name: &str,
    fields: impl IntoIterator<Item = FieldDescriptorProto>,
) -> DescriptorProto {
    DescriptorProto {
        name: Some(name.to_owned()),
        field: fields.into_iter().collect(),
        ..DescriptorProto::default()
    }
}

/// Returns a field of a scalar type, or of the message or enum `Other`.
pub fn field(name: &str, kind: Type) -> FieldDescriptorProto {
    let mut field = FieldDescriptorProto {
        name: Some(name.to_owned()),
        ..FieldDescriptorProto::default()
    };
    field.set_type(kind);
    field.set_label(Label::Optional);
    field
}

/// Returns a repeated field.
pub fn repeated(name: &str, kind: Type) -> FieldDescriptorProto {
    let mut field = field(name, kind);
    field.set_label(Label::Repeated);
    field
}

/// Returns a message whose fields are in one oneof.
pub fn message_with_oneof(
    name: &str,
    oneof: &str,
    fields: impl IntoIterator<Item = FieldDescriptorProto>,
) -> DescriptorProto {
    let mut message = message(name, fields);
    for field in &mut message.field {
        field.oneof_index = Some(0);
    }
    message.oneof_decl.push(OneofDescriptorProto {
        name: Some(oneof.to_owned()),
        ..OneofDescriptorProto::default()
    });
    message
}

/// Returns an enum.
pub fn enumeration<'a>(
    name: &str,
    values: impl IntoIterator<Item = &'a str>,
) -> EnumDescriptorProto {
    let value = |name: &str| EnumValueDescriptorProto {
        name: Some(name.to_owned()),
        ..EnumValueDescriptorProto::default()
    };
    EnumDescriptorProto {
        name: Some(name.to_owned()),
        value: values.into_iter().map(value).collect(),
        ..EnumDescriptorProto::default()
    }
}

/// Returns a service.
pub fn service<'a>(name: &str, rpcs: impl IntoIterator<Item = &'a str>) -> ServiceDescriptorProto {
    let rpc = |name: &str| MethodDescriptorProto {
        name: Some(name.to_owned()),
        ..MethodDescriptorProto::default()
    };
    ServiceDescriptorProto {
        name: Some(name.to_owned()),
        method: rpcs.into_iter().map(rpc).collect(),
        ..ServiceDescriptorProto::default()
    }
}
