//! What TLS costs: the same work over plain connections and over TLS, and new connections.
//!
//! Both servers get the same kind of certificate (P-256, signed by itself, which the generators trust),
//! and each connection is a whole handshake: nothing is resumed. The generators decrypt too, so the
//! rate is that of both sides together; the server's own cost is in its CPU per operation.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::live;
use super::load::{Bound, Window};
use super::publish::publisher;
use super::report::Counts;
use super::run::{Meter, Run};
use super::systems::{Contender, Store, Who};
use crate::benches::size_name;
use crate::benches::store::Result;

/// Subscribers of live messages, each on a connection of its own.
const SUBSCRIBERS: [usize; 2] = [1, 100];

/// Servers that speak TLS, and by what they are trusted.
static TRUSTED: Mutex<BTreeMap<SocketAddr, Arc<ClientConfig>>> = Mutex::new(BTreeMap::new());

/// A certificate and its key, for a server.
pub(super) struct Pair {
    pub(super) cert: PathBuf,
    pub(super) key: PathBuf,
    config: Arc<ClientConfig>,
}

impl Pair {
    /// Makes one in a folder.
    pub(super) fn make(folder: &Path) -> Result<Self> {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?;
        let (cert, key) = (folder.join("server.pem"), folder.join("server.key"));
        fs::write(&cert, made.cert.pem())?;
        fs::write(&key, made.signing_key.serialize_pem())?;
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.resumption = Resumption::disabled();
        Ok(Self { cert, key, config: Arc::new(config) })
    }

    /// From now on, who connects to this address speaks TLS.
    pub(super) fn trust(self, address: SocketAddr) {
        let mut trusted = TRUSTED.lock().unwrap_or_else(PoisonError::into_inner);
        trusted.insert(address, self.config);
    }
}

/// A connection of a load generator.
pub(super) enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    /// Speaks TLS, if the server at this address does.
    pub(super) fn on(tcp: TcpStream, address: SocketAddr) -> Result<Self> {
        let trusted = TRUSTED.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(config) = trusted.get(&address).cloned() else { return Ok(Self::Plain(tcp)) };
        drop(trusted);
        let session = ClientConnection::new(config, ServerName::from(address.ip()))?;
        Ok(Self::Tls(Box::new(StreamOwned::new(session, tcp))))
    }

    pub(super) fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(tcp) => tcp,
            Self::Tls(tls) => &tls.sock,
        }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(tcp) => tcp.read(into),
            Self::Tls(tls) => tls.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(tcp) => tcp.write(bytes),
            Self::Tls(tls) => tls.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(tcp) => tcp.flush(),
            Self::Tls(tls) => tls.flush(),
        }
    }
}

/// Those who speak TLS, each without it and with it.
fn contenders() -> Vec<Contender> {
    let plain = [Who::Gapless, Who::Nats].map(|who| Contender::new(who, Store::Live));
    plain.into_iter().flat_map(|plain| [plain, Contender { tls: true, ..plain }]).collect()
}

/// Publishing, delivering and connecting.
pub(super) fn all(run: &mut Run<'_>) -> Result<()> {
    let (rounds, time, size) = (run.plan.rounds, run.plan.time, live::MESSAGE_BYTES);
    let publish = format!("TLS: publish without waiting, {}", size_name(size));
    run.alternate((&publish, rounds), contenders(), |run, contender| {
        let stage = run.stage(contender)?;
        let mut publisher = publisher(stage.server.address(), contender, size, "bench")?;
        let window = Window::wide(&publisher.ring);
        let meter = Meter::start(&stage.server)?;
        let sent = publisher.flood(window, Bound::time(time))?;
        let measured = meter.rate(&stage.server, sent)?;
        run.add("tls", (&publish, Counts::PerSecond), contender, measured);
        Ok(())
    })?;
    for subscribers in SUBSCRIBERS {
        let deliver = format!("TLS: live 1 → {subscribers}, {}", size_name(size));
        run.alternate((&deliver, rounds), contenders(), |run, contender| {
            let stage = run.stage(contender)?;
            let measured = live::deliver(&stage, contender, (1, subscribers, size), time)?;
            run.add("tls", (&deliver, Counts::PerSecond), contender, measured);
            Ok(())
        })?;
    }
    let connect = "TLS: new connections, one after another";
    run.alternate((connect, rounds), contenders(), |run, contender| {
        let stage = run.stage(contender)?;
        let (system, address) = (contender.who.system(), stage.server.address());
        let meter = Meter::start(&stage.server)?;
        let (started, mut made) = (Instant::now(), 0);
        while started.elapsed() < time {
            drop(system.connect(address)?);
            made += 1;
        }
        let measured = meter.rate(&stage.server, made)?;
        run.add("tls", (connect, Counts::PerSecond), contender, measured);
        Ok(())
    })
}
