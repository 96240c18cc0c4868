//! SKILL.md, read.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| skilld::fuzz::front_matter(data));
