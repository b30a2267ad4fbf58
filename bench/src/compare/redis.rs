//! redis-server: pub/sub, and streams.

use std::net::SocketAddr;

use super::link::{Dialect, Link, Seen};
use super::systems::{Group, Groups, HISTORY_BATCH, Part, Store, System, To};
use crate::benches::store::Result;

/// redis-server.
pub(super) struct Redis;

/// The only field of an entry.
const FIELD: &[u8] = b"d";

impl System for Redis {
    fn connect(&self, address: SocketAddr) -> Result<Link> {
        let mut link = Link::open(address, Box::new(Replies::default()))?;
        self.barrier(&mut link)?;
        Ok(link)
    }

    /// A channel or a stream is there as soon as it is used.
    fn create_request(&self, _: &Link, _: &str, _: Store, _: usize) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    fn follow(&self, link: &mut Link, topic: &str) -> Result<()> {
        link.send(&command(&[b"SUBSCRIBE", topic.as_bytes()]))?;
        link.parse(|bytes| Ok(skip(bytes)?.map(|len| (len, ()))))?;
        link.dialect = self.following();
        Ok(())
    }

    fn replay(&self, link: &mut Link, topic: &str) -> Result<()> {
        let reading = Replies {
            arrays: Arrays::Stream,
            topic: topic.as_bytes().to_vec(),
            last_id: b"0-0".to_vec(),
            is_due: true,
            ..Replies::default()
        };
        link.dialect = Box::new(reading);
        let mut first = Vec::new();
        link.dialect.owes(&mut first);
        link.send(&first)
    }

    fn stored(&self, link: &mut Link, topic: &str) -> Result<u64> {
        link.send(&command(&[b"XLEN", topic.as_bytes()]))?;
        link.parse(|bytes| match line(bytes) {
            Some([b':', digits @ ..]) => Ok(Some((digits.len() + 3, length(digits)? as u64))),
            Some(other) => Err(format!("redis: {}", String::from_utf8_lossy(other)).into()),
            None => Ok(None),
        })
    }

    fn publish(&self, _: &Link, to: To<'_>, body: &[u8], part: Part) -> Result<Vec<u8>> {
        let topic = to.topic.as_bytes();
        let one = match to.store {
            Store::Live => command(&[b"PUBLISH", topic, body]),
            _ => command(&[b"XADD", topic, b"*", FIELD, body]),
        };
        Ok(one.repeat(part.batch))
    }

    fn answers(&self, _: Store) -> bool {
        true
    }

    fn barrier(&self, link: &mut Link) -> Result<()> {
        link.send(&command(&[b"PING"]))?;
        link.parse(|bytes| match line(bytes) {
            Some(b"+PONG") => Ok(Some((7, ()))),
            Some(other) => Err(format!("redis: {}", String::from_utf8_lossy(other)).into()),
            None => Ok(None),
        })
    }

    fn is_two_way(&self) -> bool {
        false
    }

    fn groups(&self) -> Option<&dyn Groups> {
        Some(self)
    }

    fn following(&self) -> Box<dyn Dialect> {
        Box::new(Replies { arrays: Arrays::Pushes, ..Replies::default() })
    }

    fn deliveries(&self, topic: &str, body: &[u8], count: usize) -> Result<Vec<u8>> {
        Ok(command(&[b"message", topic.as_bytes(), body]).repeat(count))
    }
}

impl Groups for Redis {
    fn create_group(&self, link: &mut Link, group: Group<'_>) -> Result<bool> {
        let (topic, name) = (group.topic.as_bytes(), group.name.as_bytes());
        link.send(&command(&[b"XGROUP", b"CREATE", topic, name, b"0"]))?;
        link.parse(|bytes| Ok(skip(bytes)?.map(|len| (len, true))))
    }

    fn join(&self, link: &mut Link, group: Group<'_>, member: usize) -> Result<()> {
        let (topic, name) = (group.topic.as_bytes(), group.name.as_bytes());
        let (member, count) = (member.to_string(), group.batch.to_string());
        let take = command(&[
            b"XREADGROUP",
            b"GROUP",
            name,
            member.as_bytes(),
            b"COUNT",
            count.as_bytes(),
            b"STREAMS",
            topic,
            b">",
        ]);
        let group = Member { topic: topic.to_vec(), name: name.to_vec(), take, ids: Vec::new() };
        let mut member = Replies {
            arrays: Arrays::Stream,
            is_due: true,
            member: Some(group),
            ..Replies::default()
        };
        let mut first = Vec::new();
        member.owes(&mut first);
        link.dialect = Box::new(member);
        link.send(&first)
    }

