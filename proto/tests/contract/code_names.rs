//! Checks the names of status codes, which metrics, the audit log and the command line show.

use skilld_proto::code_name;
use tonic::Code;

/// Names in the specification of gRPC, in the order of the codes' numbers.
const NAMES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

#[test]
fn every_code_has_the_name_of_the_specification() {
    for (number, name) in (0..).zip(NAMES) {
        assert_eq!(code_name(Code::from_i32(number)), name);
    }
}
