//! A real PostgreSQL for tests: made in a temporary folder, on a Unix socket, ended with the
//! test. As root it runs as another user, since PostgreSQL refuses root.
#![allow(dead_code, reason = "every test binary uses another part")]

pub(crate) mod writers;

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gapless_outbox::Database;
use gapless_outbox::tokio_postgres::{self, Client, NoTls};
use tempfile::TempDir;

/// How long anything in a test may take before it counts as failed.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// A server and its folder.
pub(crate) struct Postgres {
    pub(crate) folder: TempDir,
    pub(crate) data: PathBuf,
    pub(crate) user: Option<(u32, u32)>,
    pub(crate) settings: Vec<String>,
    pub(crate) child: Option<Child>,
}

impl Postgres {
    /// A new, empty server.
    pub(crate) async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// A new server with more settings, as `name=value`.
    pub(crate) async fn start_with(settings: &[&str]) -> Self {
        let mut server = Self::new(settings);
        let mut initdb = server.tool("initdb");
        initdb.args(["-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C"]);
        let made = initdb.arg("-D").arg(&server.data).output();
        let made = made.expect("initdb starts; is postgresql installed?");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        server.run().await;
        server
    }

    /// A folder for a server.
    pub(crate) fn new(settings: &[&str]) -> Self {
        let folder = tempfile::Builder::new().prefix("pg").tempdir().expect("a folder");
        let user = other_user();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
        if let Some((uid, gid)) = user {
            chown(folder.path(), Some(uid), Some(gid)).expect("we are root");
        }
        let data = folder.path().join("data");
        let settings = settings.iter().map(|each| (*each).to_owned()).collect();
        Self { folder, data, user, settings, child: None }
    }

    /// A program of PostgreSQL's, as the right user.
    pub(crate) fn tool(&self, name: &str) -> Command {
        let path = bin_dir().join(name);
        let path = if path.exists() { path } else { PathBuf::from(name) };
        let mut command = Command::new(path);
        if let Some((uid, gid)) = self.user {
            command.uid(uid).gid(gid);
        }
        command.current_dir(self.folder.path()).env("HOME", self.folder.path());
        command
    }

    /// Starts it, and waits until it answers.
    pub(crate) async fn run(&mut self) {
        let mut log = fs::OpenOptions::new();
        let log = log.create(true).append(true).open(self.folder.path().join("log"));
        let log = log.expect("the folder is ours");
        let mut command = self.tool("postgres");
        command.arg("-D").arg(&self.data).arg("-k").arg(self.folder.path());
        command.args(["-c", "listen_addresses=", "-c", "max_prepared_transactions=20"]);
        command.args(["-c", "max_connections=100", "-c", "shared_buffers=32MB"]);
        for setting in &self.settings {
            command.args(["-c", setting]);
        }
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a file")).stderr(log);
        self.child = Some(command.spawn().expect("postgres starts"));
        eventually("PostgreSQL answers", async || self.try_client().await.is_some()).await;
    }

    /// Ends it as a power loss would, as far as a process can: all of it at once.
    pub(crate) fn kill(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let postmaster = child.id();
        let mut all = children_of(postmaster);
        all.insert(0, postmaster);
        let pids = all.iter().map(ToString::to_string);
        let _ = Command::new("kill").arg("-9").args(pids).stderr(Stdio::null()).status();
        child.wait().expect("it is our child");
        let deadline = Instant::now() + DEADLINE;
        while all.iter().any(|pid| Path::new(&format!("/proc/{pid}")).exists()) {
            assert!(Instant::now() < deadline, "the processes of PostgreSQL do not end");
            std::thread::yield_now();
        }
        let _ = fs::remove_file(self.data.join("postmaster.pid"));
    }

    /// Ends it cleanly.
    pub(crate) fn stop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let _ = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
        child.wait().expect("it is our child");
    }

    pub(crate) fn dsn(&self) -> String {
        format!("host={} user=postgres dbname=postgres", self.folder.path().display())
    }

    pub(crate) fn database(&self) -> Database {
        Database::parse(&self.dsn()).expect("a good connection string")
    }

    pub(crate) async fn client(&self) -> Client {
        self.try_client().await.expect("PostgreSQL answers")
    }

    pub(crate) async fn try_client(&self) -> Option<Client> {
        connect(&self.dsn()).await
    }

    /// Writes a file into the data folder, as the server's user.
    pub(crate) fn write(&self, name: &str, text: &str, append: bool) {
        let path = self.data.join(name);
        let mut options = fs::OpenOptions::new();
        options.create(true).write(true).append(append).truncate(!append);
        let mut file = options.open(&path).expect("the folder is ours");
        file.write_all(text.as_bytes()).expect("there is room");
        if let Some((uid, gid)) = self.user {
            chown(&path, Some(uid), Some(gid)).expect("we are root");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("it is ours");
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A connection that is not the outbox's.
pub(crate) async fn connect(dsn: &str) -> Option<Client> {
    let (client, connection) = tokio_postgres::connect(dsn, NoTls).await.ok()?;
    tokio::spawn(connection);
    Some(client)
}

/// Asks again and again until it is so.
pub(crate) async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    let mut often = tokio::time::interval(Duration::from_millis(20));
    while !is_so().await {
        assert!(Instant::now() < deadline, "{what}: not within {DEADLINE:?}");
        often.tick().await;
    }
}

/// Lets time pass while others work: for workloads, not for waiting.
pub(crate) async fn meanwhile(time: Duration) {
    let _ = tokio::time::timeout(time, std::future::pending::<()>()).await;
}

/// The folder of the newest PostgreSQL.
fn bin_dir() -> PathBuf {
    let mut found: Vec<(u32, PathBuf)> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let version = path.file_name()?.to_str()?.parse().ok()?;
            Some((version, path.join("bin")))
        })
        .collect();
    found.sort();
    found.pop().map(|(_, path)| path).unwrap_or_default()
}

/// Who the server runs as, if we are root.
fn other_user() -> Option<(u32, u32)> {
    let me = fs::metadata("/proc/self").expect("there is /proc");
    let uid = std::os::unix::fs::MetadataExt::uid(&me);
    (uid == 0).then_some((65_534, 65_534))
}

fn children_of(parent: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").expect("there is /proc").flatten();
    let child = |entry: fs::DirEntry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let after_name = stat.rsplit_once(')')?.1;
        let parent_of: u32 = after_name.split_whitespace().nth(1)?.parse().ok()?;
        (parent_of == parent).then_some(pid)
    };
    processes.filter_map(child).collect()
}