    fn left(&self, link: &mut Link, group: Group<'_>) -> Result<u64> {
        let (topic, name) = (group.topic.as_bytes(), group.name.as_bytes());
        link.send(&command(&[b"XPENDING", topic, name]))?;
        link.parse(|bytes| {
            let Some(len) = skip(bytes)? else { return Ok(None) };
            let mut walk = Walk { bytes };
            walk.array()?;
            match walk.line()? {
                [b':', digits @ ..] => Ok(Some((len, length(digits)? as u64))),
                other => Err(format!("redis: {}", String::from_utf8_lossy(other)).into()),
            }
        })
    }
}

/// An array of words, which is what commands and pushes are.
pub(super) fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
    out
}

fn line(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.iter().position(|&byte| byte == b'\n')?;
    bytes.get(..end.checked_sub(1)?)
}

/// A length; −1 (nothing) counts as none.
fn length(text: &[u8]) -> Result<usize> {
    if text == b"-1" {
        return Ok(0);
    }
    text.iter().try_fold(0_usize, |sum, byte| match byte {
        b'0'..=b'9' => Ok(sum * 10 + usize::from(byte - b'0')),
        _ => Err(format!("no length: {}", String::from_utf8_lossy(text)).into()),
    })
}

/// Bytes of the first value, if it is all there.
fn skip(bytes: &[u8]) -> Result<Option<usize>> {
    let mut values = 1_usize;
    let mut at = 0;
    while values > 0 {
        let Some(line) = line(&bytes[at.min(bytes.len())..]) else { return Ok(None) };
        at += line.len() + 2;
        values -= 1;
        match line {
            [b'$', b'-', ..] => {}
            [b'$', digits @ ..] => at += length(digits)? + 2,
            [b'*', digits @ ..] => values += length(digits)?,
            [b'-', ..] => return Err(format!("redis: {}", String::from_utf8_lossy(line)).into()),
            _ => {}
        }
    }
    Ok((at <= bytes.len()).then_some(at))
}

/// What arrays are on a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Arrays {
    /// There are none.
    #[default]
    Unexpected,
    /// Messages of a channel.
    Pushes,
    /// Entries of a stream.
    Stream,
}

/// Replies, and where a reader of a stream stands.
#[derive(Default)]
struct Replies {
    arrays: Arrays,
    topic: Vec<u8>,
    last_id: Vec<u8>,
    is_due: bool,
    member: Option<Member>,
    /// The last push up to its body, and the bytes of the body: the next one mostly begins
    /// with the same bytes, and need not be parsed.
    push_head: Vec<u8>,
    push_body: usize,
}

/// A member of a group: what it took and has not acknowledged.
struct Member {
    topic: Vec<u8>,
    name: Vec<u8>,
    take: Vec<u8>,
    ids: Vec<Vec<u8>>,
}

/// Walks over values that are known to be all there.
struct Walk<'a> {
    bytes: &'a [u8],
}

impl<'a> Walk<'a> {
    /// The number in the head of an array.
    fn array(&mut self) -> Result<usize> {
        match self.line()? {
            [b'*', digits @ ..] => length(digits),
            other => Err(format!("redis: no array: {}", String::from_utf8_lossy(other)).into()),
        }
    }

    fn word(&mut self) -> Result<&'a [u8]> {
        let [b'$', digits @ ..] = self.line()? else { return Err("redis: no word".into()) };
        let len = length(digits)?;
        let (word, rest) = self.bytes.split_at_checked(len + 2).ok_or("redis: half a word")?;
        self.bytes = rest;
        Ok(&word[..len])
    }

    fn line(&mut self) -> Result<&'a [u8]> {
        let line = line(self.bytes).ok_or("redis: half a line")?;
        self.bytes = &self.bytes[line.len() + 2..];
        Ok(line)
    }
}

impl Replies {
    /// Takes pushes as long as they are like the last one; tells how many bytes that were.
    fn like_the_last(&self, bytes: &[u8], seen: &mut Seen<'_>) -> usize {
        let (head, body) = (self.push_head.len(), self.push_body);
        let mut at = 0;
        while head > 0 && bytes[at..].starts_with(&self.push_head) {
            let Some(push) = bytes.get(at..at + head + body + 2) else { break };
            count(&push[head..head + body], seen);
            at += push.len();
        }
        at
    }

    fn array(&mut self, bytes: &[u8], seen: &mut Seen<'_>) -> Result<()> {
        let mut walk = Walk { bytes };
        let values = walk.array()?;
        match self.arrays {
            Arrays::Unexpected => Err("redis: an array that was not asked for".into()),
            Arrays::Pushes => {
                let [kind, _, body] = [walk.word()?, walk.word()?, walk.word()?];
                if kind != b"message" {
                    return Err(format!("redis: {}", String::from_utf8_lossy(kind)).into());
                }
                count(body, seen);
                let head = bytes.len() - walk.bytes.len() - body.len() - 2;
                (self.push_head, self.push_body) = (bytes[..head].to_vec(), body.len());
                Ok(())
            }
            Arrays::Stream => {
                self.is_due = true;
                if values == 0 {
                    return Ok(());
                }
                walk.array()?;
                walk.word()?;
                let entries = walk.array()?;
                for entry in 0..entries {
                    walk.array()?;
                    let id = walk.word()?;
                    if let Some(member) = &mut self.member {
                        member.ids.push(id.to_vec());
                    } else if entry + 1 == entries {
                        self.last_id = id.to_vec();
                    }
                    walk.array()?;
                    walk.word()?;
                    count(walk.word()?, seen);
                }
                Ok(())
            }
        }
    }
}

