//! Rounds of torture: publish, strike, open again, compare.
//!
//! Every round has a topic for each durability. A message says its number, and its content follows
//! from that, so that a message that is lost, doubled, out of order or altered is found.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Duration;

use gapless_client::{Client, Event, From, Message};
use gapless_core::{Durability, PublishOptions, TopicName, TopicSettings};
use tokio::time::timeout;

use super::child::Server;
use super::{LEVELS, promised, tear};
use crate::exit::{Exit, Failure};

/// Publishes of one durability that wait for their ack.
const WINDOW: usize = 64;
/// Messages of one topic, at most.
const MESSAGES_MAX: u64 = 20_000;
/// The longest message.
const BODY_BYTES_MAX: u64 = 2_000;
/// When the blow comes.
const STRIKE_AFTER_MS: std::ops::Range<u64> = 20..600;
/// How large files may grow when the disk is to be full.
const FILL_BYTES: std::ops::Range<u64> = 65_536..2_097_152;
/// How long publishing goes on after the disk is full.
const FULL_TIME: Duration = Duration::from_millis(300);
/// How long reading a topic back may take.
const READ_WAIT: Duration = Duration::from_secs(120);
/// The store, and the copy that is torn.
const STORE: &str = "store";
const COPY: &str = "torn";

/// What is done to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blow {
    Kill,
    Tear,
    Fill,
}

impl Blow {
    /// Those that this system can do.
    fn all() -> &'static [Self] {
        if cfg!(target_os = "linux") {
            &[Self::Kill, Self::Tear, Self::Fill]
        } else {
            &[Self::Kill, Self::Tear]
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Tear => "tear",
            Self::Fill => "fill",
        }
    }
}

/// What became of acked messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) rounds: u64,
    pub(super) acked: u64,
    pub(super) lost: u64,
    /// Altered, doubled or out of order; never allowed.
    pub(super) wrong: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    rows: [[Row; LEVELS.len()]; 3],
}

impl Tally {
    pub(super) fn rows(&self) -> impl Iterator<Item = (Blow, Durability, Row)> + '_ {
        Blow::all().iter().flat_map(move |blow| {
            let row = &self.rows[*blow as usize];
            LEVELS.iter().zip(row).map(move |(level, row)| (*blow, *level, *row))
        })
    }

    fn add(&mut self, blow: Blow, level: usize, row: Row) {
        let sum = &mut self.rows[blow as usize][level];
        sum.rounds += row.rounds;
        sum.acked += row.acked;
        sum.lost += row.lost;
        sum.wrong += row.wrong;
    }

    /// Acked messages that are lost against a promise, and all that are wrong.
    pub(super) fn broken(&self) -> u64 {
        let broken = |(blow, level, row): (Blow, Durability, Row)| {
            row.wrong + if promised(level, blow) { row.lost } else { 0 }
        };
        self.rows().map(broken).sum()
    }
}

/// Small and fast, and the same for the same seed.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    fn within(&mut self, range: std::ops::Range<u64>) -> u64 {
        range.start + self.below(range.end - range.start)
    }
}

/// A topic of a round, and what is known of it.
#[derive(Clone, Debug)]
struct Written {
    topic: TopicName,
    level: usize,
    /// So many were acked, in order.
    acked: u64,
    /// So many were there when it was looked at the last time.
    there: u64,
    blow: Blow,
}

pub(super) struct Rounds {
    folder: PathBuf,
    random: Random,
    seed: u64,
    pub(super) count: u64,
    pub(super) tally: Tally,
    written: Vec<Written>,
}

impl Rounds {
    pub(super) fn new(folder: PathBuf, seed: u64) -> Self {
        let (random, tally, written) = (Random::new(seed), Tally::default(), Vec::new());
        Self { folder, random, seed, count: 0, tally, written }
    }

