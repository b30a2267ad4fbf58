//! What the tests of the protocol share: examples of every verb, their meaning as JSON, and
//! arbitrary verbs.
#![allow(dead_code, reason = "each test uses a part of it")]

pub(crate) mod any;
pub(crate) mod groups;
pub(crate) mod meaning;
pub(crate) mod samples;

use bytes::BytesMut;
use gapless_protocol::{Decoder, Frame, FrameLimit, Ids, Verb};

/// CRC-32C, bit by bit: slow, and independent of the one that the product uses.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = !0_u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

pub(crate) fn encode(verb: &Verb, ids: Ids) -> BytesMut {
    let mut out = BytesMut::new();
    verb.encode(ids, FrameLimit::MAX, &mut out).expect("the verb is well formed");
    out
}

pub(crate) fn frame_of(wire: &[u8]) -> Frame {
    let mut input = BytesMut::from(wire);
    let frame = Decoder::default().decode(&mut input).expect("it is a frame");
    assert!(input.is_empty(), "nothing is left");
    frame.expect("it is all there")
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hex digits");
    (0..text.len()).step_by(2).map(digit).collect()
}
