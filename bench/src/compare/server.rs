//! The servers that are compared: real programs, in processes of their own.
//!
//! Each gets a fresh folder and a free port on loopback. Whatever ends a run (its end, an
//! error, a panic, Ctrl-C or SIGTERM) ends them too: an owner kills its server when it is
//! dropped, and a signal kills all that are known, which makes the run fail and clean up.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use gapless_bench::process::{cpu_time_of, resident_bytes_max_of, resident_bytes_of};

use super::link::WAIT_MAX;
use super::rights;
use super::systems::{Contender, Store, Who};
use super::tls::Pair;
use crate::benches::store::Result;

/// How often something is looked at that cannot be waited for.
const LOOK: Duration = Duration::from_millis(1);

/// Lines of a server's log that an error shows.
const LOG_LINES_SHOWN: usize = 8;

/// More connections than any work opens.
pub(super) const CONNECTIONS_MAX: usize = 60_000;

/// How long processors are kept awake after a message, where they are.
const AWAKE_US: u32 = 1000;

/// Where the programs are; a peer that is not there does not take part.
#[derive(Clone, Debug, Default)]
pub(super) struct Programs {
    pub(super) gapless: PathBuf,
    pub(super) nats: Option<PathBuf>,
    pub(super) redis: Option<PathBuf>,
}

impl Programs {
    pub(super) fn of(&self, who: Who) -> Option<&Path> {
        match who {
            Who::Gapless => Some(&self.gapless),
            Who::Nats => self.nats.as_deref(),
            Who::Redis => self.redis.as_deref(),
        }
    }
}

/// A server's process.
pub(super) struct Server {
    child: Arc<Mutex<Child>>,
    process: u32,
    address: SocketAddr,
    http: Option<SocketAddr>,
    folder: PathBuf,
    who: Who,
}

impl Server {
    /// Starts one on a folder, new or used, and waits until it is ready.
    pub(super) fn start(programs: &Programs, contender: &Contender, folder: &Path) -> Result<Self> {
        let Contender { who, store, awake, tls, rights, .. } = *contender;
        let program = programs.of(who).ok_or("a program that is not there")?;
        fs::create_dir_all(folder)?;
        let pair = tls.then(|| Pair::make(folder)).transpose()?;
        let (mut command, ready) = match who {
            Who::Gapless => (gapless(program, folder, awake, pair.as_ref()), Ready::Line),
            Who::Nats => (nats(program, folder, store, pair.as_ref())?, Ready::PortsFile),
            Who::Redis => {
                let address = free_address()?;
                (redis(program, folder, store, address), Ready::Port(address))
            }
        };
        if rights {
            let socket = folder.join(rights::SOCKET);
            command.arg("--set").arg(format!("native.unix={}", socket.display()));
            command.args(["--set", "auth.required=true"]);
        }
        command.stdin(Stdio::null());
        let server = Self::launch(who, command, ready, folder)?;
        if rights {
            rights::make_token(program, folder, server.address)?;
        }
        if let Some(pair) = pair {
            pair.trust(server.address);
        }
        Ok(server)
    }

