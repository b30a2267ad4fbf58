//! Drives `credentials::certificate` with whatever libFuzzer thinks of.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| gapless_fuzz::credentials::certificate(input));
