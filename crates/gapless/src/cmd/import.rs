//! `gapless import`: publishes lines of JSON, as `export` and the HTTP API write them.
//!
//! A message keeps its key, headers, id, ttl and the bytes of its body. Seq, position and time are
//! given by the store it comes into. One without an id gets its cursor as id, so that importing a
//! file again stores nothing twice as long as the topic remembers ids.

use std::collections::{BTreeSet, VecDeque};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use gapless_broker::{Clock, SystemClock};
use gapless_client::{Client, PublishError, Publishing};
use gapless_core::{Durability, PublishOptions, Timestamp, TopicName};
use gapless_protocol::FRAME_BYTES_MAX;
use gapless_server::json::parse_message;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::mpsc;

use super::Global;
use super::publish::create;
use super::subscribe::beside;
use crate::exit::{Done, Exit, Failure};
use crate::output::{Output, human_number, human_span};
use crate::progress::{Progress, bytes_bar};
use crate::remote::{Interrupt, published, with_client};
use crate::values;

const EXAMPLES: &str = "\
Examples:
  gapless import orders.ndjson                  each line into the topic it names
  gapless import orders.ndjson --create         create topics that are missing
  gapless import orders.ndjson --topic orders.copy   all into one topic
  zcat audit.ndjson.gz | gapless import --prefix restored
  gapless import big.ndjson --save big.place    stop and start it as you like
  gapless import orders.ndjson --keep-origin    old seq and time as headers of each message

A line is a message as `gapless export`, `gapless get --json` and the HTTP API show it, for example:
  {\"topic\": \"orders.created\", \"key\": \"k\", \"headers\": {\"a\": \"b\"}, \"text\": \"hello\"}
The first line that is wrong or is refused ends it, unless --skip-bad is given.";

/// Most publishes without an ack.
const WINDOW: usize = 4_096;
/// Lines that were read and not sent yet.
const LINES_AHEAD: usize = 1_024;
/// Bytes of a line, at most: of a message in base64, with names around it.
const LINE_BYTES_MAX: u64 = 2 * FRAME_BYTES_MAX as u64;
/// How often the place is kept.
const SAVE_EVERY: Duration = Duration::from_secs(1);
/// Bad lines that are described, at most.
const BAD_SHOWN_MAX: u64 = 20;
/// Headers of `--keep-origin`.
const ORIGIN_HEADERS: [(&str, &str); 3] =
    [("topic", "origin-topic"), ("seq", "origin-seq"), ("time_ms", "origin-time-ms")];

/// Publish lines of JSON, as `export` writes them
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ImportOptions {
    /// The file to read; - is stdin
    #[arg(default_value = "-")]
    file: PathBuf,
    /// Publish all of them to this topic, whatever the lines say
    #[arg(long, value_parser = values::topic, conflicts_with = "prefix")]
    topic: Option<TopicName>,
    /// Put this and a dot before the names of topics
    #[arg(long, value_name = "NAME", value_parser = values::topic)]
    prefix: Option<TopicName>,
    /// Create topics that are missing
    #[arg(long)]
    create: bool,
    /// Keep the place in this file, and go on from it if it is there
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Go on behind lines that are wrong or refused; they are counted, and the exit code is 1
    #[arg(long)]
    skip_bad: bool,
    /// Add the headers origin-topic, origin-seq and origin-time-ms
    #[arg(long)]
    keep_origin: bool,
    /// How safe each must be before its ack
    #[arg(long, value_parser = values::durability())]
    durability: Option<Durability>,
}

pub(crate) fn run(options: &ImportOptions, global: &Global, out: &mut Output) -> Done {
    let begin = options.save.as_deref().map_or(Ok(Place::default()), read_place)?;
    let (lines, total) = read(&options.file, begin)?;
    with_client(global, out, async |client, out| {
        let mut import = Import {
            client,
            options,
            publish: PublishOptions { durability: options.durability, ..Default::default() },
            created: BTreeSet::new(),
            waiting: VecDeque::new(),
            tally: Tally::default(),
            done: begin,
            saved_at: Duration::ZERO,
            total,
            progress: Progress::new(out.quiet || out.json),
        };
        let end = import.run(lines, out).await;
        // What was acked is kept also when it ends early.
        import.save()?;
        import.progress.clear();
        let interrupted = end?;
        import.tell(interrupted, out)
    })
}

/// How much of the input is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Place {
    bytes: u64,
    lines: u64,
}

