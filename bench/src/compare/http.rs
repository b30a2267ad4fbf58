//! HTTP: one message for each request, on connections that are kept, one request in flight on each.
//!
//! Neither peer takes messages over HTTP, so gapless stands beside a bare server that does nothing
//! (`bare.rs`); the same work over its native protocol is in `crowd.rs`.

use std::time::Duration;

use super::bare;
use super::crowd::{Member, in_turn};
use super::link::{Dialect, Link, Seen};
use super::report::{Counts, Measured};
use super::run::{Meter, Run};
use super::server::Server;
use super::stored::count_name;
use super::systems::{Contender, Store, Who};
use crate::benches::size_name;
use crate::benches::store::{Folder, Result};

/// Bytes of a message.
const MESSAGE_BYTES: usize = 128;

const TOPIC: &str = "posted";

/// What each answer begins with.
const CREATED: &[u8] = b"HTTP/1.1 201";

/// Every number of connections, in memory and flushed.
pub(super) fn all(run: &mut Run<'_>) -> Result<()> {
    for store in [Store::Memory, Store::Flushed] {
        for count in run.plan.posts.clone() {
            let (size, of) = (size_name(MESSAGE_BYTES), count_name(count as u64));
            let title = format!("HTTP POST, {store}, {of} connections, one in flight each, {size}");
            let contenders = vec![Contender::new(Who::Gapless, store)];
            run.alternate((&title, run.plan.rounds), contenders, |run, contender| {
                let stage = run.stage(contender)?;
                let system = contender.who.system();
                system.create(&mut system.connect(stage.server.address())?, TOPIC, store)?;
                let measured = post(&stage.server, count, run.plan.time)?;
                run.add("HTTP", (&title, Counts::PerSecond), contender, measured);
                drop(stage);
                let folder = Folder::fresh(run.dir, "bare")?;
                let bare = bare::start(folder.path())?;
                let measured = post(&bare, count, run.plan.time)?;
                run.add_beside("HTTP", (&title, Counts::PerSecond), bare::NAME, measured);
                Ok(())
            })?;
        }
    }
    Ok(())
}

/// So many connections that each send a request after the answer to the one before.
fn post(server: &Server, count: usize, time: Duration) -> Result<Measured> {
    let request = request();
    let mut members = Vec::with_capacity(count);
    for _ in 0..count {
        let link = Link::open(server.http()?, Box::new(Answers))?;
        members.push(Member::new(link, request.clone()));
    }
    let meter = Meter::start(server)?;
    let sent = in_turn(&mut members, time)?;
    meter.rate(server, sent)
}

fn request() -> Vec<u8> {
    let head = format!(
        "POST /v1/topics/{TOPIC}/messages HTTP/1.1\r\nHost: localhost\r\n\
         Content-Length: {MESSAGE_BYTES}\r\n\r\n"
    );
    [head.as_bytes(), &[b'x'; MESSAGE_BYTES]].concat()
}

/// Answers to requests, of which only the status and the length are looked at.
struct Answers;

impl Dialect for Answers {
    fn take(&mut self, bytes: &[u8], seen: &mut Seen<'_>) -> Result<usize> {
        let mut at = 0;
        while let Some(len) = answer_bytes(&bytes[at..])? {
            seen.answers += 1;
            at += len;
        }
        Ok(at)
    }
}

/// How long the first answer is, if it is all there.
fn answer_bytes(bytes: &[u8]) -> Result<Option<usize>> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let head = &bytes[..end];
    if !head.starts_with(CREATED) {
        return Err(format!("the server answers {}", String::from_utf8_lossy(head)).into());
    }
    let head = std::str::from_utf8(head)?;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let len = end + 4 + length.unwrap_or("0").trim().parse::<usize>()?;
    Ok((bytes.len() >= len).then_some(len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_when_they_are_all_there_and_must_be_good() {
        let one = b"HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\n{}";
        let (mut seen, two) = (Seen::default(), one.repeat(2));
        assert_eq!(Answers.take(&two, &mut seen).unwrap(), two.len());
        assert_eq!(seen.answers, 2);
        assert_eq!(Answers.take(&two[..two.len() - 1], &mut Seen::default()).unwrap(), one.len());
        let refused = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
        assert!(Answers.take(refused, &mut Seen::default()).is_err());
    }
}
