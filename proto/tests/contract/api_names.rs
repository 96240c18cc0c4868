//! Names of the public API, each with its place, and the forms in which generators write them.

use prost::Message;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FileDescriptorProto, FileDescriptorSet,
    OneofDescriptorProto,
};

/// Kind of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameKind {
    /// Field of a message.
    Field,
    /// Oneof of a message.
    Oneof,
    /// Message, enum or service.
    Type,
    /// Value of an enum.
    Value,
    /// Method of a service.
    Rpc,
}

/// Form in which a generator writes a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameForm {
    /// Form of the .proto file.
    Written,
    /// `lowerCamelCase`; enum values without the name of their enum.
    Camel,
    /// `PascalCase`; enum values without the name of their enum.
    Pascal,
    /// `snake_case`.
    Snake,
    /// Lower case, for languages that do not heed case.
    Lower,
}

/// Name in the API.
#[derive(Debug, Clone)]
pub struct ApiName {
    /// Kind of the name.
    pub kind: NameKind,
    /// Name as the .proto file has it.
    pub name: String,
    /// Name with the names around it, for messages of tests: `Problem.Severity.SEVERITY_ERROR`.
    pub place: String,
    /// Name without the name of its enum; the same as `name` for other kinds.
    short_name: String,
}

impl ApiName {
    fn new(kind: NameKind, scope: &str, name: &str) -> Self {
        Self {
            kind,
            name: name.to_owned(),
            place: join_scope(scope, name),
            short_name: name.to_owned(),
        }
    }

    /// Returns the name as a generator writes it.
    pub fn in_form(&self, form: NameForm) -> String {
        match form {
            NameForm::Written => self.name.clone(),
            NameForm::Camel => to_camel(&self.short_name),
            NameForm::Pascal => to_pascal(&self.short_name),
            NameForm::Snake => to_snake(&self.name),
            NameForm::Lower => self.name.to_lowercase(),
        }
    }
}

/// Returns the files of the public API, without their imports.
pub fn public_files() -> Vec<FileDescriptorProto> {
    let set = FileDescriptorSet::decode(skilld_proto::ALL_DESCRIPTORS).expect("decodes");
    let files = set.file.into_iter();
    files.filter(|file| file.package() == "skilld.v1").collect()
}

/// Returns every name of some files.
pub fn list_names(files: &[FileDescriptorProto]) -> Vec<ApiName> {
    let mut names = Vec::new();
    for file in files {
        for message in &file.message_type {
            add_message("", message, &mut names);
        }
        for kind in &file.enum_type {
            add_enum("", kind, &mut names);
        }
        for service in &file.service {
            names.push(ApiName::new(NameKind::Type, "", service.name()));
            let rpcs = service.method.iter();
            names.extend(rpcs.map(|rpc| ApiName::new(NameKind::Rpc, service.name(), rpc.name())));
        }
    }
    names
}

fn add_message(scope: &str, message: &DescriptorProto, names: &mut Vec<ApiName>) {
    names.push(ApiName::new(NameKind::Type, scope, message.name()));
    let place = join_scope(scope, message.name());
    let fields = message.field.iter();
    names.extend(fields.map(|field| ApiName::new(NameKind::Field, &place, field.name())));
    let oneofs = list_oneofs(message);
    names.extend(oneofs.map(|(_, oneof)| ApiName::new(NameKind::Oneof, &place, oneof.name())));
    for nested in message
        .nested_type
        .iter()
        .filter(|nested| !is_map_entry(nested))
    {
        add_message(&place, nested, names);
    }
    for kind in &message.enum_type {
        add_enum(&place, kind, names);
    }
}

fn add_enum(scope: &str, kind: &EnumDescriptorProto, names: &mut Vec<ApiName>) {
    names.push(ApiName::new(NameKind::Type, scope, kind.name()));
    let place = join_scope(scope, kind.name());
    let prefix = format!("{}_", to_snake(kind.name()).to_uppercase());
    for value in &kind.value {
        let mut name = ApiName::new(NameKind::Value, &place, value.name());
        if let Some(short) = value.name().strip_prefix(&prefix) {
            short.clone_into(&mut name.short_name);
        }
        names.push(name);
    }
}

fn join_scope(scope: &str, name: &str) -> String {
    if scope.is_empty() {
        return name.to_owned();
    }
    format!("{scope}.{name}")
}

/// Returns the oneofs that the .proto file has, with their indexes. The compiler makes further ones of `optional` fields.
pub fn list_oneofs(
    message: &DescriptorProto,
) -> impl Iterator<Item = (i32, &OneofDescriptorProto)> {
    let is_made = |index: i32| {
        let mut fields = message.field.iter();
        fields.any(|field| field.proto3_optional() && field.oneof_index == Some(index))
    };
    (0..)
        .zip(&message.oneof_decl)
        .filter(move |(index, _)| !is_made(*index))
}

/// Returns `true` if the compiler made the message for the entries of a map.
pub fn is_map_entry(message: &DescriptorProto) -> bool {
    let options = message.options.as_ref();
    options.is_some_and(|options| options.map_entry())
}

/// Converts a name to `PascalCase`. A letter after a digit is a capital, as the generators have it.
pub fn to_pascal(name: &str) -> String {
    let is_upper = !name.chars().any(|letter| letter.is_ascii_lowercase());
    let mut text = String::new();
    let mut begins_word = true;
    for letter in name.chars() {
        if letter == '_' {
            begins_word = true;
        } else if begins_word {
            text.push(letter.to_ascii_uppercase());
            begins_word = letter.is_ascii_digit();
        } else {
            text.push(if is_upper {
                letter.to_ascii_lowercase()
            } else {
                letter
            });
            begins_word = letter.is_ascii_digit();
        }
    }
    text
}

/// Converts a name to `lowerCamelCase`.
pub fn to_camel(name: &str) -> String {
    let pascal = to_pascal(name);
    let first = pascal
        .chars()
        .take(1)
        .map(|letter| letter.to_ascii_lowercase());
    first.chain(pascal.chars().skip(1)).collect()
}

/// Converts a name to `snake_case`.
pub fn to_snake(name: &str) -> String {
    let mut text = String::new();
    let mut was_lower = false;
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && was_lower {
            text.push('_');
        }
        was_lower = letter.is_ascii_lowercase() || letter.is_ascii_digit();
        text.push(letter.to_ascii_lowercase());
    }
    text
}

#[test]
fn generators_forms_of_names_are_known() {
    assert_eq!(to_pascal("sha256_of_file"), "Sha256OfFile");
    assert_eq!(to_pascal("NO_OUTPUT_TIMEOUT"), "NoOutputTimeout");
    assert_eq!(to_pascal("RunExec"), "RunExec");
    assert_eq!(to_camel("on_full"), "onFull");
    assert_eq!(to_snake("ListSkillFiles"), "list_skill_files");
    let names = list_names(&public_files());
    let value = names
        .iter()
        .find(|name| name.name == "EXIT_REASON_OOM_KILLED")
        .expect("the enum ExitReason");
    assert_eq!(value.in_form(NameForm::Camel), "oomKilled");
}