    /// Starts a program of this kind, with the input it was given, and waits until it is ready.
    pub(super) fn launch(
        who: Who,
        mut command: Command,
        ready: Ready,
        folder: &Path,
    ) -> Result<Self> {
        let log = File::options().create(true).append(true).open(folder.join("server.log"))?;
        command.stderr(log.try_clone()?);
        match ready {
            Ready::Line => command.stdout(Stdio::piped()),
            Ready::PortsFile | Ready::Port(_) => command.stdout(log),
        };
        let (child, process, out) = children().spawn(&mut command)?;
        let folder = folder.to_owned();
        let mut server = Self { child, process, address: UNKNOWN, http: None, folder, who };
        let addresses = server.wait_until(ready, out).map_err(|error| {
            format!("{} did not start: {error}{}", who.name(), server.log_end())
        })?;
        (server.address, server.http) = addresses;
        Ok(server)
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it shows how it stands.
    pub(super) fn http(&self) -> Result<SocketAddr> {
        self.http.ok_or_else(|| format!("{} has no HTTP", self.who.name()).into())
    }

    pub(super) fn cpu_time(&self) -> Result<Duration> {
        Ok(cpu_time_of(self.process)?)
    }

    pub(super) fn resident_bytes(&self) -> Result<u64> {
        Ok(resident_bytes_of(self.process)?)
    }

    pub(super) fn resident_bytes_max(&self) -> Result<u64> {
        Ok(resident_bytes_max_of(self.process)?)
    }

    /// Asks it to end, and waits for that.
    pub(super) fn end(self) -> Result<()> {
        self.signal("TERM")?;
        let deadline = Instant::now() + WAIT_MAX;
        while lock(&self.child).try_wait()?.is_none() {
            if Instant::now() > deadline {
                return Err(format!("{} does not end", self.who.name()).into());
            }
            thread::park_timeout(LOOK);
        }
        Ok(())
    }

    /// Sends a signal to its process.
    pub(super) fn signal(&self, signal: &str) -> Result<()> {
        let process = self.process.to_string();
        let sent = Command::new("kill").args([&format!("-{signal}"), &process]).status()?;
        if sent.success() {
            return Ok(());
        }
        Err(format!("{} cannot be sent {signal}", self.who.name()).into())
    }

    fn wait_until(&self, ready: Ready, out: Option<ChildStdout>) -> Result<Addresses> {
        match ready {
            Ready::Line => {
                let mut line = String::new();
                BufReader::new(out.ok_or("no output")?).read_line(&mut line)?;
                let line: serde_json::Value = serde_json::from_str(&line)?;
                let native = line["native"].as_str().ok_or("it tells no address")?.parse()?;
                Ok((native, line["http"].as_str().and_then(of_url)))
            }
            Ready::PortsFile => {
                let path = self.folder.join(format!("nats-server_{}.ports", self.process));
                self.look(|| Ok(fs::read(&path).ok().and_then(|text| nats_addresses(&text))))
            }
            Ready::Port(address) => self.look(|| {
                let link = Who::Redis.system().connect(address);
                Ok(link.ok().map(|_| (address, None)))
            }),
        }
    }

    /// Looks again and again, as long as the process lives and the time is not over.
    fn look<T>(&self, mut at: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            if let Some(found) = at()? {
                return Ok(found);
            }
            if let Some(status) = lock(&self.child).try_wait()? {
                return Err(format!("it ended: {status}").into());
            }
            if Instant::now() > deadline {
                return Err("it takes too long".into());
            }
            thread::park_timeout(LOOK);
        }
    }

