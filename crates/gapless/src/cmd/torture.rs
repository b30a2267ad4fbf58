//! `gapless torture`: kills, tears and fills on the user's own disk, and says which acks survived.
//!
//! A child server works in a folder of its own. Each round publishes at every durability, ends the
//! server at a random moment in one of several ways, opens the store again and compares what is there
//! with what was acked. What a power loss does is played on a copy: only bytes behind the last frame
//! that an ack called flushed are torn, as only these may be missing after one. How a disk treats what
//! was flushed, only pulling the plug shows.

mod child;
mod rounds;
mod tear;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use gapless_broker::{Clock, SystemClock, random_epoch};
use gapless_core::Durability;
use serde_json::{Value, json};

use crate::exit::{Done, Exit, Failure};
use crate::output::{Output, Table, human_number, human_span};
use crate::progress::Progress;
use rounds::{Blow, Rounds, Tally};

const EXAMPLES: &str = "\
Examples:
  gapless torture                               20 seconds in the current folder
  gapless torture /srv/gapless --seconds 300    on the disk that will hold the data
  gapless torture --json | jq '.broken'
  gapless torture --seed 7 --keep               the same random moments again; keep the folder

It creates a folder of its own in DIR, and removes it. Blows: kill (kill -9), tear (a power loss, played
on a copy by tearing what was not flushed yet) and fill (no file may grow, as on a full disk). A written
message must survive kill and fill, a flushed one all three; memory promises nothing, and what
survived is shown all the same. Exit code 3 says that a promise was broken: the folder is kept then.";

/// Kill, tear and fill a server on this disk, and show which acks survived
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TortureOptions {
    /// Where to do it
    #[arg(default_value = ".")]
    dir: PathBuf,
    /// How long it goes on
    #[arg(long, default_value = "20", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// The random moments of an earlier run again
    #[arg(long)]
    seed: Option<u64>,
    /// Keep the folder at the end
    #[arg(long)]
    keep: bool,
}

pub(crate) fn run(options: &TortureOptions, out: &mut Output) -> Done {
    let seed = options.seed.unwrap_or_else(|| random_epoch().0);
    let folder = make_folder(&options.dir)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut progress = Progress::new(out.quiet || out.json);
    let mut rounds = Rounds::new(folder.clone(), seed);
    let time = Duration::from_secs(options.seconds);
    let clock = SystemClock::default();
    let done = runtime.block_on(async {
        while clock.monotonic() < time {
            rounds.round().await?;
            progress.update(|elapsed| {
                let left = time.saturating_sub(elapsed);
                format!("{} rounds, {} to go", rounds.count, human_span(left))
            });
        }
        rounds.check_all().await
    });
    progress.clear();
    let broken = rounds.tally.broken();
    let keep = options.keep || done.is_err() || broken > 0;
    if !keep {
        remove(&folder, out);
    }
    done.map_err(|failure| failure.hint(format!("the folder is kept: {}", folder.display())))?;
    let elapsed = clock.monotonic();
    if out.json {
        let mut json = report_json(&rounds.tally);
        json["seed"] = seed.into();
        json["rounds"] = rounds.count.into();
        json["seconds"] = elapsed.as_secs_f64().into();
        json["folder"] = keep.then(|| folder.display().to_string()).into();
        out.json_line(&json)?;
    } else {
        out.table(&report_table(&rounds.tally))?;
        let (count, took) = (human_number(rounds.count), human_span(elapsed));
        let verdict = match broken {
            0 => out.paint.green("every promise was kept"),
            many => out
                .paint
                .red(format!("{} acked messages were lost against a promise", human_number(many))),
        };
        out.line(format_args!("\n{count} rounds in {took}, seed {seed}: {verdict}"))?;
        if keep {
            out.note(format_args!("the folder is kept: {}", folder.display()));
        }
    }
    Ok(if broken > 0 { Exit::Damage } else { Exit::Ok })
}

/// A folder that was not there before.
fn make_folder(dir: &Path) -> Result<PathBuf, Failure> {
    let folder = std::path::absolute(dir).map_err(Failure::words)?.join(format!(
        "gapless-torture-{}-{:08x}",
        std::process::id(),
        random_epoch().0 as u32
    ));
    std::fs::create_dir(&folder)
        .map_err(|error| Failure::words(format!("cannot create {}: {error}", folder.display())))?;
    Ok(folder)
}

fn remove(folder: &Path, out: &mut Output) {
    if let Err(error) = std::fs::remove_dir_all(folder) {
        out.note(format_args!("cannot remove {}: {error}", folder.display()));
    }
}

/// The durabilities, in the order of their promises.
const LEVELS: [Durability; 3] = [Durability::Memory, Durability::Written, Durability::Flushed];

/// Whether an ack of this durability promises to survive that.
fn promised(level: Durability, blow: Blow) -> bool {
    match blow {
        Blow::Kill | Blow::Fill => level >= Durability::Written,
        Blow::Tear => level >= Durability::Flushed,
    }
}

fn report_table(tally: &Tally) -> Table {
    let mut table = Table::new(&["BLOW", "DURABILITY", ">ROUNDS", ">ACKED", ">LOST", "RESULT"]);
    for (blow, level, row) in tally.rows() {
        let result = match (row.lost + row.wrong, promised(level, blow)) {
            _ if row.rounds == 0 => "not tried",
            (0, true) => "survived, as promised",
            (0, false) => "survived, though it was not promised",
            (_, false) => "lost some, as it may",
            (_, true) => "LOST, against its promise",
        };
        table.row(vec![
            blow.name().to_owned(),
            level.name().to_owned(),
            human_number(row.rounds),
            human_number(row.acked),
            human_number(row.lost),
            result.to_owned(),
        ]);
    }
    table
}

fn report_json(tally: &Tally) -> Value {
    let rows = tally.rows().map(|(blow, level, row)| {
        json!({
            "blow": blow.name(), "durability": level.name(), "promised": promised(level, blow),
            "rounds": row.rounds, "acked": row.acked, "lost": row.lost, "wrong": row.wrong,
        })
    });
    json!({ "broken": tally.broken(), "results": rows.collect::<Vec<_>>() })
}
