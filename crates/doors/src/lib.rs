//! The doors of gapless: they translate between a protocol and the broker, and hold no rules.

pub mod native;
