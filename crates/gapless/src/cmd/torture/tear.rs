//! What a power loss may leave of a log: everything that was flushed, and anything of the rest.
//!
//! Frames begin at blocks, with eight bytes of their own. Behind the frame that holds the last
//! message that was acked as flushed, everything from some byte on is zeroed, and in the frame that
//! is cut by it some blocks before too: as a disk leaves those it did not come to write. Frames
//! before that one are whole, since each says which ones were flushed before it.

use std::fs;
use std::io;
use std::path::Path;

use super::rounds::Random;

/// Frames begin at multiples of this; `docs/format.md`.
const BLOCK_BYTES: usize = 4096;
/// How a frame begins.
const FRAME: &[u8] = b"gaplessF";
/// How a log file begins that was never used.
const UNUSED: &[u8] = b"gapless: unused";

/// Copies a store.
pub(super) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for each in fs::read_dir(from)? {
        let each = each?;
        let to = to.join(each.file_name());
        let kind = each.file_type()?;
        if kind.is_dir() {
            copy(&each.path(), &to)?;
        } else if kind.is_file() {
            fs::copy(each.path(), to)?;
        }
    }
    Ok(())
}

/// Tears what lies behind the last frame that has `marker` in it, in the log files of a store. Gives
/// how many bytes were torn; `None` if there was nothing to tear, or messages of the `round` are in
/// several files, so that the end of one is not the end of all.
pub(super) fn tear(
    store: &Path,
    marker: &[u8],
    round: &[u8],
    random: &mut Random,
) -> io::Result<Option<u64>> {
    let mut files = Vec::new();
    for each in fs::read_dir(store.join("log"))? {
        let path = each?.path();
        let bytes = fs::read(&path)?;
        if !bytes.starts_with(UNUSED) && last(&bytes, round).is_some() {
            files.push((path, bytes));
        }
    }
    let [(path, bytes)] = &mut files[..] else { return Ok(None) };
    let Some(at) = last(bytes, marker) else { return Ok(None) };
    let torn = tear_behind(bytes, at, random);
    fs::write(path, bytes)?;
    Ok((torn > 0).then_some(torn))
}

/// Tears blocks behind the frame in which `at` lies.
fn tear_behind(bytes: &mut [u8], at: usize, random: &mut Random) -> u64 {
    let blocks = (at / BLOCK_BYTES + 1)..bytes.len() / BLOCK_BYTES;
    let is_frame = |block: &usize| bytes[block * BLOCK_BYTES..].starts_with(FRAME);
    let Some(first) = blocks.clone().find(is_frame) else { return 0 };
    let used = |block: &usize| {
        bytes[block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES].iter().any(|byte| *byte != 0)
    };
    let Some(last) = (first..blocks.end).rfind(used) else { return 0 };
    // All from some byte on, in the middle of a block as well.
    let cut =
        first * BLOCK_BYTES + random.below(((last + 1 - first) * BLOCK_BYTES) as u64) as usize;
    let frame = (first..=cut / BLOCK_BYTES).rfind(is_frame).unwrap_or(first);
    let mut torn = 0;
    let mut zero = |from: usize, to: usize| {
        bytes[from..to].fill(0);
        torn += (to - from) as u64;
    };
    zero(cut, (last + 1) * BLOCK_BYTES);
    // And some blocks before in the same frame, which the disk put off.
    for block in frame..cut / BLOCK_BYTES {
        if random.below(4) == 0 {
            zero(block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES);
        }
    }
    torn
}

fn last(bytes: &[u8], marker: &[u8]) -> Option<usize> {
    bytes.windows(marker.len()).rposition(|part| part == marker)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_behind_the_flushed_frame_is_torn() {
        let mut bytes = vec![1; 8 * BLOCK_BYTES];
        for block in [0, 3, 5] {
            bytes[block * BLOCK_BYTES..][..8].copy_from_slice(FRAME);
        }
        bytes[2 * BLOCK_BYTES..][..3].copy_from_slice(b"abc");
        bytes[7 * BLOCK_BYTES..].fill(0);
        let before = bytes.clone();
        for seed in 1..200 {
            let mut torn = before.clone();
            let count =
                tear_behind(&mut torn, last(&before, b"abc").unwrap(), &mut Random::new(seed));
            assert!(count > 0);
            assert!(torn[..3 * BLOCK_BYTES] == before[..3 * BLOCK_BYTES], "seed {seed}");
            assert!(torn != before);
        }
        let end = 6 * BLOCK_BYTES;
        let mut whole = before;
        assert_eq!(tear_behind(&mut whole, end, &mut Random::new(1)), 0);
    }
}
