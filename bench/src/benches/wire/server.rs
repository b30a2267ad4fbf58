//! The server to be measured: this program again, in a process of its own.
//!
//! It prints its address and ends when its standard input does: so it cannot outlive the
//! bench, however that ends.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use gapless_bench::process::{cpu_time_of, resident_bytes_of};
use gapless_server::http::{HttpListener, HttpOptions};
use gapless_server::native::{NativeListener, NativeOptions};

use super::raw;
use crate::benches::store::{Result, open};

/// More than any bench opens.
const CONNECTIONS_MAX: usize = 100_000;

/// A server's process.
pub(in crate::benches) struct Server {
    child: Child,
    address: SocketAddr,
    http: Option<SocketAddr>,
}

impl Server {
    /// A broker with a native API and an HTTP API.
    pub(in crate::benches) fn broker(folder: &Path) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--dir").arg(folder).arg("wire-server");
        Self::start(command)
    }

    /// Bare bytes.
    pub(in crate::benches) fn raw() -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["wire-server", "--raw"]);
        Self::start(command)
    }

    fn start(mut command: Command) -> Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out).read_line(&mut line)?;
        }
        let mut addresses = line.split_whitespace().map_while(|each| each.parse().ok());
        let (address, http) = (addresses.next(), addresses.next());
        match address {
            Some(address) => Ok(Self { child, address, http }),
            None => {
                end(&mut child)?;
                Err("the server did not start".into())
            }
        }
    }

    pub(in crate::benches) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where the HTTP API is.
    pub(in crate::benches) fn http(&self) -> Result<SocketAddr> {
        self.http.ok_or_else(|| "this server has no HTTP API".into())
    }

    pub(in crate::benches) fn cpu_time(&self) -> Result<Duration> {
        Ok(cpu_time_of(self.child.id())?)
    }

    pub(in crate::benches) fn resident_bytes(&self) -> Result<u64> {
        Ok(resident_bytes_of(self.child.id())?)
    }

    /// Ends it as it should be ended; an error if it could not close its store.
    pub(in crate::benches) fn end(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        let status = self.child.wait()?;
        if status.success() { Ok(()) } else { Err(format!("the server ended: {status}").into()) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // After `end` there is nothing left to do; otherwise an error is on its way already.
        let _ = end(&mut self.child);
    }
}

fn end(child: &mut Child) -> io::Result<()> {
    drop(child.stdin.take());
    if child.try_wait()?.is_none() {
        child.kill()?;
    }
    child.wait().map(|_| ())
}

/// The server's own work: until its standard input ends.
///
/// # Errors
/// When it cannot listen, or the broker answers one.
pub(crate) fn run(folder: Option<&Path>, raw: bool) -> Result<()> {
    if raw {
        return raw::serve(|address| tell(&address.to_string()), wait_for_the_end);
    }
    let broker = open(folder.ok_or("a server needs a folder")?)?;
    let runtime = gapless_server::runtime()?;
    let options = NativeOptions {
        connections_max: CONNECTIONS_MAX,
        drain: Duration::from_millis(100),
        ..NativeOptions::default()
    };
    let opened = NativeListener::open(broker.clone(), options, Some("127.0.0.1:0"), None);
    let listener = runtime.block_on(opened)?;
    let drain = Duration::from_millis(100);
    let limits = HttpOptions { connections_max: CONNECTIONS_MAX, drain, ..HttpOptions::default() };
    let http = runtime.block_on(HttpListener::open(broker.clone(), limits, "127.0.0.1:0"))?;
    let address = listener.tcp_address().ok_or("the listener has no address")?;
    tell(&format!("{address} {}", http.address()))?;
    wait_for_the_end()?;
    runtime.block_on(http.close());
    runtime.block_on(listener.close());
    broker.close()?;
    Ok(())
}

fn tell(addresses: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{addresses}")?;
    Ok(out.flush()?)
}

fn wait_for_the_end() -> Result<()> {
    let mut nothing = [0; 64];
    while io::stdin().lock().read(&mut nothing)? > 0 {}
    Ok(())
}
