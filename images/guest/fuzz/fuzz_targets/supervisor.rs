//! Messages between guest and supervisor.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| skilld_guest::fuzz::supervisor(data));
