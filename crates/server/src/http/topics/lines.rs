//! Many messages in one request: a JSON object a line, published while they arrive.
//!
//! Lines that ask for nothing special go into the journal in batches, as large as the pieces
//! in which they arrive; a few batches wait for their flush at a time, and nothing more is
//! read meanwhile. So memory stays small however long the request is, and a client may keep
//! one open for days.
//!
//! Answers are lines too, and come while the request goes on: one for each run of lines that
//! were accepted one after another, one for each line that was refused, and one at the end.
//! A refused line does not stop those after it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use gapless_auth::Caller;
use gapless_broker::Publishing;
use gapless_core::{
    Accepted, Expect, Message, PublishAck, PublishOptions, Records, RecordsBuilder, RejectReason,
    TopicName,
};
use gapless_protocol::ErrorCode;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::http::listener::body::Upload;
use crate::http::listener::server::{Shared, blocking};
use crate::http::values::incoming;
use crate::http::values::problem::Problem;
use crate::http::values::publish::{position_json, rejected};

/// Lines of one batch, at most.
const BATCH_LINES_MAX: usize = 8192;
/// Bytes of one batch, about: enough to be worth a flush, little enough to begin one soon.
const BATCH_BYTES: usize = 512 * 1024;
/// Batches that wait for their flush at a time.
const IN_FLIGHT_MAX: usize = 64;
/// Bytes that wait for their flush at a time, about.
const IN_FLIGHT_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Refused lines after which the rest is not read.
const REFUSED_MAX: u64 = 1000;
/// Bytes of answers after which they are sent, though more could be gathered.
const ANSWER_BYTES: usize = 16 * 1024;

/// Takes a body of lines, and answers while it comes. A client that sends no body before it was
/// asked to (`Expect: 100-continue`) is answered after the first piece, since reading is what
/// asks for it.
pub(crate) async fn take(
    shared: Arc<Shared>,
    caller: Caller,
    (topic, options): (TopicName, PublishOptions),
    request: Request,
    each: bool,
) -> Response {
    let is_expecting = request.headers().contains_key(header::EXPECT);
    let upload = Upload::new(request.into_body(), &shared.options.memory);
    let mut intake = Intake {
        topic,
        options,
        upload,
        rest: BytesMut::new(),
        lines: 0,
        waiting: VecDeque::new(),
        waiting_bytes: 0,
        batch: Batch::default(),
        answers: Answers { each, ..Answers::default() },
        input: Input::Open,
        caller,
        shared,
    };
    if is_expecting {
        intake.read_next().await;
    }
    let stream = futures_util::stream::unfold(intake, |mut intake| async move {
        let answers = intake.step().await?;
        Some((Ok::<_, Infallible>(answers), intake))
    });
    // Compression polls a stream again after its end.
    let stream = stream.fuse();
    let lines = HeaderValue::from_static("application/x-ndjson");
    ([(header::CONTENT_TYPE, lines)], Body::from_stream(stream)).into_response()
}

struct Intake {
    shared: Arc<Shared>,
    caller: Caller,
    topic: TopicName,
    options: PublishOptions,
    upload: Upload,
    /// The beginning of a line whose end has not come yet.
    rest: BytesMut,
    /// How many lines were read.
    lines: u64,
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    batch: Batch,
    answers: Answers,
    input: Input,
}

/// A line that an exported range has beside its messages, so that it can be imported as it is:
/// its end, or a gap in it.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Mark {
    end: bool,
    gap: Option<IgnoredAny>,
    #[serde(rename = "from")]
    _from: Option<IgnoredAny>,
    #[serde(rename = "to")]
    _to: Option<IgnoredAny>,
    #[serde(rename = "next")]
    _next: Option<IgnoredAny>,
    #[serde(rename = "cursor")]
    _cursor: Option<IgnoredAny>,
    #[serde(rename = "more")]
    _more: Option<IgnoredAny>,
}

impl Mark {
    fn is(line: &[u8]) -> bool {
        serde_json::from_slice::<Self>(line).is_ok_and(|mark| mark.end || mark.gap.is_some())
    }
}

#[derive(PartialEq, Eq)]
enum Input {
    Open,
    /// All was read, or nothing more is wanted; the last answers are to come.
    Ended,
    Told,
}