/// A line, and the place behind it.
type Read1 = io::Result<(Bytes, Place)>;

struct Waiting {
    publishing: Publishing,
    topic: TopicName,
    place: Place,
}

#[derive(Default)]
struct Tally {
    acked: u64,
    duplicates: u64,
    bad: u64,
}

struct Import<'a> {
    client: &'a Client,
    options: &'a ImportOptions,
    publish: PublishOptions,
    created: BTreeSet<TopicName>,
    waiting: VecDeque<Waiting>,
    tally: Tally,
    /// Everything up to here is published or passed over.
    done: Place,
    saved_at: Duration,
    total: Option<u64>,
    progress: Progress,
}

impl Import<'_> {
    /// Gives whether it was interrupted.
    async fn run(
        &mut self,
        mut lines: mpsc::Receiver<Read1>,
        out: &mut Output,
    ) -> Result<bool, Failure> {
        let mut interrupt = Interrupt::listen()?;
        let mut more = true;
        while more || !self.waiting.is_empty() {
            tokio::select! {
                biased;
                () = interrupt.came() => return Ok(true),
                ack = async {
                    let first = self.waiting.front_mut().expect("it is asked only if there is one");
                    (&mut first.publishing).await
                }, if !self.waiting.is_empty() => {
                    let one = self.waiting.pop_front().expect("it was just asked");
                    match ack {
                        Ok(ack) => {
                            self.tally.acked += 1;
                            self.tally.duplicates += u64::from(ack.is_duplicate());
                        }
                        Err(error) => self.refused(error, &one, out).await?,
                    }
                    self.done = one.place;
                    self.show_progress()?;
                }
                line = lines.recv(), if more && self.waiting.len() < WINDOW => match line {
                    Some(line) => {
                        let (line, place) = line.map_err(Failure::failed)?;
                        self.line(&line, place, out).await?;
                    }
                    None => more = false,
                },
            }
        }
        Ok(false)
    }

    async fn line(&mut self, line: &Bytes, place: Place, out: &mut Output) -> Result<(), Failure> {
        match self.message(line) {
            Ok(None) => {}
            Ok(Some((topic, message, expect))) => {
                if self.options.create && !self.created.contains(&topic) {
                    create(self.client, &topic).await?;
                    self.created.insert(topic.clone());
                }
                self.client.ready().await;
                let options = PublishOptions { expect, ..self.publish };
                let publishing = self.client.publish_with(&topic, message, &options);
                self.waiting.push_back(Waiting { publishing, topic, place });
                return Ok(());
            }
            Err(why) => {
                let failure = Failure::words(format!("line {}: {why}", place.lines))
                    .hint("--skip-bad goes on behind such lines");
                self.bad(failure, out)?;
            }
        }
        // Nothing waits for this line; what waits before it is not done yet.
        if self.waiting.is_empty() {
            self.done = place;
        }
        Ok(())
    }

    /// What a line says to publish; `None` for the line that ends a range of the HTTP API.
    fn message(
        &self,
        line: &Bytes,
    ) -> Result<Option<(TopicName, gapless_core::Message, Option<gapless_core::Expect>)>, String>
    {
        if line.trim_ascii().is_empty() {
            return Ok(None);
        }
        let about: About =
            serde_json::from_slice(line).map_err(|why| format!("not JSON: {why}"))?;
        if about.end == Some(true) {
            return Ok(None);
        }
        let named = about.topic.as_deref();
        let topic = match (&self.options.topic, named, &self.options.prefix) {
            (Some(topic), ..) => topic.clone(),
            (None, None, _) => return Err("it names no topic; add one, or --topic".to_owned()),
            (None, Some(name), None) => values::topic(name)?,
            (None, Some(name), Some(prefix)) => values::topic(&format!("{prefix}.{name}"))?,
        };
        let now: Timestamp = SystemClock::default().now();
        let (mut message, expect) = parse_message(line, now)?;
        if message.id.is_none()
            && let Some(cursor) = &about.cursor
        {
            message.id = Some(Bytes::from(cursor.clone()));
        }
        if self.options.keep_origin {
            let numbers = [named.map(str::to_owned), text(&about.seq), text(&about.time_ms)];
            for ((_, header), value) in ORIGIN_HEADERS.iter().zip(numbers) {
                if let Some(value) = value {
                    message.headers.push(((*header).to_owned(), Bytes::from(value)));
                }
            }
        }
        Ok(Some((topic, message, expect)))
    }

    async fn refused(
        &mut self,
        error: PublishError,
        one: &Waiting,
        out: &mut Output,
    ) -> Result<(), Failure> {
        let rejected =
            matches!(error, PublishError::Rejected(_) | PublishError::RejectedOther { .. });
        let mut failure = published(self.client, error, &one.topic).await;
        failure.message = format!("line {}: {}", one.place.lines, failure.message);
        if rejected { self.bad(failure, out) } else { Err(failure) }
    }

    /// A line that cannot be published: the end, or a note.
    fn bad(&mut self, failure: Failure, out: &mut Output) -> Result<(), Failure> {
        if !self.options.skip_bad {
            return Err(failure);
        }
        self.tally.bad += 1;
        if self.tally.bad <= BAD_SHOWN_MAX {
            self.progress.clear();
            out.note(&failure.message);
        }
        Ok(())
    }

    fn show_progress(&mut self) -> Result<(), Failure> {
        let (done, total, tally) = (self.done, self.total, &self.tally);
        self.progress.update(|elapsed| match total {
            Some(total) => bytes_bar("importing", done.bytes, total, elapsed),
            None => format!("importing {} messages", human_number(tally.acked)),
        });
        let now = self.progress.elapsed();
        if now.saturating_sub(self.saved_at) >= SAVE_EVERY {
            self.saved_at = now;
            self.save()?;
        }
        Ok(())
    }

    fn save(&self) -> Result<(), Failure> {
        self.options.save.as_deref().map_or(Ok(()), |path| write_place(path, self.done))
    }

    fn tell(&self, interrupted: bool, out: &mut Output) -> Done {
        let Tally { acked, duplicates, bad } = self.tally;
        let value = json!({
            "published": acked - duplicates, "duplicates": duplicates, "bad": bad,
            "lines": self.done.lines, "complete": !interrupted,
        });
        let mut text = format!("{} messages", human_number(acked - duplicates));
        if duplicates > 0 {
            text += &format!(", {} were there already", human_number(duplicates));
        }
        if bad > 0 {
            text += &format!(", {} bad lines passed over", human_number(bad));
        }
        text += &format!(", in {}", human_span(self.progress.elapsed()));
        if interrupted {
            text += &format!("; interrupted behind line {}", self.done.lines);
        }
        out.result(&value, text)?;
        Ok(if interrupted || bad > 0 { Exit::Failed } else { Exit::Ok })
    }
}

