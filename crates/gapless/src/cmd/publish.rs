//! `gapless pub`: publishes a message, or many, and says where they stand.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use clap_complete::ArgValueCompleter;
use gapless_broker::{Clock, SystemClock};
use gapless_client::{Ack, AskError, Client, ErrorCode, Fate, PublishError, Publishing};
use gapless_core::cluster::{DeliveryReport, DeliveryStatus};
use gapless_core::{
    DeliveryPolicy, Durability, Expect, Message, PartitionBehavior, PublishOptions, Seq, Timestamp,
    TopicName, TopicSettings,
};
use gapless_protocol::FRAME_BYTES_MAX;
use gapless_server::json as shown;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::interval;

use super::Global;
use crate::complete;
use crate::exit::{Done, Exit, Failure};
use crate::output::{Output, human_number, human_span};
use crate::progress::Progress;
use crate::remote::{asked, published, with_client};
use crate::template::Filling;
use crate::values::{self, When};

const EXAMPLES: &str = "\
Examples:
  gapless pub orders.created 'first order' --create
  gapless pub prices '{\"eur\": 12}' --key apples --header source=till-7
  echo hello | gapless pub greetings                 the whole of stdin is one message
  gapless pub orders.import --lines --file old.jsonl  each line is one
  gapless pub reminders 'call back' --delay 2h        appears later; see `gapless cancel`
  gapless pub accounts v8 --key 42 --expect-key-seq 7 only if no other publish came first
  gapless pub prices --key apples --tombstone         remove a key
  gapless pub load '{\"n\": {number}, \"at\": \"{time}\"}' --template --count 1000 --rate 50
  gapless pub load x --template --key 'user-{rand:1-100}' --count 1000
  gapless pub chat.room1 hello --report               who took it; volatile subjects only

When it returns, the message is as safe as its topic asks for: flushed (survives power loss)
unless the topic or --durability says otherwise. An --id makes a second try harmless.";

/// Most publishes without an ack. The client has limits of its own besides.
const WINDOW: usize = 4_096;
/// Lines that were read and not sent yet.
const LINES_AHEAD: usize = 1_024;

/// Publish a message, a file, or every line of stdin
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PubOptions {
    /// Where to publish, as orders.eu.created
    #[arg(add = ArgValueCompleter::new(complete::topics), value_parser = values::topic)]
    topic: TopicName,
    /// The message; without it, --file or stdin is read
    #[arg(conflicts_with_all = ["file", "lines"])]
    message: Option<String>,
    /// Read the message from this file; - is stdin
    #[arg(long, short, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Make each line a message
    #[arg(long, short)]
    lines: bool,
    /// What the message is about; a compacted topic keeps the latest of each key
    #[arg(long, short)]
    key: Option<String>,
    /// Remove the key: a message without a body
    #[arg(long, requires = "key", conflicts_with_all = ["message", "file", "lines"])]
    tombstone: bool,
    /// A header, as NAME=VALUE or 'Name: value'; may be repeated
    #[arg(long, short = 'H', value_name = "NAME=VALUE", value_parser = values::header)]
    header: Vec<(String, String)>,
    /// The message's own id: the same id again is not stored again
    #[arg(long)]
    id: Option<String>,
    /// How long it may be delivered, as 10s
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    ttl: Option<Duration>,
    /// Let it appear later, as 5m
    #[arg(long, value_name = "TIME", value_parser = values::duration, conflicts_with = "at")]
    delay: Option<Duration>,
    /// Let it appear at a time, as 2026-11-15T08:00:00Z
    #[arg(long, value_name = "WHEN", value_parser = values::time, allow_hyphen_values = true)]
    at: Option<When>,
    /// Publish only if the topic's last seq is this; 0 if there must be none
    #[arg(long, value_name = "SEQ", conflicts_with_all = ["lines", "expect_key_seq"])]
    expect_seq: Option<u64>,
    /// Publish only if the key's last seq is this; 0 if there must be none
    #[arg(long, value_name = "SEQ", requires = "key", conflicts_with = "lines")]
    expect_key_seq: Option<u64>,
    /// How safe it must be before the ack
    #[arg(long, value_parser = values::durability())]
    durability: Option<Durability>,
    /// How hard other nodes of the cluster are tried; volatile subjects only
    #[arg(long, value_parser = values::delivery())]
    delivery: Option<DeliveryPolicy>,
    /// What happens if a node cannot be reached; volatile subjects only
    #[arg(long, value_parser = values::partition())]
    partition: Option<PartitionBehavior>,
    /// Wait and print which subscribers took it; volatile subjects only
    #[arg(long, conflicts_with_all = ["lines", "delay", "at"])]
    report: bool,
    /// Create the topic if it is missing
    #[arg(long)]
    create: bool,
    /// Fill in {number} (of the message, from 1), {time}, {time_ms}, {rand} and {rand:1-100} in the
    /// message, the key and headers; every other brace stays as it is
    #[arg(long)]
    template: bool,
    /// Publish so many a second, at most
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: Option<u32>,
    /// Publish it this many times
    #[arg(long, short = 'n', default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    #[arg(conflicts_with = "lines")]
    count: u64,
}

