//! A server that speaks S3, for tests: moto from PyPI, in a virtual environment of its own.
//!
//! By itself moto checks a condition and stores an object in two steps, so that two who race for a name
//! may both win: the check at the start of a store finds that. Here it does one request at a time.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of it")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The version that is installed.
const VERSION: &str = "moto[server]==5.2.5";
/// Serves moto's application, one request at a time. Bodies are read before, so that a client that
/// stands still holds no other up.
const SERVER: &str = r#"
import io, threading
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

application = DomainDispatcherApplication(create_backend_app)
one_at_a_time = threading.Lock()

def serve(environ, start_response):
    length = int(environ.get("CONTENT_LENGTH") or 0)
    environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(length))
    with one_at_a_time:
        return [b"".join(application(environ, start_response))]

run_simple("127.0.0.1", 0, serve, threaded=True)
"#;
const START_WAIT: Duration = Duration::from_secs(60);

/// A running server; it ends with this.
pub struct Moto {
    process: Child,
    pub port: u16,
}

impl Moto {
    /// Starts one on a free port. Its first start on a machine installs it.
    pub fn start() -> Self {
        let program = installed();
        let mut process = Command::new(program)
            .args(["-c", SERVER])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("moto starts");
        let mut lines = BufReader::new(process.stderr.take().expect("it is piped"));
        let mut line = String::new();
        let port = loop {
            line.clear();
            let read = lines.read_line(&mut line).expect("its output can be read");
            assert!(read > 0, "moto ended");
            if let Some((_, rest)) = line.split_once("http://127.0.0.1:") {
                let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
                break digits.parse().expect("a port");
            }
        };
        // It must not be stopped by a full pipe.
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        let moto = Self { process, port };
        moto.wait_until_ready();
        moto
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Makes a bucket.
    pub fn bucket(&self, name: &str) {
        let answer = self.request(&format!("PUT /{name} HTTP/1.1")).expect("moto answers");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    fn wait_until_ready(&self) {
        let deadline = Instant::now() + START_WAIT;
        while self.request("GET / HTTP/1.1").is_err() {
            assert!(Instant::now() < deadline, "moto does not answer");
            std::thread::yield_now();
        }
    }

    fn request(&self, line: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(START_WAIT))?;
        let host = "Host: 127.0.0.1\r\nContent-Length: 0\r\nConnection: close";
        stream.write_all(format!("{line}\r\n{host}\r\n\r\n").as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A Python that has moto; it is installed if it is not there.
fn installed() -> PathBuf {
    let target = option_env!("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"), PathBuf::from);
    let home = target.join("moto");
    let program = home.join("bin/python");
    // Several tests may come at the same time.
    std::fs::create_dir_all(&target).expect("the target folder");
    let lock = std::fs::File::create(target.join("moto.lock")).expect("a lock file");
    lock.lock().expect("the lock");
    if !home.join("bin/moto_server").exists() {
        let run = |command: &mut Command| {
            let status = command.stdout(Stdio::null()).status().expect("python3 is installed");
            assert!(status.success(), "moto cannot be installed: {command:?}");
        };
        run(Command::new("python3").args(["-m", "venv"]).arg(&home));
        run(Command::new(home.join("bin/pip")).args(["--quiet", "install", VERSION]));
    }
    program
}
