//! The wire of skilld: code generated from `skilld/v1/*.proto` (public) and
//! `skilld/guest/v1/guest.proto` (private, daemon ↔ guest). Nothing else lives here.

/// The public API.
#[allow(
    missing_docs,
    rustdoc::all,
    clippy::all,
    reason = "generated: its comments are those of the .proto files, and what a linter finds in it changes"
)]
pub mod v1 {
    tonic::include_proto!("skilld.v1");

    /// Encoded `FileDescriptorSet` of the public API, for reflection and for JSON.
    pub const FILE_DESCRIPTOR_SET: &[u8] =
        include_bytes!(concat!(env!("OUT_DIR"), "/skilld.v1.bin"));
}

/// What daemon and guest say to each other.
pub mod guest {
    /// Generation 1 of the protocol.
    #[allow(
        missing_docs,
        rustdoc::all,
        reason = "generated: its comments are those of the .proto files"
    )]
    pub mod v1 {
        tonic::include_proto!("skilld.guest.v1");
    }

    /// The generation of the guest protocol that this build speaks.
    ///
    /// With 2 came `ExecSpec.programs`, `CollectSpec.until_exec_end`, `write_id` and `wait` of a write.
    pub const GENERATION: u32 = 2;
}

/// Encoded `FileDescriptorSet` of everything, the guest protocol included: for the golden test.
pub const ALL_DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/all.bin"));

/// `ErrorInfo.domain` of every status.
pub const ERROR_DOMAIN: &str = "skilld.dev";
