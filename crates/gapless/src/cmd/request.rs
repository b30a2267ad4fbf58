//! `gapless request` and `gapless reply`: a question to the subscribers of a subject, and answers.

use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use gapless_client::{Client, Event, From, RequestError, reply_to};
use gapless_core::{Message, Pattern, PublishOptions, TopicName};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Global;
use crate::exit::{Done, Exit, Failure};
use crate::output::Output;
use crate::remote::{Interrupt, followed, published, with_client};
use crate::values;

/// Programs that answer at the same time; further requests wait.
const ANSWERS_MAX: usize = 16;
/// Most bytes that a program may print as its answer.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// How long a program may take for its answer.
const ANSWER_WAIT: Duration = Duration::from_secs(60);

const REQUEST_EXAMPLES: &str = "\
Examples:
  gapless request time.now ''                     ask, and print the answer
  gapless request thumbnails.make photo-7 --timeout 2m
  gapless request prices.get apples --json | jq .text

It waits for the answer as long as --timeout says. Exit codes: 6 when there is no responder, and
nothing is sent then; 1 when no answer came in time.";

/// Send a request to the subscribers of a subject, and print the first answer
#[derive(Debug, Args)]
#[command(after_help = REQUEST_EXAMPLES)]
pub(crate) struct RequestOptions {
    /// Whom to ask, as prices.get
    #[arg(value_parser = values::topic)]
    subject: TopicName,
    /// What to ask
    body: String,
    /// A header, as NAME=VALUE or 'Name: value'; may be repeated
    #[arg(long, short = 'H', value_name = "NAME=VALUE", value_parser = values::header)]
    header: Vec<(String, String)>,
}

pub(crate) fn request(options: &RequestOptions, global: &Global, out: &mut Output) -> Done {
    let mut message = Message::new(options.body.clone());
    for (name, value) in &options.header {
        message.headers.push((name.clone(), Bytes::from(value.clone())));
    }
    with_client(global, out, async |client, out| {
        match client.request(&options.subject, message, global.timeout).await {
            Ok(answer) => {
                let body = answer.body.unwrap_or_default();
                if out.json {
                    let text = String::from_utf8_lossy(&body);
                    out.json_line(&json!({ "subject": options.subject.as_str(), "text": text }))?;
                } else {
                    out.bytes(&body)?;
                    out.bytes(b"\n")?;
                }
                Ok(Exit::Ok)
            }
            Err(error @ RequestError::NoResponders(_)) => Err(Failure::not_found(error)
                .hint(format!("start one: gapless reply {} 'an answer'", options.subject))),
            Err(RequestError::Publish(error)) => {
                Err(published(client, error, &options.subject).await)
            }
            Err(error) => Err(Failure::failed(error)),
        }
    })
}

const REPLY_EXAMPLES: &str = "\
Examples:
  gapless reply time.now --exec date              run a program for each request; it prints the answer
  gapless reply 'echo.*' --exec cat               the request is its stdin
  gapless reply ping pong                         always the same answer
  gapless reply once yes --count 1

The program gets the subject in GAPLESS_SUBJECT. If it fails, nothing is answered, and the asker waits
until its time is over.";

