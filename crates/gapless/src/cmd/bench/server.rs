//! `gapless bench server`: what a running server answers, asked as a program would ask it.
//!
//! It creates a topic of its own, publishes to it one at a time and with many in flight, reads it
//! back from the beginning, and removes it, also after an error.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use clap::Args;
use gapless_bench::samples::Samples;
use gapless_bench::table::{Figure, Row, Table};
use gapless_client::{Client, Event, From, Publishing};
use gapless_core::{Durability, Message, TopicName, TopicSettings};

use crate::cmd::Global;
use crate::exit::{Done, Exit, Failure};
use crate::output::Output;
use crate::remote::{asked, published, with_client};

const EXAMPLES: &str = "\
Examples:
  gapless bench server
  gapless bench server --messages 1000000 --size 1024 --in-flight 4096
  gapless bench server --durability written --json";

/// Most messages: what is published is stored until the end.
const MESSAGES_MAX: u64 = 10_000_000;
/// One at a time takes a round trip each; so many are enough for a p99.
const ONE_BY_ONE_MAX: u64 = 1_000;
/// How long one at a time goes on at most.
const ONE_BY_ONE_TIME: Duration = Duration::from_secs(3);

/// Measure a running server with the client that comes with it
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServerOptions {
    /// How many messages to publish and to read back
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=MESSAGES_MAX))]
    messages: u64,
    /// Bytes of each message
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    size: u32,
    /// Publishes that wait for their ack at the same time
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    in_flight: u16,
    /// Durability of the topic: memory, written or flushed
    #[arg(long, default_value = "flushed", value_parser = durability)]
    durability: Durability,
}

fn durability(text: &str) -> Result<Durability, String> {
    Durability::from_name(text).ok_or_else(|| "use memory, written or flushed".to_owned())
}

pub(crate) fn run(options: &ServerOptions, global: &Global, out: &mut Output) -> Done {
    with_client(global, out, async |client, out| {
        let topic =
            TopicName::parse(&format!("bench.{}", std::process::id())).map_err(Failure::failed)?;
        let settings =
            TopicSettings { durability: Some(options.durability), ..TopicSettings::default() };
        if let Err(error) = client.create_topic(&topic, settings).await {
            return Err(asked(client, error, Some(&topic)).await);
        }
        out.note(format_args!("measuring with the topic {topic}, which is removed at the end"));
        let measured = measure(client, &topic, options).await;
        let removed = client.delete_topic(&topic).await;
        let table = measured?;
        if let Err(error) = removed {
            return Err(asked(client, error, Some(&topic)).await);
        }
        if out.json {
            out.line(format_args!("{:#}", table.to_json()))?;
        } else {
            out.bytes(table.to_string().as_bytes())?;
        }
        Ok(Exit::Ok)
    })
}

async fn measure(
    client: &Client,
    topic: &TopicName,
    options: &ServerOptions,
) -> Result<Table, Failure> {
    let message = Message::new(vec![b'x'; options.size as usize]);
    let mut table = Table::new("a running server, asked by the client of this program");
    let bench = Bench { client, topic, message, size: options.size as usize };
    let how = options.durability;
    table
        .push(bench.one_by_one(options.messages).await?.row(&format!("ack, {how}, one at a time")));
    let many = usize::from(options.in_flight);
    let (stored, rate) = bench.in_flight(options.messages, many).await?;
    table.push(rate.row(&format!("ack, {how}, {many} in flight")));
    let took = bench.read_back(stored).await?.as_secs_f64();
    let bytes = (stored * bench.size as u64) as f64 / took;
    let row = Row::new("read back from the beginning", Figure::per_second(stored as f64 / took));
    table.push(row.beside("bytes", Figure::bytes_per_second(bytes)));
    Ok(table)
}

struct Bench<'a> {
    client: &'a Client,
    topic: &'a TopicName,
    message: Message,
    size: usize,
}

impl Bench<'_> {
    async fn acked(&self, publishing: Publishing) -> Result<(), Failure> {
        match publishing.await {
            Ok(ack) if ack.seq().is_some() => Ok(()),
            Ok(_) => Err(Failure::new(Exit::Rejected, "the server refused a message")),
            Err(error) => Err(published(self.client, error, self.topic).await),
        }
    }

    async fn one_by_one(&self, messages: u64) -> Result<gapless_bench::samples::Rate, Failure> {
        let mut samples = Samples::default();
        let started = Instant::now();
        for _ in 0..messages.min(ONE_BY_ONE_MAX) {
            let begun = Instant::now();
            self.acked(self.client.publish(self.topic, self.message.clone())).await?;
            samples.note(begun.elapsed());
            if started.elapsed() > ONE_BY_ONE_TIME {
                break;
            }
        }
        samples.spend(started.elapsed());
        Ok(samples.rate(self.size))
    }

    /// Also returns how many are stored in the end.
    async fn in_flight(
        &self,
        messages: u64,
        many: usize,
    ) -> Result<(u64, gapless_bench::samples::Rate), Failure> {
        let mut samples = Samples::default();
        let mut waiting: VecDeque<(Instant, Publishing)> = VecDeque::with_capacity(many);
        let started = Instant::now();
        let mut sent = 0;
        while sent < messages || !waiting.is_empty() {
            while sent < messages && waiting.len() < many {
                let publishing = self.client.publish(self.topic, self.message.clone());
                waiting.push_back((Instant::now(), publishing));
                sent += 1;
            }
            if let Some((begun, publishing)) = waiting.pop_front() {
                self.acked(publishing).await?;
                samples.note(begun.elapsed());
            }
        }
        samples.spend(started.elapsed());
        let info = self.client.describe_topic(self.topic).await;
        match info {
            Ok(info) => Ok((info.next.prev().0, samples.rate(self.size))),
            Err(error) => Err(asked(self.client, error, Some(self.topic)).await),
        }
    }

    async fn read_back(&self, stored: u64) -> Result<Duration, Failure> {
        let started = Instant::now();
        let subscribed = self.client.subscribe(self.topic.as_str(), From::Beginning).await;
        let mut subscription = subscribed.map_err(Failure::failed)?;
        let mut read = 0;
        while read < stored {
            match subscription.next().await {
                Some(Ok(Event::Messages(messages))) => read += messages.count() as u64,
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(Failure::failed(error)),
                None => return Err(Failure::failed("the subscription ended early")),
            }
        }
        Ok(started.elapsed())
    }
}
