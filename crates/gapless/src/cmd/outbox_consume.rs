//! `gapless outbox consume`: a consumer for services without our library. Each row goes to a
//! command (JSON on its standard input) or to a URL (a POST with JSON); success is exit code 0
//! or a status of 2xx. What fails is tried again with growing waits, and in the end put aside
//! into the table `dead_letters` with its reason; the flow goes on.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgGroup, Args};
use gapless_core::backoff::{Backoff, Retries};
use gapless_outbox::{
    Batch, BatchLimits, Consumer, ConsumerOptions, From, OutboxError, Payload, Row,
};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use super::outbox::{Source, failed};
use crate::config::Config;
use crate::exit::{Done, Exit, Failure};
use crate::output::Output;
use crate::remote::Interrupt;
use crate::values;

pub(crate) const EXAMPLES: &str = "\
Examples:
  gapless outbox consume mailer --dsn postgres://app@db/shop --exec ./send-mail
  gapless outbox consume search --dsn … --post http://127.0.0.1:9200/rows --batch 1000
  gapless outbox consume search --dsn … --post … --from oldest --attempts 10
  gapless outbox consume report --dsn postgres://app@db/shop --read-dsn postgres://app@standby/shop …

A row is one JSON object: seq, op, event_id, topic, key, kind, reason, created_ms, ingested_ms,
payload (or payload_base64 if it is not JSON). It may come again after a crash: know it by its
event_id. What failed for the last time is in the table dead_letters.";

/// Longest beginning of an answer or of an error that is kept, in bytes.
const WORDS_MAX: usize = 2_000;

/// How rows are handed over.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("to").required(true).args(["exec", "post"])))]
pub(crate) struct ConsumeOptions {
    /// The name of the consumer: its offset is kept under it
    name: String,
    #[command(flatten)]
    source: Source,
    /// The command that gets each row, run by sh
    #[arg(long, value_name = "COMMAND")]
    exec: Option<String>,
    /// The URL that each row is posted to (http or https)
    #[arg(long, value_name = "URL")]
    post: Option<String>,
    /// Where a consumer begins that was never there: beginning, oldest, now, or after a seq
    #[arg(long, value_name = "PLACE", default_value = "beginning")]
    from: From,
    /// After how many rows the offset is moved
    #[arg(long, value_name = "ROWS", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    batch: u32,
    /// How often a row is tried before it is put aside
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000))]
    attempts: u32,
    /// The wait after the first failure of a row; it doubles with each
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = values::duration)]
    retry: Duration,
    /// How long a command or an answer may take
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = values::duration)]
    timeout: Duration,
    /// Read rows from another server, a standby
    #[arg(long, value_name = "DSN")]
    read_dsn: Option<String>,
}

/// Where a row goes.
enum Sink {
    Exec(String),
    Post { tls: Option<TlsConnector>, host: String, port: u16, path: String },
}

pub(crate) async fn run(options: ConsumeOptions, config: &Config, out: &mut Output) -> Done {
    let application = format!("gapless consume {}", options.name);
    let database = options.source.database(config)?.named(&application);
    let read_from = match &options.read_dsn {
        None => None,
        Some(dsn) => {
            let source = Source { dsn: Some(dsn.clone()), ..options.source.clone() };
            Some(source.database(config)?.named(&application))
        }
    };
    let limits = BatchLimits { rows_max: options.batch, ..BatchLimits::default() };
    let sink = match (&options.exec, &options.post) {
        (Some(command), _) => Sink::Exec(command.clone()),
        (None, url) => post_to(url.as_deref().unwrap_or_default())?,
    };
    let mut interrupt = Interrupt::listen()?;
    let consuming = ConsumerOptions { limits, from: options.from, read_from };
    let mut consumer = Consumer::open(database, &options.name, consuming).map_err(failed)?;
    let ended = tokio::select! {
        () = interrupt.came() => Ok(()),
        ended = consume(&mut consumer, &sink, &options, out) => ended,
    };
    // Another instance may take over at once.
    consumer.close().await;
    ended.map(|()| Exit::Ok)
}

async fn consume(
    consumer: &mut Consumer,
    sink: &Sink,
    options: &ConsumeOptions,
    out: &mut Output,
) -> Result<(), Failure> {
    loop {
        let batch = consumer.next().await.map_err(failed)?;
        match hand_over(consumer, sink, options, &batch).await {
            Ok(()) => {}
            // The same rows come again, here or where the offset went.
            Err(error) if error.passes() => out.note(error),
            Err(error @ OutboxError::Taken { .. }) => out.note(error),
            Err(error) => return Err(failed(error)),
        }
    }
}

async fn hand_over(
    consumer: &mut Consumer,
    sink: &Sink,
    options: &ConsumeOptions,
    batch: &Batch,
) -> Result<(), OutboxError> {
    for row in &batch.rows {
        let body = shown(row).to_string();
        let first = options.retry.max(Duration::from_millis(1));
        let backoff =
            Backoff { first, most: first.max(Backoff::default().most), jitter_percent: 20 };
        let mut retries = Retries::new(backoff, row.seq).expect("it was checked above");
        let mut attempt = 1;
        loop {
            let tried = timeout(options.timeout, sink.send(&body)).await;
            let why = match tried.unwrap_or_else(|_| Err("it took too long".to_owned())) {
                Ok(()) => break,
                Err(why) => why,
            };
            tracing::warn!(seq = row.seq, attempt, why, "a row was not taken");
            if attempt >= options.attempts {
                consumer.bury(row, attempt, &why).await?;
                break;
            }
            attempt += 1;
            let _ = timeout(retries.failed(), std::future::pending::<()>()).await;
        }
    }
    consumer.done(batch).await
}

