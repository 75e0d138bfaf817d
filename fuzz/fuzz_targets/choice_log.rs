//! libFuzzer entry point of a target in `fedbandit_tests::fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fedbandit_tests::fuzz::run("choice_log", data));
