//! The server that is tortured: a process of this program, in a folder of its own.

use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use gapless_client::{Client, ClientLimits, ConnectOptions, Ids};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use crate::exit::{Exit, Failure};

/// How long a server may take to open its store.
const READY_WAIT: Duration = Duration::from_secs(120);

/// See the head of the file. Dropped, it is killed.
pub(super) struct Server {
    child: Child,
    address: String,
    /// Kept, so that the server can write.
    _lines: Lines<BufReader<ChildStdout>>,
}

impl Server {
    /// Starts it on a store, and waits until it is ready. Its log is in the file `log` beside.
    pub(super) async fn start(folder: &Path, store: &str) -> Result<Self, Failure> {
        let program = std::env::current_exe()?;
        let log = File::options().create(true).append(true).open(folder.join("server.log"))?;
        // A write behind the limit of a file's size is an error then, as one on a full disk is.
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' XFSZ; exec \"$@\"", "sh"]).arg(program);
        command.args(["serve", "--json", "--listen", "127.0.0.1:0"]);
        command
            .args(["--set", "http.listen=", "--set", "native.unix=", "--data"])
            .arg(folder.join(store));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("GAPLESS_") {
                command.env_remove(name);
            }
        }
        command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.kill_on_drop(true).spawn()?;
        let stdout = child.stdout.take().ok_or_else(|| Failure::failed("no stdout"))?;
        let mut lines = BufReader::new(stdout).lines();
        let ready = timeout(READY_WAIT, lines.next_line()).await;
        let line = match ready {
            Ok(Ok(Some(line))) => line,
            _ => {
                let log = folder.join("server.log");
                let text = format!("the server did not start on {store}; see {}", log.display());
                return Err(Failure::new(Exit::Damage, text));
            }
        };
        let ready: Value = serde_json::from_str(&line).map_err(Failure::failed)?;
        let address = ready["native"].as_str().unwrap_or_default().to_owned();
        Ok(Self { child, address, _lines: lines })
    }

    pub(super) async fn connect(&self) -> Result<Client, Failure> {
        let limits = ClientLimits { answer_wait: READY_WAIT, ..ClientLimits::default() };
        // What is not answered is not sent again: only acks count here.
        let options = ConnectOptions::new([&self.address])
            .name("gapless torture")
            .limits(limits)
            .ids(Ids::Off);
        Client::connect(options).await.map_err(Failure::failed)
    }

    /// From now on no file may grow beyond this.
    #[cfg(target_os = "linux")]
    pub(super) fn limit_files(&self, bytes: u64) -> Result<(), Failure> {
        use rustix::process::{Pid, Resource, Rlimit, prlimit};
        let id = self.child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        // Without an id it would be our own limit.
        let id = id.ok_or_else(|| Failure::failed("the server has ended by itself"))?;
        let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
        prlimit(Some(id), Resource::Fsize, limit).map_err(Failure::failed)?;
        Ok(())
    }

    /// Ends it at once.
    pub(super) async fn kill(mut self) -> Result<(), Failure> {
        Ok(self.child.kill().await?)
    }
}
