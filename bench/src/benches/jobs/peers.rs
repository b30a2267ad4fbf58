//! No-op jobs with results through beanstalkd and gearmand, for comparison.
//!
//! Each is Debian's program on a free port of loopback, spoken to by the bytes of its protocol with
//! as much in flight as gapless has, on few connections. beanstalkd knows no results: the worker
//! puts each into a second tube, which the client works off. gearmand has results, and keeps jobs
//! in memory only.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::super::store::{Folder, Result};
use super::{IN_FLIGHT, Running};

/// Connections of workers.
const WORKERS: u64 = 4;
/// Commands that a worker's connection has under way.
const AHEAD: usize = 16;
/// How long a server may take to listen, and then to say something.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// A server of others, ended when this goes out of scope.
struct Server {
    port: u16,
    _process: Running,
}

impl Server {
    /// Starts a program that takes its port by this flag; `None` where it is not installed.
    fn start(program: &str, words: &[&str]) -> Result<Option<Self>> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut command = Command::new(program);
        command.args(words).args(["-p", &port.to_string()]).stdin(Stdio::null());
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let Ok(child) = child else { return Ok(None) };
        let server = Self { port, _process: Running(child) };
        let until = Instant::now() + WAIT_MAX;
        while server.connect().is_err() {
            if Instant::now() > until {
                return Err(format!("{program} does not listen").into());
            }
            thread::yield_now();
        }
        Ok(Some(server))
    }

    fn connect(&self) -> Result<TcpStream> {
        let stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(WAIT_MAX))?;
        Ok(stream)
    }
}

/// Jobs a second through beanstalkd; with `log`, each is flushed to disk before it is answered.
pub(super) fn beanstalkd(dir: &Path, jobs: u64, log: bool) -> Result<Option<f64>> {
    let folder = Folder::fresh(dir, "beanstalkd")?;
    let path = folder.path().to_string_lossy().into_owned();
    let words = ["-l", "127.0.0.1", "-b", &path, "-f", "0"];
    let Some(server) = Server::start("beanstalkd", if log { &words } else { &words[..2] })? else {
        return Ok(None);
    };
    let (server, (token, tokens)) = (&server, mpsc::sync_channel::<()>(IN_FLIGHT));
    thread::scope(move |scope| {
        for worker in 0..WORKERS {
            let share = jobs / WORKERS + u64::from(worker < jobs % WORKERS);
            scope.spawn(move || -> Result<()> {
                let results = Putting::begin(server, "results", share)?;
                work_off(server, "work", share, || results.put())
            });
        }
        let began = Instant::now();
        let submit = scope.spawn(move || -> Result<()> {
            let work = Putting::begin(server, "work", jobs)?;
            for _ in 0..jobs {
                token.send(())?;
                work.put()?;
            }
            Ok(())
        });
        work_off(server, "results", jobs, || Ok(tokens.recv()?))?;
        let took = began.elapsed();
        submit.join().map_err(|_| "the client panicked")??;
        Ok(Some(jobs as f64 / took.as_secs_f64()))
    })
}

/// Puts jobs into a tube, as many as are under way at once; answers are read beside.
struct Putting(mpsc::SyncSender<()>);

impl Putting {
    fn begin(server: &Server, tube: &str, count: u64) -> Result<Self> {
        let mut stream = server.connect()?;
        stream.write_all(format!("use {tube}\r\n").as_bytes())?;
        let answers = stream.try_clone()?;
        let (sender, wishes) = mpsc::sync_channel::<()>(IN_FLIGHT);
        thread::spawn(move || -> Result<()> {
            while wishes.recv().is_ok() {
                let more = wishes.try_iter().count();
                stream.write_all(&b"put 0 0 60 4\r\nnoop\r\n".repeat(1 + more))?;
            }
            Ok(())
        });
        thread::spawn(move || {
            BufReader::new(answers).lines().take(count as usize + 1).for_each(drop);
        });
        Ok(Self(sender))
    }

    fn put(&self) -> Result<()> {
        Ok(self.0.send(())?)
    }
}

