//! `gapless serve`: open the store and its listeners, until it is asked to stop.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use gapless_auth::jwt::JwtOptions;
use gapless_broker::{Broker, BrokerOpenError, BrokerOptions, Opened};
use gapless_core::Durability;
use gapless_core::job::leader::Limits;
use gapless_jobs::{Leader, LeaderOptions, Routes};
use gapless_journal::OpenError;
use gapless_journal::log::LogError;
use gapless_server::http::{HttpListener, HttpOptions, keep_metrics_small};
use gapless_server::native::{NativeListener, NativeOptions};
use gapless_server::{Auth, AuthOptions, Budget, Connections};
use serde_json::json;

use super::outbox_run::Beside;
use crate::cluster;
use crate::config::{Config, ConfigError, Source};
use crate::engine::{self, Place};
use crate::exit::{Done, Exit, Failure};
use crate::exposure;
use crate::log;
use crate::output::Output;
use crate::permissions;
use crate::recorder;
use crate::remote::Interrupt;
use crate::shared;
use crate::supervisor;
use crate::tls;
use crate::trace;

const EXAMPLES: &str = "\
Examples:
  gapless                                       the same as `gapless serve`
  gapless serve --data /srv/gapless
  gapless serve --config /etc/gapless/gapless.toml   for other machines: gapless init --secure
  gapless serve --listen 127.0.0.1:0 --json     a free port, printed as JSON
  gapless serve --set durability=written --log debug
  gapless serve --store s3://bucket/prefix      nothing that lasts on this machine
  gapless serve --store s3://bucket/prefix --standby    take over when the other one is gone
  gapless serve --store s3://bucket/prefix --shared --node a --cluster-listen 10.0.0.1:4282 \\
      --cluster-secret-file cluster.secret      any node takes any request
  gapless serve --node a --cluster-listen 127.0.0.1:4282     the first node of a cluster
  gapless serve --node b --cluster-listen 10.0.0.2:4282 --join 10.0.0.1:4282 \\
      --cluster-secret-file cluster.secret

Ctrl-C or SIGTERM ends it cleanly. After kill -9 or a power loss it opens again by itself,
with everything that was acknowledged.";

/// How long a start waits for the lock of a process that may be ending.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(2);
/// How often a lock is tried within that time.
const LOCK_POLL: Duration = Duration::from_millis(50);
/// Room for the longest path that a Unix socket may have, on every system.
const SOCKET_PATH_BYTES_MAX: usize = 100;

/// The least memory for connections: several of the largest frames.
const MEMORY_BYTES_MIN: usize = 16 * 1024 * 1024;

/// How often the ends of tokens, the keys of signed ones and stored bytes are looked at.
const AUTH_TICK: Duration = Duration::from_millis(500);

/// The shortest lease of a job, in milliseconds: a worker stops its job 2 s before it ends.
const LEASE_MS_MIN: u64 = 3_000;

/// Start the server (also without a command)
#[derive(Debug, Default, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeOptions {
    /// Address to listen on; the same as --set native.listen=ADDR. Port 0 takes a free one
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Address of the HTTP API and the page; the same as --set http.listen=ADDR
    #[arg(long, value_name = "ADDR")]
    http: Option<String>,
    /// Let other machines in without TLS and without asking who they are; the same as --set
    /// insecure=true
    #[arg(long)]
    insecure: bool,
    /// Where the store is, if not in the data folder: s3://bucket/prefix or file:///folder; the same
    /// as --set store.url=URL
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Wait until no other server serves the store, and take over then; the same as --set
    /// store.standby=true
    #[arg(long)]
    standby: bool,
    /// Share the store with the other nodes of the cluster: any of them takes any request; the same as
    /// --set store.shared=true
    #[arg(long)]
    shared: bool,
    /// The name of this server as a node of a cluster; the same as --set cluster.node=NAME
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Address for other nodes; the same as --set cluster.listen=ADDR
    #[arg(long, value_name = "ADDR")]
    cluster_listen: Option<String>,
    /// Address of another node; may be repeated; the same as --set cluster.join=ADDR,ADDR
    #[arg(long, value_name = "ADDR")]
    join: Vec<String>,
    /// The id of the cluster; the same as --set cluster.id=ID
    #[arg(long, value_name = "ID")]
    cluster_id: Option<String>,
    /// File of the secret that all nodes share; the same as --set cluster.secret_file=FILE
    #[arg(long, value_name = "FILE")]
    cluster_secret_file: Option<String>,
}

