//! Paths and globs, resolved.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| skilld::fuzz::paths(data));
