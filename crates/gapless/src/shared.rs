//! A node that shares its store with others: any node takes any request, one owns the journal at a time
//! (`docs/adr/0018`).
//!
//! Here is its life as a whole: what is opened once (listeners, the cluster, its own small broker), and
//! how it stops. `shared/control.rs` runs the machine that decides who owns the journal,
//! `shared/turn.rs` is serving it, `shared/view.rs` what nodes say of themselves and show.

mod clock;
mod control;
mod turn;
mod view;

use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use gapless_broker::{Broker, BrokerOptions};
use gapless_cluster::{Cluster, ForwardedClient};
use gapless_protocol::link::{ClientApi, LinkClient};
use gapless_server::forward::{Dial, Dialled, Duplex, ForwardedFrom, Routes, Target};
use gapless_server::http::{HttpGate, HttpListener, HttpOptions, Node};
use gapless_server::native::{NativeFront, NativeOptions};
use serde_json::json;
use tokio::sync::{Mutex, Notify, mpsc};

use crate::cluster;
use crate::cmd::serve::{at_least, open, switch, unix_socket};
use crate::config::{Config, ConfigError};
use crate::engine::{self, Place};
use crate::exit::{Done, Exit, Failure};
use crate::output::Output;
use crate::recorder;
use crate::shared::control::Control;
use crate::supervisor;

/// The folder of the node's own broker, inside the data folder.
const NODE_FOLDER: &str = "node";
/// Clients of other nodes that wait to be taken.
const FORWARDED_MAX: usize = 256;
/// The shortest time that a request waits for an owner, in milliseconds.
const WAIT_MS_MIN: u64 = 100;

/// Whether the configuration asks for a shared store, and whether that makes sense.
pub(crate) fn is_asked_for(config: &Config, place: Option<&Place>) -> Result<bool, ConfigError> {
    at_least(config, "store.wait_ms", WAIT_MS_MIN)?;
    if !switch(config, "store.shared")? {
        return Ok(false);
    }
    let bad = |why| Err(config.bad("store.shared", why));
    let Some(place) = place else { return bad("nodes share a store: --store URL") };
    if place.standby {
        return bad("a node that shares its store is no standby: leave out --standby");
    }
    if place.journals() != 1 {
        return Err(config.bad("store.journals", "a shared store has 1 journal in this version"));
    }
    if config.text("cluster.node").is_empty() {
        return bad("nodes find each other as a cluster: --node NAME --cluster-listen ADDR");
    }
    // Nodes believe each other who a client is.
    if switch(config, "auth.required")? && !cluster::asks(config) {
        let why = "where clients must prove who they are, nodes must too: cluster.secret_file, or \
                   cluster.tls_cert";
        return bad(why);
    }
    Ok(true)
}

/// Reaches other nodes over the cluster.
struct Dialler(Weak<Cluster>);

impl Dial for Dialler {
    fn dial(&self, node: &str, client: LinkClient) -> Dialled<'_> {
        let node = node.to_owned();
        Box::pin(async move {
            let gone = || "this node has left the cluster".to_owned();
            let cluster = self.0.upgrade().ok_or_else(gone)?;
            let linked = cluster.linked_nodes();
            let to = linked.iter().find(|peer| peer.node.as_str() == node);
            let to = to.ok_or_else(|| format!("there is no link to node {node}"))?;
            let stream = cluster.forward(to, client).await.map_err(|error| error.to_string())?;
            Ok(Box::new(stream) as Box<dyn Duplex>)
        })
    }
}

/// What is open as long as the node lives.
pub(crate) struct Fronts {
    native: NativeFront,
    pub(crate) http: Option<Arc<Mutex<HttpListener>>>,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) routes: Routes,
    addresses: Addresses,
    node: Broker,
}

struct Addresses {
    native: Option<String>,
    unix: Option<String>,
    http: Option<String>,
    encrypted: bool,
}

/// Serves a store together with other nodes until it is told to stop.
pub(crate) async fn serve(
    (config, place): (&Config, &Place),
    options: &BrokerOptions,
    (native, http): (NativeOptions, HttpOptions),
    out: &mut Output,
) -> Done {
    let to_reach = place.clone();
    let store = tokio::task::spawn_blocking(move || engine::reach(&to_reach, true)).await?;
    let store = store.map_err(Failure::failed)?;
    let asked = Arc::new(Notify::new());
    let (clients, forwarded) = mpsc::channel(FORWARDED_MAX);
    let fronts = Fronts::open(config, options, (native.clone(), http), (clients, &asked)).await?;
    let taking = tokio::spawn(take(forwarded, fronts.routes.clone(), fronts.gate().await));
    let control = Control::new((config, place), store, (options.clone(), native), &fronts, asked);
    let ended = control.run(&fronts, out).await;
    supervisor::notify(supervisor::STOPPING);
    taking.abort();
    fronts.close(config).await?;
    ended?;
    tracing::info!("stopped cleanly");
    Ok(Exit::Ok)
}

