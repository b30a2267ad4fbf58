//! Side by side: gapless and what people use today, in one run on one machine.
//!
//! The same work on each, with real servers in processes of their own and load generators of
//! our own, in turn, several rounds; then medians with their spread, ratios to the best peer,
//! CPU of both sides and memory. See `docs/benchmarks.md` for method and fairness.
//!
//! Below: `systems.rs` says what a generator needs from a system and one file per protocol
//! has it (`native.rs`, `nats.rs`, `redis.rs`); `server.rs` starts and ends the programs;
//! one file per kind of work measures; `report.rs` keeps figures and the rest shows them.

mod about;
pub(crate) mod bare;
mod chart;
pub(crate) mod cluster;
mod crowd;
mod goals;
mod groups;
mod http;
mod keyed;
mod limits;
mod link;
mod live;
mod load;
mod many;
mod native;
mod native_groups;
mod nats;
mod paced;
mod page;
mod plan;
mod publish;
mod redis;
mod report;
mod rights;
mod run;
pub(crate) mod scale;
mod server;
mod show;
mod stats;
mod stored;
mod systems;
mod tls;

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use gapless_bench::scratch::Scratch;

use crate::benches::store::Result;
use plan::{Plan, Work};
use report::Report;
use run::Run;
use server::Programs;

/// Rounds beyond this would only take time.
const ROUNDS_MAX: u64 = 100;

/// What is compared, and how long it may take.
#[derive(Args)]
pub(crate) struct CompareArgs {
    /// Small and short: under three minutes. Without it, under half an hour.
    #[arg(long)]
    quick: bool,
    /// A few messages each, to see that everything works; no figure means anything.
    #[arg(long, hide = true, conflicts_with = "quick")]
    tiny: bool,
    /// Only what the goals of docs/benchmarks.md need, in three rounds, and their table: about ten
    /// minutes.
    #[arg(long, conflicts_with_all = ["quick", "only", "write_docs"])]
    goals: bool,
    /// Only these kinds of work, with commas between [default: all].
    #[arg(long, value_delimiter = ',', value_name = "WORK")]
    only: Vec<Work>,
    /// Only cases whose title has this text, such as "flushed, one at a time, 128 B"; what is
    /// `stored` is always measured whole.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    case: String,
    /// How many rounds; figures are medians over them.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=ROUNDS_MAX))]
    rounds: Option<u64>,
    #[command(flatten)]
    places: Places,
    /// The redis-server binary [default: in the folder of peers, or on the PATH].
    #[arg(long, value_name = "PATH")]
    redis_server: Option<PathBuf>,
    /// Folder for compare.json and compare.svg.
    #[arg(long, value_name = "DIR", default_value = "target/compare")]
    out: PathBuf,
    /// Also renew docs/benchmarks.md and its chart, in the current folder.
    #[arg(long)]
    write_docs: bool,
    /// Measure nothing; show this file of an earlier run again.
    #[arg(long, value_name = "JSON")]
    from: Option<PathBuf>,
}

/// Where programs are.
#[derive(Args)]
pub(crate) struct Places {
    /// The gapless binary [default: beside this program].
    #[arg(long, value_name = "PATH")]
    gapless: Option<PathBuf>,
    /// The nats-server binary [default: in the folder of peers, or on the PATH].
    #[arg(long, value_name = "PATH")]
    nats_server: Option<PathBuf>,
    /// Where `bench/compare` has put peers.
    #[arg(long, value_name = "DIR", default_value = "target/peers")]
    peers: PathBuf,
    /// Without peers.
    #[arg(long)]
    alone: bool,
}

impl Places {
    /// gapless and nats-server; a peer that is missing is left out.
    fn programs(&self) -> Result<Programs> {
        let beside = std::env::current_exe()?.with_file_name("gapless");
        let gapless = self.gapless.clone().unwrap_or(beside);
        if !gapless.is_file() {
            let path = gapless.display();
            return Err(format!(
                "there is no {path}: build it (cargo build --release -p gapless), \
                 or name it (--gapless PATH)"
            )
            .into());
        }
        Ok(Programs { gapless, nats: self.peer(&self.nats_server, "nats-server")?, redis: None })
    }

    fn peer(&self, given: &Option<PathBuf>, name: &str) -> Result<Option<PathBuf>> {
        if self.alone {
            return Ok(None);
        }
        if let Some(path) = given {
            let is_there = path.is_file();
            let missing = || format!("there is no {}", path.display());
            return is_there.then(|| Some(path.clone())).ok_or_else(|| missing().into());
        }
        let found = find(&self.peers, name);
        if found.is_none() {
            eprintln!("no {name}: left out (bench/compare installs it)");
        }
        Ok(found)
    }
}

