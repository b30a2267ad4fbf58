//! nats-server: core subjects, and the part of JetStream that is compared.
//!
//! Everything that comes is a message: answers on the link's own inbox (subscription 1),
//! deliveries on subscription 2. One inbox serves all answers of a link, which are counted as
//! they come; an answer that holds an error ends the run.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::link::{Dialect, Link, Seen};
use super::systems::{Group, Groups, Part, Store, System, To};
use crate::benches::store::Result;

/// The subscription on which answers come.
const ANSWERS: &[u8] = b"1";

/// nats-server.
pub(super) struct Nats;

impl System for Nats {
    fn connect(&self, address: SocketAddr) -> Result<Link> {
        let mut link = Link::open(address, Box::new(Lines))?;
        let id = link.parse(|bytes| {
            let Some(line) = line(bytes) else { return Ok(None) };
            let info = line.strip_prefix(b"INFO ").ok_or("nats-server does not greet")?;
            let info: Value = serde_json::from_slice(info)?;
            Ok(Some((line.len() + 2, info["client_id"].as_u64().unwrap_or_default())))
        })?;
        link.inbox = format!("_INBOX.{id}");
        let greeting = json!({
            "verbose": false, "pedantic": false, "headers": true, "no_responders": true,
            "lang": "bench", "version": "1", "protocol": 1,
        });
        link.send(format!("CONNECT {greeting}\r\nSUB {} 1\r\n", link.inbox).as_bytes())?;
        self.barrier(&mut link)?;
        Ok(link)
    }

    fn create_request(
        &self,
        link: &Link,
        topic: &str,
        store: Store,
        _: usize,
    ) -> Result<Option<Vec<u8>>> {
        let Some(storage) = storage(store) else { return Ok(None) };
        Ok(Some(stream_request(link, &stream(topic), topic, storage)))
    }

    fn create_below(&self, link: &mut Link, prefix: &str, store: Store) -> Result<bool> {
        let Some(storage) = storage(store) else { return Ok(true) };
        create_stream(link, prefix, (&format!("{prefix}.>"), storage))?;
        Ok(true)
    }

    fn follow(&self, link: &mut Link, topic: &str) -> Result<()> {
        link.send(format!("SUB {topic} 2\r\n").as_bytes())?;
        self.barrier(link)
    }

    fn follow_many(&self, link: &mut Link, topics: &[String]) -> Result<()> {
        let subscribe = |(number, topic)| format!("SUB {topic} {}\r\n", number + 2);
        let all: String = topics.iter().enumerate().map(subscribe).collect();
        link.send(all.as_bytes())?;
        self.barrier(link)
    }

    /// By a push consumer without acks: the fastest way this server has. Its answer is not
    /// waited for, since messages may come before it.
    fn replay(&self, link: &mut Link, topic: &str) -> Result<()> {
        let deliver = format!("{}.replay", link.inbox);
        let name = stream(topic);
        let consumer = json!({
            "stream_name": name,
            "config": {
                "deliver_subject": deliver, "deliver_policy": "all", "ack_policy": "none",
                "replay_policy": "instant",
            },
        });
        link.send(format!("SUB {deliver} 2\r\n").as_bytes())?;
        let request = request(link, &format!("CONSUMER.CREATE.{name}"), &consumer.to_string());
        link.send(&request)
    }

    fn stored(&self, link: &mut Link, topic: &str) -> Result<u64> {
        let info = ask(link, &format!("STREAM.INFO.{}", stream(topic)), "")?;
        info["state"]["messages"].as_u64().ok_or_else(|| format!("no state in {info}").into())
    }

    fn publish(&self, link: &Link, to: To<'_>, body: &[u8], part: Part) -> Result<Vec<u8>> {
        let head = match to.store {
            Store::Live => format!("PUB {} {}\r\n", to.topic, body.len()),
            _ => format!("PUB {} {} {}\r\n", to.topic, link.inbox, body.len()),
        };
        let one = [head.as_bytes(), body, b"\r\n"].concat();
        Ok(one.repeat(part.batch))
    }

    fn answers(&self, store: Store) -> bool {
        store != Store::Live
    }

