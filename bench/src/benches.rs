//! The benches that drive a broker, one file each, and what they share.
//!
//! Each bench makes its stores in a folder it is given, keeps to its bounds of time and
//! bytes, and answers with one table. Stores are measured in the process itself: doors and
//! sockets are other benches' matter.

pub mod all;
pub mod follow;
pub mod history;
pub mod live;
pub mod memory;
pub mod mixed;
pub mod open;
pub mod pace;
pub mod publish;
pub mod store;
pub mod window;

/// Bytes of a message, in words.
pub fn size_name(bytes: usize) -> String {
    if bytes >= 1024 && bytes.is_multiple_of(1024) {
        return format!("{} KiB", bytes / 1024);
    }
    format!("{bytes} B")
}
