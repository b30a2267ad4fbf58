//! Writing what waits for a connection, as much as its socket takes.

use std::io::{self, IoSlice};
use std::task::{Context, Poll};

use gapless_protocol::Output;

use crate::session::stream::Stream;

/// Writes as much as the socket takes, and no more than `most` bytes; ready when that went.
pub(crate) fn poll_write(
    output: &mut Output,
    stream: &mut Stream,
    most: usize,
    context: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    let left_over = output.bytes().saturating_sub(most);
    while output.bytes() > left_over {
        let room = output.bytes() - left_over;
        let slices: Vec<IoSlice<'_>> = output.parts(room).map(IoSlice::new).collect();
        let written = match stream.poll_write(context, &slices) {
            Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            Poll::Ready(Ok(written)) => written,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => return Poll::Pending,
        };
        output.advance(written);
    }
    if output.bytes() > 0 {
        return Poll::Ready(Ok(()));
    }
    // Nothing is kept while nothing is in flight.
    output.release();
    stream.poll_flush(context)
}
