//! Memory for reading history, used again.
//!
//! A step of history is up to a megabyte, and a reader of many topics has a block of each
//! open. Fresh memory of that size has to be mapped and cleared by the kernel each time,
//! which costs more than the copy into it. So buffers go back to a stock when the last
//! reader has let go of them. The stock belongs to the process: it holds memory, not data.

use std::sync::Mutex;

use bytes::Bytes;

use crate::marks::lock;

/// Bytes of all buffers that are kept: about as many as readers in full flight use.
const STOCK_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Buffers larger than this are not kept.
const KEPT_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Buffers smaller than this are not worth it.
const KEPT_BYTES_MIN: usize = 16 * 1024;
/// Sizes are rounded up to this, so that a buffer fits its next use too.
const ROUND_BYTES: usize = 16 * 1024;
/// Where the bytes begin: copies between places that are equal modulo this are fast.
const ALIGN: usize = 64;

static SPARE: Mutex<Stock> = Mutex::new(Stock { buffers: Vec::new(), bytes: 0 });

struct Stock {
    /// The one that came back last is the last.
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

struct Buffer {
    memory: Vec<u8>,
    from: usize,
    len: usize,
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.memory[self.from..self.from + self.len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if (KEPT_BYTES_MIN..=KEPT_BYTES_MAX).contains(&self.memory.len()) {
            let mut spare = lock(&SPARE);
            if spare.bytes + self.memory.len() <= STOCK_BYTES_MAX {
                spare.bytes += self.memory.len();
                spare.buffers.push(std::mem::take(&mut self.memory));
            }
        }
    }
}

/// Fills an aligned buffer of `len` bytes and shares it.
pub(crate) fn filled<E>(
    len: usize,
    fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
) -> Result<Bytes, E> {
    let needed = (len + ALIGN).next_multiple_of(ROUND_BYTES);
    let mut memory = take_spare(needed);
    if memory.len() < needed {
        memory.resize(needed, 0);
    }
    let from = memory.as_ptr().align_offset(ALIGN).min(ALIGN);
    fill(&mut memory[from..from + len])?;
    Ok(Bytes::from_owner(Buffer { memory, from, len }))
}

fn take_spare(needed: usize) -> Vec<u8> {
    if !(KEPT_BYTES_MIN..=KEPT_BYTES_MAX).contains(&needed) {
        return Vec::new();
    }
    let mut spare = lock(&SPARE);
    // The one that came back last is the one most likely still in a cache. One much too
    // large is left for those who need it.
    let fits = |memory: &Vec<u8>| (needed..=2 * needed).contains(&memory.len());
    let Some(at) = spare.buffers.iter().rposition(fits) else { return Vec::new() };
    let memory = spare.buffers.remove(at);
    spare.bytes -= memory.len();
    memory
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_hold_what_was_read_and_come_back() {
        for len in [1, 63, 64, KEPT_BYTES_MIN, 300_000, KEPT_BYTES_MAX + 1] {
            for round in 0..3_u8 {
                let fill = |bytes: &mut [u8]| {
                    bytes.fill(round);
                    Ok::<(), ()>(())
                };
                let bytes = filled(len, fill).unwrap();
                assert_eq!(bytes.as_ptr().align_offset(ALIGN), 0);
                assert_eq!(bytes.len(), len);
                assert!(bytes.iter().all(|&byte| byte == round));
            }
        }
        assert!(lock(&SPARE).bytes <= STOCK_BYTES_MAX);
    }

    #[test]
    fn a_failed_read_gives_no_bytes() {
        assert_eq!(filled(100, |_| Err("damaged")), Err("damaged"));
    }
}
