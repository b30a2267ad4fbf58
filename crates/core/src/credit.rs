//! How much a reader allows to be sent to it: messages and bytes.
//!
//! How a grant is spent is decided where frames are cut (`protocol/pack.rs`): not here.

/// An amount of both things that are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Amount {
    /// How many messages.
    pub messages: u64,
    /// How many bytes.
    pub bytes: u64,
}