/// Lines that wait for their flush.
struct Waiting {
    first_line: u64,
    count: u32,
    bytes: usize,
    publishing: Publishing,
}

/// Lines that will be published together.
#[derive(Default)]
struct Batch {
    first_line: u64,
    messages: Vec<Message>,
    bytes: usize,
}

impl Intake {
    /// Works until there are answers to send; `None` when all is said.
    async fn step(&mut self) -> Option<Bytes> {
        loop {
            if self.answers.out.len() >= ANSWER_BYTES {
                return Some(self.answers.take());
            }
            let full =
                self.waiting.len() >= IN_FLIGHT_MAX || self.waiting_bytes >= IN_FLIGHT_BYTES_MAX;
            let reading = self.input == Input::Open && !full;
            match (reading, self.waiting.front_mut()) {
                (_, None) if !self.answers.is_empty() => return Some(self.answers.take()),
                (true, None) => self.read_next().await,
                (true, Some(front)) => {
                    tokio::select! {
                        biased;
                        acks = std::future::poll_fn(|context| front.publishing.poll_all(context)) => {
                            self.acknowledge(acks);
                        }
                        frame = self.upload.next() => self.read(frame).await,
                    }
                }
                (false, Some(front)) => {
                    let publishing = &mut front.publishing;
                    let acks = std::future::poll_fn(|context| publishing.poll_all(context)).await;
                    self.acknowledge(acks);
                }
                (false, None) if self.input == Input::Ended => {
                    self.input = Input::Told;
                    self.answers.end(self.lines);
                }
                (false, None) => return None,
            }
        }
    }

    /// Waits for a piece of the body, or for the end of the server.
    async fn read_next(&mut self) {
        tokio::select! {
            biased;
            frame = self.upload.next() => self.read(frame).await,
            () = self.shared.closed() => {
                let detail = "the server is closing; what came before is answered";
                self.stop(&Problem::new(ErrorCode::ShuttingDown, detail));
            }
        }
    }

    /// Takes the lines out of a piece of the body.
    async fn read(&mut self, frame: Result<Option<Bytes>, Problem>) {
        let done = match frame {
            Ok(Some(piece)) => self.piece(piece).await,
            Ok(None) => {
                // The last line may end without a line's end.
                let last = std::mem::take(&mut self.rest).freeze();
                self.input = Input::Ended;
                if last.is_empty() { Ok(()) } else { self.line(last).await }
            }
            Err(problem) => Err(problem),
        };
        let done = match done {
            Ok(()) => self.publish_batch().await,
            failed => failed,
        };
        if let Err(problem) = done {
            self.stop(&problem);
        }
    }

    /// Takes a piece of the body, once there is memory for it.
    async fn piece(&mut self, piece: Bytes) -> Result<(), Problem> {
        let lines = self.lines;
        self.upload.hold(self.held_bytes() + piece.len()).await?;
        self.lines_of(piece).await?;
        if self.lines > lines {
            self.upload.holds(self.held_bytes());
        }
        Ok(())
    }

    /// What is held of the request: a line that has not ended, and lines that are not flushed.
    fn held_bytes(&self) -> usize {
        self.rest.capacity() + self.batch.bytes + self.waiting_bytes
    }

    async fn lines_of(&mut self, mut piece: Bytes) -> Result<(), Problem> {
        while let Some(end) = memchr::memchr(b'\n', &piece) {
            let mut line = piece.split_to(end + 1);
            line.truncate(end);
            if !self.rest.is_empty() {
                self.rest.extend_from_slice(&line);
                line = std::mem::take(&mut self.rest).freeze();
            }
            self.line(line).await?;
        }
        let max = self.shared.options.body_bytes_max;
        if self.rest.len() + piece.len() > max {
            let detail = format_args!("line {} has more than {max} bytes", self.lines + 1);
            return Err(Problem::new(ErrorCode::BodyTooLarge, detail).with("max", max));
        }
        self.rest.extend_from_slice(&piece);
        Ok(())
    }

