//! `gapless outbox run`, and what `serve` does for the `[outbox]` section: the fence and the
//! relay, beside each other.

use std::time::Duration;

use clap::Args;
use gapless_client::Client;
use gapless_core::backoff::{Backoff, Retries};
use gapless_outbox::{BatchLimits, Database, FenceOptions, Observer, run_fence};
use gapless_relay::{Relay, RelayError, RelayOptions, Target};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::outbox::{Source, failed};
use super::{Global, outbox_status};
use crate::config::Config;
use crate::exit::{Done, Exit, Failure};
use crate::output::Output;
use crate::remote::{Interrupt, connect_options};

pub(crate) const EXAMPLES: &str = "\
Examples:
  gapless outbox run --dsn postgres://app@db/shop --create-topics
  gapless outbox run --dsn … --topic-prefix shop. --server broker:4281
  gapless outbox run --dsn 'host=standby dbname=shop' --no-fence     read from a standby

A topic that does not exist ends it, unless --create-topics. Rows that cannot become messages go
to PREFIXoutbox.dead with their reason. A second one of the same name waits and takes over.";

/// How long the connection to the server may take to come about.
const CONNECT_WAIT: Duration = Duration::from_secs(10);

/// How often the page's view of the outbox is updated.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// How rows are moved.
#[derive(Debug, Args)]
pub(crate) struct RunOptions {
    #[command(flatten)]
    source: Source,
    /// What comes before the topic of a row
    #[arg(long, value_name = "PREFIX")]
    topic_prefix: Option<String>,
    /// The name under which the server keeps the offset
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Create topics that do not exist
    #[arg(long)]
    create_topics: bool,
    /// Do not run the fence: another process does
    #[arg(long)]
    no_fence: bool,
    /// Most rows of one append
    #[arg(long, value_name = "ROWS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    batch: Option<u32>,
}

pub(crate) async fn run(
    options: RunOptions,
    config: &Config,
    global: &Global,
    out: &mut Output,
) -> Done {
    let database = options.source.database(config)?.named("gapless outbox run");
    let mut relay = relay_options(config, options.name, options.topic_prefix)?;
    relay.create_topics |= options.create_topics;
    if let Some(rows_max) = options.batch {
        relay.limits = BatchLimits { rows_max, ..relay.limits };
    }
    let mut interrupt = Interrupt::listen()?;
    let client = connect_options(global)?.name("gapless outbox run");
    let client = tokio::time::timeout(CONNECT_WAIT, Client::connect(client)).await;
    let client = client
        .map_err(|_| Failure::new(Exit::NoConnection, "no answer in time"))?
        .map_err(|error| Failure::new(Exit::NoConnection, error))?;
    let name = &relay.name;
    out.note(format_args!("moving rows of {} into topics as {name:?}", database.server()));
    let fence_too = !options.no_fence;
    let (stop, stopped) = watch::channel(false);
    let fence = run_fence(database.clone(), FenceOptions::default(), until(stopped.clone()));
    let work = Relay::new(database, Target::Client(client), relay).run(until(stopped));
    let (mut fence, mut work) = (std::pin::pin!(fence), std::pin::pin!(work));
    let ended = tokio::select! {
        () = interrupt.came() => Ok(()),
        ended = &mut fence, if fence_too => ended.map_err(failed),
        ended = &mut work => ended.map_err(relay_failed),
    };
    stop.send_replace(true);
    if ended.is_ok() && fence_too {
        // Gives the lease back, so that another takes over at once.
        fence.await.map_err(failed)?;
    }
    ended.map(|()| Exit::Ok)
}

async fn until(mut stopped: watch::Receiver<bool>) {
    // A sender that is gone means the same.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

fn relay_failed(error: RelayError) -> Failure {
    match error {
        RelayError::Outbox(error) => failed(error),
        RelayError::UnknownTopic(_) => Failure::not_found(error),
        error => Failure::failed(error),
    }
}

fn relay_options(
    config: &Config,
    name: Option<String>,
    prefix: Option<String>,
) -> Result<RelayOptions, Failure> {
    let name = name.unwrap_or_else(|| config.text("outbox.name").to_owned());
    let prefix = prefix.unwrap_or_else(|| config.text("outbox.topic_prefix").to_owned());
    let mut options = RelayOptions::new(&name, &prefix).map_err(|error| {
        Failure::words(format!("{prefix:?} cannot come before the names of topics: {error}"))
    })?;
    options.create_topics = match config.text("outbox.create_topics") {
        "true" => true,
        "false" => false,
        _ => return Err(config.bad("outbox.create_topics", "use true or false").into()),
    };
    Ok(options)
}

/// The outbox of a server: ended by dropping the sender.
pub(crate) struct Beside {
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
    /// How it stands, for the page.
    pub(crate) state: watch::Receiver<Value>,
}

impl Beside {
    /// Starts the fence and the relay, if the configuration names a database.
    pub(crate) fn start(
        config: &Config,
        broker: &gapless_broker::Broker,
    ) -> Result<Option<Self>, Failure> {
        if config.text("outbox.dsn").is_empty() {
            return Ok(None);
        }
        let database = Source::default().database(config)?.named("gapless serve");
        let options = relay_options(config, None, None)?;
        let (stop, stopped) = watch::channel(false);
        let target = Target::Broker(broker.clone());
        let (tell, state) = watch::channel(Value::Null);
        let tasks = vec![
            tokio::spawn(keep_state(database.clone(), tell, stopped.clone())),
            tokio::spawn(keep_fence(database.clone(), stopped.clone())),
            tokio::spawn(keep_relay(database, target, options, stopped)),
        ];
        Ok(Some(Self { stop, tasks, state }))
    }

    pub(crate) async fn stop(self) {
        self.stop.send_replace(true);
        for task in self.tasks {
            // A task that panicked has said so.
            let _ = task.await;
        }
    }
}

/// Looks how the outbox stands, again and again.
async fn keep_state(
    database: Database,
    tell: watch::Sender<Value>,
    stopped: watch::Receiver<bool>,
) {
    let mut observer = Observer::new(database);
    while !*stopped.borrow() {
        let state = match observer.status().await {
            Ok(state) => outbox_status::shown(&state),
            Err(error) => json!({ "error": error.to_string() }),
        };
        tell.send_replace(state);
        let _ = tokio::time::timeout(LOOK_EVERY, until(stopped.clone())).await;
    }
}

fn retries() -> Retries {
    Retries::new(Backoff::default(), u64::from(std::process::id())).expect("a good schedule")
}

/// Runs the fence again and again: what needs attention may get it while the server runs.
async fn keep_fence(database: Database, stopped: watch::Receiver<bool>) {
    let mut retries = retries();
    while !*stopped.borrow() {
        let fence = run_fence(database.clone(), FenceOptions::default(), until(stopped.clone()));
        if let Err(error) = fence.await {
            let wait = retries.failed();
            tracing::error!(%error, ?wait, "the fence of the outbox stopped");
            let _ = tokio::time::timeout(wait, until(stopped.clone())).await;
        }
    }
}

/// The same for the relay.
async fn keep_relay(
    database: Database,
    target: Target,
    options: RelayOptions,
    stopped: watch::Receiver<bool>,
) {
    let mut retries = retries();
    while !*stopped.borrow() {
        let relay = Relay::new(database.clone(), target.clone(), options.clone());
        if let Err(error) = Box::pin(relay.run(until(stopped.clone()))).await {
            let wait = retries.failed();
            tracing::error!(%error, ?wait, "rows of the outbox stay where they are");
            let _ = tokio::time::timeout(wait, until(stopped.clone())).await;
        }
    }
}