pub(crate) fn run(options: &PubOptions, global: &Global, out: &mut Output) -> Done {
    let many = options.lines || options.count > 1;
    if many && options.id.is_some() {
        return Err(Failure::words("--id names one message, and there are several")
            .hint("leave it out: every message gets an id of its own"));
    }
    if options.count > 1 && (options.expect_seq.is_some() || options.expect_key_seq.is_some()) {
        return Err(Failure::words("an expectation is about one message, and there are several"));
    }
    // Read before connecting: typing takes time.
    let bodies = bodies(options, out)?;
    with_client(global, out, async |client, out| {
        if options.create {
            create(client, &options.topic).await?;
        }
        let wishes = Wishes::new(options);
        if options.report {
            return publish_reported(client, &wishes, bodies, out).await;
        }
        publish(client, &wishes, bodies, out).await
    })
}

/// Creates the topic; an existing one with other settings is accepted.
pub(super) async fn create(client: &Client, topic: &TopicName) -> Result<(), Failure> {
    match client.create_topic(topic, TopicSettings::default()).await {
        Ok(_) => Ok(()),
        Err(AskError::Server(trouble)) if trouble.known() == Some(ErrorCode::TopicExists) => Ok(()),
        Err(error) => Err(asked(client, error, Some(topic)).await),
    }
}

/// What all messages of the command have in common.
struct Wishes {
    topic: TopicName,
    blank: Message,
    options: PublishOptions,
    /// Whether each ack is printed, or all of them together.
    many: bool,
    /// What is filled into each message.
    filling: Option<Filling>,
    /// How long from one message to the next.
    pause: Option<Duration>,
}

impl Wishes {
    fn new(options: &PubOptions) -> Self {
        let now = SystemClock::default().now();
        let later = options.at.or(options.delay.map(When::Ahead));
        let blank = Message {
            key: options.key.clone().map(Bytes::from),
            headers: options
                .header
                .iter()
                .map(|(name, value)| (name.clone(), Bytes::from(value.clone())))
                .collect(),
            body: None,
            id: options.id.clone().map(Bytes::from),
            ttl: options.ttl,
            not_before: later.map(|when| when.resolve(now)),
        };
        let expect = match (options.expect_seq, options.expect_key_seq) {
            (Some(seq), _) => Some(Expect::TopicLast(Seq(seq))),
            (None, Some(seq)) => Some(Expect::KeyLast(Seq(seq))),
            (None, None) => None,
        };
        let publish = PublishOptions {
            durability: options.durability,
            delivery: options.delivery,
            partition: options.partition,
            expect,
            ..PublishOptions::default()
        };
        Self {
            topic: options.topic.clone(),
            blank,
            options: publish,
            many: options.lines || options.count > 1,
            filling: options.template.then(Filling::default),
            pause: options.rate.map(|rate| Duration::from_secs(1) / rate),
        }
    }

    /// The message of this number.
    fn message(&self, body: Option<Bytes>, n: u64) -> Message {
        let mut message = Message { body, ..self.blank.clone() };
        if let Some(filling) = &self.filling {
            // What is not text has no placeholders.
            let fill = |bytes: &mut Bytes| {
                if let Ok(text) = std::str::from_utf8(bytes) {
                    *bytes = Bytes::from(filling.fill(text, n));
                }
            };
            message.body.iter_mut().for_each(fill);
            message.key.iter_mut().for_each(fill);
            message.headers.iter_mut().for_each(|(_, value)| fill(value));
        }
        message
    }
}

type Body = io::Result<Option<Bytes>>;