pub(crate) fn run(options: &ServeOptions, config: &Config, out: &mut Output) -> Done {
    let mut config = config.clone();
    if let Some(address) = &options.listen {
        config.set("native.listen", address.clone(), Source::Flag)?;
    }
    if let Some(address) = &options.http {
        config.set("http.listen", address.clone(), Source::Flag)?;
    }
    let join = (!options.join.is_empty()).then(|| options.join.join(","));
    for (key, value) in [
        ("store.url", &options.store),
        ("cluster.node", &options.node),
        ("cluster.listen", &options.cluster_listen),
        ("cluster.join", &join),
        ("cluster.id", &options.cluster_id),
        ("cluster.secret_file", &options.cluster_secret_file),
    ] {
        if let Some(value) = value {
            config.set(key, value.clone(), Source::Flag)?;
        }
    }
    if options.shared {
        config.set("store.shared", "true".to_owned(), Source::Flag)?;
    }
    if options.standby {
        config.set("store.standby", "true".to_owned(), Source::Flag)?;
    }
    if options.insecure {
        config.set("insecure", "true".to_owned(), Source::Flag)?;
    }
    permissions::apply(&config)?;
    let open_files = raise_open_files();
    let runtime = gapless_server::runtime()?;
    runtime.block_on(serve(&config, open_files, out))
}

/// Takes as many open files as the system allows this process: connections and segments are
/// files, and the usual limit of a shell, 1,024, is for programs that use `select`. Returns how
/// many there may be, if that is limited.
fn raise_open_files() -> Option<u64> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    let before = std::mem::replace(&mut limit.current, limit.maximum);
    match setrlimit(Resource::Nofile, limit) {
        Ok(()) => tracing::debug!(?before, now = ?limit.current, "open files"),
        Err(error) => tracing::warn!(%error, ?before, "the limit of open files stays"),
    }
    getrlimit(Resource::Nofile).current
}

/// How open files are shared out between connections and the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OpenFiles {
    /// Connections of all listeners.
    connections: usize,
    /// Segments that are read.
    segments: usize,
}

impl OpenFiles {
    /// What the process needs beside connections and segments: the files of the log, those
    /// being written, spare ones, listeners, the runtime's own, and connections that are being
    /// refused.
    const OTHERS: u64 = 64;

    /// An eighth is for segments, up to the most that are ever of use.
    fn within(limit: Option<u64>) -> Self {
        let limit = limit.unwrap_or(u64::MAX).saturating_sub(Self::OTHERS);
        let segments = (limit / 8).clamp(2, gapless_journal::OPEN_FILES_MAX as u64);
        let connections = limit.saturating_sub(segments).max(1);
        let size = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        Self { connections: size(connections), segments: size(segments) }
    }
}

