//! A client that publishes messages which look like frames of the log changes nothing: not
//! inside frames that are alive or dead, not in files that are used again, not before or after
//! a seal. The same function is driven by a fuzzer, see `fuzz/`.

#[allow(dead_code, unreachable_pub, reason = "the fuzzer uses the rest")]
#[path = "../../../fuzz/src/forged.rs"]
mod forged;

use forged::try_forged;

/// How many lives are tried.
const LIVES: u64 = 150;

/// What happens in one life: attacks, victims, seals and ends, from a seed.
fn life(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    // The kinds of forged frames in turn, so that each is tried with everything else.
    let kind = (seed % 14) as u8;
    let mut input = Vec::new();
    for _ in 0..40 {
        let (what, how) = (next(), next());
        let what = if what % 8 < 4 { (kind << 3) | (what % 4) } else { what };
        input.extend([what, how]);
    }
    input
}

#[test]
fn c2_forged_frames_in_messages_are_never_taken_for_frames() {
    for seed in 0..LIVES {
        let done = try_forged(&life(seed), false);
        assert_eq!(done, Ok(()), "seed {seed}");
    }
}

#[test]
fn c2_the_forger_would_succeed_if_the_secret_was_known() {
    // Else the test above would prove nothing.
    let fooled = (0..LIVES).filter(|seed| try_forged(&life(*seed), true).is_err()).count();
    assert!(fooled > 10, "{fooled} of {LIVES}");
}
