//! Compiles the .proto files with protox, so that a build needs no protoc.

use std::error::Error;
use std::path::PathBuf;

use prost::Message;
use protox::Compiler;
use tonic_prost_build::Config;

const FILES: [&str; 12] = [
    "skilld/v1/access.proto",
    "skilld/v1/errors.proto",
    "skilld/v1/problem.proto",
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

    let files = compiler.file_descriptor_set();
    std::fs::write(out.join("all.bin"), files.encode_to_vec())?;
    // gRPC reflection shows the public API only, without the guest protocol.
    let mut public = files.clone();
    public
        .file
        .retain(|file| !file.name().starts_with("skilld/guest/"));
    std::fs::write(out.join("skilld.v1.bin"), public.encode_to_vec())?;

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
        .compile_fds_with_config(files, config)?;
    Ok(())
}
