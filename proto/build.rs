//! Compiles the .proto files with protox, so that a build needs no protoc.

use std::error::Error;
use std::fmt::Write;
use std::path::PathBuf;

use prost::Message;
use protox::Compiler;
use protox::prost_reflect::{DescriptorPool, FileDescriptor};
use tonic_prost_build::Config;

const FILES: [&str; 11] = [
    "skilld/v1/access.proto",
    "skilld/v1/errors.proto",
    "skilld/v1/workspace.proto",
    "skilld/v1/exec.proto",
    "skilld/v1/file.proto",
    "skilld/v1/skill.proto",
    "skilld/v1/artifact.proto",
    "skilld/v1/server.proto",
    "skilld/v1/admin.proto",
    "skilld/v1/tenant.proto",
    "skilld/guest/v1/guest.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=skilld");
    let mut compiler = Compiler::new(["."])?;
    compiler.include_source_info(true).include_imports(true);
    compiler.open_files(FILES)?;
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);

    let pool = compiler.descriptor_pool();
    // gRPC reflection shows the public API only, without the guest protocol.
    let public = |file: &FileDescriptor| !file.name().starts_with("skilld/guest/");
    std::fs::write(out.join("skilld.v1.bin"), encode_files(&pool, public))?;
    std::fs::write(out.join("all.bin"), encode_files(&pool, |_| true))?;
    for (option, file) in [
        ("required_role", "method_roles.rs"),
        ("effect", "method_effects.rs"),
    ] {
        std::fs::write(out.join(file), method_options(&pool, option)?)?;
    }

    let mut config = Config::new();
    // Messages know their names, for their conversion to JSON.
    config.enable_type_names();
    tonic_prost_build::configure()
        // Daemon, guest and client connect themselves, so generated code needs no connect().
        .build_transport(false)
        // Bytes fields are `Bytes`, which are passed on without a copy.
        .bytes(".")
        // Maps are sorted, so that equal messages have equal encodings.
        .btree_map(".")
        .compile_fds_with_config(compiler.file_descriptor_set(), config)?;
    Ok(())
}

/// `FileDescriptorSet` that keeps the options of extensions, which the type in prost-types drops.
#[derive(Clone, PartialEq, Message)]
struct EncodedFileDescriptorSet {
    #[prost(bytes = "vec", repeated, tag = "1")]
    files: Vec<Vec<u8>>,
}

fn encode_files(pool: &DescriptorPool, is_wanted: impl Fn(&FileDescriptor) -> bool) -> Vec<u8> {
    let files = pool
        .files()
        .filter(is_wanted)
        .map(|file| file.encode_to_vec())
        .collect();
    EncodedFileDescriptorSet { files }.encode_to_vec()
}

/// Writes the table of methods and the numbers of one of their options, which is an enum, as a Rust expression.
fn method_options(pool: &DescriptorPool, option: &str) -> Result<String, Box<dyn Error>> {
    let extension = pool
        .get_extension_by_name(&format!("skilld.v1.{option}"))
        .ok_or_else(|| format!("the option {option} is missing"))?;
    let mut table = String::from("&[\n");
    for service in pool.services() {
        for method in service.methods() {
            let options = method.options();
            if options.has_extension(&extension) {
                let value = options.get_extension(&extension);
                let number = value
                    .as_enum_number()
                    .ok_or_else(|| format!("{option} is not an enum"))?;
                let (service, method) = (service.full_name(), method.name());
                writeln!(table, "    (\"/{service}/{method}\", {number}),")?;
            }
        }
    }
    table.push(']');
    Ok(table)
}
