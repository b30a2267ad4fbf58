//! What a connection costs on which nothing happens. In a file of its own, as it measures the
//! memory of its process.

mod common;
#[path = "common/process.rs"]
mod process;

use common::*;
use gapless_core::{Message, PublishOptions};
use gapless_protocol::*;
use process::{files_max, memory};

/// Bytes that an idle connection with a subscription may cost the server in total. Without
/// optimisation tasks are larger: they keep values twice that are moved.
const CONNECTION_BYTES_MAX: u64 = if cfg!(debug_assertions) { 5 * 1024 } else { 4 * 1024 };
/// Connections that are measured, if so many files may be open: each end is one. So many that a
/// megabyte or two which the process takes once meanwhile does not count much.
const CONNECTIONS: usize = 6000;
/// Files that are open besides.
const OTHER_FILES: usize = 100;
/// Connections before the first look: by then what is made once is made.
const WARM_UP: usize = 50;

#[test]
fn an_idle_connection_costs_little_before_and_after_it_was_busy() {
    let server = Server::open();
    let connect = |_| {
        let mut peer = server.peer();
        peer.follow(subscribe("idle", StartFrom::Now));
        assert!(matches!(peer.next(), Verb::RecoveryComplete(_)));
        // Its own memory is not the server's.
        peer.socket
    };
    let publish = || {
        let sent =
            server.broker.publish(&name("idle"), &Message::new("x"), &PublishOptions::default());
        assert!(sent.wait().expect("an ack").accepted().is_some());
        server.until("all get it", |server| {
            let all = server.broker.subscribers();
            all.iter().all(|each| each.delivered_bytes > 0)
        });
    };
    let warm: Vec<_> = (0..WARM_UP).map(connect).collect();
    publish();
    let files = files_max().saturating_sub(OTHER_FILES) / 2;
    let count = CONNECTIONS.min(files.saturating_sub(WARM_UP));
    assert!(count > 100, "too few files may be open to measure anything");
    let before = memory();
    let idle: Vec<_> = (0..count).map(connect).collect();
    let each = |what: &str| {
        let each = memory().saturating_sub(before) / count as u64;
        println!("{what}: {each} bytes for each of {count}");
        assert!(each <= CONNECTION_BYTES_MAX, "{what}: {each} bytes for each of {count}");
    };
    each("idle");
    publish();
    each("idle after a message");
    drop((warm, idle));
}
