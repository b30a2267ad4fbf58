//! A long body of a message, written piece by piece.
//!
//! As text a body grows up to seven times: a control character is six bytes of JSON, an empty line
//! of a body is seven bytes of an event. So a long one is not written at once for each of many
//! clients, but as far as the client takes it; the bytes themselves are shared by all.

use bytes::Bytes;

use crate::json::message::{base64, put_text};

/// Bodies up to this length are written whole.
pub(crate) const WHOLE_BYTES_MAX: usize = 16 * 1024;

/// How many times as long a body may become, at most.
const GROWTH_MAX: usize = 7;

/// The least of a body that is worth a piece.
const PIECE_BYTES_MIN: usize = 512;

/// A body on its way, and what comes behind it.
#[derive(Debug)]
pub(crate) struct LongBody {
    bytes: Bytes,
    at: usize,
    form: Form,
    end: Vec<u8>,
}

/// How a body is written.
#[derive(Debug)]
pub(crate) enum Form {
    /// As a part of a JSON string; it is text.
    Text,
    /// In base64, with padding.
    Base64,
    /// It is JSON, and is written without the blanks between its parts.
    Json(Compact),
    /// As lines of an event's data; it is text.
    Lines {
        /// Whether the byte before was a carriage return.
        after_return: bool,
    },
}

impl LongBody {
    pub(crate) fn new(bytes: Bytes, form: Form) -> Self {
        Self { bytes, at: 0, form, end: Vec::new() }
    }

    /// With this behind the body, and behind what was to come before.
    #[must_use]
    pub(crate) fn then(mut self, end: &[u8]) -> Self {
        self.end.extend_from_slice(end);
        self
    }

    /// Appends until there are about `most` bytes; true when all was written.
    pub(crate) fn put(&mut self, out: &mut Vec<u8>, most: usize) -> bool {
        while self.at < self.bytes.len() {
            if out.len() >= most {
                return false;
            }
            let piece = ((most - out.len()) / GROWTH_MAX).max(PIECE_BYTES_MIN);
            self.put_piece(out, piece);
        }
        out.extend_from_slice(&self.end);
        true
    }

    fn put_piece(&mut self, out: &mut Vec<u8>, bytes: usize) {
        let end = self.piece_end(bytes);
        let piece = &self.bytes[self.at..end];
        match &mut self.form {
            Form::Text => {
                let before = out.len();
                put_text(out, text(piece));
                // Without the quotes, which stand around the whole.
                out.pop();
                out.remove(before);
            }
            Form::Base64 => out.extend_from_slice(base64(piece).as_bytes()),
            Form::Json(compact) => compact.put(out, piece),
            Form::Lines { after_return } => put_lines(out, piece, after_return),
        }
        self.at = end;
    }

    /// Where a piece of about so many bytes ends: between characters, and where base64 may be cut.
    fn piece_end(&self, bytes: usize) -> usize {
        let mut end = self.at + bytes / 3 * 3;
        if end >= self.bytes.len() {
            return self.bytes.len();
        }
        if matches!(self.form, Form::Text | Form::Lines { .. }) {
            while self.bytes[end] & 0b1100_0000 == 0b1000_0000 {
                end -= 1;
            }
        }
        end
    }
}

fn text(piece: &[u8]) -> &str {
    std::str::from_utf8(piece).expect("a text is cut between characters")
}

/// Every line end begins a line of data, whichever it is.
fn put_lines(out: &mut Vec<u8>, piece: &[u8], after_return: &mut bool) {
    for &byte in piece {
        match byte {
            b'\n' if *after_return => {}
            b'\n' | b'\r' => out.extend_from_slice(b"\ndata: "),
            _ => out.push(byte),
        }
        *after_return = byte == b'\r';
    }
}

/// Valid JSON without the blanks and line ends between its parts.
#[derive(Debug, Default)]
pub(crate) struct Compact {
    in_text: bool,
    escaped: bool,
}

impl Compact {
    /// Appends the next part of it.
    pub(crate) fn put(&mut self, out: &mut Vec<u8>, json: &[u8]) {
        for &byte in json {
            if self.in_text || !byte.is_ascii_whitespace() {
                out.push(byte);
            }
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_text => self.escaped = true,
                b'"' => self.in_text = !self.in_text,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes out when it is written in pieces of this size.
    fn written(bytes: &[u8], form: Form, most: usize) -> Vec<u8> {
        let mut long = LongBody::new(Bytes::copy_from_slice(bytes), form).then(b"!");
        let mut all = Vec::new();
        loop {
            let mut out = Vec::new();
            let done = long.put(&mut out, most);
            assert!(out.len() <= most + GROWTH_MAX * PIECE_BYTES_MIN, "{}", out.len());
            all.extend(out);
            if done {
                return all;
            }
        }
    }

    #[test]
    fn h1_pieces_of_any_size_are_together_what_the_whole_is() {
        let mixed = "ä\u{1}\n\r\n\r\"€𝄞 {\"a\" : 1}\\ ".repeat(700);
        let json = format!("[{}1]", "{\"a \\\" b\" : [1, 2.5] },\n".repeat(500));
        for most in [1, 1000, 4096, 9999, 1 << 20] {
            let mut quoted = Vec::new();
            put_text(&mut quoted, &mixed);
            let out = written(mixed.as_bytes(), Form::Text, most);
            assert!(out[..out.len() - 1] == quoted[1..quoted.len() - 1], "text by {most}");
            let out = written(mixed.as_bytes(), Form::Base64, most);
            assert!(out[..out.len() - 1] == *base64(mixed.as_bytes()).as_bytes(), "base64");
            let mut compact = Vec::new();
            Compact::default().put(&mut compact, json.as_bytes());
            let out = written(json.as_bytes(), Form::Json(Compact::default()), most);
            assert!(out[..out.len() - 1] == compact, "JSON by {most}");
            let mut event = Vec::new();
            crate::http::follow::event_stream::put_event(&mut event, None, None, &mixed);
            let out = written(mixed.as_bytes(), Form::Lines { after_return: false }, most);
            assert!(out[..out.len() - 1] == event[6..event.len() - 2], "lines by {most}");
        }
    }
}