    /// One round.
    pub(super) async fn round(&mut self) -> Result<(), Failure> {
        let blows = Blow::all();
        let blow = blows[(self.count % blows.len() as u64) as usize];
        self.count += 1;
        let server = Server::start(&self.folder, STORE).await?;
        let client = server.connect().await?;
        let mut topics = self.topics(&client, blow).await?;
        let strike = Duration::from_millis(self.random.within(STRIKE_AFTER_MS));
        let full = self.random.within(FILL_BYTES);
        {
            let all = publish_all(&client, &mut topics, self.seed);
            tokio::pin!(all);
            // The end of the time is the normal end.
            let _ = timeout(strike, &mut all).await;
            #[cfg(target_os = "linux")]
            if blow == Blow::Fill {
                server.limit_files(full)?;
                let _ = timeout(FULL_TIME, &mut all).await;
            }
        }
        server.kill().await?;
        drop(client);
        if blow == Blow::Tear {
            self.tear(&topics).await?;
        }
        let server = Server::start(&self.folder, STORE).await?;
        let client = server.connect().await?;
        for each in &mut topics {
            let (there, wrong) = read_back(&client, &each.topic, self.seed).await?;
            each.there = there;
            // What the torn copy has lost is counted already; the store itself was only killed.
            let counted = if blow == Blow::Tear { Blow::Kill } else { blow };
            let lost = each.acked.saturating_sub(there);
            let row = Row { rounds: 1, acked: each.acked, lost, wrong };
            self.tally.add(counted, each.level, row);
        }
        server.kill().await?;
        self.written.extend(topics);
        Ok(())
    }

    async fn topics(&self, client: &Client, blow: Blow) -> Result<Vec<Written>, Failure> {
        let mut topics = Vec::new();
        for (at, level) in LEVELS.iter().enumerate() {
            let name = format!("torture.{}.{}", self.count, level.name());
            let topic = TopicName::parse(&name).map_err(Failure::failed)?;
            let settings = TopicSettings { durability: Some(*level), ..TopicSettings::default() };
            client.create_topic(&topic, settings).await.map_err(Failure::failed)?;
            topics.push(Written { topic, level: at, acked: 0, there: 0, blow });
        }
        Ok(topics)
    }

    /// Plays a power loss on a copy of the store, and compares that.
    async fn tear(&mut self, topics: &[Written]) -> Result<(), Failure> {
        let (store, copy) = (self.folder.join(STORE), self.folder.join(COPY));
        tear::copy(&store, &copy)?;
        let mut flushed = topics.iter().filter(|each| LEVELS[each.level] == Durability::Flushed);
        let torn = match flushed.next_back().filter(|each| each.acked > 0) {
            Some(last) => {
                let marker = marker(&last.topic, last.acked - 1);
                let round = format!("<torture.{}.", self.count);
                tear::tear(&copy, marker.as_bytes(), round.as_bytes(), &mut self.random)?
            }
            None => None,
        };
        if torn.is_none() {
            std::fs::remove_dir_all(&copy)?;
            return Ok(());
        }
        let server = Server::start(&self.folder, COPY).await?;
        let client = server.connect().await?;
        for each in topics {
            // A topic whose creation was flushed is there.
            let (there, wrong) = read_back(&client, &each.topic, self.seed).await?;
            let lost = each.acked.saturating_sub(there);
            let row = Row { rounds: 1, acked: each.acked, lost, wrong };
            self.tally.add(Blow::Tear, each.level, row);
        }
        server.kill().await?;
        std::fs::remove_dir_all(&copy)?;
        Ok(())
    }

    /// What survived its own round must survive all others.
    pub(super) async fn check_all(&mut self) -> Result<(), Failure> {
        let server = Server::start(&self.folder, STORE).await?;
        let client = server.connect().await?;
        for each in &self.written {
            let (there, wrong) = read_back(&client, &each.topic, self.seed).await?;
            let row = Row { lost: each.there.saturating_sub(there), wrong, ..Row::default() };
            let blow = if each.blow == Blow::Tear { Blow::Kill } else { each.blow };
            self.tally.add(blow, each.level, row);
        }
        server.kill().await
    }
}

