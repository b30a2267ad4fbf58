//! `gapless serve`: open the store and its doors, until told to stop.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use gapless_broker::{Broker, BrokerOptions, Opened};
use gapless_core::Durability;
use gapless_doors::native::{NativeDoor, NativeOptions};
use tokio::signal::unix::{SignalKind, signal};

use super::Done;
use crate::config::{Config, ConfigError};

pub(crate) fn run(config: &Config, out: &mut dyn Write) -> Done {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(config, out))
}

async fn serve(config: &Config, out: &mut dyn Write) -> Done {
    let (options, native) = (broker_options(config)?, native_options(config)?);
    let data = options.folder.clone();
    let broker = tokio::task::spawn_blocking(move || Broker::open(options)).await??;
    tell_opened(broker.opened());
    let tcp = Some(config.text("native.listen")).filter(|address| !address.is_empty());
    let unix = match config.text("native.unix") {
        "" => None,
        "auto" => Some(data.join("gapless.sock")),
        path => Some(PathBuf::from(path)),
    };
    let door = NativeDoor::open(broker.clone(), native, tcp, unix.as_deref()).await?;
    writeln!(out, "gapless {} is ready", env!("CARGO_PKG_VERSION"))?;
    writeln!(out, "  data    {} (epoch {})", data.display(), broker.epoch())?;
    if let Some(address) = door.tcp_address() {
        writeln!(out, "  native  {address}")?;
    }
    if let Some(path) = &unix {
        writeln!(out, "  native  unix:{}", path.display())?;
    }
    writeln!(out, "Stop it with Ctrl-C; try `gapless pub hello.world 'first message'`.")?;
    out.flush()?;
    wait_for_signal().await?;
    tracing::info!("stopping: connections get a moment to finish");
    door.close().await;
    tokio::task::spawn_blocking(move || broker.close()).await??;
    tracing::info!("stopped cleanly");
    Ok(ExitCode::SUCCESS)
}

async fn wait_for_signal() -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// Says what opening found, where it is worth knowing.
fn tell_opened(opened: &Opened) {
    if let Some(torn) = &opened.torn {
        let (frame, place) = (torn.at.0, &torn.place);
        tracing::warn!(frame, place, "the log had an unfinished end, which was cut");
    }
    for (index, why) in &opened.indexes_rebuilt {
        tracing::warn!(index, why, "an index was made anew");
    }
    if !opened.clean && !opened.created {
        let frames = opened.frames_replayed;
        tracing::info!(frames, "the last end was unclean; what was acknowledged is here");
    }
}

fn broker_options(config: &Config) -> Result<BrokerOptions, ConfigError> {
    let mut options = BrokerOptions::new(config.text("data"));
    options.journal.tail_bytes = config.get("journal.tail_bytes")?;
    options.journal.seal_bytes = at_least(config, "journal.seal_bytes", 1024 * 1024)?;
    options.journal.recovery_threads = at_least(config, "journal.recovery_threads", 1)?;
    options.limits.topics_max = config.get("limits.topics_max")?;
    options.limits.subscriptions_max = config.get("limits.subscriptions_max")?;
    options.limits.message_bytes_max = config.get("limits.message_bytes_max")?;
    options.limits.recovery_bytes_max = config.get("limits.recovery_bytes_max")?;
    options.limits.mailbox_bytes_max = config.get("limits.mailbox_bytes_max")?;
    let durability = Durability::from_name(config.text("durability"));
    options.defaults.durability = durability
        .ok_or_else(|| config.bad("durability", "use memory, written or flushed"))?;
    Ok(options)
}

fn native_options(config: &Config) -> Result<NativeOptions, ConfigError> {
    let ms = |key| config.get(key).map(Duration::from_millis);
    Ok(NativeOptions {
        connections_max: at_least(config, "native.connections_max", 1)?,
        subscriptions_max: config.get("native.subscriptions_max")?,
        frame_bytes_max: at_least(config, "native.frame_bytes_max", 8192)?,
        in_flight_bytes_max: at_least(config, "native.in_flight_bytes_max", 1)?,
        in_flight_total_bytes_max: at_least(config, "native.in_flight_total_bytes_max", 1)?,
        hello_timeout: ms("native.hello_timeout_ms")?,
        idle_timeout: ms("native.idle_timeout_ms")?,
        drain: ms("native.drain_ms")?,
        ..NativeOptions::default()
    })
}

fn at_least<T>(config: &Config, key: &'static str, least: T) -> Result<T, ConfigError>
where
    T: FromStr + PartialOrd + std::fmt::Display,
    T::Err: std::fmt::Display,
{
    let value: T = config.get(key)?;
    if value >= least { Ok(value) } else { Err(config.bad(key, &format!("use at least {least}"))) }
}