/// Answer requests to a subject or pattern, until it is interrupted
#[derive(Debug, Args)]
#[command(after_help = REPLY_EXAMPLES)]
pub(crate) struct ReplyOptions {
    /// What to answer, as prices.get or 'prices.*'
    #[arg(value_name = "SUBJECT", value_parser = values::pattern)]
    pattern: Pattern,
    /// The answer, always the same
    #[arg(required_unless_present = "exec")]
    body: Option<String>,
    /// Run this for each request, by `sh -c`: stdin is the request, stdout the answer
    #[arg(long, value_name = "COMMAND", conflicts_with = "body")]
    exec: Option<String>,
    /// End after so many answers
    #[arg(long, short = 'n', value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

pub(crate) fn reply(options: &ReplyOptions, global: &Global, out: &mut Output) -> Done {
    with_client(global, out, async |client, out| answer_all(client, options, out).await)
}

async fn answer_all(client: &Client, options: &ReplyOptions, out: &mut Output) -> Done {
    let mut interrupt = Interrupt::listen()?;
    let pattern = options.pattern.as_str();
    let mut requests = match client.subscribe(pattern, From::Now).await {
        Ok(requests) => requests,
        Err(error) => return Err(followed(client, error, &options.pattern).await),
    };
    out.note(format_args!("answering {pattern}; Ctrl-C ends it"));
    let mut left = options.count.unwrap_or(u64::MAX);
    let mut answering: JoinSet<Result<(), Failure>> = JoinSet::new();
    while left > 0 || !answering.is_empty() {
        tokio::select! {
            biased;
            () = interrupt.came() => return Ok(Exit::Ok),
            Some(done) = answering.join_next(), if !answering.is_empty() => {
                if let Err(failure) = done.map_err(Failure::failed)? {
                    out.note(failure.message);
                }
            }
            event = requests.next(), if left > 0 && answering.len() < ANSWERS_MAX => match event {
                Some(Ok(Event::Messages(messages))) => {
                    for each in messages.iter() {
                        // A message that is not a request gets no answer.
                        let Some(to) = reply_to(&each.message) else { continue };
                        if left == 0 {
                            break;
                        }
                        left -= 1;
                        let subject = messages.topic().clone();
                        let (client, exec) = (client.clone(), options.exec.clone());
                        let body = options.body.clone();
                        answering.spawn(async move {
                            let answer = match exec {
                                Some(exec) => run(&exec, &subject, each.message).await?,
                                None => Bytes::from(body.unwrap_or_default()),
                            };
                            send(&client, &to, answer).await
                        });
                    }
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(followed(client, error, &options.pattern).await),
                None => return Err(Failure::new(Exit::NoConnection, "the client has ended")),
            }
        }
    }
    Ok(Exit::Ok)
}

async fn send(client: &Client, to: &TopicName, answer: Bytes) -> Result<(), Failure> {
    let options = PublishOptions { require_subscribers: Some(true), ..PublishOptions::default() };
    let sent = client.publish_with(to, Message::new(answer), &options).await;
    sent.map_err(|error| Failure::failed(format!("an answer was not taken: {error}")))?;
    Ok(())
}

/// What a program prints for a request.
async fn run(exec: &str, subject: &TopicName, request: Message) -> Result<Bytes, Failure> {
    let failed = |why: &dyn std::fmt::Display| Failure::failed(format!("{exec}: {why}"));
    let mut child = Command::new("sh")
        .args(["-c", exec])
        .env("GAPLESS_SUBJECT", subject.as_str())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| failed(&error))?;
    let (mut stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let writing = async {
        if let Some(stdin) = &mut stdin {
            // A program need not read its request.
            let _ = stdin.write_all(&request.body.unwrap_or_default()).await;
        }
        drop(stdin);
    };
    let mut answer = Vec::new();
    let reading = async {
        let Some(stdout) = stdout else { return Ok(0) };
        stdout.take(ANSWER_BYTES_MAX as u64 + 1).read_to_end(&mut answer).await
    };
    let done = async {
        let ((), read) = tokio::join!(writing, reading);
        read?;
        child.wait().await
    };
    let status = timeout(ANSWER_WAIT, done).await.map_err(|_| failed(&"it takes too long"))?;
    let status = status.map_err(|error| failed(&error))?;
    if answer.len() > ANSWER_BYTES_MAX {
        return Err(failed(&format!("its answer has more than {ANSWER_BYTES_MAX} bytes")));
    }
    if !status.success() {
        return Err(failed(&status));
    }
    if answer.last() == Some(&b'\n') {
        answer.pop();
    }
    Ok(answer.into())
}