/// A row as JSON.
fn shown(row: &Row) -> Value {
    let mut value = json!({
        "seq": row.seq, "op": row.op.name(), "event_id": row.event_id, "topic": row.topic,
        "key": row.key, "kind": row.kind, "reason": row.reason,
        "created_ms": row.created_at.0, "ingested_ms": row.ingested_at.0,
    });
    match &row.payload {
        Payload::None => value["payload"] = Value::Null,
        Payload::Bytes(bytes) => match serde_json::from_slice(bytes) {
            Ok(payload) => value["payload"] = payload,
            Err(_) => value["payload_base64"] = base64(bytes).into(),
        },
        Payload::TooLarge(bytes) => value["payload_bytes"] = (*bytes).into(),
    }
    value
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

fn post_to(url: &str) -> Result<Sink, Failure> {
    let wrong = || {
        Failure::words(format!("{url:?} is not a URL that rows can be posted to"))
            .hint("use http://host:port/path or https://host/path")
    };
    let (scheme, rest) = url.split_once("://").ok_or_else(wrong)?;
    let (tls, usual) = match scheme {
        "http" => (None, 80),
        "https" => (Some(verifying()?), 443),
        _ => return Err(wrong()),
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().map_err(|_| wrong())?),
        None => (authority, usual),
    };
    let control = |byte: u8| byte.is_ascii_control() || byte == b' ';
    if host.is_empty() || rest.bytes().any(control) {
        return Err(wrong());
    }
    let path = if path.is_empty() { "/" } else { path };
    Ok(Sink::Post { tls, host: host.to_owned(), port, path: path.to_owned() })
}

/// TLS that verifies the server with the system's certificates.
fn verifying() -> Result<TlsConnector, Failure> {
    let mut roots = RootCertStore::empty();
    for certificate in rustls_native_certs::load_native_certs().certs {
        // One root of the system that cannot be read spoils only itself.
        let _ = roots.add(certificate);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(Failure::failed)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

impl Sink {
    async fn send(&self, body: &str) -> Result<(), String> {
        match self {
            Self::Exec(command) => exec(command, body).await,
            Self::Post { tls, host, port, path } => {
                let posted = post(tls.as_ref(), (host, *port), path, body).await;
                posted.unwrap_or_else(|error| Err(error.to_string()))
            }
        }
    }
}

async fn exec(command: &str, body: &str) -> Result<(), String> {
    let mut child = Command::new("sh");
    child.args(["-c", command]).stdin(Stdio::piped()).stdout(Stdio::inherit());
    let mut child =
        child.stderr(Stdio::piped()).kill_on_drop(true).spawn().map_err(|error| text(&error))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A command that does not read its input may end before it is written.
        let _ = stdin.write_all(body.as_bytes()).await;
        let _ = stdin.write_all(b"\n").await;
    }
    let ended = child.wait_with_output().await.map_err(|error| text(&error))?;
    if ended.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ended.stderr);
    Err(format!("{}: {}", ended.status, beginning(said.trim())))
}

/// One request on a connection of its own: the answer ends with the connection.
async fn post(
    tls: Option<&TlsConnector>,
    (host, port): (&str, u16),
    path: &str,
    body: &str,
) -> std::io::Result<Result<(), String>> {
    let stream = TcpStream::connect((host, port)).await?;
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    match tls {
        None => exchange(stream, &head, body).await,
        Some(tls) => {
            let name = ServerName::try_from(host.to_owned()).map_err(std::io::Error::other)?;
            exchange(tls.connect(name, stream).await?, &head, body).await
        }
    }
}

async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    head: &str,
    body: &str,
) -> std::io::Result<Result<(), String>> {
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.flush().await?;
    let mut answer = Vec::new();
    (&mut stream).take(WORDS_MAX as u64).read_to_end(&mut answer).await?;
    let answer = String::from_utf8_lossy(&answer);
    let status = answer.split_whitespace().nth(1).unwrap_or("no status");
    let taken = answer.starts_with("HTTP/1.") && status.starts_with('2');
    Ok(if taken { Ok(()) } else { Err(format!("status {status}: {}", beginning(&answer))) })
}

fn text(error: &std::io::Error) -> String {
    error.to_string()
}

fn beginning(text: &str) -> String {
    text.chars().take(WORDS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_urls_are_taken() {
        for bad in
            ["", "a/b", "http://", "ftp://a", "http://a/b c", "http://a/\r\nX: y", "http://a:b"]
        {
            assert!(post_to(bad).is_err(), "{bad}");
        }
        for (url, secret, at) in [("http://a", false, ("a", 80)), ("https://b:7/x", true, ("b", 7))]
        {
            let Ok(Sink::Post { tls, host, port, .. }) = post_to(url) else { panic!("{url}") };
            assert_eq!((tls.is_some(), (host.as_str(), port)), (secret, at));
        }
    }
}
