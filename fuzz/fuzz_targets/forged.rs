//! Drives `forged::forged` with whatever libFuzzer thinks of.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| gapless_fuzz::forged::forged(input));