async fn serve(config: &Config, open_files: Option<u64>, out: &mut Output) -> Done {
    let (mut options, memory) = (broker_options(config)?, memory_budget(config)?);
    let mut native = native_options(config, &memory)?;
    let mut http_options = http_options(config, &memory)?;
    check_addresses(config)?;
    exposure::check(config)?;
    leader_options(config)?;
    job_routes(config)?;
    cluster::options(config)?;
    trace::Collector::new(config)?;
    let place = engine::place(config)?;
    let shared = shared::is_asked_for(config, place.as_ref())?;
    let shares = OpenFiles::within(open_files);
    let wanted = native.connections_max.saturating_add(http_options.connections_max);
    let open_files = open_files.unwrap_or(u64::MAX);
    if shares.connections < wanted {
        let connections = shares.connections;
        tracing::info!(
            open_files,
            connections,
            wanted,
            "fewer connections are possible than configured: raise the limit of open files"
        );
    } else {
        tracing::info!(open_files, connections = wanted, "connections are bounded");
    }
    options.open_files_max = shares.segments;
    native.connections = Connections::at_most(shares.connections);
    http_options.connections = native.connections.clone();
    auth_options(config)?;
    let tls = tls::server(config)?;
    (native.tls, http_options.tls) = (tls.clone(), tls.clone());
    http_options.data = Some(config.text("data").into());
    http_options.commit = env!("GAPLESS_COMMIT_SHOWN").into();
    // Before the broker, whose numbers go to the recorder that is there when it opens; and the
    // listener before it too, so that requests are answered that the store is being opened.
    recorder::begin()?;
    log::limit(log_limits(config)?);
    let reporting = tokio::spawn(log::report_left_out());
    let keeping = tokio::spawn(tls::keep(tls));
    if let Some(place) = place.as_ref().filter(|_| shared) {
        let small = tokio::spawn(keep_metrics_small(recorder::handle()));
        let served = shared::serve((config, place), &options, (native, http_options), out).await;
        small.abort();
        keeping.abort();
        return served;
    }
    let served = loop {
        let at = (config, place.as_ref());
        let turn = serve_turn(at, &options, (native.clone(), http_options.clone()), out).await;
        match turn {
            Ok(Ended::Fenced) if place.as_ref().is_some_and(|place| place.standby) => {
                tracing::warn!("another server took the store over; this one waits for its turn");
            }
            other => break other,
        }
    };
    keeping.abort();
    reporting.abort();
    log::say_left_out();
    match served? {
        Ended::Stopped => {
            tracing::info!("stopped cleanly");
            Ok(Exit::Ok)
        }
        Ended::Fenced => {
            let message = "another server has taken the store over; this one stopped serving it";
            Err(Failure::new(Exit::Fenced, message).hint(
                "nothing that was acknowledged is lost; with --standby it would wait instead",
            ))
        }
    }
}

/// Why serving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// It was asked to.
    Stopped,
    /// Another server owns the store.
    Fenced,
}

/// Opens the store, when it is this server's turn, and serves it until that ends.
async fn serve_turn(
    (config, place): (&Config, Option<&Place>),
    options: &BrokerOptions,
    (native, http_options): (NativeOptions, HttpOptions),
    out: &mut Output,
) -> Result<Ended, Failure> {
    let data = options.folder.clone();
    let mut http = match config.text("http.listen") {
        "" => None,
        address => Some(HttpListener::listen(http_options, address).await.map_err(|error| {
            Failure::failed(error).hint("choose another with --http host:port")
        })?),
    };
    let options = options.clone();
    let (broker, owned) = match place {
        Some(place) => {
            let Some((broker, owned)) = engine::open(place, options, out).await? else {
                return Ok(Ended::Stopped);
            };
            (broker, Some(owned))
        }
        None => {
            let broker = tokio::task::spawn_blocking(move || open(&options)).await?;
            (broker.map_err(|error| not_opened(&data, &error))?, None)
        }
    };
    tell_opened(broker.opened());
    permissions::warn_if_open(config, &data);
    let served = serve_open(config, (&broker, owned.as_ref()), (native, http.take()), out).await;
    // Also when it could not be served: a store that is open and not closed counts as crashed.
    let fenced = broker.is_fenced();
    let closed = tokio::task::spawn_blocking(move || broker.close()).await?;
    if fenced {
        return Ok(Ended::Fenced);
    }
    served?;
    closed.map_err(Failure::failed)?;
    Ok(Ended::Stopped)
}

/// Opens the store. A process that was just killed holds its lock a moment longer, so a lock is
/// waited for before it counts.
pub(crate) fn open(options: &BrokerOptions) -> Result<Broker, BrokerOpenError> {
    let mut waited = Duration::ZERO;
    loop {
        match Broker::open(options.clone()) {
            Err(BrokerOpenError::Journal(OpenError::Log(LogError::Locked { .. })))
                if waited < LOCK_WAIT_MAX =>
            {
                std::thread::sleep(LOCK_POLL);
                waited += LOCK_POLL;
            }
            opened => return opened,
        }
    }
}

