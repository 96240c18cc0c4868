//! The retained window of a stream, against a model.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| skilld_guest::fuzz::window(data));
