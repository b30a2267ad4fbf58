//! A store on object storage, as `serve` uses it: waiting for its turn, opening, showing that it
//! lives, noticing that another took over.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gapless_broker::{Broker, BrokerOpenError, BrokerOptions, random_epoch, random_secret};
use gapless_engine::{JOURNALS_MAX, Spans, Store, StoreError, StoreOptions, Watch};
use gapless_journal::OpenError;
use serde_json::json;
use tokio::time::MissedTickBehavior;

use crate::cmd::serve::{at_least, switch};
use crate::config::{Config, ConfigError};
use crate::exit::Failure;
use crate::output::Output;
use crate::remote::Interrupt;

/// The folder of the cache, inside the data folder.
const CACHE_FOLDER: &str = "cache";
/// How often opening is tried again when another took over meanwhile.
const OPENINGS_MAX: u32 = 5;
/// The longest linger, in milliseconds.
const LINGER_MS_MAX: u64 = 1_000;
/// The shortest time between two beats, in milliseconds.
const BEAT_MS_MIN: u64 = 100;
/// Looks of a standby in the time of a beat.
const LOOKS_PER_BEAT: u32 = 2;

/// Where a store is, and how it is to be served.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    url: String,
    pub(crate) standby: bool,
    beat: Duration,
    takeover: Duration,
    journals: u16,
    linger: Duration,
    cache: (PathBuf, u64),
}

impl Place {
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// How many journals the store has.
    pub(crate) fn journals(&self) -> u16 {
        self.journals
    }

    /// How often an owner shows that it lives, and how long it may not before it is taken for dead.
    pub(crate) fn spans(&self) -> (Duration, Duration) {
        (self.beat, self.takeover)
    }
}

/// The store that this server owns.
#[derive(Debug)]
pub(crate) struct Owned {
    place: Place,
    store: Store,
}

impl Owned {
    pub(crate) fn url(&self) -> &str {
        &self.place.url
    }
}

/// The place that is configured, if the store is not in the data folder.
pub(crate) fn place(config: &Config) -> Result<Option<Place>, ConfigError> {
    let standby = switch(config, "store.standby")?;
    let beat = at_least(config, "store.beat_ms", BEAT_MS_MIN)?;
    let takeover: u64 = config.get("store.takeover_ms")?;
    if takeover < 2 * beat {
        return Err(config.bad("store.takeover_ms", "use at least twice store.beat_ms"));
    }
    let linger: u64 = config.get("store.linger_ms")?;
    if linger > LINGER_MS_MAX {
        return Err(config.bad("store.linger_ms", &format!("use at most {LINGER_MS_MAX}")));
    }
    let journals: u16 = config.get("store.journals")?;
    if !(1..=JOURNALS_MAX).contains(&journals) {
        return Err(config.bad("store.journals", &format!("use 1 to {JOURNALS_MAX}")));
    }
    let cache = PathBuf::from(config.text("data")).join(CACHE_FOLDER);
    let cache = (cache, config.get("store.cache_bytes")?);
    let url = config.text("store.url").to_owned();
    if url.is_empty() {
        return match standby {
            true => Err(config.bad("store.standby", "a standby needs a store: --store URL")),
            false => Ok(None),
        };
    }
    let millis = Duration::from_millis;
    let (beat, takeover, linger) = (millis(beat), millis(takeover), millis(linger));
    Ok(Some(Place { url, standby, beat, takeover, journals, linger, cache }))
}

/// Reaches the store; makes it if it is new and `create` says so.
pub(crate) fn reach(place: &Place, create: bool) -> Result<Store, StoreError> {
    let spans = Spans { linger: place.linger, ..Spans::default() };
    let cache = create.then(|| place.cache.clone());
    let options =
        StoreOptions { spans, journals: place.journals, create, cache, ..StoreOptions::default() };
    Store::open(&place.url, options)
}