    /// Takes one line. An error ends the request; a bad line does not.
    async fn line(&mut self, line: Bytes) -> Result<(), Problem> {
        self.lines += 1;
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        match incoming::message(&line, self.shared.broker.now()) {
            Ok((message, expect)) => {
                let plain = message.id.is_none() && message.not_before.is_none();
                if plain && expect.is_none() {
                    self.batch.add(self.lines, message);
                    if self.batch.is_full() {
                        self.publish_batch().await?;
                    }
                    return Ok(());
                }
                // Numbers are given in the order of the lines.
                self.publish_batch().await?;
                let line = self.lines;
                self.caller.charge(1, message.body.as_ref().map_or(0, Bytes::len) as u64)?;
                self.publish_one(line, message, expect).await
            }
            Err(_) if Mark::is(&line) => Ok(()),
            Err(problem) => {
                self.publish_batch().await?;
                let line = self.lines;
                self.refuse(line, &problem)
            }
        }
    }

    async fn publish_batch(&mut self) -> Result<(), Problem> {
        let batch = std::mem::take(&mut self.batch);
        let count = batch.messages.len();
        if count == 0 {
            return Ok(());
        }
        self.caller.charge(count as u64, batch.bytes as u64)?;
        let records = batch.records()?;
        let publishing = self.with_room(|intake| {
            let broker = &intake.shared.broker;
            broker.publish_records(&intake.topic, records.clone(), &intake.options)
        });
        let publishing = publishing.await?;
        if publishing.rejected_with().is_none() || count == 1 {
            return self.wait_for(batch.first_line, count, batch.bytes, publishing);
        }
        // One of them is the reason; publishing each alone shows which.
        for (line, message) in (batch.first_line..).zip(batch.messages) {
            self.publish_one(line, message, None).await?;
        }
        Ok(())
    }

    async fn publish_one(
        &mut self,
        line: u64,
        message: Message,
        expect: Option<Expect>,
    ) -> Result<(), Problem> {
        let options = PublishOptions { expect, ..self.options };
        let bytes = message.body.as_ref().map_or(0, Bytes::len);
        // What the newest of a key is may have to be looked up on the disk.
        let publishing = if matches!(expect, Some(Expect::KeyLast(_))) {
            let (broker, topic) = (self.shared.broker.clone(), self.topic.clone());
            blocking(move || broker.publish(&topic, &message, &options)).await?
        } else {
            let message = &message;
            self.with_room(|intake| intake.shared.broker.publish(&intake.topic, message, &options))
                .await?
        };
        self.wait_for(line, 1, bytes, publishing)
    }

    /// Publishes until the journal has room for it.
    async fn with_room(
        &mut self,
        publish: impl Fn(&Self) -> Publishing,
    ) -> Result<Publishing, Problem> {
        loop {
            let publishing = publish(self);
            if !publishing.needs_room() {
                return Ok(publishing);
            }
            let room = self.shared.broker.room();
            if tokio::time::timeout(self.shared.options.body_timeout, room).await.is_err() {
                return Err(RejectReason::QueueFull.into());
            }
        }
    }

    fn wait_for(
        &mut self,
        first_line: u64,
        count: usize,
        bytes: usize,
        publishing: Publishing,
    ) -> Result<(), Problem> {
        if let (Some(reason), 1) = (publishing.rejected_with(), count) {
            let problem = rejected(&self.shared.broker, &self.topic, reason);
            return self.refuse(first_line, &problem);
        }
        self.waiting_bytes += bytes;
        let count = u32::try_from(count).expect("a batch has few lines");
        self.waiting.push_back(Waiting { first_line, count, bytes, publishing });
        Ok(())
    }

    fn acknowledge(&mut self, acks: Result<Vec<PublishAck>, gapless_core::PubSubError>) {
        let Some(front) = self.waiting.pop_front() else { return };
        self.waiting_bytes -= front.bytes;
        match acks.map(|acks| acks.into_iter().next()) {
            Ok(Some(ack)) => self.answers.ack(front.first_line, front.count, &ack),
            Ok(None) => {}
            Err(trouble) => {
                self.answers.problem(front.first_line, front.count, &trouble.into());
                self.input = Input::Ended;
            }
        }
    }

    fn refuse(&mut self, line: u64, problem: &Problem) -> Result<(), Problem> {
        // Answers come in the order of the lines, as far as those that wait allow it.
        self.answers.problem(line, 1, problem);
        if self.answers.refused < REFUSED_MAX {
            return Ok(());
        }
        let detail = format_args!("{REFUSED_MAX} lines were refused; the rest was not read");
        Err(Problem::bad_request(detail))
    }