/// Serves the open store until a signal comes.
async fn serve_open(
    config: &Config,
    (broker, owned): (&Broker, Option<&engine::Owned>),
    (native, mut http): (NativeOptions, Option<HttpListener>),
    out: &mut Output,
) -> Result<(), Failure> {
    let data = Path::new(config.text("data"));
    let encrypted = native.tls.is_some();
    let metrics = recorder::handle();
    let keeping = tokio::spawn(keep_metrics_small(metrics.clone()));
    let traces = trace::Exporting::start(config, broker)?;
    let auth = open_auth(config, broker)?;
    let ticking = tokio::spawn(keep_auth(auth.clone()));
    let tcp = Some(config.text("native.listen")).filter(|address| !address.is_empty());
    let unix = unix_socket(config, data);
    // Before the listeners: what their clients follow is spread from the first on.
    let cluster = cluster::start(cluster::options(config)?, broker).await?;
    let jobs = lead_jobs(config, broker).await?;
    let (leads, led) = (jobs.is_some(), jobs.clone());
    let listener = NativeListener::open_for(auth.clone(), jobs, native, tcp, unix.as_deref()).await;
    let listener = listener.map_err(|error| {
        Failure::failed(error)
            .hint("choose another with --listen host:port; port 0 takes a free one")
    })?;
    let outbox = Beside::start(config, broker)?;
    if let Some(http) = &mut http {
        if let Some(outbox) = &outbox {
            http.outbox(outbox.state.clone());
        }
        if let Some(leader) = led {
            http.leads(leader);
        }
        http.beside(&listener);
        http.serve_for(auth.clone(), Some(metrics));
    }
    // Before it says that it is ready, since the program that reads that may end it at once; and
    // not earlier, so that a long opening can be interrupted, which does no harm.
    let mut interrupt = Interrupt::listen()?;
    let epoch = broker.epoch().to_string();
    let address = listener.tcp_address().map(|address| address.to_string());
    let socket = unix.as_ref().map(|path| format!("unix:{}", path.display()));
    let scheme = if encrypted { "https" } else { "http" };
    let page = http.as_ref().map(|listener| format!("{scheme}://{}", listener.address()));
    if out.json {
        out.json_line(&json!({
            "event": "ready", "version": env!("CARGO_PKG_VERSION"), "epoch": epoch,
            "data": data.display().to_string(), "native": address, "unix": socket,
            "http": page, "jobs": leads, "tls": encrypted,
            "store": owned.map(|owned| owned.url()), "term": broker.term(),
            "cluster": cluster.as_ref().map(|cluster| json!({
                "node": cluster.node().as_str(), "address": cluster.address().to_string(),
            })),
        }))?;
    } else {
        out.line(format_args!("gapless {} is ready", env!("CARGO_PKG_VERSION")))?;
        match owned {
            Some(owned) => out.line(format_args!("  store   {} (epoch {epoch})", owned.url()))?,
            None => out.line(format_args!("  data    {} (epoch {epoch})", data.display()))?,
        }
        for address in [address, socket].into_iter().flatten() {
            let how = if encrypted && !address.starts_with("unix:") { " (TLS)" } else { "" };
            out.line(format_args!("  native  {address}{how}"))?;
        }
        if let Some(page) = &page {
            out.line(format_args!("  http    {page}"))?;
        }
        if let Some(cluster) = &cluster {
            let (node, address) = (cluster.node(), cluster.address());
            out.line(format_args!("  node    {node} at {address}"))?;
        }
        if !out.quiet {
            out.line("Stop it with Ctrl-C; try: gapless pub hello.world 'first' --create")?;
        }
    }
    out.flush()?;
    supervisor::notify(supervisor::READY);
    tokio::select! {
        () = interrupt.came() => {
            tracing::info!("stopping: connections get a moment to finish");
        }
        () = engine::until_fenced(owned, broker) => {
            tracing::error!("another server has taken the store over: this one stops serving it");
        }
    }
    supervisor::notify(supervisor::STOPPING);
    if let Some(outbox) = outbox {
        outbox.stop().await;
    }
    if let Some(http) = http {
        http.close().await;
    }
    listener.close().await;
    // After the listeners: what their clients published last goes out too.
    if let Some(cluster) = &cluster {
        cluster::stop(config, cluster).await?;
    }
    if let Some(traces) = traces {
        traces.finish().await;
    }
    keeping.abort();
    ticking.abort();
    Ok(())
}

