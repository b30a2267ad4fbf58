//! Memory for IO that begins at a page.
//!
//! Copies of 4 KiB and more can be many times slower when source and destination differ by
//! a few bytes modulo a page, and a large `Vec` begins a few bytes into one. So buffers that
//! are measured with begin exactly at a page, which is also a cache line.

/// Bytes of a page, and the alignment of every [`PageBuffer`].
pub const PAGE_BYTES: usize = 4096;

/// A fixed number of bytes that begin at a page; made by taking a page too much.
#[derive(Debug)]
pub struct PageBuffer {
    /// Never grows after it was made, so that the bytes stay where they are.
    memory: Vec<u8>,
    start: usize,
    bytes: usize,
}

impl PageBuffer {
    /// A buffer of zeros.
    pub fn zeroed(bytes: usize) -> Self {
        let memory = vec![0; bytes + PAGE_BYTES];
        let start = memory.as_ptr().align_offset(PAGE_BYTES);
        assert!(start < PAGE_BYTES, "a byte pointer can always be aligned");
        Self { memory, start, bytes }
    }

    /// A buffer of bytes that neither a disk nor a file system can squeeze.
    pub fn noise(bytes: usize) -> Self {
        let mut buffer = Self::zeroed(bytes);
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        for chunk in buffer.as_mut_slice().chunks_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
        }
        buffer
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.bytes]
    }

    /// The bytes, to write into.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_begin_at_a_page_and_keep_their_size() {
        for bytes in [0, 1, 63, 4096, 256 * 1024 + 3] {
            let mut buffer = PageBuffer::noise(bytes);
            assert_eq!(buffer.as_slice().len(), bytes);
            assert_eq!(buffer.as_slice().as_ptr().align_offset(PAGE_BYTES), 0);
            assert_eq!(buffer.as_mut_slice().as_ptr().align_offset(PAGE_BYTES), 0);
        }
    }

    #[test]
    fn noise_is_not_zeros() {
        let buffer = PageBuffer::noise(4096);
        assert!(buffer.as_slice().iter().filter(|byte| **byte == 0).count() < 100);
    }
}
