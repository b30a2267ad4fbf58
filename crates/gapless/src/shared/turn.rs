//! The time in which a node owns the journal: its broker, and all that serves it.

use std::sync::Arc;
use std::time::Duration;

use gapless_broker::{Broker, BrokerOpenError, BrokerOptions, Spread};
use gapless_engine::Store;
use gapless_jobs::Leader;
use gapless_journal::OpenError;
use gapless_server::Auth;
use gapless_server::http::HttpListener;
use gapless_server::native::{NativeGate, NativeListener, NativeOptions};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use super::clock;
use crate::cmd::outbox_run::Beside;
use crate::cmd::serve::{keep_auth, lead_jobs, open_auth, tell_opened};
use crate::config::Config;
use crate::engine;
use crate::exit::Failure;
use crate::{recorder, trace};

/// How long connections get to finish when the journal moves.
pub(super) const DRAIN: Duration = Duration::from_millis(250);
/// How long ending them may take in all before the journal is closed under them.
const DRAIN_MAX: Duration = Duration::from_millis(500);

/// A journal that is served here.
pub(super) struct Turn {
    pub(super) broker: Broker,
    auth: Auth,
    jobs: Option<Leader>,
    native: NativeListener,
    outbox: Option<Beside>,
    ticking: JoinHandle<()>,
    traces: Option<trace::Exporting>,
    /// How long opening took, replay included.
    pub(super) opening: Duration,
}

/// Why the journal is not served here. Nothing of it is left open.
#[derive(Debug)]
pub(super) enum NotServed {
    /// Another took over meanwhile.
    Faster,
    /// It failed.
    Failed(Failure),
}

/// What a turn is made of.
#[derive(Clone)]
pub(super) struct Parts {
    pub(super) config: Config,
    pub(super) store: Store,
    pub(super) options: BrokerOptions,
    pub(super) native: NativeOptions,
    pub(super) view: Arc<dyn Spread>,
}

impl Turn {
    /// Takes the journal over, and makes all that serves it.
    pub(super) async fn open(parts: Parts) -> Result<Self, NotServed> {
        let began = clock::now();
        let (store, options) = (parts.store.clone(), parts.options.clone());
        let opened = tokio::task::spawn_blocking(move || engine::open_on(&store, options)).await;
        let broker = match opened {
            Ok(Ok(broker)) => broker,
            Ok(Err(BrokerOpenError::Journal(OpenError::TakenOver { .. }))) => {
                return Err(NotServed::Faster);
            }
            Ok(Err(error)) => return Err(NotServed::Failed(Failure::failed(error))),
            Err(error) => return Err(NotServed::Failed(error.into())),
        };
        tell_opened(broker.opened());
        let (opening, closing) = (began.elapsed(), broker.clone());
        let started = Self::start(&parts, broker, opening).await;
        let failed = match started {
            Ok(turn) => return Ok(turn),
            Err(failed) => failed,
        };
        let fenced = closing.is_fenced();
        // What failed before is told; closing has nothing to add.
        let _ = tokio::task::spawn_blocking(move || closing.close()).await;
        Err(if fenced { NotServed::Faster } else { NotServed::Failed(failed) })
    }

    async fn start(parts: &Parts, broker: Broker, opening: Duration) -> Result<Self, Failure> {
        broker.set_spread(Arc::clone(&parts.view)).map_err(Failure::failed)?;
        let auth = open_auth(&parts.config, &broker)?;
        let jobs = lead_jobs(&parts.config, &broker).await?;
        let mut options = parts.native.clone();
        options.drain = options.drain.min(DRAIN);
        // Its connections are given to it, after TLS.
        let native =
            NativeListener::open_for(auth.clone(), jobs.clone(), options, None, None).await;
        let native = native.map_err(Failure::failed)?;
        let outbox = Beside::start(&parts.config, &broker)?;
        let ticking = tokio::spawn(keep_auth(auth.clone()));
        let traces = trace::Exporting::start(&parts.config, &broker)?;
        Ok(Self { broker, auth, jobs, native, outbox, ticking, traces, opening })
    }

    /// By what connections are given to it.
    pub(super) fn gate(&self) -> NativeGate {
        self.native.gate()
    }

    /// Serves it over HTTP too.
    pub(super) fn serve_http(&self, http: &mut HttpListener) {
        if let Some(outbox) = &self.outbox {
            http.outbox(outbox.state.clone());
        }
        if let Some(leader) = &self.jobs {
            http.leads(leader.clone());
        }
        http.beside(&self.native);
        http.serve_for(self.auth.clone(), Some(recorder::handle()));
    }

    /// Ends it: connections get a moment to finish, what was accepted is flushed, and others are told
    /// that they need not wait. Whether that is all in the store.
    pub(super) async fn close(
        self,
        http: Option<Arc<Mutex<HttpListener>>>,
        (store, me): (Store, String),
    ) -> bool {
        let Self { broker, native, outbox, ticking, traces, .. } = self;
        ticking.abort();
        let fenced = broker.is_fenced();
        let ending = async {
            let streams = async {
                if let Some(http) = http {
                    http.lock().await.stop_serving(DRAIN).await;
                }
            };
            let outbox = async {
                if let Some(outbox) = outbox {
                    outbox.stop().await;
                }
            };
            tokio::join!(streams, native.close(), outbox);
        };
        // Those that are not done by then end with the journal.
        let _ = tokio::time::timeout(DRAIN_MAX, ending).await;
        if let Some(traces) = traces {
            // The next owner does not wait for the last spans.
            tokio::spawn(traces.finish());
        }
        let closed = tokio::task::spawn_blocking(move || {
            let closed = broker.close();
            if closed.is_ok() && !fenced {
                // Without it the next owner waits a little.
                let _ = store.release(0, &me);
            }
            closed
        });
        match closed.await {
            Ok(Ok(())) => true,
            Ok(Err(error)) if !fenced => {
                tracing::warn!(%error, "the journal did not close cleanly; nothing acknowledged is lost");
                false
            }
            Ok(Err(_)) => true,
            Err(error) => {
                tracing::error!(%error, "closing the journal failed");
                false
            }
        }
    }
}