/// Reads roles and identities.
pub(crate) fn open_auth(config: &Config, broker: &Broker) -> Result<Auth, Failure> {
    let options = auth_options(config)?;
    Auth::open(broker, options).map_err(|error| {
        Failure::failed(error).hint("nothing was served; the messages are not touched by this")
    })
}

fn auth_options(config: &Config) -> Result<AuthOptions, ConfigError> {
    let required = switch(config, "auth.required")?;
    let text = |key| Some(config.text(key).to_owned()).filter(|text| !text.is_empty());
    let jwt = text("auth.jwt_keys").map(|keys| JwtOptions {
        keys: keys.into(),
        issuer: text("auth.jwt_issuer"),
        audience: text("auth.jwt_audience"),
    });
    let audit_bytes = Some(config.get("audit.keep_bytes")?).filter(|bytes| *bytes > 0);
    let rules_file = text("auth.rules_file").map(Into::into);
    Ok(AuthOptions { required, jwt, rules_file, audit_bytes })
}

/// Ends what is over, about once a second.
pub(crate) async fn keep_auth(auth: Auth) {
    let mut due = tokio::time::interval(AUTH_TICK);
    loop {
        due.tick().await;
        let auth = auth.clone();
        // What failed now is tried again at the next tick.
        let _ = tokio::task::spawn_blocking(move || auth.tick()).await;
    }
}

/// A key that is true or false.
pub(crate) fn switch(config: &Config, key: &'static str) -> Result<bool, ConfigError> {
    match config.text(key) {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(config.bad(key, "use true or false")),
    }
}

/// Starts the leader of jobs, unless it is switched off.
pub(crate) async fn lead_jobs(config: &Config, broker: &Broker) -> Result<Option<Leader>, Failure> {
    let Some(options) = leader_options(config)? else { return Ok(None) };
    let leader = Leader::start(broker, options).await.map_err(|error| {
        Failure::failed(format!("jobs cannot be led: {error}"))
            .hint("start without them: --set jobs.enabled=false")
    })?;
    Ok(Some(leader.with_routes(job_routes(config)?)))
}

fn job_routes(config: &Config) -> Result<Routes, ConfigError> {
    let routes: Result<Routes, String> = config.text("jobs.routes").parse();
    let routes = routes.map_err(|why| config.bad("jobs.routes", &why))?;
    Ok(routes.by(tls::to_leaders(config)?))
}

fn leader_options(config: &Config) -> Result<Option<LeaderOptions>, ConfigError> {
    let limits = Limits {
        lease: Duration::from_millis(at_least(config, "jobs.lease_ms", LEASE_MS_MIN)?),
        keep: config.get("jobs.keep_results_ms").map(Duration::from_millis)?,
        ..Limits::default()
    };
    Ok(switch(config, "jobs.enabled")?.then_some(LeaderOptions { limits }))
}

/// That addresses to listen on have a port, before anything is opened.
fn check_addresses(config: &Config) -> Result<(), ConfigError> {
    for (key, port) in [("native.listen", 4281), ("http.listen", 4280), ("cluster.listen", 4282)] {
        let text = config.text(key);
        let has_port = text.rsplit_once(':').is_some_and(|(host, port)| {
            port.parse::<u16>().is_ok() && (!host.contains(':') || host.ends_with(']'))
        });
        if !text.is_empty() && !has_port {
            return Err(config.bad(key, &format!("write it as host:port, like 0.0.0.0:{port}")));
        }
    }
    Ok(())
}

