//! Talking to a server: connecting, and turning its errors into failures that help.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use gapless_client::{
    Address, AskError, Backoff, Client, ClientLimits, ConnectError, ConnectOptions, ErrorCode,
    Fate, GaveUp, PublishError, State, SubscriptionError, TlsError, Trouble,
};
use gapless_core::{Pattern, RejectReason, TopicName};
use serde_json::{Value, json};
use tokio::net::{TcpStream, UnixStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{interval, timeout};

use crate::cmd::{Global, SERVER_DEFAULT};
use crate::exit::{Done, Exit, Failure};
use crate::output::{Output, Paint};
use crate::tls;
use crate::values;

/// How long one attempt to reach a server may take.
const REACH_WAIT: Duration = Duration::from_secs(5);
/// How often a server that does not listen yet is tried.
const REACH_EVERY: Duration = Duration::from_millis(50);
/// How long what is unanswered may take at the end.
const CLOSE_WAIT: Duration = Duration::from_secs(1);
/// Most topics looked at for a name that was meant.
const NEAR_TOPICS_MAX: u32 = 1_000;

/// Runs a command that needs a server.
pub(crate) fn with_client(
    global: &Global,
    out: &mut Output,
    command: impl AsyncFnOnce(&Client, &mut Output) -> Done,
) -> Done {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = connect(global).await?;
        let mut state = client.state();
        let say = Losses::new(out);
        let done = {
            let command = command(&client, out);
            tokio::pin!(command);
            loop {
                tokio::select! {
                    biased;
                    done = &mut command => break done,
                    Ok(()) = state.changed() => say.changed(&client, *state.borrow_and_update()),
                }
            }
        };
        client.close(CLOSE_WAIT).await;
        done
    })
}

/// Says on stderr that the connection is lost, in every command: one that waits for a server must
/// not look as if it hung.
struct Losses {
    json: bool,
    quiet: bool,
    paint: Paint,
}

impl Losses {
    fn new(out: &Output) -> Self {
        Self { json: out.json, quiet: out.quiet, paint: out.paint_notes }
    }

    fn changed(&self, client: &Client, state: State) {
        if state != State::Offline || self.quiet {
            return;
        }
        let why = client.last_trouble();
        let text = if self.json {
            json!({ "event": "offline", "why": why }).to_string()
        } else {
            let why = why.map(|why| format!(": {why}")).unwrap_or_default();
            self.paint.dim(format_args!("the connection is lost{why}; trying again"))
        };
        // A line of progress may be there, which has no end.
        let clear = if io::stderr().is_terminal() { "\r\x1b[2K" } else { "" };
        let _ = writeln!(io::stderr(), "{clear}{text}");
    }
}

pub(crate) async fn connect(global: &Global) -> Result<Client, Failure> {
    let address: Address = global.server().parse().map_err(Failure::words)?;
    reach(&address, global.wait).await.map_err(|error| unreachable(&address, &error))?;
    let usual = ClientLimits::default();
    let limits = ClientLimits {
        connect_wait: REACH_WAIT,
        answer_wait: global.timeout,
        // Sent again much later, a message could be stored twice.
        publish_wait: global.timeout.min(usual.publish_wait),
        ..usual
    };
    // A user is waiting: a server that is back is to be found soon.
    let backoff = Backoff { most: Duration::from_secs(2), ..Backoff::default() };
    let name = format!("gapless cli {}", std::process::id());
    let options = connect_options(global)?.name(name).limits(limits).backoff(backoff);
    Client::connect(options).await.map_err(|error| match error {
        ConnectError::Address(_) => Failure::words(error),
        ConnectError::GaveUp(GaveUp::Http) => http_port(&address),
        ConnectError::Tls(TlsError::Handshake(why)) => not_trusted(global, &address, &why),
        ConnectError::Tls(_) => Failure::words(error),
        ConnectError::GaveUp(_) => Failure::new(Exit::Rejected, error),
        error => Failure::new(Exit::NoConnection, format!("{address}: {error}"))
            .hint("something listens there, but does not answer as gapless does"),
    })
}

/// How to reach the server, and to prove who asks.
pub(crate) fn connect_options(global: &Global) -> Result<ConnectOptions, Failure> {
    let mut options = ConnectOptions::new([global.server()]);
    if let Some(token) = token(global)? {
        options = options.token(token);
    }
    if let Some(tls) = tls::client(global) {
        options = options.tls(tls);
    }
    Ok(options)
}

