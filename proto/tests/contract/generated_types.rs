//! Names that generators make for the types, values and services of a package, where all files share one space of names.

use std::collections::{BTreeMap, BTreeSet};

use prost_types::{DescriptorProto, FileDescriptorProto};

use crate::api_names::{is_map_entry, to_pascal};

/// Names of one language, each with what leads to them.
#[derive(Default)]
struct NameTable {
    owners: BTreeMap<String, BTreeSet<String>>,
}

impl NameTable {
    fn add(&mut self, name: impl Into<String>, owner: &str) {
        self.owners
            .entry(name.into())
            .or_default()
            .insert(owner.to_owned());
    }

    /// Returns the names that several things lead to, one line each.
    fn list_shared(self, language: &str) -> impl Iterator<Item = String> {
        let shared = self
            .owners
            .into_iter()
            .filter(|(_, owners)| owners.len() > 1);
        shared.map(move |(name, owners)| {
            let owners: Vec<String> = owners.into_iter().collect();
            format!("{language}: {name} of {}", owners.join(" and "))
        })
    }
}

/// Returns the collisions of a package's names, one line each.
pub fn find_type_collisions(files: &[FileDescriptorProto]) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    lines.extend(top_level_names(files).list_shared("any case"));
    lines.extend(java_classes(files).list_shared("Java"));
    lines.extend(go_names(files).list_shared("Go"));
    lines.extend(cpp_names(files).list_shared("C++"));
    lines
}

/// Names of messages, enums and services in lower case. Languages that write a file for each type, on file systems that
/// do not heed case, need them to differ.
fn top_level_names(files: &[FileDescriptorProto]) -> NameTable {
    let mut table = NameTable::default();
    for file in files {
        for message in &file.message_type {
            table.add(
                message.name().to_lowercase(),
                &format!("message {}", message.name()),
            );
        }
        for kind in &file.enum_type {
            table.add(kind.name().to_lowercase(), &format!("enum {}", kind.name()));
        }
        for service in &file.service {
            table.add(
                service.name().to_lowercase(),
                &format!("service {}", service.name()),
            );
        }
    }
    table
}

/// Classes of Java and Kotlin in lower case: each is a file.
fn java_classes(files: &[FileDescriptorProto]) -> NameTable {
    let mut table = NameTable::default();
    let mut add = |name: String, owner: String| table.add(name.to_lowercase(), &owner);
    for file in files {
        let options = file.options.as_ref();
        let outer = options
            .map(|options| options.java_outer_classname())
            .unwrap_or_default();
        if !outer.is_empty() {
            add(outer.to_owned(), format!("file {}", file.name()));
            add(format!("{outer}Kt"), format!("file {}", file.name()));
        }
        for message in &file.message_type {
            for end in ["", "OrBuilder", "Kt"] {
                add(
                    format!("{}{end}", message.name()),
                    format!("message {}", message.name()),
                );
            }
        }
        for kind in &file.enum_type {
            add(kind.name().to_owned(), format!("enum {}", kind.name()));
        }
        for service in &file.service {
            for end in ["Grpc", "GrpcKt", "OuterClassGrpcKt"] {
                add(
                    format!("{}{end}", service.name()),
                    format!("service {}", service.name()),
                );
            }
        }
    }
    table
}

/// Names of a package of Go, where nested types, values and the fields of oneofs are beside the message.
fn go_names(files: &[FileDescriptorProto]) -> NameTable {
    let mut table = NameTable::default();
    for file in files {
        for message in &file.message_type {
            add_flat_names(&mut table, "", message);
            add_oneof_wrappers(&mut table, "", message);
        }
        for kind in &file.enum_type {
            let owner = format!("enum {}", kind.name());
            for end in ["", "_name", "_value"] {
                table.add(format!("{}{end}", kind.name()), &owner);
            }
            for value in &kind.value {
                table.add(
                    format!("{}_{}", kind.name(), value.name()),
                    &format!("value {}", value.name()),
                );
            }
        }
        for service in &file.service {
            let (name, owner) = (service.name(), format!("service {}", service.name()));
            for end in ["Client", "Server", "_ServiceDesc"] {
                table.add(format!("{name}{end}"), &owner);
            }
            for begin in ["New", "Register", "Unimplemented", "Unsafe"] {
                let end = if begin == "New" { "Client" } else { "Server" };
                table.add(format!("{begin}{name}{end}"), &owner);
            }
            for rpc in &service.method {
                let owner = format!("rpc {}", rpc.name());
                for end in ["Client", "Server", "_FullMethodName"] {
                    table.add(format!("{name}_{}{end}", rpc.name()), &owner);
                }
            }
        }
    }
    table
}

/// Names of a namespace of C++, where nested types and the values of top-level enums are beside the message.
fn cpp_names(files: &[FileDescriptorProto]) -> NameTable {
    let mut table = NameTable::default();
    for file in files {
        for message in &file.message_type {
            add_flat_names(&mut table, "", message);
        }
        for kind in &file.enum_type {
            let owner = format!("enum {}", kind.name());
            for end in [
                "",
                "_IsValid",
                "_Name",
                "_Parse",
                "_MIN",
                "_MAX",
                "_ARRAYSIZE",
                "_descriptor",
            ] {
                table.add(format!("{}{end}", kind.name()), &owner);
            }
            for value in &kind.value {
                table.add(value.name(), &format!("value {}", value.name()));
            }
        }
        for service in &file.service {
            table.add(service.name(), &format!("service {}", service.name()));
        }
    }
    table
}

fn add_flat_names(table: &mut NameTable, scope: &str, message: &DescriptorProto) {
    let name = format!("{scope}{}", message.name());
    table.add(name.as_str(), &format!("message {name}"));
    let scope = format!("{name}_");
    for nested in message
        .nested_type
        .iter()
        .filter(|nested| !is_map_entry(nested))
    {
        add_flat_names(table, &scope, nested);
    }
    for kind in &message.enum_type {
        table.add(
            format!("{scope}{}", kind.name()),
            &format!("enum {name}.{}", kind.name()),
        );
        for value in &kind.value {
            table.add(
                format!("{scope}{}", value.name()),
                &format!("value {}", value.name()),
            );
        }
    }
}

fn add_oneof_wrappers(table: &mut NameTable, scope: &str, message: &DescriptorProto) {
    let name = format!("{scope}{}", message.name());
    let in_oneof = message
        .field
        .iter()
        .filter(|field| field.oneof_index.is_some() && !field.proto3_optional());
    for field in in_oneof {
        let wrapper = format!("{name}_{}", to_pascal(field.name()));
        table.add(wrapper, &format!("field {name}.{}", field.name()));
    }
    for nested in &message.nested_type {
        add_oneof_wrappers(table, &format!("{name}_"), nested);
    }
}