pub(crate) fn unix_socket(config: &Config, data: &Path) -> Option<PathBuf> {
    match config.text("native.unix") {
        "" => None,
        "auto" => {
            let path = data.join("gapless.sock");
            let fits = path.as_os_str().len() <= SOCKET_PATH_BYTES_MAX;
            if !fits {
                let path = path.display();
                tracing::warn!(%path, "no Unix socket: its path is too long; set native.unix");
            }
            fits.then_some(path)
        }
        path => Some(PathBuf::from(path)),
    }
}

fn not_opened(data: &Path, error: &BrokerOpenError) -> Failure {
    let failure = Failure::failed(format!("cannot open {}: {error}", data.display()));
    match error {
        BrokerOpenError::Journal(OpenError::Log(LogError::Locked { .. })) => {
            failure.hint("another server uses this folder; choose another with --data DIR")
        }
        BrokerOpenError::Journal(
            OpenError::Log(LogError::Io { .. } | LogError::ReadOnly { .. }) | OpenError::Blobs(_),
        ) => failure.hint("check the path, its permissions and the disk; or --data DIR"),
        BrokerOpenError::Journal(_) => {
            let folder = data.display();
            failure.hint(format!("examine it, without changing it: gapless doctor --data {folder}"))
        }
        _ => failure,
    }
}

/// Says what opening found, where it is worth knowing.
pub(crate) fn tell_opened(opened: &Opened) {
    if let Some(torn) = &opened.torn {
        let (frame, place) = (torn.at.0, &torn.place);
        tracing::warn!(
            frame,
            place,
            "the log ended in an unfinished or damaged frame, which was cut; what a crash left \
             there was not acknowledged as flushed, what the disk damaged later may have been"
        );
    }
    if let Some((manifest, why)) = &opened.passed_over {
        tracing::warn!(manifest, why, "a manifest is damaged; its copy was used, nothing is lost");
    }
    if let Some((blob, why)) = &opened.checkpoint_restored {
        tracing::warn!(blob, why, "a copy of the checkpoint was written again, nothing is lost");
    }
    for (index, why) in &opened.indexes_rebuilt {
        tracing::warn!(index, why, "an index was rebuilt");
    }
    for blob in &opened.foreign {
        tracing::warn!(blob, "this looks like a part of another store; it was left alone");
    }
    for blob in &opened.orphans {
        tracing::info!(blob, "left by a crash and not needed; it was deleted");
    }
    if !opened.clean && !opened.created {
        let (frames, torn) = (opened.frames_replayed, opened.torn.is_some());
        match torn {
            true => tracing::info!(frames, "the last end was unclean; the log was replayed"),
            false => {
                tracing::info!(frames, "the last end was unclean; what was acknowledged is here");
            }
        }
    }
}

fn broker_options(config: &Config) -> Result<BrokerOptions, ConfigError> {
    let mut options = BrokerOptions::new(config.text("data"));
    options.journal.tail_bytes = config.get("journal.tail_bytes")?;
    options.journal.seal_bytes = at_least(config, "journal.seal_bytes", 1024 * 1024)?;
    options.journal.compact_within =
        Duration::from_millis(config.get("journal.compact_within_ms")?);
    options.journal.recovery_threads = at_least(config, "journal.recovery_threads", 1)?;
    options.journal.slow_flush = Duration::from_millis(config.get("log.slow_flush_ms")?);
    options.limits.topics_max = config.get("limits.topics_max")?;
    options.limits.subscriptions_max = config.get("limits.subscriptions_max")?;
    options.limits.message_bytes_max = config.get("limits.message_bytes_max")?;
    options.limits.recovery_bytes_max = config.get("limits.recovery_bytes_max")?;
    options.limits.volatile_bytes_max = config.get("limits.volatile_bytes_max")?;
    options.limits.mailboxes_bytes_max = config.get("limits.mailboxes_bytes_max")?;
    options.limits.cells_max = config.get("limits.cells_max")?;
    options.limits.cells_bytes_max = config.get("limits.cells_bytes_max")?;
    options.limits.delayed_max = config.get("limits.delayed_max")?;
    options.limits.mailbox_bytes_max = config.get("limits.mailbox_bytes_max")?;
    let durability = Durability::from_name(config.text("durability"));
    options.defaults.durability =
        durability.ok_or_else(|| config.bad("durability", "use memory, written or flushed"))?;
    if config.text("data").is_empty() {
        return Err(config.bad("data", "name a folder"));
    }
    Ok(options)
}

