//! Compares the table of methods with the descriptors and with the comments of the .proto files, and checks that generators
//! can copy these comments.

use std::collections::BTreeMap;

use prost::Message;
use prost_types::source_code_info::Location;
use prost_types::{FileDescriptorProto, FileDescriptorSet};
use skilld_proto::{METHODS, Method};

use crate::api_names::public_files;

/// Numbers of the field `service` of a file and of `method` of a service, of which the paths of comments consist.
const SERVICE: i32 = 6;
const METHOD: i32 = 2;

/// Prefix of the roles' names in the API, which comments leave out.
const ROLE_PREFIX: &str = "PRINCIPAL_ROLE_";

/// Returns the name of the role that a method requires, as comments have it.
pub fn role_name(method: &Method) -> &'static str {
    method
        .required_role
        .as_str_name()
        .trim_start_matches(ROLE_PREFIX)
}

/// Returns the comment before an rpc, by its path.
fn rpc_comments(files: &[FileDescriptorProto]) -> BTreeMap<String, String> {
    let mut comments = BTreeMap::new();
    for file in files {
        for (service_index, service) in (0..).zip(&file.service) {
            for (method_index, method) in (0..).zip(&service.method) {
                let place = [SERVICE, service_index, METHOD, method_index];
                let locations = list_locations(file);
                let comment = locations.filter(|location| location.path == place);
                let text = comment.map(Location::leading_comments).collect();
                let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                comments.insert(path, text);
            }
        }
    }
    comments
}

fn list_locations(file: &FileDescriptorProto) -> impl Iterator<Item = &Location> {
    let info = file.source_code_info.as_ref();
    info.into_iter().flat_map(|info| &info.location)
}

/// Returns the role in the last paragraph of an rpc's comment, `Role: X.`
fn documented_role(comment: &str) -> Option<&str> {
    let (_, last) = comment.trim_end().rsplit_once("\n\n")?;
    last.trim().strip_prefix("Role: ")?.strip_suffix('.')
}

/// Returns the comments that generators copy through templates, in which `$` begins a variable: those of the file, of
/// services and of rpcs. gRPC's generators of C++, PHP and Ruby do so, and stop at a `$`.
fn list_template_comments(file: &FileDescriptorProto) -> Vec<String> {
    let is_copied = |path: &[i32]| match path {
        [] | [SERVICE, _] | [SERVICE, _, METHOD, _] => true,
        // The syntax and the package, before which the comment of the file stands.
        [field] => [2, 12].contains(field),
        _ => false,
    };
    let copied = list_locations(file).filter(|location| is_copied(&location.path));
    let comments = copied.flat_map(|location| {
        let detached = location.leading_detached_comments.iter().cloned();
        let attached = [location.leading_comments(), location.trailing_comments()];
        detached
            .chain(attached.map(str::to_owned))
            .collect::<Vec<_>>()
    });
    comments.filter(|comment| !comment.is_empty()).collect()
}

/// Returns the comments that a generator cannot copy.
fn find_unsafe_comments(file: &FileDescriptorProto) -> Vec<String> {
    let mut found = list_template_comments(file);
    found.retain(|comment| comment.contains('$'));
    // Anywhere in a file: generators of Java, C#, PHP and JavaScript copy comments into /** … */.
    let all = list_locations(file);
    let texts =
        all.flat_map(|location| [location.leading_comments(), location.trailing_comments()]);
    found.extend(texts.filter(|text| text.contains("*/")).map(str::to_owned));
    found
}

#[test]
fn the_table_of_methods_has_exactly_the_rpcs_of_the_api() {
    let described: Vec<String> = rpc_comments(&public_files()).into_keys().collect();
    let mut listed: Vec<&str> = METHODS.iter().map(|method| method.path).collect();
    listed.sort_unstable();
    assert_eq!(listed, described);
}

#[test]
fn the_comment_of_every_rpc_ends_in_its_role() {
    let comments = rpc_comments(&public_files());
    for method in METHODS {
        let comment = &comments[method.path];
        let role = role_name(method);
        assert_eq!(
            documented_role(comment),
            Some(role),
            "{}: its comment has to end in a paragraph `Role: {role}.`: {comment}",
            method.path
        );
    }
}

#[test]
fn a_role_within_a_comment_is_not_its_end() {
    assert_eq!(
        documented_role(" Returns it.\n\n Role: USER.\n"),
        Some("USER")
    );
    assert_eq!(documented_role(" Role: USER.\n\n Returns it.\n"), None);
    assert_eq!(documented_role(" Returns it.\n Role: USER.\n"), None);
    assert_eq!(documented_role(" Returns it.\n\n Role: USER"), None);
}

#[test]
fn generators_can_copy_the_comments_of_every_file() {
    let set = FileDescriptorSet::decode(skilld_proto::ALL_DESCRIPTORS).expect("decodes");
    let ours = set
        .file
        .iter()
        .filter(|file| file.package().starts_with("skilld."));
    for file in ours {
        assert!(
            list_template_comments(file).len() > 1 || file.service.is_empty(),
            "{}",
            file.name()
        );
        let found = find_unsafe_comments(file);
        assert!(
            found.is_empty(),
            "{}: write without `$`, and without the end of a comment of C: {found:#?}",
            file.name()
        );
    }
}

#[test]
fn a_dollar_is_found_where_a_template_copies_it() {
    let mut files = public_files();
    let file = files
        .iter_mut()
        .find(|file| !file.service.is_empty())
        .expect("a service");
    let info = file.source_code_info.as_mut().expect("source info");
    let rpc = [SERVICE, 0, METHOD, 0];
    let location = info
        .location
        .iter_mut()
        .find(|location| location.path == rpc);
    let comment = &mut location.expect("the first rpc").leading_comments;
    *comment = Some(" Begins with `$WORK_DIR`.\n".to_owned());
    assert_eq!(find_unsafe_comments(file), [" Begins with `$WORK_DIR`.\n"]);
}
