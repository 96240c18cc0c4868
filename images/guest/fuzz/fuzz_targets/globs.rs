//! Globs, and which directories they let a collect pass over.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| skilld_guest::fuzz::globs(data));
