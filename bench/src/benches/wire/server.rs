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
use gapless_doors::native::{NativeDoor, NativeOptions};

use super::raw;
use crate::benches::store::{Result, open};

/// More than any bench opens.
const CONNECTIONS_MAX: usize = 100_000;

/// A server's process.
pub(super) struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    /// A broker with a native door.
    pub(super) fn broker(folder: &Path) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--dir").arg(folder).arg("wire-server");
        Self::start(command)
    }

    /// Bare bytes.
    pub(super) fn raw() -> Result<Self> {
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
        match line.trim().parse() {
            Ok(address) => Ok(Self { child, address }),
            Err(_) => {
                end(&mut child)?;
                Err("the server did not start".into())
            }
        }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn cpu_time(&self) -> Result<Duration> {
        Ok(cpu_time_of(self.child.id())?)
    }

    pub(super) fn resident_bytes(&self) -> Result<u64> {
        Ok(resident_bytes_of(self.child.id())?)
    }

    /// Ends it as it should be ended; an error if it could not close its store.
    pub(super) fn end(mut self) -> Result<()> {
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
        return raw::serve(tell, wait_for_the_end);
    }
    let broker = open(folder.ok_or("a server needs a folder")?)?;
    let runtime = gapless_doors::runtime()?;
    let options = NativeOptions {
        connections_max: CONNECTIONS_MAX,
        drain: Duration::from_millis(100),
        ..NativeOptions::default()
    };
    let opened = NativeDoor::open(broker.clone(), options, Some("127.0.0.1:0"), None);
    let door = runtime.block_on(opened)?;
    tell(door.tcp_address().ok_or("the door has no address")?)?;
    wait_for_the_end()?;
    runtime.block_on(door.close());
    broker.close()?;
    Ok(())
}

fn tell(address: SocketAddr) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{address}")?;
    Ok(out.flush()?)
}

fn wait_for_the_end() -> Result<()> {
    let mut nothing = [0; 64];
    while io::stdin().lock().read(&mut nothing)? > 0 {}
    Ok(())
}
