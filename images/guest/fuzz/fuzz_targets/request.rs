//! Requests of the daemon, decoded and handled.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| skilld_guest::fuzz::request(data));
