//! The benches that drive a broker, one file each, and what they share.
//!
//! Each bench makes its stores in a folder it is given, keeps to its bounds of time and
//! bytes, and answers with one table. All but `wire` and `http` measure a store in the process
//! itself; those have a server in a process of its own and talks to it over a socket.

pub(crate) mod all;
pub(crate) mod create;
pub(crate) mod follow;
pub(crate) mod groups;
pub(crate) mod history;
pub(crate) mod http;
pub(crate) mod jobs;
pub(crate) mod live;
pub(crate) mod memory;
pub(crate) mod mixed;
pub(crate) mod open;
pub(crate) mod outbox;
pub(crate) mod pace;
pub(crate) mod publish;
pub(crate) mod stalls;
pub(crate) mod store;
pub(crate) mod window;
pub(crate) mod wire;

/// Bytes of a message, in words.
pub(crate) fn size_name(bytes: usize) -> String {
    if bytes >= 1024 && bytes.is_multiple_of(1024) {
        return format!("{} KiB", bytes / 1024);
    }
    format!("{bytes} B")
}
