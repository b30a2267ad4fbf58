//! The fuzz targets of credentials on a stable compiler: their corpus, and mutations of it from a
//! fixed seed.

#[path = "../../../fuzz/src/credentials.rs"]
#[allow(unreachable_pub, reason = "the fuzz crate shares this file")]
mod credentials;

use std::fs;
use std::path::Path;

use credentials::Signed;

/// A small generator (xorshift*): the same inputs on every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.roll() >> 16) as usize % end.max(1)
    }
}

/// Changes, cuts, repeats or joins, as a fuzzer would.
fn mutate(dice: &mut Dice, corpus: &[Vec<u8>]) -> Vec<u8> {
    const NASTY: [u8; 12] = *b"\0\x7f\x80\xff._\"{}[]-";
    let mut input = corpus[dice.below(corpus.len())].clone();
    for _ in 0..=dice.below(4) {
        let at = dice.below(input.len());
        match dice.below(7) {
            0 => input.truncate(at),
            1 => input.extend_from_slice(&corpus[dice.below(corpus.len())]),
            2 => input.insert(at.min(input.len()), NASTY[dice.below(NASTY.len())]),
            3 if !input.is_empty() => drop(input.remove(at)),
            4 if !input.is_empty() => input[at] ^= 1 << dice.below(8),
            5 if !input.is_empty() => input[at] = NASTY[dice.below(NASTY.len())],
            6 if !input.is_empty() => input[at] = dice.roll() as u8,
            _ => {}
        }
    }
    input
}

fn run(target: &str, mutations: usize, check: impl Fn(&[u8])) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let entries = fs::read_dir(root).expect("there is a corpus");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort_unstable();
    let corpus: Vec<Vec<u8>> = paths.iter().map(|path| fs::read(path).expect("a seed")).collect();
    assert!(!corpus.is_empty());
    corpus.iter().for_each(|input| check(input));
    let mut dice = Dice(0x9e37_79b9);
    for _ in 0..mutations {
        check(&mutate(&mut dice, &corpus));
    }
}

#[test]
fn f3_no_text_upsets_the_reader_of_tokens() {
    run("token", 100_000, credentials::token);
}

#[test]
fn f3_no_bytes_upset_the_reader_of_certificates() {
    run("certificate", 20_000, credentials::certificate);
}

#[test]
fn f3_no_signed_token_upsets_the_server_and_none_is_taken_without_a_signature() {
    let folder = tempfile::tempdir().expect("a folder");
    let signed = Signed::open(folder.path());
    // The seed says what a good one is: it must be let in, or nothing here is tested.
    let good = signed.sign(
        br#"{"alg":"EdDSA","kid":"k"}"#,
        br#"{"sub":"shop","exp":99999999999,"roles":["admin"]}"#,
    );
    assert!(signed.lets_in(&good));
    run("jwt", 2_000, |input| signed.jwt(input));
}
