//! Servers and commands as processes, with deadlines, ended when they go out of scope.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Longer than any of it takes, also on a machine that does much else.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// The program, without what the environment of the tests would tell it.
pub(crate) fn gapless() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gapless"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("GAPLESS_") {
            command.env_remove(name);
        }
    }
    // Contexts of the user who runs the tests are not theirs.
    command.env("XDG_CONFIG_HOME", "/nowhere");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The lines of a stream, read by a thread, taken with a deadline.
pub(crate) struct Lines {
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Lines {
    fn of(stream: impl Read + Send + 'static) -> Self {
        let (send, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(stream).lines() {
                let Ok(line) = line else { return };
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        Self { lines, seen: Vec::new() }
    }

    /// The next line.
    pub(crate) fn next(&mut self) -> String {
        let line = self.lines.recv_timeout(DEADLINE).unwrap_or_else(|error| {
            panic!("no line came ({error}); before it came {:#?}", self.seen)
        });
        self.seen.push(line.clone());
        line
    }

    /// The next line that has this in it; those before it are passed over.
    pub(crate) fn until(&mut self, part: &str) -> String {
        loop {
            let line = self.next();
            if line.contains(part) {
                return line;
            }
        }
    }

    /// Everything, from the beginning to the end.
    pub(crate) fn all(&mut self) -> Vec<String> {
        let rest = self.rest();
        self.seen.extend(rest);
        self.seen.clone()
    }

    /// Everything that is left, up to the end.
    pub(crate) fn rest(&mut self) -> Vec<String> {
        let mut rest = Vec::new();
        loop {
            match self.lines.recv_timeout(DEADLINE) {
                Ok(line) => rest.push(line),
                Err(mpsc::RecvTimeoutError::Disconnected) => return rest,
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("no end after {rest:#?}"),
            }
        }
    }
}

/// A process that is ended when this goes out of scope.
pub(crate) struct Running {
    child: Child,
    pub(crate) out: Lines,
    pub(crate) err: Lines,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.spawn().expect("the program starts");
        let out = Lines::of(child.stdout.take().expect("stdout is a pipe"));
        let err = Lines::of(child.stderr.take().expect("stderr is a pipe"));
        Self { child, out, err }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to this process alone.
    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args([&format!("-{name}"), &id]).status();
        assert!(sent.expect("kill is there").success());
    }

    /// Whether it has not ended yet.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_none()
    }

    /// Writes to its stdin, and ends it.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        let mut stdin = self.child.stdin.take().expect("stdin is a pipe");
        // Who refuses its words does not read its stdin.
        let _ = stdin.write_all(bytes);
    }

    /// Its exit code, when it has ended by itself.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        let until = Instant::now() + DEADLINE;
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                return status.code();
            }
            thread::yield_now();
        }
        panic!("it does not end");
    }

    /// Ends it at once, as a power loss would end a process.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What a command printed, and how it ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: Vec<String>,
    pub(crate) err: String,
}

impl Ran {
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        self.exits(0)
    }

    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    /// Stderr must have this in it.
    #[track_caller]
    pub(crate) fn says(self, part: &str) -> Self {
        assert!(self.err.contains(part), "{part:?} is not in {self:#?}");
        self
    }

    /// Stdout must be these lines.
    #[track_caller]
    pub(crate) fn prints(self, lines: &[&str]) -> Self {
        assert_eq!(self.out, lines, "{self:#?}");
        self
    }

    /// Stdout must have this in it.
    #[track_caller]
    pub(crate) fn shows(self, part: &str) -> Self {
        assert!(self.out.join("\n").contains(part), "{part:?} is not in {self:#?}");
        self
    }

    /// Stdout as JSON, one value a line.
    #[track_caller]
    pub(crate) fn json(&self) -> Vec<serde_json::Value> {
        let parse = |line: &String| serde_json::from_str(line);
        self.out.iter().map(|line| parse(line).unwrap_or_else(|e| panic!("{line}: {e}"))).collect()
    }
}

/// Runs a command to its end.
pub(crate) fn run(command: &mut Command, stdin: Option<&[u8]>) -> Ran {
    if stdin.is_some() {
        command.stdin(Stdio::piped());
    }
    let mut running = Running::start(command);
    if let Some(bytes) = stdin {
        running.write(bytes);
    }
    let (out, err) = (running.out.rest(), running.err.rest().join("\n"));
    Ran { code: running.wait(), out, err }
}

/// Runs the program by itself, without a server.
pub(crate) fn alone(words: &[&str]) -> Ran {
    run(gapless().args(words), None)
}

