//! Archives of skills, unpacked.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| skilld::fuzz::archive(data));
