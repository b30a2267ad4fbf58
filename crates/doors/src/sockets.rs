//! How the TCP connections of all doors are set.
//!
//! Small frames go out at once. A peer that is gone without a word (its power, its cable) is
//! noticed though nothing is sent, and though what was sent fills the kernel's buffers: else its
//! connection, its subscriptions and its memberships would stay for a quarter of an hour.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// How long nothing may come before the kernel asks whether somebody is there.
const PROBE_AFTER: Duration = Duration::from_secs(30);
/// How long it waits for the answer before it asks again.
const PROBE_EVERY: Duration = Duration::from_secs(10);
/// How long what was sent may stay without a sign of having arrived.
const DEAD_AFTER: Duration = Duration::from_secs(60);

pub(crate) fn set_up(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let probes = TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_EVERY);
    socket.set_tcp_keepalive(&probes)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(DEAD_AFTER))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn peers_that_are_gone_without_a_word_are_noticed() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (peer, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (stream, _) = accepted.unwrap();
        set_up(&stream).unwrap();
        let socket = SockRef::from(&stream);
        assert!(stream.nodelay().unwrap() && socket.keepalive().unwrap());
        #[cfg(target_os = "linux")]
        {
            assert_eq!(socket.tcp_user_timeout().unwrap(), Some(DEAD_AFTER));
            assert_eq!(socket.tcp_keepalive_time().unwrap(), PROBE_AFTER);
            assert_eq!(socket.tcp_keepalive_interval().unwrap(), PROBE_EVERY);
        }
        drop(peer);
    }
}