/// What is looked at before the message itself is read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct About {
    topic: Option<String>,
    seq: Option<u64>,
    time_ms: Option<u64>,
    cursor: Option<String>,
    end: Option<bool>,
}

fn text(number: &Option<u64>) -> Option<String> {
    number.map(|number| number.to_string())
}

/// Reads lines on a thread, from the place on; gives also how long the file is.
fn read(path: &Path, begin: Place) -> Result<(mpsc::Receiver<Read1>, Option<u64>), Failure> {
    let failed = |why: &dyn std::fmt::Display| {
        Failure::words(format!("cannot read {}: {why}", path.display()))
    };
    let (send, lines) = mpsc::channel(LINES_AHEAD);
    let mut total = None;
    let mut from: Box<dyn Read + Send> = if path == Path::new("-") {
        Box::new(io::stdin())
    } else {
        let mut file = File::open(path).map_err(|error| failed(&error))?;
        let about = file.metadata().map_err(|error| failed(&error))?;
        if about.is_dir() {
            return Err(failed(&"it is a folder"));
        }
        if about.is_file() {
            if about.len() < begin.bytes {
                return Err(failed(&"it is shorter than the kept place"));
            }
            total = Some(about.len());
            file.seek(SeekFrom::Start(begin.bytes)).map_err(|error| failed(&error))?;
        }
        Box::new(file)
    };
    let skip = if total.is_none() { begin.bytes } else { 0 };
    // Reading stdin cannot be cancelled, so this thread is not joined.
    std::thread::Builder::new().name("lines".into()).spawn(move || {
        let skipped = io::copy(&mut (&mut from).take(skip), &mut io::sink());
        if let Err(error) = skipped {
            let _ = send.blocking_send(Err(error));
            return;
        }
        read_lines(from, begin, &send);
    })?;
    Ok((lines, total))
}

