//! Checks that docs/api.md has each rpc of the API once, with its role, and requests and answers that are messages of it.
//!
//! An rpc has a row `| Service/Method | role | use | request | answer |` of a table, or a section with this heading, a
//! line that begins with its role, and a block of JSON: requests, an empty line, answers.

use std::path::Path;

use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, MethodDescriptor};
use serde_json::Value;
use skilld_proto::{METHODS, find_method, v1};

/// Documentation of one rpc, as text.
#[derive(Debug)]
struct DocumentedMethod {
    /// `Service/Method`.
    name: String,
    role: String,
    /// JSON objects, one after the other.
    requests: String,
    answers: String,
}

/// Returns the text between the first two backticks.
fn first_code(text: &str) -> Option<String> {
    text.split('`').nth(1).map(str::to_owned)
}

/// Returns `true` for the name of an rpc, also of one that does not exist.
fn is_method_name(text: &str) -> bool {
    let parts = text.split_once('/');
    parts.is_some_and(|(service, method)| service.ends_with("Service") && !method.contains(' '))
}

/// Parses the row of a table; `None` if it is not about an rpc.
fn parse_row(line: &str) -> Option<DocumentedMethod> {
    let cells: Vec<&str> = line.strip_prefix('|')?.split('|').collect();
    let name = first_code(cells.first()?).filter(|name| is_method_name(name))?;
    let cell = |index: usize| cells.get(index).and_then(|cell| first_code(cell));
    Some(DocumentedMethod {
        role: cell(1).unwrap_or_default(),
        requests: cell(3).unwrap_or_default(),
        answers: cell(4).unwrap_or_default(),
        name,
    })
}

/// Parses a section without the `### ` of its heading; `None` if it is not about an rpc.
fn parse_section(section: &str) -> Option<DocumentedMethod> {
    let (name, text) = section.split_once('\n')?;
    if !is_method_name(name) {
        return None;
    }
    let role = text.trim_start().strip_prefix("Role: ");
    let block = text.split("```json\n").nth(1).unwrap_or_default();
    let block = block.split("```").next().unwrap_or_default();
    let (requests, answers) = block.split_once("\n\n").unwrap_or_default();
    Some(DocumentedMethod {
        name: name.to_owned(),
        role: role.and_then(first_code).unwrap_or_default(),
        requests: requests.to_owned(),
        answers: answers.to_owned(),
    })
}

/// Returns every rpc that docs/api.md documents.
fn read_documented_methods() -> Vec<DocumentedMethod> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/api.md");
    let text = std::fs::read_to_string(path).expect("docs/api.md exists");
    let sections = text.split("\n### ").skip(1).filter_map(parse_section);
    sections.chain(text.lines().filter_map(parse_row)).collect()
}

/// Returns the descriptor of an rpc, by `Service/Method`.
fn find_descriptor(pool: &DescriptorPool, name: &str) -> MethodDescriptor {
    let mut methods = pool.services().flat_map(|service| {
        let service_name = service.name().to_owned();
        let methods: Vec<_> = service.methods().collect();
        methods
            .into_iter()
            .map(move |method| (format!("{service_name}/{}", method.name()), method))
    });
    let found = methods.find(|(full_name, _)| full_name == name);
    found.unwrap_or_else(|| panic!("the API has no {name}")).1
}

/// Checks that a text has messages of a type in JSON: one, or with `is_stream` at least one.
fn check_messages(method: &str, text: &str, message: &MessageDescriptor, is_stream: bool) {
    let objects = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let mut count = 0;
    for object in objects {
        let object = object.unwrap_or_else(|error| panic!("{method}: {error} in {text}"));
        let name = message.name();
        DynamicMessage::deserialize(message.clone(), &object)
            .unwrap_or_else(|error| panic!("{method}: no {name}: {error} in {object}"));
        count += 1;
    }
    assert!(count == 1 || is_stream && count > 1, "{method}: {text:?}");
}

#[test]
fn the_document_of_the_api_has_each_rpc_once_with_its_role() {
    let mut documented: Vec<(String, String)> = read_documented_methods()
        .into_iter()
        .map(|method| (method.name, method.role))
        .collect();
    documented.sort();
    let mut expected: Vec<(String, String)> = METHODS
        .iter()
        .map(|method| {
            let role = method.required_role.as_str_name();
            let role = role.trim_start_matches("PRINCIPAL_ROLE_").to_lowercase();
            let name = method.path.trim_start_matches("/skilld.v1.");
            (name.to_owned(), role)
        })
        .collect();
    expected.sort();
    assert_eq!(documented, expected);
}

#[test]
fn requests_and_answers_in_the_document_are_messages() {
    let pool = DescriptorPool::decode(v1::FILE_DESCRIPTOR_SET).expect("decodes");
    let documented = read_documented_methods();
    assert_eq!(documented.len(), METHODS.len());
    for DocumentedMethod {
        name,
        requests,
        answers,
        ..
    } in &documented
    {
        assert!(find_method(&format!("/skilld.v1.{name}")).is_some());
        let method = find_descriptor(&pool, name);
        let (is_upload, is_download) = (method.is_client_streaming(), method.is_server_streaming());
        check_messages(name, requests, &method.input(), is_upload);
        check_messages(name, answers, &method.output(), is_download);
    }
}
