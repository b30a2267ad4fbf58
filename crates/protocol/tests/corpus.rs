//! The fuzz targets on a stable compiler: their corpus, and mutations of it from a fixed seed.

mod common;

#[path = "../../../fuzz/src/checks.rs"]
#[allow(unreachable_pub, reason = "the fuzz crate shares this file")]
mod checks;

use std::fs;
use std::path::Path;

/// Mutated inputs of each target.
const MUTATIONS: usize = 100_000;

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

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let entries = fs::read_dir(root).expect("there is a corpus");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort_unstable();
    paths.iter().map(|path| fs::read(path).expect("a seed")).collect()
}

/// Changes a few bytes, cuts, repeats or joins, as a fuzzer would.
fn mutate(dice: &mut Dice, corpus: &[Vec<u8>]) -> Vec<u8> {
    const NASTY: [u8; 8] = [0, 1, 0x7f, 0x80, 0xff, 0xfe, b'.', b'*'];
    let mut input = corpus[dice.below(corpus.len())].clone();
    for _ in 0..=dice.below(4) {
        let at = dice.below(input.len().max(1));
        match dice.below(8) {
            0 => input.truncate(at),
            1 => input.extend_from_slice(&corpus[dice.below(corpus.len())]),
            2 => input.insert(at.min(input.len()), NASTY[dice.below(NASTY.len())]),
            3 if !input.is_empty() => drop(input.remove(at)),
            4 if !input.is_empty() => input[at] ^= 1 << dice.below(8),
            5 if !input.is_empty() => input[at] = NASTY[dice.below(NASTY.len())],
            6 if !input.is_empty() => input[at] = dice.roll() as u8,
            // Keep the lengths of the frame in order, so that the payload is reached.
            _ => mend(&mut input),
        }
    }
    if dice.below(2) == 0 {
        mend(&mut input);
    }
    input
}

/// Makes the lengths of a frame agree with its bytes again.
fn mend(input: &mut [u8]) {
    let len = input.len();
    if len < 43 {
        return;
    }
    let subject = usize::from(input[37]);
    input[38] = 0;
    let Some(payload) = len.checked_sub(43 + subject) else { return };
    input[..4].copy_from_slice(&(len as u32 - 4).to_le_bytes());
    input[39 + subject..43 + subject].copy_from_slice(&(payload as u32).to_le_bytes());
}

fn run(target: &str, seed: u64, check: fn(&[u8])) {
    let corpus = corpus(target);
    assert!(!corpus.is_empty());
    corpus.iter().for_each(|input| check(input));
    let mut dice = Dice(seed);
    for _ in 0..MUTATIONS {
        check(&mutate(&mut dice, &corpus));
    }
}

#[test]
fn f3_no_bytes_upset_the_decoder() {
    run("frame", 0x9e37_79b9, checks::frame);
}

#[test]
fn f3_no_hello_upsets_the_server() {
    run("hello", 0x2545_f491, checks::hello);
}

#[test]
fn f3_no_frame_upsets_the_verbs() {
    run("verbs", 0x85eb_ca6b, checks::verbs);
}

#[test]
fn f3_no_bytes_upset_the_records() {
    run("records", 0xc2b2_ae35, checks::records);
}

#[test]
fn every_vector_is_a_seed() {
    for (name, verb) in common::samples::all() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/verbs");
        let seed = fs::read(root.join(name)).expect("see the head of vectors.rs");
        let frame = common::frame_of(&seed);
        assert_eq!(gapless_protocol::Verb::decode(&frame), Ok(verb), "{name}");
    }
}
