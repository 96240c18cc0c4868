//! Compiles the .proto files with protox, so that a build needs no protoc.

use std::error::Error;
use std::path::PathBuf;

use prost::Message;

const FILES: [&str; 9] = [
    "skilld/v1/errors.proto",
    "skilld/v1/workspace.proto",
    "skilld/v1/exec.proto",
    "skilld/v1/file.proto",
    "skilld/v1/skill.proto",
    "skilld/v1/artifact.proto",
    "skilld/v1/server.proto",
    "skilld/v1/admin.proto",
    "skilld/guest/v1/guest.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=skilld");
    let descriptors = protox::compile(FILES, ["."])?;
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);

    // gRPC reflection shows the public API only, without the guest protocol.
    let mut public = descriptors.clone();
    public
        .file
        .retain(|file| !file.name().starts_with("skilld/guest/"));
    std::fs::write(out.join("skilld.v1.bin"), public.encode_to_vec())?;
    std::fs::write(out.join("all.bin"), descriptors.encode_to_vec())?;

    tonic_prost_build::configure()
        // Daemon, guest and client connect themselves, so generated code needs no connect().
        .build_transport(false)
        // Bytes fields are `Bytes`, which are passed on without a copy.
        .bytes(".")
        // Maps are sorted, so that equal messages have equal encodings.
        .btree_map(".")
        .compile_fds(descriptors)?;
    Ok(())
}