/// A server with a folder of its own.
pub(crate) struct Server {
    folder: TempDir,
    settings: Vec<String>,
    running: Running,
    address: String,
    http: String,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// A server with settings as `--set` takes them.
    pub(crate) fn with(settings: &[&str]) -> Self {
        Self::over(settings, |_| {})
    }

    /// A server on a data folder that is filled before.
    pub(crate) fn over(settings: &[&str], fill: impl FnOnce(&str)) -> Self {
        let folder = tempfile::Builder::new().prefix("gl").tempdir().expect("a folder");
        let settings: Vec<String> = settings.iter().map(|each| (*each).to_owned()).collect();
        fill(folder.path().join("data").to_str().expect("a name"));
        let (running, address, http) = Self::spawn(folder.path(), &settings);
        Self { folder, settings, running, address, http }
    }

    fn spawn(folder: &Path, settings: &[String]) -> (Running, String, String) {
        let mut command = gapless();
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data"])
            .arg(folder.join("data"));
        command.current_dir(folder);
        for setting in settings {
            command.args(["--set", setting]);
        }
        let mut running = Running::start(&mut command);
        let ready = running.out.next();
        assert!(ready.contains("is ready"), "{ready}");
        let native = running.out.until("  native  127.0.0.1:");
        let address = native.trim_start_matches("  native  ").trim_end_matches(" (TLS)").to_owned();
        let http = running.out.until("  http    http");
        let http = http.split_once("://").expect("an address").1.to_owned();
        running.out.until("Stop it with Ctrl-C");
        (running, address, http)
    }

    /// Where the HTTP API is, as host and port.
    pub(crate) fn http(&self) -> &str {
        &self.http
    }

    /// The status and the body of a path over HTTP.
    pub(crate) fn http_get(&self, path: &str) -> (u16, String) {
        self.http_send(&format!("GET {path} HTTP/1.1\r\n\r\n"), "")
    }

    /// The same, of what is asked for as JSON.
    pub(crate) fn http_get_json(&self, path: &str) -> (u16, serde_json::Value) {
        let request = format!("GET {path} HTTP/1.1\r\nAccept: application/json\r\n\r\n");
        let (status, body) = self.http_send(&request, "");
        (status, serde_json::from_str(&body).expect("JSON"))
    }

    pub(crate) fn http_post(&self, path: &str, body: &str) -> (u16, String) {
        let kind = "Content-Type: application/json";
        let length = body.len();
        let head = format!("POST {path} HTTP/1.1\r\n{kind}\r\nContent-Length: {length}\r\n\r\n");
        self.http_send(&head, body)
    }

    fn http_send(&self, head: &str, body: &str) -> (u16, String) {
        let mut stream = std::net::TcpStream::connect(&self.http).expect("connects");
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        let host = format!("HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", self.http);
        let request = head.replacen("HTTP/1.1\r\n", &host, 1) + body;
        stream.write_all(request.as_bytes()).expect("writes");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        (status.expect("a status"), body.to_owned())
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The address that stays the same over a restart.
    pub(crate) fn socket(&self) -> String {
        format!("unix:{}", self.data().join("gapless.sock").display())
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// A path in the server's own folder, for what a test keeps.
    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// A command that talks to this server.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = gapless();
        command.args(words).env("GAPLESS_SERVER", self.address());
        command.current_dir(self.folder.path());
        command
    }

    pub(crate) fn run(&self, words: &[&str]) -> Ran {
        run(&mut self.command(words), None)
    }

    pub(crate) fn run_with(&self, words: &[&str], stdin: &[u8]) -> Ran {
        run(&mut self.command(words), Some(stdin))
    }

    /// A command that goes on, over restarts too.
    pub(crate) fn begin(&self, words: &[&str]) -> Running {
        Running::start(self.command(words).env("GAPLESS_SERVER", self.socket()))
    }

    /// The next line of the server's log that has this in it.
    pub(crate) fn logs(&mut self, part: &str) -> String {
        self.running.err.until(part)
    }

    /// All lines of the log of a server that has ended.
    pub(crate) fn log(&mut self) -> Vec<String> {
        self.running.err.all()
    }

    /// Sends a signal to the server.
    pub(crate) fn signal(&self, name: &str) {
        self.running.signal(name);
    }

    /// Ends the server without a warning.
    pub(crate) fn kill(&mut self) {
        self.running.kill();
    }

    /// Ends the server without a warning, and starts it again on the same folder.
    pub(crate) fn crash_and_restart(&mut self) {
        self.running.kill();
        (self.running, self.address, self.http) = Self::spawn(self.folder.path(), &self.settings);
    }

    /// Ends the server as a system would.
    pub(crate) fn stop(&mut self) -> Option<i32> {
        self.running.signal("TERM");
        self.running.wait()
    }
}