/// The memory that all listeners share.
fn memory_budget(config: &Config) -> Result<Budget, ConfigError> {
    let wait = Duration::from_millis(at_least(config, "limits.memory_wait_ms", 100)?);
    match config.text("limits.memory_bytes") {
        "auto" => Ok(Budget::quarter_of_memory(wait)),
        _ => Ok(Budget::new(at_least(config, "limits.memory_bytes", MEMORY_BYTES_MIN)?, wait)),
    }
}

fn native_options(config: &Config, memory: &Budget) -> Result<NativeOptions, ConfigError> {
    let ms = |key| config.get(key).map(Duration::from_millis);
    Ok(NativeOptions {
        connections_max: at_least(config, "native.connections_max", 1)?,
        subscriptions_max: config.get("native.subscriptions_max")?,
        frame_bytes_max: between(config, "native.frame_bytes_max", 8192, 4_194_304)?,
        in_flight_bytes_max: at_least(config, "native.in_flight_bytes_max", 1)?,
        in_flight_total_bytes_max: at_least(config, "native.in_flight_total_bytes_max", 1)?,
        hello_timeout: ms("native.hello_timeout_ms")?,
        memory: memory.clone(),
        idle_timeout: ms("native.idle_timeout_ms")?,
        write_timeout: write_timeout(config)?,
        drain: ms("native.drain_ms")?,
        awake: Duration::from_micros(between(config, "native.awake_us", 0, 1_000_000)? as u64),
        access_log: is_logged(config, "native")?,
        ..NativeOptions::default()
    })
}

/// Whether each request to a listener is a line of the log.
fn is_logged(config: &Config, listener: &str) -> Result<bool, ConfigError> {
    match config.text("log.access") {
        "off" => Ok(false),
        "all" => Ok(true),
        one @ ("http" | "native") => Ok(one == listener),
        _ => Err(config.bad("log.access", "use off, http, native or all")),
    }
}

fn log_limits(config: &Config) -> Result<log::Limits, ConfigError> {
    let lines = config.get("log.lines_per_s")?;
    Ok(log::Limits { lines, access: config.get("log.access_lines_per_s")? })
}

fn write_timeout(config: &Config) -> Result<Duration, ConfigError> {
    at_least(config, "limits.write_timeout_ms", 100).map(Duration::from_millis)
}

fn http_options(config: &Config, memory: &Budget) -> Result<HttpOptions, ConfigError> {
    let ms = |key| config.get(key).map(Duration::from_millis);
    let list = |key| {
        let items = config.text(key).split(',').map(str::trim);
        items.filter(|item| !item.is_empty()).map(str::to_owned).collect()
    };
    Ok(HttpOptions {
        connections_max: at_least(config, "http.connections_max", 1)?,
        streams_max: config.get("http.streams_max")?,
        body_bytes_max: at_least(config, "http.body_bytes_max", 1024)?,
        head_bytes_max: at_least(config, "http.head_bytes_max", 8192)?,
        head_timeout: ms("http.head_timeout_ms")?,
        body_timeout: ms("http.body_timeout_ms")?,
        memory: memory.clone(),
        write_timeout: write_timeout(config)?,
        long_poll: Duration::from_millis(at_least(config, "http.long_poll_ms", 100)?),
        members_max: at_least(config, "http.members_max", 1)?,
        history_step: Duration::from_millis(at_least(config, "http.history_step_ms", 100)?),
        member_idle: Duration::from_millis(at_least(config, "http.member_idle_ms", 100)?),
        drain: ms("http.drain_ms")?,
        metrics_topics_max: config.get("http.metrics_topics_max")?,
        hosts: list("http.hosts"),
        cors_origins: list("http.cors_origins"),
        access_log: is_logged(config, "http")?,
        ..HttpOptions::default()
    })
}

