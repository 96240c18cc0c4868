//! Generated protobuf code of skilld's two protocols. The public API is in `skilld/v1/*.proto`, and the private
//! protocol between daemon and guest in `skilld/guest/v1/guest.proto`.

/// Public API.
#[allow(
    missing_docs,
    rustdoc::all,
    clippy::all,
    reason = "generated: its comments are those of the .proto files, and what a linter finds in it changes"
)]
pub mod v1 {
    tonic::include_proto!("skilld.v1");

    /// Encoded `FileDescriptorSet` of the public API, for gRPC reflection and JSON conversion.
    pub const FILE_DESCRIPTOR_SET: &[u8] =
        include_bytes!(concat!(env!("OUT_DIR"), "/skilld.v1.bin"));
}

/// Prefix of the reasons' names in the API, which `ErrorInfo.reason` leaves out.
const REASON_PREFIX: &str = "ERROR_REASON_";

impl v1::ErrorReason {
    /// Returns the name of the reason in `ErrorInfo.reason`, for instance `SKILL_NOT_FOUND`.
    #[must_use]
    pub fn error_info_name(self) -> &'static str {
        self.as_str_name().trim_start_matches(REASON_PREFIX)
    }

    /// Returns the reason with this name in `ErrorInfo.reason`; `None` for one that this build does not know.
    #[must_use]
    pub fn from_error_info_name(name: &str) -> Option<Self> {
        Self::from_str_name(&format!("{REASON_PREFIX}{name}"))
    }
}

mod exec_result;
#[cfg(feature = "json")]
pub mod json;
mod methods;
mod run_warnings;

pub use exec_result::{Outcome, count_from_int64, int64_from_count};
pub use methods::{Effect, METHODS, Method, find_method};

/// Returns the name of a status code in the specification of gRPC, for instance `NOT_FOUND`.
#[must_use]
pub fn code_name(code: tonic::Code) -> String {
    let mut name = String::new();
    // Debug writes the name of the variant, in which each word begins with a capital.
    for letter in format!("{code:?}").chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

/// Private protocol between daemon and guest.
pub mod guest {
    /// Version 1 of the protobuf package.
    #[allow(
        missing_docs,
        rustdoc::all,
        reason = "generated: its comments are those of the .proto files"
    )]
    pub mod v1 {
        tonic::include_proto!("skilld.guest.v1");
    }

    /// Generation of the guest protocol. A daemon uses the guests of its own generation only.
    pub const GENERATION: u32 = 3;
}

/// Encoded `FileDescriptorSet` of the public API and the guest protocol, for the golden test.
pub const ALL_DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/all.bin"));

/// Value of `ErrorInfo.domain` in every status.
pub const ERROR_DOMAIN: &str = "skilld.dev";
