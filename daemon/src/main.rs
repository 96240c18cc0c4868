//! The `skilld` binary.

fn main() {}
