//! What no server could exceed: the machine's own limits, and the generators' alone.
//!
//! The generators must not be what is measured. So each one's publishes go into a sink that
//! only reads, and made-up deliveries come from a source that only writes; what a server
//! reaches should be well below both.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use gapless_bench::buffer::PageBuffer;
use gapless_bench::hardware;

use super::link::{Link, Seen};
use super::live::MESSAGE_BYTES;
use super::publish::RING;
use super::report::{Counts, Limit};
use super::run::Run;
use super::server::check_interrupt;
use super::stats::per_mille;
use super::systems::{Store, To, Who, ring};
use crate::benches::size_name;
use crate::benches::store::{Result, message};

/// Bytes that are written or read at once.
const IO_BYTES: usize = 64 * 1024;

/// A thread ends when its socket does; this bounds what a hanging one takes.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Everything, into the report.
pub(super) fn measure(run: &mut Run<'_>) -> Result<()> {
    run.tell("limits of the machine and of the generators");
    let time = run.plan.time;
    let seconds = time.as_secs_f64().min(hardware::SECONDS_MAX);
    let flush = hardware::flush_rate(run.dir, 4096, seconds)?;
    let mut limits = vec![
        limit("write and flush of 4 KiB, zeroed file", Counts::PerSecond, flush.per_second),
        limit("the same: p50", Counts::Micros, flush.p50_us),
        limit(
            "sequential write, flushed every 8 MiB",
            Counts::BytesPerSecond,
            hardware::sequential_write(run.dir, 8 * 1024 * 1024, seconds)?,
        ),
        limit("memory copy, 64 MiB", Counts::BytesPerSecond, hardware::memory_copy(64 << 20)),
        limit("loopback TCP, one stream", Counts::BytesPerSecond, stream_rate(time)?),
        limit("loopback TCP, a byte there and back: p50", Counts::Micros, ping_pong(time)?),
    ];
    let size = size_name(MESSAGE_BYTES);
    for who in Who::ALL {
        check_interrupt()?;
        let name = who.name();
        let sent = into_sink(who, time)?;
        let what = format!("generator for {name} into a sink, {size}");
        limits.push(limit(&what, Counts::PerSecond, sent));
        let read = from_source(who, time)?;
        let what = format!("generator for {name} from a source, {size}");
        limits.push(limit(&what, Counts::PerSecond, read));
    }
    run.report.limits = limits;
    Ok(())
}

fn limit(what: &str, counts: Counts, figure: f64) -> Limit {
    Limit { what: what.to_owned(), counts, figure }
}

/// Runs `client` against a server thread that does `serve` with its one connection.
fn against<T>(
    serve: impl FnOnce(TcpStream) -> Result<()> + Send,
    client: impl FnOnce(SocketAddr) -> Result<T>,
) -> Result<T> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::scope(|scope| {
        let server = scope.spawn(move || -> Result<()> {
            let (stream, _) = listener.accept()?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(WAIT_MAX))?;
            stream.set_write_timeout(Some(WAIT_MAX))?;
            serve(stream)
        });
        let value = client(address);
        server.join().unwrap_or_else(|_| Err("the thread panicked".into()))?;
        value
    })
}

fn sink(mut stream: TcpStream) -> Result<()> {
    let mut buffer = PageBuffer::zeroed(4 * IO_BYTES);
    while stream.read(buffer.as_mut_slice())? > 0 {}
    Ok(())
}

/// Writes the same bytes over and over until the other side closes.
fn source(mut stream: TcpStream, bytes: &[u8]) -> Result<()> {
    while stream.write_all(bytes).is_ok() {}
    Ok(())
}

fn stream_rate(time: Duration) -> Result<f64> {
    against(sink, |address| {
        let mut stream = TcpStream::connect(address)?;
        let bytes = PageBuffer::noise(IO_BYTES);
        let started = Instant::now();
        let mut sent = 0;
        while started.elapsed() < time {
            stream.write_all(bytes.as_slice())?;
            sent += IO_BYTES;
        }
        Ok(sent as f64 / started.elapsed().as_secs_f64())
    })
}

fn ping_pong(time: Duration) -> Result<f64> {
    let echo = |mut stream: TcpStream| -> Result<()> {
        let mut byte = [0];
        while stream.read(&mut byte)? > 0 {
            stream.write_all(&byte)?;
        }
        Ok(())
    };
    against(echo, |address| {
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let started = Instant::now();
        let mut micros = Vec::new();
        while started.elapsed() < time {
            let before = Instant::now();
            stream.write_all(&[1])?;
            stream.read_exact(&mut [0])?;
            micros.push(before.elapsed().as_secs_f64() * 1e6);
        }
        micros.sort_unstable_by(f64::total_cmp);
        Ok(per_mille(&micros, 500))
    })
}

fn into_sink(who: Who, time: Duration) -> Result<f64> {
    against(sink, |address| {
        let mut link = Link::open(address, who.system().following())?;
        let to = To { topic: "live.0", store: Store::Live };
        let mut ring = ring(who.system(), &link, to, MESSAGE_BYTES, (RING, 1))?;
        let per_write = IO_BYTES / ring.frame_bytes();
        let started = Instant::now();
        let mut sent = 0;
        while started.elapsed() < time {
            let (bytes, count) = ring.take(per_write);
            link.send(bytes)?;
            sent += count;
        }
        Ok(sent as f64 / started.elapsed().as_secs_f64())
    })
}

fn from_source(who: Who, time: Duration) -> Result<f64> {
    let body = message(MESSAGE_BYTES).body.unwrap_or_default();
    let count = IO_BYTES / MESSAGE_BYTES;
    let bytes = who.system().deliveries("live.0", &body, count)?;
    against(
        |stream| source(stream, &bytes),
        |address| {
            let mut link = Link::open(address, who.system().following())?;
            let mut seen = Seen::default();
            let started = Instant::now();
            while started.elapsed() < time {
                link.receive_only(&mut seen)?;
            }
            Ok(seen.messages as f64 / started.elapsed().as_secs_f64())
        },
    )
}