/// The bodies of the messages, one after the other; `None` is a tombstone's.
fn bodies(options: &PubOptions, out: &mut Output) -> Result<mpsc::Receiver<Body>, Failure> {
    let (send, bodies) = mpsc::channel(LINES_AHEAD);
    let from = input(options.file.as_deref())?;
    if options.lines {
        // Reading stdin cannot be cancelled, so this thread is not joined.
        std::thread::Builder::new().name("lines".into()).spawn(move || read_lines(from, &send))?;
        return Ok(bodies);
    }
    let body = match &options.message {
        _ if options.tombstone => None,
        Some(message) => Some(Bytes::from(message.clone())),
        None => {
            if options.file.is_none() && io::stdin().is_terminal() {
                out.note("type the message; Ctrl-D ends it");
            }
            Some(read_all(from)?)
        }
    };
    let count = options.count;
    std::thread::Builder::new().name("repeat".into()).spawn(move || {
        // An error means that the receiver is gone.
        let _ = (0..count).try_for_each(|_| send.blocking_send(Ok(body.clone())));
    })?;
    Ok(bodies)
}

fn input(file: Option<&Path>) -> Result<Box<dyn Read + Send>, Failure> {
    match file {
        Some(path) if path != Path::new("-") => {
            let failed = |why: &dyn std::fmt::Display| {
                Failure::words(format!("cannot read {}: {why}", path.display()))
            };
            let file = File::open(path).map_err(|error| failed(&error))?;
            if file.metadata().is_ok_and(|about| about.is_dir()) {
                return Err(failed(&"it is a folder"));
            }
            Ok(Box::new(file))
        }
        _ => Ok(Box::new(io::stdin())),
    }
}

fn too_large() -> io::Error {
    let what = format!("a message has more than {FRAME_BYTES_MAX} bytes, the most there can be");
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn read_all(from: Box<dyn Read + Send>) -> io::Result<Bytes> {
    let mut body = Vec::new();
    from.take(FRAME_BYTES_MAX as u64 + 1).read_to_end(&mut body)?;
    if body.len() > FRAME_BYTES_MAX { Err(too_large()) } else { Ok(body.into()) }
}

fn read_lines(from: Box<dyn Read + Send>, send: &mpsc::Sender<Body>) {
    let mut from = BufReader::new(from);
    loop {
        let line = match next_line(&mut from) {
            Ok(Some(line)) => Ok(Some(line)),
            Ok(None) => return,
            Err(error) => Err(error),
        };
        let over = line.is_err();
        if send.blocking_send(line).is_err() || over {
            return;
        }
    }
}

/// The next line without its end; `None` after the last.
fn next_line(from: &mut impl BufRead) -> io::Result<Option<Bytes>> {
    let mut line = Vec::new();
    from.take(FRAME_BYTES_MAX as u64 + 2).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
        if line.last() == Some(&b'\r') {
            line.pop();
        }
    }
    if line.len() > FRAME_BYTES_MAX { Err(too_large()) } else { Ok(Some(line.into())) }
}

/// What was acknowledged so far.
#[derive(Default)]
struct Tally {
    acked: u64,
    scheduled: u64,
    duplicates: u64,
    first: Option<Seq>,
    last: Option<Seq>,
    durability: Option<Durability>,
}

impl Tally {
    fn add(&mut self, ack: &Ack) {
        self.acked += 1;
        self.scheduled += u64::from(matches!(ack, Ack::Scheduled { .. }));
        self.duplicates += u64::from(ack.is_duplicate());
        self.first = self.first.or(ack.seq());
        self.last = self.last.max(ack.seq());
        // The least of all is what can be said of all.
        self.durability = match (self.durability, ack.durability()) {
            (Some(before), Some(now)) => Some(before.min(now)),
            (before, now) => before.or(now),
        };
    }

    fn text(&self, topic: &TopicName, elapsed: Duration) -> String {
        let rate = self.acked as f64 / elapsed.as_secs_f64().max(0.001);
        let mut text = format!("{} messages to {topic}", human_number(self.acked));
        if let (Some(first), Some(last)) = (self.first, self.last) {
            text += &format!(": seq {first} to {last}");
        }
        if let Some(durability) = self.durability {
            text += &format!(", {durability}");
        }
        if self.duplicates > 0 {
            text += &format!(", {} were there already", human_number(self.duplicates));
        }
        if self.scheduled > 0 {
            text += &format!(", {} scheduled", human_number(self.scheduled));
        }
        text + &format!(", in {} ({}/s)", human_span(elapsed), human_number(rate as u64))
    }
}

