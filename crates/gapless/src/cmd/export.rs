//! `gapless export`: the messages of topics as lines of JSON, from which `import` makes them again.
//!
//! A line has the bytes of its message exactly, and the cursor behind it: so a file that was cut off
//! says itself where to go on.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use clap_complete::ArgValueCompleter;
use gapless_client::{Client, Event, From, Token};
use gapless_core::{Pattern, TopicInfo};
use gapless_server::json::Shown;
use serde_json::{Value, json};

use super::Global;
use super::subscribe::{begin, gap_text};
use crate::complete;
use crate::exit::{Done, Exit, Failure};
use crate::output::{Output, human_bytes, human_number, human_span};
use crate::progress::{Progress, count_bar};
use crate::remote::{Interrupt, asked, exists, followed, no_topic, with_client};
use crate::values::{self, Start};

const EXAMPLES: &str = "\
Examples:
  gapless export orders.created > orders.ndjson
  gapless export 'orders.>' --output orders.ndjson       with progress on stderr
  gapless export 'orders.>' --output orders.ndjson --resume   go on after the last whole line
  gapless export prices --from last-per-key              the newest message of each key only
  gapless export 'audit.>' --from -2h | gzip > audit.ndjson.gz
  gapless export old | gapless import --topic new --create --server other:4281

Each line is a message as the HTTP API shows it, with topic, seq, position, cursor and time; bodies
that are not text are in base64. It ends when everything that is there was written. What
retention takes away meanwhile is a note on stderr.";

/// Topics counted at a time.
const PAGE: u32 = 1_000;
/// Bytes of a line that are searched for its cursor, at most: as much as a message can have, and
/// what base64 and names add.
const LINE_BYTES_MAX: u64 = 2 * gapless_protocol::FRAME_BYTES_MAX as u64;

/// Write the messages of a topic or pattern as lines of JSON
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ExportOptions {
    /// The topic or pattern, as orders.created or 'orders.>'
    #[arg(add = ArgValueCompleter::new(complete::topics), value_parser = values::pattern)]
    pattern: Pattern,
    /// Write to this file [default: stdout]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Go on where the file ends; a line that was cut off is removed first
    #[arg(long, requires = "output", conflicts_with = "from")]
    resume: bool,
    /// Replace the file if it is there
    #[arg(long, requires = "output", conflicts_with = "resume")]
    force: bool,
    /// Where to begin [default: beginning]
    #[arg(long, value_name = "PLACE", value_parser = values::start, allow_hyphen_values = true)]
    from: Option<Start>,
    /// End after so many messages
    #[arg(long, short = 'n', value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

pub(crate) fn run(options: &ExportOptions, global: &Global, out: &mut Output) -> Done {
    let mut from = begin(options.from.unwrap_or(Start::Beginning));
    let file = match &options.output {
        Some(path) => {
            let (file, token) = open(path, options)?;
            if let Some(token) = token {
                from = From::Token(token);
            }
            Some(file)
        }
        None => None,
    };
    with_client(global, out, async |client, out| {
        let mut sink = match file {
            Some(file) => Sink::File(BufWriter::new(file)),
            None => Sink::Stdout,
        };
        export(client, options, from, &mut sink, out).await
    })
}

/// Where lines go.
enum Sink {
    Stdout,
    File(BufWriter<File>),
}

impl Sink {
    fn write(&mut self, bytes: &[u8], out: &mut Output) -> io::Result<()> {
        match self {
            Self::Stdout => out.bytes(bytes),
            Self::File(file) => file.write_all(bytes),
        }
    }

    /// Everything is on disk when this returns.
    fn finish(&mut self, out: &mut Output) -> io::Result<()> {
        match self {
            Self::Stdout => out.flush(),
            Self::File(file) => {
                file.flush()?;
                file.get_ref().sync_all()
            }
        }
    }
}

/// Opens the file to write to; with `--resume` also the place behind its last whole line.
fn open(path: &Path, options: &ExportOptions) -> Result<(File, Option<Token>), Failure> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            Failure::words(format!("{} is there already", path.display()))
                .hint("--resume goes on where it ends, --force replaces it")
        }
        _ => Failure::words(format!("cannot write {}: {error}", path.display())),
    };
    if !options.resume {
        let mut how = OpenOptions::new();
        how.write(true).create(true).truncate(options.force).create_new(!options.force);
        return Ok((how.open(path).map_err(failed)?, None));
    }
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(failed)?;
    let (end, line) = last_line(&mut file).map_err(failed)?;
    let token = match &line {
        None => None,
        Some(line) => Some(cursor(line).ok_or_else(|| {
            Failure::words(format!("the last line of {} has no cursor", path.display()))
                .hint("it is not a file of gapless export; name another")
        })?),
    };
    file.set_len(end).map_err(failed)?;
    file.seek(SeekFrom::End(0)).map_err(failed)?;
    Ok((file, token))
}