/// Takes so many jobs of a tube and deletes each.
fn work_off(
    server: &Server,
    tube: &str,
    count: u64,
    mut each: impl FnMut() -> Result<()>,
) -> Result<()> {
    let mut stream = server.connect()?;
    let ahead = (AHEAD as u64).min(count);
    let mut asked = ahead;
    let reserve = "reserve\r\n".repeat(ahead as usize);
    stream.write_all(format!("watch {tube}\r\nignore default\r\n{reserve}").as_bytes())?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut taken, mut line, mut out) = (0, String::new(), String::new());
    while taken < count {
        line.clear();
        reader.read_line(&mut line)?;
        if let Some(words) = line.strip_prefix("RESERVED ") {
            let (id, bytes) = words.trim().split_once(' ').ok_or("an id and a length")?;
            let mut body = vec![0; bytes.parse::<usize>()? + 2];
            reader.read_exact(&mut body)?;
            taken += 1;
            each()?;
            out += &format!("delete {id}\r\n");
            if asked < count {
                asked += 1;
                out += "reserve\r\n";
            }
        } else if !["WATCHING", "DELETED"].iter().any(|word| line.starts_with(word)) {
            return Err(format!("beanstalkd says {line:?}").into());
        }
        if reader.buffer().is_empty() && !out.is_empty() {
            stream.write_all(out.as_bytes())?;
            out.clear();
        }
    }
    Ok(stream.write_all(out.as_bytes())?)
}

/// Packets of gearmand that are used here.
const CAN_DO: u32 = 1;
const PRE_SLEEP: u32 = 4;
const NOOP: u32 = 6;
const SUBMIT_JOB: u32 = 7;
const JOB_CREATED: u32 = 8;
const GRAB_JOB: u32 = 9;
const NO_JOB: u32 = 10;
const JOB_ASSIGN: u32 = 11;
const WORK_COMPLETE: u32 = 13;

fn packet(kind: u32, data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u32).to_be_bytes();
    [b"\0REQ", &kind.to_be_bytes()[..], &length, data].concat()
}

fn next_packet(reader: &mut impl Read) -> Result<(u32, Vec<u8>)> {
    let mut head = [0; 12];
    reader.read_exact(&mut head)?;
    let number = |at: usize| {
        head[at..at + 4].iter().fold(0_u32, |value, byte| (value << 8) | u32::from(*byte))
    };
    let mut data = vec![0; number(8) as usize];
    reader.read_exact(&mut data)?;
    Ok((number(4), data))
}

/// Jobs a second through gearmand.
pub(super) fn gearmand(jobs: u64) -> Result<Option<f64>> {
    let words = ["-L", "127.0.0.1", "--log-file", "none"];
    let Some(server) = Server::start("gearmand", &words)? else { return Ok(None) };
    thread::scope(|scope| {
        let mut ends = Vec::new();
        for _ in 0..WORKERS {
            let stream = server.connect()?;
            ends.push(stream.try_clone()?);
            scope.spawn(move || work_for_gearmand(stream));
        }
        let rate = submit_to_gearmand(&server, jobs);
        // The workers wait for more: their connections end.
        ends.iter().for_each(|end| drop(end.shutdown(std::net::Shutdown::Both)));
        rate.map(Some)
    })
}

fn work_for_gearmand(mut stream: TcpStream) -> Result<()> {
    let grab = packet(GRAB_JOB, b"").repeat(AHEAD);
    stream.write_all(&packet(CAN_DO, b"noop"))?;
    stream.write_all(&grab)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut refused, mut out) = (0, Vec::new());
    loop {
        let (kind, data) = next_packet(&mut reader)?;
        match kind {
            JOB_ASSIGN => {
                let handle = data.split(|byte| *byte == 0).next().unwrap_or_default();
                out.extend(packet(WORK_COMPLETE, &[handle, b"\0done"].concat()));
                out.extend(packet(GRAB_JOB, b""));
            }
            NO_JOB => {
                refused += 1;
                if refused == AHEAD {
                    out.extend(packet(PRE_SLEEP, b""));
                }
            }
            // It may come twice: only one that sleeps grabs.
            NOOP if refused == AHEAD => {
                refused = 0;
                out.extend(&grab);
            }
            NOOP => {}
            other => return Err(format!("gearmand says {other}").into()),
        }
        if reader.buffer().is_empty() && !out.is_empty() {
            stream.write_all(&out)?;
            out.clear();
        }
    }
}

fn submit_to_gearmand(server: &Server, jobs: u64) -> Result<f64> {
    let mut stream = server.connect()?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let submit = packet(SUBMIT_JOB, b"noop\0\0noop");
    let began = Instant::now();
    let first = jobs.min(IN_FLIGHT as u64);
    stream.write_all(&submit.repeat(first as usize))?;
    let (mut sent, mut done, mut more) = (first, 0, 0);
    while done < jobs {
        match next_packet(&mut reader)?.0 {
            WORK_COMPLETE => {
                done += 1;
                if sent < jobs {
                    sent += 1;
                    more += 1;
                }
            }
            JOB_CREATED => {}
            other => return Err(format!("gearmand says {other}").into()),
        }
        if reader.buffer().is_empty() && more > 0 {
            stream.write_all(&submit.repeat(more))?;
            more = 0;
        }
    }
    Ok(jobs as f64 / began.elapsed().as_secs_f64())
}