    fn barrier(&self, link: &mut Link) -> Result<()> {
        link.send(b"PING\r\n")?;
        link.parse(|bytes| {
            let Some(line) = line(bytes) else { return Ok(None) };
            let is_pong = if line == b"PONG" {
                true
            } else if line == b"PING" || line.starts_with(b"INFO ") {
                false
            } else {
                return Err(format!("no pong but {}", String::from_utf8_lossy(line)).into());
            };
            Ok(Some((line.len() + 2, is_pong)))
        })
        .and_then(|is_pong| if is_pong { Ok(()) } else { self.barrier(link) })
    }

    fn is_two_way(&self) -> bool {
        true
    }

    fn groups(&self) -> Option<&dyn Groups> {
        Some(self)
    }

    fn following(&self) -> Box<dyn Dialect> {
        Box::new(Lines)
    }

    fn deliveries(&self, topic: &str, body: &[u8], count: usize) -> Result<Vec<u8>> {
        let head = format!("MSG {topic} 2 {}\r\n", body.len());
        Ok([head.as_bytes(), body, b"\r\n"].concat().repeat(count))
    }
}

/// A pull consumer with explicit acks, otherwise with the server's defaults.
impl Groups for Nats {
    fn create_group(&self, link: &mut Link, group: Group<'_>) -> Result<bool> {
        let (stream, name) = (stream(group.topic), group.name);
        let consumer = json!({
            "stream_name": stream,
            "config": { "durable_name": name, "ack_policy": "explicit", "deliver_policy": "all" },
        });
        let what = format!("CONSUMER.DURABLE.CREATE.{stream}.{name}");
        ask(link, &what, &consumer.to_string()).map(|_| true)
    }

    fn join(&self, link: &mut Link, group: Group<'_>, _: usize) -> Result<()> {
        let inbox = format!("{}.pull", link.inbox);
        link.send(format!("SUB {inbox} 2\r\n").as_bytes())?;
        let body = json!({ "batch": group.batch, "expires": PULL_NANOS }).to_string();
        let next = format!("$JS.API.CONSUMER.MSG.NEXT.{}.{}", stream(group.topic), group.name);
        let pull = format!("PUB {next} {inbox} {}\r\n{body}\r\n", body.len()).into_bytes();
        let mut pulls = Pulls { pull, batch: group.batch, asked: 0, acks: Vec::new() };
        let mut first = Vec::new();
        pulls.owes(&mut first);
        link.dialect = Box::new(pulls);
        link.send(&first)
    }

    fn left(&self, link: &mut Link, group: Group<'_>) -> Result<u64> {
        let what = format!("CONSUMER.INFO.{}.{}", stream(group.topic), group.name);
        let info = ask(link, &what, "")?;
        let count = |field: &str| info[field].as_u64().ok_or_else(|| format!("no {field}: {info}"));
        Ok(count("num_pending")? + count("num_ack_pending")?)
    }
}

/// How long a pull may wait: longer than any message lets itself be waited for here.
const PULL_NANOS: u64 = 20_000_000_000;

/// A member's side: acks for what came, and the next pull while the last is half taken.
struct Pulls {
    pull: Vec<u8>,
    batch: usize,
    asked: usize,
    acks: Vec<u8>,
}

impl Dialect for Pulls {
    fn take(&mut self, bytes: &[u8], seen: &mut Seen<'_>) -> Result<usize> {
        let mut at = 0;
        while let Some((len, item)) = item(&bytes[at..])? {
            at += len;
            match item {
                Item::Message { subscription: ANSWERS, .. } => seen.answers += 1,
                Item::Message { reply, .. } => {
                    seen.messages += 1;
                    self.asked = self.asked.saturating_sub(1);
                    self.acks.extend_from_slice(b"PUB ");
                    self.acks.extend_from_slice(reply);
                    self.acks.extend_from_slice(b" 4\r\n+ACK\r\n");
                }
                // The pull's time is over, with so many messages of it not sent.
                Item::Status { head } => self.asked = self.asked.saturating_sub(not_sent(head)),
                Item::Other => {}
            }
        }
        Ok(at)
    }

    fn owes(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.acks);
        if self.asked <= self.batch / 2 {
            out.extend_from_slice(&self.pull);
            self.asked += self.batch;
        }
    }
}

