//! One of the targets in `tests/src/fuzz/mod.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fedbandit_tests::fuzz::run("config", data));