/// Opens the store when it is this server's turn; `None` if it was told to stop before.
pub(crate) async fn open(
    place: &Place,
    options: BrokerOptions,
    out: &mut Output,
) -> Result<Option<(Broker, Owned)>, Failure> {
    let to_reach = place.clone();
    let store = tokio::task::spawn_blocking(move || reach(&to_reach, true)).await?;
    let store = store.map_err(Failure::failed)?;
    std::fs::create_dir_all(&options.folder)?;
    let owned = Owned { place: place.clone(), store };
    for tries in 1.. {
        if place.standby && !wait_for_turn(&owned, out).await? {
            return Ok(None);
        }
        let (store, options) = (owned.store.clone(), options.clone());
        match tokio::task::spawn_blocking(move || open_on(&store, options)).await? {
            Ok(broker) => return Ok(Some((broker, owned))),
            // Another was faster; what it did is found by the next try.
            Err(BrokerOpenError::Journal(OpenError::TakenOver { .. })) if tries < OPENINGS_MAX => {}
            Err(error) => {
                return Err(Failure::failed(format!("cannot open {}: {error}", place.url)));
            }
        }
    }
    Ok(None)
}

/// Takes over journal 0 of a store.
pub(crate) fn open_on(store: &Store, options: BrokerOptions) -> Result<Broker, BrokerOpenError> {
    let new = (options.epoch.unwrap_or_else(random_epoch), random_secret());
    let clock = Arc::clone(&options.clock);
    let parts = store.parts(0, new, Arc::new(move || clock.monotonic()), options.threads);
    Broker::open_on(parts, options)
}

/// Waits until the owner shows no sign of life; false if it was told to stop before.
async fn wait_for_turn(owned: &Owned, out: &mut Output) -> Result<bool, Failure> {
    let Place { url, beat, takeover, .. } = &owned.place;
    if out.json {
        out.json_line(&json!({ "event": "standby", "store": url }))?;
    } else {
        out.line(format_args!("gapless {} stands by", env!("CARGO_PKG_VERSION")))?;
        out.line(format_args!("  store   {url}"))?;
    }
    out.flush()?;
    let mut interrupt = Interrupt::listen()?;
    let mut watch = owned.store.watch(0);
    let mut looks = tokio::time::interval(*beat / LOOKS_PER_BEAT);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut silent = 0;
    loop {
        tokio::select! {
            () = interrupt.came() => return Ok(false),
            _ = looks.tick() => {}
        }
        let looked;
        (watch, looked) = tokio::task::spawn_blocking(move || look(watch)).await?;
        match looked {
            Ok(true) => silent = 0,
            Ok(false) => silent += 1,
            Err(error) => tracing::warn!(%error, "the standby cannot see the store"),
        }
        if !watch.has_owner() || *beat / LOOKS_PER_BEAT * silent >= *takeover {
            tracing::info!(silent_looks = silent, "no sign of an owner: taking the store over");
            return Ok(true);
        }
    }
}

fn look(mut watch: Watch) -> (Watch, Result<bool, StoreError>) {
    let looked = watch.look();
    (watch, looked)
}

/// Shows that this server lives, until another has taken the store over; for ever if it owns none.
pub(crate) async fn until_fenced(owned: Option<&Owned>, broker: &Broker) {
    let Some(owned) = owned else { return std::future::pending().await };
    let mut beats = tokio::time::interval(owned.place.beat);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let me = format!("{}", std::process::id());
    loop {
        beats.tick().await;
        let (broker, store, me) = (broker.clone(), owned.store.clone(), me.clone());
        let beat = tokio::task::spawn_blocking(move || {
            // First, so that one who was replaced does not look alive.
            let confirmed = broker.confirm_owner();
            let told = confirmed.is_ok().then(|| store.beat(0, &me));
            (broker.is_fenced(), told)
        });
        match beat.await {
            Ok((true, _)) => return,
            Ok((false, Some(Err(error)))) => tracing::debug!(%error, "a beat was not written"),
            Ok(_) => {}
            Err(error) => tracing::error!(%error, "a beat failed"),
        }
    }
}