/// The two did not agree on TLS.
fn not_trusted(global: &Global, address: &Address, why: &str) -> Failure {
    let hint = if tls::client(global).is_none() {
        "name the authority that signed its certificate: --tls-ca FILE, or --tls for the system's"
    } else {
        "--tls-ca FILE names authorities to trust, --tls-cert and --tls-key who you are; without \
         them no TLS is spoken"
    };
    Failure::new(Exit::NoConnection, format!("{address}: {why}")).hint(hint)
}

/// The token to send, from the command line, the environment or a file.
pub(crate) fn token(global: &Global) -> Result<Option<String>, Failure> {
    if let Some(path) = &global.token_file {
        let text = std::fs::read_to_string(path).map_err(|error| {
            Failure::words(format!("cannot read the token in {}: {error}", path.display()))
        })?;
        return Ok(Some(text.lines().next().unwrap_or_default().trim().to_owned()));
    }
    Ok(global.token.clone())
}

/// Sends a command about identities, roles and tokens.
pub(crate) async fn auth(client: &Client, command: &Value) -> Result<Value, Failure> {
    match client.auth(command.to_string()).await {
        Ok(answer) => serde_json::from_str(&answer).map_err(Failure::failed),
        Err(AskError::Server(trouble)) if trouble.known() == Some(ErrorCode::NoSuchMessage) => {
            Err(Failure::not_found(trouble.message).code(trouble.code))
        }
        Err(AskError::Server(trouble)) => {
            Err(Failure::new(Exit::Rejected, trouble.message).code(trouble.code))
        }
        Err(error) => Err(asked(client, error, None).await),
    }
}

/// The two ports are easily taken for each other.
fn http_port(address: &Address) -> Failure {
    let host = match address {
        Address::Tcp(address) => address.rsplit_once(':').map_or("HOST", |(host, _)| host),
        Address::Unix(_) => "HOST",
    };
    let native = SERVER_DEFAULT.rsplit_once(':').map_or("4281", |(_, port)| port);
    Failure::new(Exit::NoConnection, format!("{address} is an HTTP port"))
        .hint(format!("use the native one, {native} unless it was set: --server {host}:{native}"))
}

/// Whether a server listens; tries again for a while if none does. The client would try
/// for much longer, and could not say why in the end.
async fn reach(address: &Address, wait: Duration) -> io::Result<()> {
    let mut last = attempt(address).await;
    let again = async {
        let mut every = interval(REACH_EVERY);
        while last.as_ref().is_err_and(comes_up) {
            every.tick().await;
            last = attempt(address).await;
        }
    };
    // When the time is over, the last answer counts.
    let _ = timeout(wait, again).await;
    last
}

/// Whether it looks like a server that is about to start.
fn comes_up(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
}

async fn attempt(address: &Address) -> io::Result<()> {
    let connected = async {
        match address {
            Address::Tcp(address) => TcpStream::connect(address).await.map(drop),
            Address::Unix(path) => UnixStream::connect(path).await.map(drop),
        }
    };
    let late = || io::Error::from(io::ErrorKind::TimedOut);
    timeout(REACH_WAIT, connected).await.unwrap_or_else(|_| Err(late()))
}

fn unreachable(address: &Address, error: &io::Error) -> Failure {
    let failure =
        |why: &str| Failure::new(Exit::NoConnection, format!("cannot connect to {address}: {why}"));
    if comes_up(error) {
        let start = match address {
            Address::Tcp(address) if address != SERVER_DEFAULT => {
                format!("gapless serve --listen {address}")
            }
            _ => "gapless serve".to_owned(),
        };
        return failure("no server is running there").hint(format!(
            "start one with: {start}\nor name another with --server host:port or GAPLESS_SERVER"
        ));
    }
    failure(&error.to_string()).hint("check the address: --server host:port or unix:/path")
}

/// What a failed question means for the user. `topic` is what it was about.
pub(crate) async fn asked(client: &Client, error: AskError, topic: Option<&TopicName>) -> Failure {
    match error {
        AskError::Server(trouble) => server(client, trouble, topic).await,
        AskError::Invalid(_) => Failure::words(error),
        AskError::Unexpected => Failure::failed(error),
        AskError::Disconnected { .. } | AskError::TimedOut | AskError::Closed => {
            lost(client, &error.to_string(), error.fate())
        }
        other => Failure::failed(other),
    }
}