fn read_lines(from: impl Read, begin: Place, send: &mpsc::Sender<Read1>) {
    let mut from = BufReader::new(from);
    let mut place = begin;
    loop {
        let mut line = Vec::new();
        let read = (&mut from).take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut line);
        let next = match read {
            Ok(0) => return,
            Ok(count) if count as u64 > LINE_BYTES_MAX => {
                let what = format!("line {} is longer than a message can be", place.lines + 1);
                Err(io::Error::new(io::ErrorKind::InvalidData, what))
            }
            Ok(count) => {
                place = Place { bytes: place.bytes + count as u64, lines: place.lines + 1 };
                Ok((Bytes::from(line), place))
            }
            Err(error) => Err(error),
        };
        let over = next.is_err();
        if send.blocking_send(next).is_err() || over {
            return;
        }
    }
}

/// A kept place: `bytes lines`.
fn read_place(path: &Path) -> Result<Place, Failure> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Place::default()),
        Err(error) => {
            return Err(Failure::words(format!("cannot read {}: {error}", path.display())));
        }
        Ok(text) => text,
    };
    let mut words = text.split_whitespace().map(str::parse);
    match (words.next(), words.next(), words.next()) {
        (Some(Ok(bytes)), Some(Ok(lines)), None) => Ok(Place { bytes, lines }),
        _ => Err(Failure::words(format!("{} holds no place of an import", path.display()))
            .hint("name another file, or remove this one to start again")),
    }
}

/// Keeps the place. The file is whole at any time: it is written aside and put in place.
fn write_place(path: &Path, place: Place) -> Result<(), Failure> {
    let aside = beside(path);
    let written = fs::write(&aside, format!("{} {}\n", place.bytes, place.lines));
    written.and_then(|()| fs::rename(&aside, path)).map_err(|error| {
        Failure::failed(format!("cannot keep the place in {}: {error}", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_reads_back_and_rubbish_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("place");
        assert_eq!(read_place(&path).unwrap(), Place::default());
        let place = Place { bytes: 1234, lines: 5 };
        write_place(&path, place).unwrap();
        assert_eq!(read_place(&path).unwrap(), place);
        fs::write(&path, "many words here").unwrap();
        assert_eq!(read_place(&path).unwrap_err().exit, Exit::Words);
    }

    #[test]
    fn what_a_line_is_about_is_found_beside_anything_else() {
        let line = br#"{"json":{"topic":"x"},"topic":"t","seq":4,"cursor":"a:1","time_ms":9}"#;
        let about: About = serde_json::from_slice(line).unwrap();
        assert_eq!(
            (about.topic.as_deref(), about.seq, about.time_ms),
            (Some("t"), Some(4), Some(9))
        );
    }
}