    fn log_end(&self) -> String {
        let log = fs::read_to_string(self.folder.join("server.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let from = lines.len().saturating_sub(LOG_LINES_SHOWN);
        lines[from..].iter().fold(String::new(), |mut text, line| {
            let _ = write!(text, "\n  {line}");
            text
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        end(&self.child);
        children().forget(&self.child);
    }
}

const UNKNOWN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// Where it is spoken to, and where it shows how it stands.
type Addresses = (SocketAddr, Option<SocketAddr>);

/// How a server tells that it is ready.
#[derive(Clone, Copy)]
pub(super) enum Ready {
    /// By a line of JSON.
    Line,
    /// By a file with its ports.
    PortsFile,
    /// By answering on the port it was given.
    Port(SocketAddr),
}

pub(super) fn gapless(program: &Path, folder: &Path, awake: bool, tls: Option<&Pair>) -> Command {
    let mut command = Command::new(program);
    command.args(["--json", "serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
    command.arg("--set").arg(format!("native.connections_max={CONNECTIONS_MAX}"));
    command.args(["--set", "native.drain_ms=200", "--set", "http.drain_ms=200"]);
    if awake {
        command.arg("--set").arg(format!("native.awake_us={AWAKE_US}"));
    }
    if let Some(Pair { cert, key, .. }) = tls {
        command.arg("--set").arg(format!("tls.cert={}", cert.display()));
        command.arg("--set").arg(format!("tls.key={}", key.display()));
    }
    command.arg("--data").arg(folder.join("data"));
    command
}

fn nats(program: &Path, folder: &Path, store: Store, tls: Option<&Pair>) -> Result<Command> {
    let sync = if store == Store::Flushed { ", sync_interval: always" } else { "" };
    let jetstream = folder.join("jetstream");
    // Without `handshake_first` it would greet in the clear, and its clients with a round trip more.
    let tls = tls.map_or_else(String::new, |Pair { cert, key, .. }| {
        format!("tls {{ cert_file: {cert:?}, key_file: {key:?}, handshake_first: true }}\n")
    });
    // Pings are put off, as the generators do not answer them.
    let config = format!(
        "listen: \"127.0.0.1:-1\"\nmax_connections: {CONNECTIONS_MAX}\nping_interval: \"1h\"\n\
         jetstream {{ store_dir: {jetstream:?}, max_mem: 4G, max_file: 40G{sync} }}\n{tls}"
    );
    let path = folder.join("nats.conf");
    fs::write(&path, config)?;
    let mut command = Command::new(program);
    command.arg("-c").arg(path).arg("--ports_file_dir").arg(folder);
    Ok(command)
}

fn redis(program: &Path, folder: &Path, store: Store, address: SocketAddr) -> Command {
    let mut command = Command::new(program);
    command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string(), "--save", ""]);
    command.args(["--maxclients", &CONNECTIONS_MAX.to_string()]);
    // Rewriting the file in the midst of a run would be measured at random.
    command.args(["--auto-aof-rewrite-percentage", "0"]).arg("--dir").arg(folder);
    match store {
        Store::Live | Store::Memory => command.args(["--appendonly", "no"]),
        Store::Written => command.args(["--appendonly", "yes", "--appendfsync", "everysec"]),
        Store::Flushed => command.args(["--appendonly", "yes", "--appendfsync", "always"]),
    };
    command
}

/// A port that was free a moment ago.
pub(super) fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

fn nats_addresses(ports: &[u8]) -> Option<Addresses> {
    let ports: serde_json::Value = serde_json::from_slice(ports).ok()?;
    let address = |name: &str| ports[name][0].as_str().and_then(of_url);
    Some((address("nats")?, address("monitoring")))
}

/// The address in a URL that has nothing else.
fn of_url(url: &str) -> Option<SocketAddr> {
    url.split_once("://")?.1.trim_end_matches('/').parse().ok()
}

/// All processes that were started and not ended.
struct Children {
    all: Mutex<Vec<Arc<Mutex<Child>>>>,
    is_over: AtomicBool,
}

static CHILDREN: Children =
    Children { all: Mutex::new(Vec::new()), is_over: AtomicBool::new(false) };

fn children() -> &'static Children {
    &CHILDREN
}

impl Children {
    fn spawn(
        &self,
        command: &mut Command,
    ) -> Result<(Arc<Mutex<Child>>, u32, Option<ChildStdout>)> {
        let mut all = lock(&self.all);
        // Looked at under the lock: no child can slip in behind the one who ends them all.
        check_interrupt()?;
        let mut child = command.spawn()?;
        let (process, out) = (child.id(), child.stdout.take());
        let child = Arc::new(Mutex::new(child));
        all.push(Arc::clone(&child));
        Ok((child, process, out))
    }

    fn forget(&self, child: &Arc<Mutex<Child>>) {
        lock(&self.all).retain(|other| !Arc::ptr_eq(child, other));
    }

    fn end_all(&self) {
        let all = lock(&self.all);
        self.is_over.store(true, Ordering::Release);
        all.iter().for_each(end);
    }
}

fn end(child: &Arc<Mutex<Child>>) {
    let mut child = lock(child);
    // An error says that it has ended already.
    let _ = child.kill();
    let _ = child.wait();
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An error once the user has asked for the end.
pub(super) fn check_interrupt() -> Result<()> {
    if children().is_over.load(Ordering::Acquire) {
        return Err("interrupted; all servers are ended".into());
    }
    Ok(())
}

/// From now on Ctrl-C and SIGTERM end all servers, and with them the run. A second one ends
/// the program at once.
pub(super) fn end_all_on_signals() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let signals = runtime.block_on(async { Signals::listen() })?;
    // The thread ends with the process; it owns nothing that must be closed.
    thread::spawn(move || {
        runtime.block_on(async move {
            let mut signals = signals;
            signals.next().await;
            eprintln!("\ninterrupted: ending all servers (again: at once)");
            children().end_all();
            signals.next().await;
            std::process::exit(INTERRUPTED);
        });
    });
    Ok(())
}

/// What a shell says of a program that Ctrl-C ended.
const INTERRUPTED: i32 = 130;

struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    fn listen() -> Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(Self { interrupt, terminate: signal(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_in_the_ports_file() {
        let ports = br#"{"nats": ["nats://127.0.0.1:41231"], "monitoring": []}"#;
        assert_eq!(nats_addresses(ports), Some(("127.0.0.1:41231".parse().unwrap(), None)));
        assert_eq!(nats_addresses(b"{\"nats\": ["), None);
    }

    #[test]
    fn a_program_that_ends_at_once_is_told_with_its_log() {
        let folder = std::env::temp_dir().join(format!("gapless-compare-{}", std::process::id()));
        let programs = Programs { nats: Some("/bin/false".into()), ..Programs::default() };
        let nats = Contender::new(Who::Nats, Store::Live);
        let error = Server::start(&programs, &nats, &folder).err().unwrap();
        assert!(error.to_string().contains("nats-server did not start"), "{error}");
        fs::remove_dir_all(&folder).unwrap();
    }
}
