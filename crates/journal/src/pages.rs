//! Bytes gathered in memory that starts at a page: writes past the page cache want it, and others
//! are many times faster so, since a copy between addresses that differ by a few bytes modulo a
//! page is slow.

const PAGE_BYTES: usize = 4096;

/// A buffer of fixed size.
#[derive(Debug)]
pub(crate) struct Pages {
    memory: Vec<u8>,
    start: usize,
    len: usize,
    len_max: usize,
}

impl Pages {
    pub(crate) fn new(len_max: usize) -> Self {
        let memory = vec![0; len_max + PAGE_BYTES];
        // `align_offset` may decline, then the buffer is slow and not wrong.
        let start = memory.as_ptr().align_offset(PAGE_BYTES);
        let start = if start < PAGE_BYTES { start } else { 0 };
        Self { memory, start, len: 0, len_max }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len == self.len_max
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// Takes as much as there is room for, and says how much.
    pub(crate) fn fill(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.len_max - self.len);
        let end = self.start + self.len;
        self.memory[end..end + taken].copy_from_slice(&bytes[..taken]);
        self.len += taken;
        taken
    }
}