async fn publish(
    client: &Client,
    wishes: &Wishes,
    mut bodies: mpsc::Receiver<Body>,
    out: &mut Output,
) -> Done {
    let mut waiting: VecDeque<Publishing> = VecDeque::new();
    let mut tally = Tally::default();
    let mut progress = Progress::new(out.quiet || out.json);
    let mut more = true;
    let mut pace = wishes.pause.map(interval);
    let (mut due, mut number) = (pace.is_none(), 0);
    while more || !waiting.is_empty() {
        tokio::select! {
            // Acks first, so that a reader of them does not wait for more lines.
            biased;
            ack = async { waiting.front_mut().expect("it is asked only if there is one").await },
                if !waiting.is_empty() =>
            {
                waiting.pop_front();
                match ack {
                    Ok(ack) => acked(&ack, wishes, &mut tally, out)?,
                    Err(error) => {
                        let unknown = waiting.len() as u64 + 1;
                        return Err(stopped(client, error, wishes, (&tally, unknown)).await);
                    }
                }
                progress.update(|elapsed| tally.text(&wishes.topic, elapsed));
            }
            () = async {
                if let Some(pace) = &mut pace {
                    pace.tick().await;
                }
            }, if more && !due => due = true,
            body = bodies.recv(), if more && due && waiting.len() < WINDOW => match body {
                Some(Ok(body)) => {
                    client.ready().await;
                    (due, number) = (pace.is_none(), number + 1);
                    let message = wishes.message(body, number);
                    waiting.push_back(client.publish_with(&wishes.topic, message, &wishes.options));
                }
                Some(Err(error)) => return Err(Failure::failed(error)),
                None => more = false,
            },
        }
        if waiting.is_empty() && wishes.many {
            out.flush()?;
        }
    }
    let elapsed = progress.elapsed();
    progress.clear();
    if wishes.many && !out.json && !out.quiet {
        out.line(tally.text(&wishes.topic, elapsed))?;
    }
    Ok(Exit::Ok)
}

/// Publishes one after the other, each with its report.
async fn publish_reported(
    client: &Client,
    wishes: &Wishes,
    mut bodies: mpsc::Receiver<Body>,
    out: &mut Output,
) -> Done {
    let mut all_took_it = true;
    let mut pace = wishes.pause.map(interval);
    let mut number = 0;
    while let Some(body) = bodies.recv().await {
        if let Some(pace) = &mut pace {
            pace.tick().await;
        }
        number += 1;
        let message = wishes.message(body.map_err(Failure::failed)?, number);
        let (ack, report) = client.publish_reported(&wishes.topic, message, &wishes.options);
        let ack = match ack.await {
            Ok(ack) => ack,
            Err(error) => return Err(published(client, error, &wishes.topic).await),
        };
        let report = report.await.map_err(Failure::failed)?;
        all_took_it &= report.status == DeliveryStatus::Delivered;
        let mut json = ack_json(&ack, &wishes.topic);
        json["report"] = shown::report(&report);
        let text = format!("{}\n{}", ack_text(&ack, &wishes.topic), report_text(&report));
        out.result(&json, text)?;
    }
    Ok(if all_took_it { Exit::Ok } else { Exit::Failed })
}

fn report_text(report: &DeliveryReport) -> String {
    let mut text = format!("delivered to {}", report.delivered);
    for failed in &report.failed {
        text += &format!("\n  {} {}", failed.subscriber, failed.status);
    }
    if report.unnamed > 0 {
        text += &format!("\n  and {} more that did not take it", report.unnamed);
    }
    text
}

fn acked(ack: &Ack, wishes: &Wishes, tally: &mut Tally, out: &mut Output) -> Result<(), Failure> {
    tally.add(ack);
    if out.json || !wishes.many {
        out.result(&ack_json(ack, &wishes.topic), ack_text(ack, &wishes.topic))?;
    }
    Ok(())
}

/// Why publishing stopped, and how far it had come; `unanswered` are those without an ack, this
/// one included.
async fn stopped(
    client: &Client,
    error: PublishError,
    wishes: &Wishes,
    (tally, unanswered): (&Tally, u64),
) -> Failure {
    let unknown = error.fate() == Fate::Unknown;
    let mut failure = published(client, error, &wishes.topic).await;
    if wishes.many {
        let mut before = match tally.last {
            Some(last) => {
                format!("{} messages were acknowledged before it, up to seq {last}", tally.acked)
            }
            None => "no message was acknowledged before it".to_owned(),
        };
        if unknown {
            before += &format!("; whether {unanswered} more were stored is not known");
        }
        failure.hint = Some(match failure.hint {
            Some(hint) => format!("{before}\n{hint}"),
            None => before,
        });
    }
    failure
}

