//! How the TCP connections of all listeners are set.
//!
//! Small frames go out at once. A peer that is gone without a word (its power, its cable) is
//! noticed though nothing is sent, and though what was sent fills the kernel's buffers: else its
//! connection, its subscriptions and its memberships would stay for a quarter of an hour.
//!
//! All this is said once, to the listener, before it listens: what it accepts takes it over.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpSocket, lookup_host};

/// How long a connection may be silent before the kernel sends keep-alive probes.
const PROBE_AFTER: Duration = Duration::from_secs(30);
/// How long it waits for the answer before it asks again.
const PROBE_EVERY: Duration = Duration::from_secs(10);
/// How long what was sent may stay without a sign of having arrived.
const DEAD_AFTER: Duration = Duration::from_secs(60);

/// How long a peer may take nothing of what is written to it, unless the configuration says
/// otherwise.
pub(crate) const WRITE_TIMEOUT: Duration = Duration::from_secs(120);

/// Bytes that the kernel takes of a connection before they are sent. Without it each peer that
/// does not read has up to 4 MiB in the kernel, and some hundreds of them use up what the kernel
/// has for all TCP connections of the machine.
const UNSENT_BYTES: u32 = 128 * 1024;

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1024;

/// Listens on the first address of that name that can be listened on. Port 0 takes a free one.
pub(crate) async fn listen(address: &str) -> io::Result<TcpListener> {
    let mut failed = io::Error::new(io::ErrorKind::InvalidInput, "that is not a valid address");
    for address in lookup_host(address).await? {
        match listen_on(address) {
            Ok(listener) => return Ok(listener),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn listen_on(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Else a server that starts again would wait for the last connections of the one before.
    socket.set_reuseaddr(true)?;
    socket.set_nodelay(true)?;
    let options = SockRef::from(&socket);
    let probes = TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_EVERY);
    options.set_tcp_keepalive(&probes)?;
    #[cfg(target_os = "linux")]
    options.set_tcp_user_timeout(Some(DEAD_AFTER))?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    options.set_tcp_notsent_lowat(UNSENT_BYTES)?;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    options.set_send_buffer_size(UNSENT_BYTES as usize)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Notes that a connection is ended because its peer took nothing for too long. The peer cannot be
/// notified: what it did not take is in the way. It sees the end behind that, and can resume.
pub(crate) fn slow_reader_ended(listener: &'static str, peer: &str) {
    tracing::info!(
        listener,
        peer,
        "a client took nothing for too long; it can resume from its cursor"
    );
    metrics::counter!("gapless_slow_readers_ended_total", "listener" => listener).increment(1);
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn peers_that_are_gone_without_a_word_are_noticed() {
        let listener = listen("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (peer, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (stream, _) = accepted.unwrap();
        let socket = SockRef::from(&stream);
        assert!(stream.nodelay().unwrap() && socket.keepalive().unwrap());
        #[cfg(target_os = "linux")]
        {
            assert_eq!(socket.tcp_user_timeout().unwrap(), Some(DEAD_AFTER));
            assert_eq!(socket.tcp_keepalive_time().unwrap(), PROBE_AFTER);
            assert_eq!(socket.tcp_keepalive_interval().unwrap(), PROBE_EVERY);
            assert_eq!(socket.tcp_notsent_lowat().unwrap(), UNSENT_BYTES);
        }
        drop(peer);
    }
}