/// Measures (or reads what was measured), and shows it.
///
/// # Errors
/// When a server, a socket or the disk answers one, or the user interrupts.
pub(crate) fn run(args: &CompareArgs, dir: Option<&Path>, json: bool) -> Result<()> {
    let report = match &args.from {
        Some(path) => serde_json::from_slice(&fs::read(path)?)?,
        None => measure(args, dir)?,
    };
    let text = serde_json::to_string_pretty(&report)?;
    fs::create_dir_all(&args.out)?;
    fs::write(args.out.join("compare.json"), &text)?;
    fs::write(args.out.join("compare.svg"), chart::svg(&report))?;
    if json {
        println!("{text}");
    } else {
        print!("{}", show::text(&report));
        if args.goals {
            print!("\n{}", goals::table(&report));
        }
    }
    eprintln!("written: compare.json and compare.svg in {}", args.out.display());
    if args.write_docs {
        page::renew(Path::new("docs"), &report)?;
        eprintln!("renewed: docs/benchmarks.md and docs/benchmarks.svg");
    }
    Ok(())
}

fn measure(args: &CompareArgs, dir: Option<&Path>) -> Result<Report> {
    let programs = args.programs()?;
    let plan = args.plan();
    server::end_all_on_signals()?;
    let scratch = Scratch::fresh(dir)?;
    let mut report = Report { about: about::about(&programs, &plan), ..Report::default() };
    let mut run =
        Run { programs: &programs, dir: scratch.path(), plan: &plan, report: &mut report };
    limits::measure(&mut run)?;
    for work in args.works() {
        match work {
            Work::Publish => publish::unheard(&mut run)?,
            Work::Live => live::shapes(&mut run)?,
            Work::RoundTrip => live::round_trips(&mut run)?,
            Work::Paced => paced::all(&mut run)?,
            Work::Durable => publish::acked(&mut run)?,
            Work::Crowd => crowd::connections(&mut run)?,
            Work::Spread => crowd::topics(&mut run)?,
            Work::Http => http::all(&mut run)?,
            Work::Stored => stored::all(&mut run)?,
            Work::Idle => many::connections(&mut run)?,
            Work::Groups => groups::all(&mut run)?,
            Work::Keyed => keyed::all(&mut run)?,
            Work::Topics => many::topics(&mut run)?,
            Work::Tls => tls::all(&mut run)?,
            Work::Rights => rights::all(&mut run)?,
        }
    }
    run.tell("done");
    Ok(report)
}

impl CompareArgs {
    fn plan(&self) -> Plan {
        let plan = match (self.goals, self.quick, self.tiny) {
            (true, _, false) => Plan::goals(),
            (true, _, true) => Plan::tiny_goals(),
            (_, true, _) => Plan::quick(),
            (_, _, true) => Plan::tiny(),
            _ => Plan::full(),
        };
        let rounds = self.rounds.map_or(plan.rounds, |rounds| rounds as usize);
        Plan { rounds, case: self.case.clone(), ..plan }
    }

    fn works(&self) -> Vec<Work> {
        use clap::ValueEnum as _;
        let all = Work::value_variants().iter().copied();
        let chosen = |work: &Work| {
            let named = self.only.is_empty() || self.only.contains(work);
            named && (!self.goals || work.has_goals())
        };
        all.filter(chosen).collect()
    }

    fn programs(&self) -> Result<Programs> {
        let redis = self.places.peer(&self.redis_server, "redis-server")?;
        Ok(Programs { redis, ..self.places.programs()? })
    }
}

/// A program in the folder of peers or on the PATH.
fn find(peers: &Path, name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(peers.to_owned()).chain(std::env::split_paths(&path));
    folders.map(|folder| folder.join(name)).find(|program| program.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: CompareArgs,
    }

    fn parse(words: &[&str]) -> CompareArgs {
        Line::try_parse_from([&["compare"], words].concat()).unwrap().args
    }

    #[test]
    fn a_plan_is_full_unless_it_shall_be_quick() {
        assert_eq!(parse(&[]).plan().name, "full");
        let quick = parse(&["--quick", "--rounds", "7"]).plan();
        assert_eq!((quick.name, quick.rounds), ("quick", 7));
        assert!(quick.stored < parse(&[]).plan().stored);
        assert!(Line::try_parse_from(["compare", "--rounds", "0"]).is_err());
    }

    #[test]
    fn work_is_chosen_by_name_and_done_in_its_own_order() {
        let works = parse(&["--only", "round-trip,publish"]).works();
        assert_eq!(works, [Work::Publish, Work::RoundTrip]);
        assert!(parse(&[]).works().len() >= 7);
        let plan = parse(&["--case", "flushed, one"]).plan();
        assert!(plan.has_case("flushed, one at a time"));
        assert!(!plan.has_case("flushed, 256 in flight"));
    }

    #[test]
    fn a_peer_that_was_named_and_is_not_there_is_an_error() {
        let here = std::env::current_exe().unwrap();
        let here = here.to_str().unwrap();
        let error = parse(&["--gapless", here, "--nats-server", "/nowhere"]).programs();
        assert!(error.unwrap_err().to_string().contains("/nowhere"));
        let alone = parse(&["--gapless", here, "--alone"]).programs().unwrap();
        assert_eq!((alone.nats, alone.redis), (None, None));
    }
}