fn count(body: &[u8], seen: &mut Seen<'_>) {
    seen.messages += 1;
    if let Some(each) = &mut seen.each {
        each(body);
    }
}

impl Dialect for Replies {
    fn take(&mut self, bytes: &[u8], seen: &mut Seen<'_>) -> Result<usize> {
        let mut at = self.like_the_last(bytes, seen);
        while let Some(len) = skip(&bytes[at..])? {
            match bytes[at] {
                b'*' => self.array(&bytes[at..at + len], seen)?,
                _ => seen.answers += 1,
            }
            at += len;
            at += self.like_the_last(&bytes[at..], seen);
        }
        Ok(at)
    }

    fn owes(&mut self, out: &mut Vec<u8>) {
        if !std::mem::take(&mut self.is_due) {
            return;
        }
        if let Some(member) = &mut self.member {
            let taken = std::mem::take(&mut member.ids);
            if !taken.is_empty() {
                let head: [&[u8]; 3] = [b"XACK", &member.topic, &member.name];
                let words: Vec<&[u8]> =
                    head.into_iter().chain(taken.iter().map(Vec::as_slice)).collect();
                out.extend(command(&words));
            }
            out.extend_from_slice(&member.take);
            return;
        }
        let count = HISTORY_BATCH.to_string();
        let (topic, id) = (&self.topic, &self.last_id);
        out.extend(command(&[b"XREAD", b"COUNT", count.as_bytes(), b"STREAMS", topic, id]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_skipped_only_when_they_are_all_there() {
        let value = b"*2\r\n$3\r\nabc\r\n*1\r\n:7\r\n";
        assert_eq!(skip(value).unwrap(), Some(value.len()));
        for end in 0..value.len() {
            assert_eq!(skip(&value[..end]).unwrap(), None, "{end}");
        }
        assert_eq!(skip(b"*-1\r\n").unwrap(), Some(5));
        assert_eq!(skip(b"$-1\r\n").unwrap(), Some(5));
        assert!(skip(b"-ERR no\r\n").is_err());
    }

    #[test]
    fn answers_are_counted_and_pushes_are_messages() {
        let mut seen = Seen::default();
        let taken = Replies::default().take(b":1\r\n$3\r\n1-0\r\n+OK\r\n:2", &mut seen).unwrap();
        assert_eq!((taken, seen.answers), (18, 3));
        let pushes = Redis.deliveries("live", &[7; 128], 5).unwrap();
        let mut replies = Replies { arrays: Arrays::Pushes, ..Replies::default() };
        assert_eq!(replies.take(&pushes, &mut seen).unwrap(), pushes.len());
        assert_eq!(seen.messages, 5);
        let others = Redis.deliveries("other", &[8; 16], 3).unwrap();
        let mixed = [&pushes[..], &others[..], &pushes[..9]].concat();
        assert_eq!(replies.take(&mixed, &mut seen).unwrap(), mixed.len() - 9);
        assert_eq!(seen.messages, 5 + 5 + 3);
    }

    #[test]
    fn a_reader_of_a_stream_asks_behind_the_last_entry_it_got() {
        let mut replies =
            Replies { arrays: Arrays::Stream, topic: b"t".to_vec(), ..Replies::default() };
        let entry =
            |id: &str| format!("*2\r\n${}\r\n{id}\r\n*2\r\n$1\r\nd\r\n$2\r\nxy\r\n", id.len());
        let answer = format!("*1\r\n*2\r\n$1\r\nt\r\n*2\r\n{}{}", entry("1-0"), entry("12-3"));
        let mut bodies = Vec::new();
        let mut each = |body: &[u8]| bodies.push(body.to_vec());
        let mut seen = Seen::with(&mut each);
        assert_eq!(replies.take(answer.as_bytes(), &mut seen).unwrap(), answer.len());
        assert_eq!(seen.messages, 2);
        assert_eq!(bodies, [b"xy", b"xy"]);
        let mut out = Vec::new();
        replies.owes(&mut out);
        assert!(out.ends_with(b"$4\r\n12-3\r\n"));
        out.clear();
        replies.owes(&mut out);
        assert!(out.is_empty());
    }
}