fn ack_text(ack: &Ack, topic: &TopicName) -> String {
    match ack {
        Ack::Accepted(part) => {
            let accepted = part.accepted;
            let (seq, durability) = (accepted.first, accepted.durability);
            let again = if accepted.duplicate { "; it was there already" } else { "" };
            // What is in memory only has no place in the journal.
            let position = match accepted.position.0 {
                0 => String::new(),
                position => format!(" position {position}"),
            };
            format!("{topic} seq {seq}{position} {durability}{again}")
        }
        Ack::Scheduled { id, due } => {
            let due = gapless_core::calendar::format(due.0);
            format!("{topic} scheduled for {due}; call it off with: gapless cancel {id}")
        }
        _ => format!("{topic} accepted"),
    }
}

fn ack_json(ack: &Ack, topic: &TopicName) -> Value {
    match ack {
        Ack::Accepted(part) => json!({
            "topic": topic.as_str(),
            "seq": part.accepted.first.0,
            "position": part.accepted.position.0,
            "durability": part.accepted.durability.name(),
            "duplicate": part.accepted.duplicate,
        }),
        Ack::Scheduled { id, due: Timestamp(ms) } => json!({
            "topic": topic.as_str(),
            "scheduled": id.0,
            "due": gapless_core::calendar::format(*ms),
            "due_ms": ms,
        }),
        _ => json!({ "topic": topic.as_str() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_client::{Known, PartAccepted};
    use gapless_core::{Accepted, Position};

    fn ack(seq: u64, durability: Durability, duplicate: bool) -> Ack {
        let accepted = Accepted {
            first: Seq(seq),
            last: Seq(seq),
            position: Position(seq + 10),
            durability,
            duplicate,
        };
        let known = if duplicate { Known::Some } else { Known::None };
        Ack::Accepted(PartAccepted { accepted, count: 1, known })
    }

    #[test]
    fn lines_lose_their_ends_and_nothing_else() {
        let mut from = io::Cursor::new(b"a\n\nb \r\n\xff\nlast".to_vec());
        let mut lines = Vec::new();
        while let Some(line) = next_line(&mut from).unwrap() {
            lines.push(line);
        }
        assert_eq!(lines, [&b"a"[..], b"", b"b ", b"\xff", b"last"]);
    }

    #[test]
    fn a_line_without_end_is_refused_and_not_kept() {
        let mut from = BufReader::new(io::repeat(b'x'));
        assert!(next_line(&mut from).unwrap_err().to_string().contains("bytes"));
        let largest = io::repeat(b'x').take(FRAME_BYTES_MAX as u64);
        assert_eq!(read_all(Box::new(largest)).unwrap().len(), FRAME_BYTES_MAX);
        assert!(read_all(Box::new(io::repeat(b'x'))).is_err());
    }

    #[test]
    fn an_ack_tells_seq_position_and_durability() {
        let topic = TopicName::parse("orders").unwrap();
        let one = ack(1, Durability::Flushed, false);
        assert_eq!(ack_text(&one, &topic), "orders seq 1 position 11 flushed");
        let again = ack_text(&ack(1, Durability::Flushed, true), &topic);
        assert!(again.ends_with("it was there already"), "{again}");
        let later = Ack::Scheduled { id: Position(4), due: Timestamp(0) };
        assert!(ack_text(&later, &topic).contains("gapless cancel 4"));
        assert_eq!(ack_json(&later, &topic)["scheduled"], 4);
        assert_eq!(ack_json(&one, &topic)["durability"], "flushed");
    }

    #[test]
    fn many_acks_are_told_by_their_range_and_the_least_durability() {
        let mut tally = Tally::default();
        tally.add(&ack(3, Durability::Flushed, false));
        tally.add(&ack(4, Durability::Written, false));
        tally.add(&ack(3, Durability::Flushed, true));
        let text = tally.text(&TopicName::parse("orders").unwrap(), Duration::from_secs(1));
        assert!(
            text.starts_with("3 messages to orders: seq 3 to 4, written, 1 were there"),
            "{text}"
        );
    }
}
