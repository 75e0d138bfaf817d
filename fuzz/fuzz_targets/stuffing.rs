//! One of the targets in `tests/src/targets.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fedbandit_tests::targets::run("stuffing", data));
