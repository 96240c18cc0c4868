//! Archives, unpacked.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| skilld_guest::fuzz::archive(data));