/// How many messages a status says were not sent; all that could be, if it does not say.
fn not_sent(head: &[u8]) -> usize {
    let head = String::from_utf8_lossy(head);
    let pending = head.lines().find_map(|line| line.strip_prefix("Nats-Pending-Messages:"));
    pending.and_then(|count| count.trim().parse().ok()).unwrap_or(usize::MAX)
}

/// Makes a stream in files for all subjects of a pattern.
fn create_stream(link: &mut Link, name: &str, (subjects, storage): (&str, &str)) -> Result<()> {
    let request = stream_request(link, name, subjects, storage);
    link.send(&request)?;
    link.answers(1)
}

/// How a stream of this durability is stored; what is only live has none.
fn storage(store: Store) -> Option<&'static str> {
    match store {
        Store::Live => None,
        Store::Memory => Some("memory"),
        Store::Written | Store::Flushed => Some("file"),
    }
}

fn stream_request(link: &Link, name: &str, subjects: &str, storage: &str) -> Vec<u8> {
    let config = json!({
        "name": name, "subjects": [subjects], "storage": storage, "retention": "limits",
        "num_replicas": 1, "discard": "old", "max_msgs": -1, "max_bytes": -1,
    });
    request(link, &format!("STREAM.CREATE.{name}"), &config.to_string())
}

/// A stream's name has no dots.
fn stream(topic: &str) -> String {
    topic.replace('.', "_")
}

fn request(link: &Link, what: &str, body: &str) -> Vec<u8> {
    format!("PUB $JS.API.{what} {} {}\r\n{body}\r\n", link.inbox, body.len()).into_bytes()
}

/// Asks JetStream, and takes the next message for the answer.
fn ask(link: &mut Link, what: &str, body: &str) -> Result<Value> {
    let request = request(link, what, body);
    link.send(&request)?;
    let answer: Value = link.parse(|bytes| {
        let mut at = 0;
        while let Some((len, item)) = item(&bytes[at..])? {
            at += len;
            if let Item::Message { body, .. } = item {
                return Ok(Some((at, serde_json::from_slice(body)?)));
            }
        }
        Ok(None)
    })?;
    match &answer["error"] {
        Value::Null => Ok(answer),
        error => Err(format!("JetStream refuses {what}: {error}").into()),
    }
}

/// One item of what the server sends.
enum Item<'a> {
    Message {
        subscription: &'a [u8],
        reply: &'a [u8],
        body: &'a [u8],
    },
    /// A status without a body: there is no responder, or a pull ended.
    Status {
        head: &'a [u8],
    },
    /// Pings, which a run is too short to have to answer, and changes of the cluster.
    Other,
}

/// The first item and its bytes, if it is all there.
fn item(bytes: &[u8]) -> Result<Option<(usize, Item<'_>)>> {
    let Some(line) = line(bytes) else { return Ok(None) };
    let head = line.len() + 2;
    let with_headers = match line {
        [b'M', b'S', b'G', b' ', ..] => false,
        [b'H', b'M', b'S', b'G', b' ', ..] => true,
        b"PING" | b"PONG" | b"+OK" => return Ok(Some((head, Item::Other))),
        _ if line.starts_with(b"INFO ") => return Ok(Some((head, Item::Other))),
        _ => return Err(format!("nats-server: {}", String::from_utf8_lossy(line)).into()),
    };
    let mut words = line.split(|&byte| byte == b' ').skip(2);
    let subscription = words.next().unwrap_or_default();
    let words: [&[u8]; 3] =
        [words.next(), words.next(), words.next()].map(Option::unwrap_or_default);
    let given = words.iter().filter(|word| !word.is_empty()).count();
    let numbers = if with_headers { 2 } else { 1 };
    let reply: &[u8] = if given > numbers { words[0] } else { b"" };
    let total = number(words[given.max(1) - 1])?;
    let headers = if with_headers { number(words[given.max(2) - 2])? } else { 0 };
    let Some(whole) = bytes.get(head..head + total + 2) else { return Ok(None) };
    let len = head + total + 2;
    if with_headers && headers == total {
        return Ok(Some((len, Item::Status { head: &whole[..headers] })));
    }
    let body = whole.get(headers..total).ok_or("headers longer than their message")?;
    Ok(Some((len, Item::Message { subscription, reply, body })))
}

