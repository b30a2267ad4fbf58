//! Drives `credentials::Signed::jwt` with whatever libFuzzer thinks of.
#![no_main]

use std::sync::LazyLock;

use gapless_fuzz::credentials::Signed;

static SIGNED: LazyLock<(tempfile::TempDir, Signed)> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder");
    let signed = Signed::open(folder.path());
    (folder, signed)
});

libfuzzer_sys::fuzz_target!(|input: &[u8]| SIGNED.1.jwt(input));
