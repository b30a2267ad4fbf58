//! What waits to be written to a connection.
//!
//! Small frames gather in one buffer; large payloads are not copied but stand between, as they
//! are in memory. A caller hands many parts to the system in one call, and then says how many
//! bytes were taken. How large it may become is decided by its user.

use alloc::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};

/// The most parts for one call of the system.
pub const OUTPUT_PARTS_MAX: usize = 64;
/// Payloads up to this many bytes are copied: an extra part costs more than the copy.
pub const COPIED_BYTES_MAX: usize = 2 * 1024;

/// Bytes on their way out.
#[derive(Debug, Default)]
pub struct Output {
    parts: VecDeque<Bytes>,
    small: BytesMut,
    bytes: usize,
}

impl Output {
    /// How many bytes wait.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds what `encode` writes; nothing when it fails.
    ///
    /// # Errors
    /// Whatever `encode` returns.
    pub fn encode<E>(
        &mut self,
        encode: impl FnOnce(&mut BytesMut) -> Result<(), E>,
    ) -> Result<(), E> {
        let before = self.small.len();
        let encoded = encode(&mut self.small);
        if encoded.is_err() {
            self.small.truncate(before);
        }
        self.bytes += self.small.len() - before;
        encoded
    }

    /// Adds bytes, sharing those that are large.
    pub fn put(&mut self, bytes: Bytes) {
        self.bytes += bytes.len();
        if bytes.len() <= COPIED_BYTES_MAX {
            self.small.extend_from_slice(&bytes);
        } else {
            self.close_small();
            self.parts.push_back(bytes);
        }
    }

    /// The first parts, for one call: at most `most` bytes and [`OUTPUT_PARTS_MAX`] parts.
    pub fn parts(&mut self, most: usize) -> impl Iterator<Item = &[u8]> {
        self.close_small();
        let mut left = most;
        self.parts.iter().take(OUTPUT_PARTS_MAX).map_while(move |part| {
            let taken = part.len().min(left);
            left -= taken;
            (taken > 0).then(|| &part[..taken])
        })
    }

    /// Removes bytes that were written.
    pub fn advance(&mut self, mut written: usize) {
        self.bytes -= written;
        while let Some(part) = self.parts.front_mut() {
            if part.len() > written {
                part.advance(written);
                return;
            }
            written -= part.len();
            self.parts.pop_front();
        }
    }

    /// Gives the memory back that is kept for the next bytes: for connections that are mostly
    /// idle.
    pub fn release(&mut self) {
        if self.bytes == 0 {
            *self = Self::default();
        }
    }

    fn close_small(&mut self) {
        if !self.small.is_empty() {
            self.parts.push_back(self.small.split().freeze());
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;

    fn small(output: &mut Output, bytes: &'static [u8]) {
        let done = output.encode(|into| {
            into.extend_from_slice(bytes);
            Ok::<(), ()>(())
        });
        assert_eq!(done, Ok(()));
    }

    #[test]
    fn bytes_go_out_in_the_order_in_which_they_came_whatever_their_size() {
        let mut output = Output::default();
        small(&mut output, b"head");
        output.put(Bytes::from(vec![7; COPIED_BYTES_MAX + 1]));
        output.put(Bytes::from_static(b"tail"));
        let mut gone = Vec::new();
        while output.bytes() > 0 {
            let taken: Vec<u8> = output.parts(700).flatten().copied().collect();
            assert!(!taken.is_empty() && taken.len() <= 700);
            // The system may take less than it was offered.
            let written = taken.len().min(600);
            gone.extend_from_slice(&taken[..written]);
            output.advance(written);
        }
        let mut whole = b"head".to_vec();
        whole.extend(vec![7; COPIED_BYTES_MAX + 1]);
        whole.extend(b"tail");
        assert_eq!(gone, whole);
        assert_eq!(output.parts(usize::MAX).count(), 0);
    }

    #[test]
    fn an_encoding_that_fails_leaves_nothing_behind() {
        let mut output = Output::default();
        small(&mut output, b"whole");
        let failed = output.encode(|into| {
            into.extend_from_slice(b"half");
            Err(())
        });
        assert_eq!(failed, Err(()));
        assert_eq!(output.bytes(), 5);
        assert_eq!(output.parts(usize::MAX).flatten().copied().collect::<Vec<_>>(), b"whole");
    }

    #[test]
    fn a_large_payload_is_shared_and_not_copied() {
        let body = Bytes::from(vec![1; COPIED_BYTES_MAX + 1]);
        let mut output = Output::default();
        output.put(body.clone());
        let part = output.parts(usize::MAX).next().unwrap();
        assert_eq!(part.as_ptr(), body.as_ptr());
    }
}