/// What a failed publish means for the user.
pub(crate) async fn published(client: &Client, error: PublishError, topic: &TopicName) -> Failure {
    match error {
        // Without a topic a publish reaches the subscribers of the moment, and there are none.
        PublishError::Rejected(RejectReason::UnknownTopic | RejectReason::NoSubscribers)
            if !exists(client, topic).await =>
        {
            let hint = format!("create it with: gapless topic create {topic}, or add --create");
            no_topic(client, topic).await.hint(hint)
        }
        PublishError::Rejected(reason) => {
            Failure::new(Exit::Rejected, format!("rejected: {reason}")).code(reason.code())
        }
        PublishError::RejectedOther { code } => Failure::new(Exit::Rejected, error).code(code),
        PublishError::Invalid(_) => Failure::new(Exit::Rejected, error),
        PublishError::System(trouble) => server(client, trouble, Some(topic)).await,
        PublishError::Disconnected { fate } | PublishError::TimedOut { fate } => {
            lost(client, &error.to_string(), fate)
        }
        other => Failure::failed(other),
    }
}

/// What a subscription that was refused or has ended means for the user.
pub(crate) async fn followed(
    client: &Client,
    error: SubscriptionError,
    pattern: &Pattern,
) -> Failure {
    let topic = pattern.as_name();
    match error {
        SubscriptionError::Refused(trouble) | SubscriptionError::Ended { trouble, .. } => {
            server(client, trouble, topic.as_ref()).await
        }
        SubscriptionError::Pattern(error) => Failure::words(error),
        SubscriptionError::TimedOut | SubscriptionError::GaveUp(_) | SubscriptionError::Closed => {
            Failure::new(Exit::NoConnection, with_trouble(client, &error.to_string()))
        }
        other => Failure::failed(other),
    }
}

async fn server(client: &Client, trouble: Trouble, topic: Option<&TopicName>) -> Failure {
    let code = trouble.code;
    let failure = match (trouble.known(), topic) {
        (Some(ErrorCode::UnknownTopic), Some(topic)) => no_topic(client, topic).await,
        (Some(ErrorCode::NeedsTopic), Some(topic)) if !exists(client, topic).await => {
            no_topic(client, topic).await
        }
        (Some(ErrorCode::NeedsTopic), _) => Failure::new(Exit::Rejected, trouble.message)
            .hint("patterns begin with beginning, now, a time or a token"),
        (Some(ErrorCode::TopicExists), Some(topic)) => {
            Failure::new(Exit::Rejected, format!("topic {topic} exists with other settings"))
                .hint(format!("see it: gapless topic show {topic}; change it: gapless topic set"))
        }
        (Some(ErrorCode::ShuttingDown | ErrorCode::TooManyConnections), _) => {
            Failure::new(Exit::NoConnection, trouble.message)
        }
        (Some(ErrorCode::Damaged), _) => {
            Failure::failed(trouble.message).hint("examine it: gapless doctor")
        }
        (Some(ErrorCode::ReadFailed), _) => Failure::failed(trouble.message),
        // The system's trouble, about which the words can do nothing.
        _ if (100..200).contains(&code) => Failure::failed(trouble.message),
        _ => Failure::new(Exit::Rejected, trouble.message),
    };
    failure.code(code)
}

fn lost(client: &Client, what: &str, fate: Fate) -> Failure {
    let failure = Failure::new(Exit::NoConnection, with_trouble(client, what));
    match fate {
        Fate::Unknown => failure.hint("it may have happened or not"),
        _ => failure.hint("it did not happen"),
    }
}

fn with_trouble(client: &Client, what: &str) -> String {
    match client.last_trouble() {
        Some(trouble) => format!("{what}: {trouble}"),
        None => what.to_owned(),
    }
}

/// That a topic does not exist, with the name that may have been meant.
pub(crate) async fn no_topic(client: &Client, topic: &TopicName) -> Failure {
    let near = near_topic(client, topic).await;
    let near = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
    Failure::not_found(format!("there is no topic {topic}{near}"))
        .hint("see what there is: gapless topic ls")
        .code(ErrorCode::UnknownTopic.number())
}

async fn near_topic(client: &Client, topic: &TopicName) -> Option<String> {
    let all = Pattern::parse(">").ok()?;
    let topics = client.topics(&all, None, NEAR_TOPICS_MAX).await.ok()?.topics;
    let names = topics.iter().map(|info| info.name.as_str());
    values::nearest(topic.as_str(), names).map(str::to_owned)
}

/// Whether the topic exists. If that is unknown, it counts as existing.
pub(crate) async fn exists(client: &Client, topic: &TopicName) -> bool {
    let described = client.describe_topic(topic).await;
    let unknown = ErrorCode::UnknownTopic.number();
    !matches!(described, Err(AskError::Server(trouble)) if trouble.code == unknown)
}

/// Ctrl-C or SIGTERM. Once this is created they no longer end the program by themselves.
pub(crate) struct Interrupt {
    terminate: Signal,
    interrupt: Signal,
}

impl Interrupt {
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Resolves at the first of them.
    pub(crate) async fn came(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