pub(crate) fn at_least<T>(config: &Config, key: &'static str, least: T) -> Result<T, ConfigError>
where
    T: Copy + FromStr + PartialOrd + std::fmt::Display,
{
    let value: T = config.get(key)?;
    if value >= least { Ok(value) } else { Err(config.bad(key, &format!("use at least {least}"))) }
}

fn between(
    config: &Config,
    key: &'static str,
    least: usize,
    most: usize,
) -> Result<usize, ConfigError> {
    let value = at_least(config, key, least)?;
    if value <= most { Ok(value) } else { Err(config.bad(key, &format!("use at most {most}"))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(flags: &[&str]) -> Config {
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        Config::load(None, std::iter::empty(), &flags).unwrap()
    }

    #[test]
    fn every_default_is_accepted_and_is_the_brokers_own() {
        let plain = config(&[]);
        let (broker, native) =
            (broker_options(&plain).unwrap(), native_options(&plain, &Budget::default()).unwrap());
        let own = BrokerOptions::new("gapless-data");
        assert_eq!(broker.limits, own.limits);
        assert_eq!(broker.journal.tail_bytes, own.journal.tail_bytes);
        assert_eq!(broker.journal.seal_bytes, own.journal.seal_bytes);
        assert_eq!(native, NativeOptions::default());
        assert_eq!(leader_options(&plain).unwrap().unwrap().limits, Limits::default());
        assert_eq!(http_options(&plain, &Budget::default()).unwrap(), HttpOptions::default());
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        for (flag, key) in [
            ("durability=rock", "durability"),
            ("journal.seal_bytes=1", "journal.seal_bytes"),
            ("journal.recovery_threads=0", "journal.recovery_threads"),
            ("limits.topics_max=many", "limits.topics_max"),
            ("data=", "data"),
        ] {
            let error = broker_options(&config(&[flag])).err().expect(flag).to_string();
            assert!(error.contains(key), "{error}");
        }
        for flag in ["jobs.lease_ms=2999", "jobs.enabled=maybe", "jobs.keep_results_ms=1day"] {
            let error = leader_options(&config(&[flag])).expect_err(flag).to_string();
            assert!(error.contains(flag.split('=').next().unwrap()), "{error}");
        }
        assert!(leader_options(&config(&["jobs.enabled=false"])).unwrap().is_none());
        assert!(job_routes(&config(&["jobs.routes=render"])).is_err());
        assert_eq!(memory_budget(&config(&[])).unwrap(), Budget::default());
        assert!(memory_budget(&config(&["limits.memory_bytes=1"])).is_err());
        let some = memory_budget(&config(&["limits.memory_bytes=99999999"])).unwrap();
        assert_eq!(some.bytes_max(), 99_999_999);
        for flag in ["native.frame_bytes_max=1", "native.frame_bytes_max=99999999"] {
            assert!(native_options(&config(&[flag]), &Budget::default()).is_err());
        }
    }

    #[test]
    fn h5_connections_leave_the_store_its_open_files() {
        let within = |limit| {
            let OpenFiles { connections, segments } = OpenFiles::within(limit);
            (connections, segments)
        };
        assert_eq!(within(None).1, gapless_journal::OPEN_FILES_MAX);
        assert_eq!(within(Some(1024)), (1024 - 64 - 120, 120));
        assert_eq!(within(Some(20_000)), (20_000 - 64 - 128, 128));
        assert_eq!(within(Some(10)), (1, 2), "a server that can hardly live still serves one");
    }

    #[test]
    fn a_socket_path_that_is_too_long_is_left_out() {
        let plain = config(&[]);
        assert_eq!(unix_socket(&plain, Path::new("d")), Some("d/gapless.sock".into()));
        assert_eq!(unix_socket(&plain, Path::new(&"d".repeat(120))), None);
        assert_eq!(unix_socket(&config(&["native.unix="]), Path::new("d")), None);
        assert_eq!(unix_socket(&config(&["native.unix=x"]), Path::new("d")), Some("x".into()));
    }
}