impl Fronts {
    async fn open(
        config: &Config,
        options: &BrokerOptions,
        (native, http): (NativeOptions, HttpOptions),
        (clients, asked): (mpsc::Sender<ForwardedClient>, &Arc<Notify>),
    ) -> Result<Self, Failure> {
        let data = Path::new(config.text("data"));
        std::fs::create_dir_all(data)?;
        let mut own = BrokerOptions::new(data.join(NODE_FOLDER));
        own.open_files_max = options.open_files_max;
        let node = tokio::task::spawn_blocking(move || open(&own)).await?;
        let node = node.map_err(|error| {
            Failure::failed(format!("cannot open {NODE_FOLDER} in {}: {error}", data.display()))
        })?;
        let mut joining = cluster::options(config)?;
        if let Some(joining) = &mut joining {
            (joining.forwarded, joining.asked_to_leave) = (Some(clients), Some(Arc::clone(asked)));
        }
        let cluster = cluster::start(joining, &node).await?;
        let cluster = Arc::new(cluster.ok_or_else(|| Failure::words("a cluster is needed"))?);
        let wait = Duration::from_millis(config.get("store.wait_ms")?);
        let routes = Routes::new(Dialler(Arc::downgrade(&cluster)), wait, native.memory.clone());
        let tcp = Some(config.text("native.listen")).filter(|address| !address.is_empty());
        let (unix, encrypted) = (unix_socket(config, data), native.tls.is_some());
        let front = NativeFront::open(native, routes.clone(), tcp, unix.as_deref()).await;
        let front = front.map_err(|error| {
            Failure::failed(error)
                .hint("choose another with --listen host:port; port 0 takes a free one")
        })?;
        let http = match config.text("http.listen") {
            "" => None,
            address => {
                let asks = switch(config, "auth.required")?;
                let shown = Node { broker: &node, metrics: Some(recorder::handle()), asks };
                let opened =
                    HttpListener::listen_shared(http, address, routes.clone(), shown).await;
                Some(opened.map_err(|error| {
                    Failure::failed(error).hint("choose another with --http host:port")
                })?)
            }
        };
        let scheme = if encrypted { "https" } else { "http" };
        let addresses = Addresses {
            native: front.tcp_address().map(|address| address.to_string()),
            unix: unix.map(|path| format!("unix:{}", path.display())),
            http: http.as_ref().map(|http| format!("{scheme}://{}", http.address())),
            encrypted,
        };
        let http = http.map(|http| Arc::new(Mutex::new(http)));
        Ok(Self { native: front, http, cluster, routes, addresses, node })
    }

    async fn gate(&self) -> Option<HttpGate> {
        match &self.http {
            Some(http) => Some(http.lock().await.gate()),
            None => None,
        }
    }

    /// Says that requests are taken.
    fn tell_ready(&self, url: &str, out: &mut Output) -> Result<(), Failure> {
        let Addresses { native, unix, http, encrypted } = &self.addresses;
        let (node, address) = (self.cluster.node(), self.cluster.address());
        if out.json {
            out.json_line(&json!({
                "event": "ready", "version": env!("CARGO_PKG_VERSION"), "native": native,
                "unix": unix, "http": http, "tls": encrypted, "store": url,
                "cluster": { "node": node.as_str(), "address": address.to_string() },
            }))?;
        } else {
            out.line(format_args!("gapless {} is ready", env!("CARGO_PKG_VERSION")))?;
            out.line(format_args!("  store   {url} (shared)"))?;
            for address in [native, unix].into_iter().flatten() {
                out.line(format_args!("  native  {address}"))?;
            }
            if let Some(http) = http {
                out.line(format_args!("  http    {http}"))?;
            }
            out.line(format_args!("  node    {node} at {address}"))?;
            if !out.quiet {
                out.line("Stop it with Ctrl-C; see: gapless cluster journals")?;
            }
        }
        out.flush()?;
        supervisor::notify(supervisor::READY);
        Ok(())
    }

    /// Ends the listeners, leaves the cluster, and closes the node's own broker.
    async fn close(self, config: &Config) -> Result<(), Failure> {
        let Self { native, http, cluster, node, .. } = self;
        if let Some(http) = http.and_then(Arc::into_inner) {
            http.into_inner().close().await;
        }
        native.close().await;
        cluster::stop(config, &cluster).await?;
        drop(cluster);
        tokio::task::spawn_blocking(move || node.close()).await?.map_err(Failure::failed)
    }
}

/// Takes clients that other nodes forward; one that came too late or too early ends, and comes again.
async fn take(
    mut forwarded: mpsc::Receiver<ForwardedClient>,
    routes: Routes,
    http: Option<HttpGate>,
) {
    while let Some(ForwardedClient { client, stream }) = forwarded.recv().await {
        let LinkClient { api, address, certificate, peer } = client;
        let from = ForwardedFrom { address, certificate, peer };
        let Target::Here(gate) = routes.target() else { continue };
        match (api, &http) {
            (ClientApi::Native, _) => gate.give_forwarded(from, Box::new(stream)).await,
            (ClientApi::Http, Some(http)) => http.give_forwarded(from, Box::new(stream)),
            // A node without HTTP that owns the store serves it to those that have it.
            (ClientApi::Http, None) => {
                tracing::warn!(
                    "another node forwards HTTP, and this one has none: set http.listen"
                );
            }
        }
    }
}