fn line(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.iter().position(|&byte| byte == b'\n')?;
    bytes.get(..end.checked_sub(1)?)
}

fn number(text: &[u8]) -> Result<usize> {
    text.iter().try_fold(0_usize, |sum, byte| match byte {
        b'0'..=b'9' => Ok(sum * 10 + usize::from(byte - b'0')),
        _ => Err(format!("no number: {}", String::from_utf8_lossy(text)).into()),
    })
}

/// Whether an answer of JetStream tells of an error.
fn is_error(body: &[u8]) -> bool {
    body.windows(8).any(|part| part == b"\"error\":")
}

/// The protocol's lines.
struct Lines;

impl Dialect for Lines {
    fn take(&mut self, bytes: &[u8], seen: &mut Seen<'_>) -> Result<usize> {
        let mut at = 0;
        while let Some((len, item)) = item(&bytes[at..])? {
            at += len;
            match item {
                Item::Message { subscription: ANSWERS, body, .. } => {
                    if is_error(body) {
                        return Err(format!("JetStream: {}", String::from_utf8_lossy(body)).into());
                    }
                    seen.answers += 1;
                }
                Item::Message { body, .. } => {
                    seen.messages += 1;
                    if let Some(each) = &mut seen.each {
                        each(body);
                    }
                }
                Item::Status { head } => {
                    return Err(format!("JetStream: {}", String::from_utf8_lossy(head)).into());
                }
                Item::Other => {}
            }
        }
        Ok(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(bytes: &[u8]) -> (usize, u64, u64) {
        let mut seen = Seen::default();
        let taken = Lines.take(bytes, &mut seen).unwrap();
        (taken, seen.answers, seen.messages)
    }

    #[test]
    fn answers_and_deliveries_are_told_apart_by_their_subscription() {
        let bytes =
            b"MSG a.b 2 3\r\nxyz\r\nPING\r\nMSG _INBOX.1 1 9\r\n{\"seq\":1}\r\nMSG a.b 2 3\r\nx";
        assert_eq!(counted(bytes), (bytes.len() - 14, 1, 1));
    }

    #[test]
    fn a_message_may_have_a_reply_and_headers() {
        let (len, item) = item(b"MSG a 2 $JS.ACK.x 1\r\nz\r\n").unwrap().unwrap();
        assert_eq!(len, 24);
        assert!(matches!(item, Item::Message { body: b"z", .. }));
        let headers = b"HMSG a 2 14 15\r\nNATS/1.0\r\n\r\n\r\nz\r\n";
        let (len, item) = super::item(headers).unwrap().unwrap();
        assert_eq!(len, headers.len());
        assert!(matches!(item, Item::Message { body: b"z", .. }));
    }

    #[test]
    fn a_member_acks_what_came_and_pulls_again_when_half_is_taken() {
        let mut pulls = Pulls { pull: b"P".to_vec(), batch: 2, asked: 2, acks: Vec::new() };
        let mut seen = Seen::default();
        let mut out = Vec::new();
        pulls.take(b"MSG a 2 $JS.ACK.7 1\r\nz\r\n", &mut seen).unwrap();
        pulls.owes(&mut out);
        assert_eq!(out, b"PUB $JS.ACK.7 4\r\n+ACK\r\nP");
        assert_eq!((seen.messages, pulls.asked), (1, 3));
        let status = b"HMSG i 2 59 59\r\nNATS/1.0 408 Timeout\r\nNats-Pending-Messages: 3\r\n\r\n1234567\r\n";
        assert_eq!(not_sent(&status[16..]), 3);
        assert_eq!(not_sent(b"NATS/1.0 404\r\n\r\n"), usize::MAX);
    }

    #[test]
    fn an_error_of_the_server_or_of_jetstream_ends_the_run() {
        let mut seen = Seen::default();
        assert!(Lines.take(b"-ERR 'Slow Consumer'\r\n", &mut seen).is_err());
        assert!(Lines.take(b"MSG i 1 14\r\n{\"error\":{...}\r\n", &mut seen).is_err());
    }

    #[test]
    fn what_is_made_for_the_reader_alone_can_be_read() {
        let bytes = Nats.deliveries("live", &[7; 128], 5).unwrap();
        assert_eq!(counted(&bytes), (bytes.len(), 0, 5));
    }
}
