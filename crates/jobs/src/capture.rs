//! What a job writes: the beginning of it is kept, and passed on while it runs.
//!
//! Beyond the limit everything is read and dropped, so that a job never waits for its output to
//! be taken. What is passed on may be dropped too, when it is not taken fast enough: the result
//! has all that is kept.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::mpsc;

use crate::clock;
use crate::wire::Stream;

/// How much is read at a time.
const READ_BYTES: usize = 8 * 1024;
/// What is written is passed on when it is this old.
const PASS_ON_EVERY: Duration = Duration::from_millis(200);
/// What is written is passed on when it is this much.
const PASS_ON_BYTES: usize = 16 * 1024;

/// A piece of what a job wrote.
pub(crate) type Piece = (Stream, String);

/// Where pieces go.
#[derive(Clone)]
pub(crate) struct PassOn {
    pub(crate) stream: Stream,
    pub(crate) to: mpsc::Sender<Piece>,
}

/// Reads a stream to its end, and keeps the beginning of it.
pub(crate) async fn capture(
    stream: Option<impl AsyncRead + Unpin>,
    max: usize,
    pass_on: PassOn,
) -> String {
    let Some(mut stream) = stream else { return String::new() };
    let (mut kept, mut buffer) = (Vec::new(), vec![0; READ_BYTES]);
    let (mut dropped, mut passed) = (0_u64, 0);
    let mut pass_at = None;
    loop {
        let due = pass_at.unwrap_or_else(clock::now);
        tokio::select! {
            read = stream.read(&mut buffer) => {
                let Ok(count @ 1..) = read else { break };
                let room = max.saturating_sub(kept.len()).min(count);
                kept.extend_from_slice(&buffer[..room]);
                dropped += (count - room) as u64;
                if room > 0 && pass_at.is_none() {
                    pass_at = Some(clock::now() + PASS_ON_EVERY);
                }
            }
            () = clock::pause_until(due), if pass_at.is_some() => {
                pass_at = None;
                passed += pass_on.pass(&kept[passed..]);
            }
        }
        if kept.len() - passed >= PASS_ON_BYTES {
            pass_at = None;
            passed += pass_on.pass(&kept[passed..]);
        }
    }
    let mut text = String::from_utf8_lossy(&kept).into_owned();
    if dropped > 0 {
        text.push_str(&format!("\n[{dropped} more bytes were not kept]\n"));
    }
    text
}

impl PassOn {
    /// Passes on what is whole text; says how many bytes that were.
    fn pass(&self, bytes: &[u8]) -> usize {
        let whole = whole_text(bytes);
        if whole > 0 {
            let text = String::from_utf8_lossy(&bytes[..whole]).into_owned();
            let _ = self.to.try_send((self.stream, text));
        }
        whole
    }
}

/// How many bytes there are without a character that has only begun.
fn whole_text(bytes: &[u8]) -> usize {
    let begun = |error: &std::str::Utf8Error| error.error_len().is_none();
    let mut at = 0;
    loop {
        match std::str::from_utf8(&bytes[at..]) {
            Ok(_) => return bytes.len(),
            Err(error) if begun(&error) => return at + error.valid_up_to(),
            Err(error) => at += error.valid_up_to() + error.error_len().unwrap_or(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_is_never_cut_in_two_and_wrong_bytes_do_not_hold_it_up() {
        for (bytes, whole) in [
            (&b"abc"[..], 3),
            (b"ab\xc3", 2),
            (b"\xff\xfe", 2),
            (b"\xffab\xe2\x82", 3),
            ("ä€".as_bytes(), 5),
        ] {
            assert_eq!(whole_text(bytes), whole, "{bytes:?}");
        }
    }

    #[tokio::test]
    async fn what_is_beyond_the_limit_is_read_and_counted() {
        let (to, mut pieces) = mpsc::channel(4);
        let pass_on = PassOn { stream: Stream::Stdout, to };
        let bytes = vec![b'a'; 40_000];
        let text = capture(Some(&bytes[..]), 20_000, pass_on).await;
        assert!(text.starts_with(&"a".repeat(20_000)), "the beginning is kept");
        assert!(text.ends_with("\n[20000 more bytes were not kept]\n"));
        let (stream, piece) = pieces.recv().await.expect("it was passed on meanwhile");
        assert_eq!((stream, piece.len() >= PASS_ON_BYTES), (Stream::Stdout, true));
    }
}