/// Publishes to all topics at the same time, for as long as it is polled.
async fn publish_all(client: &Client, topics: &mut [Written], seed: u64) {
    if let [memory, written, flushed] = topics {
        tokio::join!(
            publish(client, memory, seed),
            publish(client, written, seed),
            publish(client, flushed, seed),
        );
    }
}

/// Publishes one after the other, and counts acks, until one fails or the future is dropped.
async fn publish(client: &Client, to: &mut Written, seed: u64) {
    let options =
        PublishOptions { durability: Some(LEVELS[to.level]), ..PublishOptions::default() };
    let mut waiting = VecDeque::new();
    let mut number = to.acked;
    loop {
        while waiting.len() < WINDOW && number < MESSAGES_MAX {
            let body = body(&to.topic, number, seed);
            waiting.push_back(client.publish_with(&to.topic, Message::new(body), &options));
            number += 1;
        }
        match waiting.pop_front() {
            Some(publishing) => match publishing.await {
                Ok(_) => to.acked += 1,
                Err(_) => return,
            },
            None => return,
        }
    }
}

/// How many messages of a topic are there, in order and as they were sent, from the first on; and how
/// many are wrong.
async fn read_back(client: &Client, topic: &TopicName, seed: u64) -> Result<(u64, u64), Failure> {
    let failed = |error: &dyn std::fmt::Display| {
        Failure::new(Exit::Damage, format!("{topic} cannot be read back: {error}"))
    };
    let read = async {
        let mut subscription =
            client.subscribe(topic.as_str(), From::Beginning).await.map_err(|e| failed(&e))?;
        let (mut there, mut wrong) = (0, 0);
        while let Some(event) = subscription.next().await {
            match event.map_err(|error| failed(&error))? {
                Event::Messages(messages) => {
                    for each in messages.iter() {
                        let expected = body(topic, there, seed);
                        let same = each.message.body.as_deref() == Some(expected.as_bytes());
                        there += u64::from(same);
                        wrong += u64::from(!same);
                    }
                }
                Event::Gap(_) => wrong += 1,
                Event::Live => break,
                _ => {}
            }
        }
        Ok((there, wrong))
    };
    timeout(READ_WAIT, read).await.unwrap_or_else(|_| Err(failed(&"it takes too long")))
}

/// What a message begins with, and no other has in it.
fn marker(topic: &TopicName, number: u64) -> String {
    format!("<{topic} {number}>")
}

fn body(topic: &TopicName, number: u64, seed: u64) -> String {
    let mut random = Random::new(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let filler = char::from(b'a' + random.below(26) as u8);
    let count = random.below(BODY_BYTES_MAX) as usize;
    marker(topic, number) + &filler.to_string().repeat(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_losses_against_a_promise_count_as_broken() {
        let mut tally = Tally::default();
        let lost = Row { rounds: 1, acked: 10, lost: 3, wrong: 0 };
        tally.add(Blow::Kill, 0, lost);
        tally.add(Blow::Tear, 1, lost);
        assert_eq!(tally.broken(), 0);
        tally.add(Blow::Kill, 1, lost);
        tally.add(Blow::Tear, 2, lost);
        assert_eq!(tally.broken(), 6);
        tally.add(Blow::Kill, 0, Row { wrong: 1, ..Row::default() });
        assert_eq!(tally.broken(), 7);
    }

    #[test]
    fn a_message_follows_from_its_number() {
        let topic = TopicName::parse("t").unwrap();
        assert_eq!(body(&topic, 5, 9), body(&topic, 5, 9));
        assert_ne!(body(&topic, 5, 9), body(&topic, 6, 9));
        assert!(body(&topic, 5, 9).starts_with("<t 5>"));
    }
}
