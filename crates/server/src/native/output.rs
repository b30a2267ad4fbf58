//! What waits to be written to a connection.
//!
//! Small frames gather in one buffer; batches are not copied but stand between, as they are
//! in memory. Everything that has gathered goes out in one call.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};

use crate::native::stream::Stream;

/// Parts handed to the kernel in one call.
const PARTS_MAX: usize = 64;
/// Payloads below this are copied: an extra part costs more than the copy.
const COPIED_BYTES_MAX: usize = 2048;

/// Bytes on their way out.
#[derive(Debug, Default)]
pub(crate) struct Output {
    parts: VecDeque<Bytes>,
    small: BytesMut,
    bytes: usize,
}

impl Output {
    /// How many bytes wait.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Encodes something small.
    pub(crate) fn put<E>(
        &mut self,
        encode: impl FnOnce(&mut BytesMut) -> Result<(), E>,
    ) -> Result<(), E> {
        let before = self.small.len();
        encode(&mut self.small)?;
        self.bytes += self.small.len() - before;
        Ok(())
    }

    /// Adds bytes as they are.
    pub(crate) fn put_bytes(&mut self, bytes: Bytes) {
        self.bytes += bytes.len();
        if bytes.len() <= COPIED_BYTES_MAX {
            self.small.extend_from_slice(&bytes);
            return;
        }
        self.close_small();
        self.parts.push_back(bytes);
    }

    fn close_small(&mut self) {
        if !self.small.is_empty() {
            self.parts.push_back(self.small.split().freeze());
        }
    }

    /// Writes as much as the socket takes, and no more than `most` bytes; ready when that
    /// went.
    pub(crate) fn poll_write(
        &mut self,
        stream: &mut Stream,
        most: usize,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let left_over = self.bytes.saturating_sub(most);
        while self.bytes > left_over {
            self.close_small();
            let slices = self.slices(self.bytes - left_over);
            let written = match stream.poll_write(context, &slices) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(written)) => written,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            };
            self.advance(written);
        }
        if self.bytes > 0 {
            return Poll::Ready(Ok(()));
        }
        // Nothing is kept while nothing is in flight.
        self.small = BytesMut::new();
        self.parts = VecDeque::new();
        stream.poll_flush(context)
    }

    /// The first parts, for one call: at most `most` bytes.
    fn slices(&self, mut most: usize) -> Vec<IoSlice<'_>> {
        let mut slices = Vec::new();
        for part in self.parts.iter().take(PARTS_MAX) {
            let taken = part.len().min(most);
            slices.push(IoSlice::new(&part[..taken]));
            most -= taken;
            if most == 0 {
                break;
            }
        }
        slices
    }

    fn advance(&mut self, mut written: usize) {
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
}