/// The last line that has its end, and where it ends; `None` if there is none.
fn last_line(file: &mut File) -> io::Result<(u64, Option<Vec<u8>>)> {
    let length = file.seek(SeekFrom::End(0))?;
    let begin = length.saturating_sub(2 * LINE_BYTES_MAX);
    file.seek(SeekFrom::Start(begin))?;
    let mut tail = Vec::new();
    file.take(2 * LINE_BYTES_MAX).read_to_end(&mut tail)?;
    let Some(end) = tail.iter().rposition(|byte| *byte == b'\n') else {
        if begin > 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its lines are too long"));
        }
        return Ok((0, None));
    };
    let before = tail[..end].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    Ok((begin + end as u64 + 1, Some(tail[before..end].to_vec())))
}

fn cursor(line: &[u8]) -> Option<Token> {
    let line: Value = serde_json::from_slice(line).ok()?;
    line["cursor"].as_str()?.parse().ok()
}

/// What was written so far.
#[derive(Default)]
struct Tally {
    messages: u64,
    bytes: u64,
    gaps: u64,
}

async fn export(
    client: &Client,
    options: &ExportOptions,
    from: From,
    sink: &mut Sink,
    out: &mut Output,
) -> Done {
    let pattern = &options.pattern;
    if let Some(topic) = pattern.as_name()
        && !topic.is_system()
        && !exists(client, &topic).await
    {
        return Err(no_topic(client, &topic).await);
    }
    let mut interrupt = Interrupt::listen()?;
    let expected = expected(client, pattern, from).await?;
    let mut subscription = match client.subscribe(pattern.as_str(), from).await {
        Ok(subscription) => subscription,
        Err(error) => return Err(followed(client, error, pattern).await),
    };
    let mut progress = Progress::new(out.quiet || out.json);
    let mut tally = Tally::default();
    let mut line = Vec::new();
    let most = options.count.unwrap_or(u64::MAX);
    let interrupted = loop {
        let event = tokio::select! {
            biased;
            () = interrupt.came() => break true,
            event = subscription.next() => event,
        };
        match event {
            Some(Ok(Event::Messages(messages))) => {
                let epoch = messages.token().epoch;
                for each in messages.iter().take((most - tally.messages) as usize) {
                    line.clear();
                    Shown::of(messages.topic(), Some(epoch), &each).put_exact(&mut line);
                    line.push(b'\n');
                    sink.write(&line, out)?;
                    tally.messages += 1;
                    tally.bytes += line.len() as u64;
                }
            }
            Some(Ok(Event::Gap(gap))) => {
                progress.clear();
                tally.gaps += 1;
                out.note(gap_text(&gap));
            }
            Some(Ok(Event::Live)) => break false,
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                sink.finish(out)?;
                return Err(followed(client, error, pattern).await);
            }
            None => return Err(Failure::new(Exit::NoConnection, "the client has ended")),
        }
        if tally.messages == most {
            break false;
        }
        progress
            .update(|_| count_bar("exporting", tally.messages, expected.max(tally.messages), 0));
    };
    sink.finish(out)?;
    let elapsed = progress.elapsed();
    progress.clear();
    tell(&tally, options, interrupted, elapsed, out)
}

fn tell(
    tally: &Tally,
    options: &ExportOptions,
    interrupted: bool,
    elapsed: std::time::Duration,
    out: &mut Output,
) -> Done {
    let (messages, bytes) = (human_number(tally.messages), human_bytes(tally.bytes));
    let mut text = format!("{messages} messages, {bytes}, in {}", human_span(elapsed));
    if tally.gaps > 0 {
        text += &format!(", {} gaps", tally.gaps);
    }
    if interrupted {
        text += "; interrupted";
        if options.output.is_some() {
            text += ", go on with --resume";
        }
    }
    // Stdout has the messages, so that this is said beside them.
    match (&options.output, out.json) {
        (Some(path), true) => out.json_line(&json!({
            "file": path.display().to_string(), "messages": tally.messages, "bytes": tally.bytes,
            "gaps": tally.gaps, "complete": !interrupted,
        }))?,
        (None, true) => {}
        (_, false) => out.note(text),
    }
    Ok(if interrupted { Exit::Failed } else { Exit::Ok })
}

/// How many messages there are, for the bar only.
async fn expected(client: &Client, pattern: &Pattern, from: From) -> Result<u64, Failure> {
    let (mut count, mut after) = (0, None);
    if !matches!(from, From::Beginning) {
        return Ok(count);
    }
    loop {
        let page = match client.topics(pattern, after.as_ref(), PAGE).await {
            Ok(page) => page,
            Err(error) => return Err(asked(client, error, None).await),
        };
        let messages = |info: &TopicInfo| info.next.distance(info.first);
        count += page.topics.iter().map(messages).sum::<u64>();
        after = page.topics.last().map(|info| info.name.clone());
        if !page.more || after.is_none() {
            return Ok(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_whole_line_is_found_and_what_is_cut_off_is_not_in_it() {
        let mut file = tempfile::tempfile().unwrap();
        assert_eq!(last_line(&mut file).unwrap(), (0, None));
        file.write_all(b"{\"a\":1}\n{\"b\":2}\n{\"c\"").unwrap();
        let (end, line) = last_line(&mut file).unwrap();
        assert_eq!((end, line.as_deref()), (16, Some(&b"{\"b\":2}"[..])));
        let mut one = tempfile::tempfile().unwrap();
        one.write_all(b"{\"cut").unwrap();
        assert_eq!(last_line(&mut one).unwrap(), (0, None));
    }
}
