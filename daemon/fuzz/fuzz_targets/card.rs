//! skill-card.json, read alone and beside a SKILL.md.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| skilld::fuzz::card(data));