    /// Reads no more, and says why.
    fn stop(&mut self, problem: &Problem) {
        self.batch = Batch::default();
        self.input = Input::Ended;
        self.answers.stopped(problem);
    }
}

impl Batch {
    fn add(&mut self, line: u64, message: Message) {
        if self.messages.is_empty() {
            self.first_line = line;
        }
        self.bytes += 64 + message.body.as_ref().map_or(0, Bytes::len);
        self.messages.push(message);
    }

    fn is_full(&self) -> bool {
        self.messages.len() >= BATCH_LINES_MAX || self.bytes >= BATCH_BYTES
    }

    fn records(&self) -> Result<Records, Problem> {
        let mut records = RecordsBuilder::with_capacity(self.bytes);
        for message in &self.messages {
            records.push(message).map_err(|why| Problem::new(ErrorCode::InvalidPayload, why))?;
        }
        Ok(records.finish())
    }
}

/// Answers that are to be sent.
#[derive(Default)]
struct Answers {
    /// Whether each line gets one of its own.
    each: bool,
    out: Vec<u8>,
    run: Option<Run>,
    accepted: u64,
    duplicates: u64,
    delayed: u64,
    refused: u64,
}

/// Lines that were accepted one after another.
struct Run {
    line: u64,
    count: u64,
    last: Accepted,
    first: gapless_core::Seq,
}

impl Answers {
    fn is_empty(&self) -> bool {
        self.out.is_empty() && self.run.is_none()
    }

    fn take(&mut self) -> Bytes {
        self.end_run();
        std::mem::take(&mut self.out).into()
    }

    fn ack(&mut self, line: u64, count: u32, ack: &PublishAck) {
        match ack {
            PublishAck::Accepted(accepted) => {
                let counter =
                    if accepted.duplicate { &mut self.duplicates } else { &mut self.accepted };
                *counter += u64::from(count);
                self.accept(line, u64::from(count), *accepted);
            }
            PublishAck::Scheduled { id, due } => {
                self.delayed += 1;
                self.put(&json!({ "line": line, "delayed": id.0, "due_ms": due.0 }));
            }
            // Those were reported when they were refused.
            PublishAck::Rejected(reason) => self.problem(line, count, &(*reason).into()),
        }
    }

    fn accept(&mut self, line: u64, count: u64, accepted: Accepted) {
        if self.each && count > 1 {
            for at in 0..count {
                let seq = accepted.first.plus(at);
                let position = gapless_core::Position(
                    accepted.position.0.saturating_sub(accepted.last.distance(seq)),
                );
                self.accept(line + at, 1, Accepted { first: seq, last: seq, position, ..accepted });
            }
            return;
        }
        if let Some(run) = &mut self.run
            && !self.each
            && run.line + run.count == line
            && run.last.last.next() == accepted.first
            && (run.last.durability, run.last.duplicate)
                == (accepted.durability, accepted.duplicate)
        {
            run.count += count;
            run.last = accepted;
            return;
        }
        self.end_run();
        self.run = Some(Run { line, count, first: accepted.first, last: accepted });
    }

    fn end_run(&mut self) {
        let Some(run) = self.run.take() else { return };
        self.put(&json!({
            "line": run.line,
            "count": run.count,
            "first": run.first.0,
            "last": run.last.last.0,
            "position": position_json(&run.last),
            "durability": run.last.durability.name(),
            "duplicate": run.last.duplicate,
        }));
    }

    fn problem(&mut self, line: u64, count: u32, problem: &Problem) {
        self.refused += u64::from(count);
        self.end_run();
        let mut value = problem.to_json();
        value["line"] = line.into();
        value["count"] = count.into();
        self.put(&value);
    }

    fn stopped(&mut self, problem: &Problem) {
        self.end_run();
        let mut value = problem.to_json();
        value["stopped"] = true.into();
        self.put(&value);
    }

    fn end(&mut self, lines: u64) {
        self.end_run();
        self.put(&json!({
            "end": true,
            "lines": lines,
            "accepted": self.accepted,
            "duplicates": self.duplicates,
            "delayed": self.delayed,
            "refused": self.refused,
        }));
    }

    fn put(&mut self, value: &Value) {
        self.out.extend_from_slice(value.to_string().as_bytes());
        self.out.push(b'\n');
    }
}
