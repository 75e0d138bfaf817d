//! libFuzzer entry point of a target in `fedbandit_tests::targets`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fedbandit_tests::targets::run("cobs", data));
