//! `gapless outbox status`: the numbers of an outbox, once or again and again.

use std::time::Duration;

use gapless_outbox::{Database, Observer, Status};
use serde_json::{Value, json};
use tokio::time::interval;

use super::outbox::failed;
use crate::exit::{Done, Exit};
use crate::output::{Output, Table, human_duration, human_number};
use crate::remote::Interrupt;

/// How often it is shown when it is watched.
const WATCH_EVERY: Duration = Duration::from_secs(1);

pub(crate) async fn run(database: &Database, watch: bool, out: &mut Output) -> Done {
    if !watch {
        let state = gapless_outbox::status(database).await.map_err(failed)?;
        show(&state, out)?;
        return Ok(Exit::Ok);
    }
    let mut interrupt = Interrupt::listen()?;
    let mut every = interval(WATCH_EVERY);
    let mut observer = Observer::new(database.clone());
    loop {
        tokio::select! {
            () = interrupt.came() => return Ok(Exit::Ok),
            _ = every.tick() => {}
        }
        match observer.status().await {
            Ok(state) => show(&state, out)?,
            // With `--watch` it is tried again, to show when it is back.
            Err(error) if error.passes() => out.note(error),
            Err(error) => return Err(failed(error)),
        }
        out.flush()?;
    }
}

fn show(state: &Status, out: &mut Output) -> std::io::Result<()> {
    if out.json {
        return out.json_line(&shown(state));
    }
    let unsettled = state.drawn - state.safe;
    out.line(format_args!(
        "settled up to {}, {} unsettled, kept from {} for {}",
        state.safe,
        human_number(unsettled),
        state.floor + 1,
        human_duration(state.retention)
    ))?;
    match &state.fence_owner {
        Some(owner) => out.line(format_args!("fence run by {owner}, epoch {}", state.epoch))?,
        None if state.standby => out.line("a standby: the fence runs on the primary")?,
        None => out.line(
            "NO FENCE RUNS: nothing more is settled. Start `gapless outbox run` or `outbox fence`",
        )?,
    }
    if let Some(culprit) = &state.culprit {
        out.line(out.paint.yellow(culprit))?;
    }
    let mut table = Table::new(&["consumer", ">done up to", ">backlog", ">age", ">dead", "state"]);
    for consumer in &state.consumers {
        let doing = match (consumer.behind_retention, consumer.running) {
            (true, _) => "behind retention: rebuild it",
            (false, true) => "running",
            (false, false) => "not running",
        };
        table.row(vec![
            consumer.name.clone(),
            consumer.last_seq.to_string(),
            human_number(consumer.backlog),
            human_duration(consumer.age),
            human_number(consumer.dead_letters),
            doing.to_owned(),
        ]);
    }
    if state.consumers.is_empty() {
        return out.line("no consumer yet");
    }
    out.table(&table)
}

/// The same for programs.
pub(crate) fn shown(state: &Status) -> Value {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let culprit = state.culprit.as_ref().map(|culprit| {
        json!({
            "pid": culprit.pid, "name": culprit.name, "state": culprit.state,
            "held_ms": ms(culprit.held), "text": culprit.to_string(),
        })
    });
    let consumers = state.consumers.iter().map(|consumer| {
        json!({
            "name": consumer.name, "last_seq": consumer.last_seq, "backlog": consumer.backlog,
            "age_ms": ms(consumer.age), "running": consumer.running,
            "behind_retention": consumer.behind_retention,
            "dead_letters": consumer.dead_letters,
        })
    });
    json!({
        "safe_seq": state.safe, "unsettled": state.drawn - state.safe, "floor_seq": state.floor,
        "epoch": state.epoch, "standby": state.standby, "retention_ms": ms(state.retention),
        "fence_owner": state.fence_owner, "culprit": culprit,
        "consumers": consumers.collect::<Vec<_>>(),
    })
}
