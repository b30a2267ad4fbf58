//! The benches' command line: one subcommand per bench.
//!
//! Not here: measuring, which is in `benches/` and in the library, and printing tables.

mod benches;
mod compare;

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use gapless_bench::hardware;
use gapless_bench::scratch::Scratch;
use gapless_bench::table::Table;
use gapless_core::Durability;

use benches::all::{self, Plan};
use benches::store::Result;
use benches::{create, follow, groups, history, http, jobs, memory, mixed, open, outbox, publish};
use benches::{stalls, wire};

/// No store of a bench is larger: a slip of the keyboard above it.
const GIGABYTES_MAX: f64 = 1000.0;

const GIGABYTE: f64 = 1e9;

/// What is seen once in a while needs longer to be measured than a rate.
const LONG_SECONDS_MAX: f64 = 600.0;

/// Measures gapless, and the machine it runs on.
#[derive(Parser)]
#[command(name = "gapless-bench")]
struct Cli {
    #[command(subcommand)]
    bench: Bench,
    /// Print JSON instead of a table.
    #[arg(long, global = true)]
    json: bool,
    /// Folder on the disk to measure. A fresh folder is made in it and removed at the end
    /// [default: bench-data in the current folder].
    #[arg(long, global = true)]
    dir: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Bench {
    /// The hardware's own figures: flushes, sequential writes, reads, copies, checksums, wake-ups.
    Disk(DiskOptions),
    /// Publishing: one at a time, many in flight, many threads.
    Publish(PublishArgs),
    /// The longest time without an ack under full load.
    Stalls(StallsArgs),
    /// Making topics: all at once, many in flight, many threads.
    Create(CreateArgs),
    /// Following live: messages delivered, and how late.
    Follow(FollowArgs),
    /// Reading stored messages: one topic, many, a pattern.
    History(HistoryArgs),
    /// Opening a large store after a clean end and after a crash.
    Open(OpenArgs),
    /// Memory for topics and for stored messages.
    Memory(MemoryArgs),
    /// Live messages while others read history.
    Mixed(MixedArgs),
    /// Over a socket, with the server in a process of its own, beside a bare relay.
    Wire(WireArgs),
    /// Side by side with nats-server and redis-server: real servers, the same work on each.
    Compare(compare::CompareArgs),
    /// A cluster of three nodes, beside one of three nats-servers. Needs the binary `gapless` of the
    /// same profile.
    Cluster(compare::cluster::ClusterArgs),
    /// Curves over topics, connections, subscribers and more, with a mark where one bends. Needs the
    /// binary `gapless` of the same profile.
    Scale(compare::scale::ScaleArgs),
    /// Over HTTP, beside the native API of the same server.
    Http(HttpArgs),
    /// Working off a keyed group's backlog: rate, and CPU time of a message.
    Groups(GroupsArgs),
    /// Jobs: functions and programs a second beside others, latency, memory, and how clients share
    /// workers. Programs need the binary `gapless` of the same profile.
    Jobs(JobsArgs),
    /// From PostgreSQL into topics, beside what PostgreSQL can do at best.
    Outbox(OutboxArgs),
    /// Every bench but `outbox`, `cluster`, `compare`, `create`, `groups`, `http`, `jobs` and `scale`.
    All(AllArgs),
    /// One measurement of memory, in a process of its own.
    #[command(hide = true)]
    MemoryChild {
        #[command(subcommand)]
        child: memory::Child,
    },
    /// A bare HTTP server to be measured, until its standard input ends.
    #[command(hide = true)]
    BareHttp,
    /// A server to be measured, until its standard input ends.
    #[command(hide = true)]
    WireServer {
        /// Bare bytes instead of a broker.
        #[arg(long)]
        raw: bool,
    },
}

#[derive(Args)]
struct DiskOptions {
    /// Seconds for each of the measurements of the disk, at most 10.
    #[arg(long, default_value_t = 1.0, value_parser = parse_seconds)]
    seconds: f64,
}

#[derive(Args)]
struct PublishArgs {
    /// Seconds for each case, at most 10.
    #[arg(long, default_value_t = 1.0, value_parser = parse_seconds)]
    seconds: f64,
    /// Sizes of messages in bytes, with commas between.
    #[arg(long, value_delimiter = ',', default_values_t = [16, 128, 1024, 16 * 1024])]
    sizes: Vec<usize>,
    /// A case ends when it has published so many gigabytes.
    #[arg(long, default_value_t = 2.0, value_parser = parse_gigabytes)]
    gigabytes: f64,
    /// Only 1,000 in flight of this durability (memory, written, flushed): for a profiler.
    #[arg(long, value_parser = parse_durability)]
    only_in_flight: Option<Durability>,
}

#[derive(Args)]
struct StallsArgs {
    /// Seconds for each case, at most 600.
    #[arg(long, default_value_t = 10.0, value_parser = parse_long_seconds)]
    seconds: f64,
    /// Only cases whose names contain this, such as `flushed, 128 B`.
    #[arg(long)]
    only: Option<String>,
    /// How much of the topic is kept: what is older goes.
    #[arg(long, default_value_t = 4.0, value_parser = parse_gigabytes)]
    gigabytes: f64,
}

#[derive(Args)]
struct CreateArgs {
    /// How many topics each case makes.
    #[arg(long, default_value_t = 20_000)]
    topics: usize,
}

#[derive(Args)]
struct OutboxArgs {
    /// A database without an outbox: it gets one, which is removed at the end.
    #[arg(long)]
    dsn: String,
    /// How many rows flow into a topic.
    #[arg(long, default_value_t = 200_000)]
    rows: u64,
    /// Seconds for each case of writers, at most 10.
    #[arg(long, default_value_t = 5.0, value_parser = parse_seconds)]
    seconds: f64,
    /// Only these cases, with commas between.
    #[arg(long, value_delimiter = ',')]
    only: Vec<outbox::Case>,
}

#[derive(Args)]
struct FollowArgs {
    /// Seconds for each case, at most 10.
    #[arg(long, default_value_t = 2.0, value_parser = parse_seconds)]
    seconds: f64,
    /// How many followers, with commas between.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 10, 100])]
    followers: Vec<usize>,
    /// Let the paced publisher spin between messages instead of resting.
    #[arg(long)]
    spin: bool,
}

#[derive(Args)]
struct HistoryArgs {
    /// Bytes of all bodies of a store.
    #[arg(long, default_value_t = 1_000_000_000)]
    bytes: u64,
    /// Sizes of messages in bytes, with commas between.
    #[arg(long, value_delimiter = ',', default_values_t = [128, 1024, 16 * 1024])]
    sizes: Vec<usize>,
    /// Messages of a batch as published, with commas between.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 64])]
    batches: Vec<usize>,
    /// Each store is read over and over for so many seconds, at most 10.
    #[arg(long, default_value_t = 2.0, value_parser = parse_seconds)]
    seconds: f64,
    /// Only one topic, by records: for a profiler.
    #[arg(long)]
    only_one_topic: bool,
}

#[derive(Args)]
struct OpenArgs {
    /// Size of the store. The promise is about 10.
    #[arg(long, default_value_t = 2.0, value_parser = parse_gigabytes)]
    gigabytes: f64,
}

#[derive(Args)]
struct MemoryArgs {
    /// How many topics.
    #[arg(long, default_value_t = 1_000_000)]
    topics: u64,
    /// How many stored messages of 128 bytes.
    #[arg(long, default_value_t = 10_000_000)]
    messages: u64,
}

#[derive(Args)]
struct MixedArgs {
    /// Seconds alone, and as many beside readers; at most 10.
    #[arg(long, default_value_t = 10.0, value_parser = parse_seconds)]
    seconds: f64,
    /// Bytes of the history.
    #[arg(long, default_value_t = 500_000_000)]
    bytes: u64,
    /// Let the paced publisher spin between messages instead of resting.
    #[arg(long)]
    spin: bool,
}

#[derive(Args)]
struct WireArgs {
    /// Seconds for each case, at most 10.
    #[arg(long, default_value_t = 1.0, value_parser = parse_seconds)]
    seconds: f64,
    /// How many stored messages of 128 bytes are caught up with.
    #[arg(long, default_value_t = wire::MESSAGES)]
    messages: u64,
    /// The same, with ten million.
    #[arg(long, conflicts_with = "messages")]
    full: bool,
    /// How many connections are idle.
    #[arg(long, default_value_t = wire::CONNECTIONS)]
    connections: u64,
    /// Only these parts, with commas between [default: all].
    #[arg(long, value_delimiter = ',')]
    only: Vec<wire::Part>,
    /// Let the paced publisher spin between messages instead of resting.
    #[arg(long)]
    spin: bool,
}

#[derive(Args)]
struct HttpArgs {
    /// Seconds for each case, at most 10.
    #[arg(long, default_value_t = 1.0, value_parser = parse_seconds)]
    seconds: f64,
}

#[derive(Args)]
struct GroupsArgs {
    /// How many messages wait, with commas between.
    #[arg(long, value_delimiter = ',', default_values_t = [30_000, 100_000, 200_000, 1_000_000])]
    backlogs: Vec<u64>,
    /// How many keys they have, with commas between.
    #[arg(long, value_delimiter = ',', default_values_t = [1_000], value_parser = at_least_one)]
    keys: Vec<u64>,
    /// How many members, with commas between.
    #[arg(long, value_delimiter = ',', default_values_t = [4])]
    members: Vec<usize>,
    /// How many messages one member may hold, with commas between.
    #[arg(long, value_delimiter = ',', default_values_t = [1_000])]
    windows: Vec<u32>,
    /// Bytes of a message.
    #[arg(long, default_value_t = 128)]
    size: usize,
}

#[derive(Args)]
struct JobsArgs {
    /// How many jobs that do nothing.
    #[arg(long, default_value_t = 50_000, value_parser = at_least_one)]
    jobs: u64,
    /// How many jobs that are programs.
    #[arg(long, default_value_t = 3_000, value_parser = clap::value_parser!(u64).range(100..))]
    programs: u64,
    /// How many jobs wait, over 100 clients.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1000..))]
    waiting: u64,
}

impl JobsArgs {
    fn options(&self) -> jobs::Options {
        jobs::Options { jobs: self.jobs, programs: self.programs, waiting: self.waiting }
    }
}

#[derive(Args)]
struct AllArgs {
    /// Small cases only: less than two minutes.
    #[arg(long)]
    quick: bool,
    /// Write the figures to bench/results/latest.json.
    #[arg(long)]
    save: bool,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gapless-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<()> {
    if let Bench::MemoryChild { child } = cli.bench {
        let folder = cli.dir.as_deref().ok_or("a child needs a folder")?;
        let measured = memory::run_child(folder, child)?;
        writeln!(io::stdout().lock(), "{measured}")?;
        return Ok(());
    }
    if let Bench::WireServer { raw } = cli.bench {
        return wire::run_server(cli.dir.as_deref(), raw);
    }
    if let Bench::BareHttp = cli.bench {
        return compare::bare::serve();
    }
    if let Bench::Compare(args) = &cli.bench {
        return compare::run(args, cli.dir.as_deref(), cli.json);
    }
    let scratch = Scratch::fresh(cli.dir.as_deref())?;
    eprintln!("measuring in {}", scratch.path().display());
    let tables = measure(&cli.bench, &scratch)?;
    if matches!(&cli.bench, Bench::All(all) if all.save) {
        eprintln!("saved in {}", all::save(&tables)?.display());
    }
    let mut out = io::stdout().lock();
    match (&tables[..], cli.json) {
        ([table], true) => writeln!(out, "{:#}", table.to_json())?,
        (tables, true) => writeln!(out, "{:#}", all::to_json(tables))?,
        (tables, false) => tables.iter().try_for_each(|table| write!(out, "{table}"))?,
    }
    Ok(())
}

fn measure(bench: &Bench, scratch: &Scratch) -> Result<Vec<Table>> {
    let dir = scratch.path();
    let table = match bench {
        Bench::Disk(args) => hardware::report(dir, args.seconds)?,
        Bench::Publish(args) => publish::run(dir, &args.options())?,
        Bench::Stalls(args) => stalls::run(dir, &args.options())?,
        Bench::Create(args) => create::run(dir, create::Options { topics: args.topics })?,
        Bench::Outbox(args) => {
            let (dsn, only) = (args.dsn.clone(), args.only.clone());
            let options = outbox::Options { dsn, rows: args.rows, seconds: args.seconds, only };
            outbox::run(dir, &options)?
        }
        Bench::Follow(args) => follow::run(dir, &args.options())?,
        Bench::History(args) => history::run(dir, &args.options())?,
        Bench::Open(args) => open::run(dir, (args.gigabytes * GIGABYTE) as u64)?,
        Bench::Memory(args) => {
            let (topics, messages) = (args.topics, args.messages);
            memory::run(dir, &memory::Options { topics, messages })?
        }
        Bench::Mixed(args) => mixed::run(dir, &args.options())?,
        Bench::Wire(args) => wire::run(dir, &args.options())?,
        Bench::Cluster(args) => compare::cluster::run(args, dir)?,
        Bench::Scale(args) => compare::scale::run(args, dir)?,
        Bench::Http(args) => http::run(dir, &http::Options { seconds: args.seconds })?,
        Bench::Groups(args) => groups::run(dir, &args.options())?,
        Bench::Jobs(args) => jobs::run(dir, &args.options())?,
        Bench::All(args) => {
            let plan = if args.quick { Plan::quick() } else { Plan::full() };
            return all::run(dir, &plan);
        }
        Bench::MemoryChild { .. } | Bench::BareHttp | Bench::WireServer { .. } => {
            return Err("a child measures no table".into());
        }
        Bench::Compare(_) => return Err("a comparison is no table".into()),
    };
    Ok(vec![table])
}

impl PublishArgs {
    fn options(&self) -> publish::Options {
        publish::Options {
            seconds: self.seconds,
            bytes_max: (self.gigabytes * GIGABYTE) as u64,
            sizes: self.sizes.clone(),
            only_in_flight: self.only_in_flight,
        }
    }
}

impl StallsArgs {
    fn options(&self) -> stalls::Options {
        stalls::Options {
            seconds: self.seconds,
            only: self.only.clone(),
            kept_bytes: (self.gigabytes * GIGABYTE) as u64,
        }
    }
}

impl FollowArgs {
    fn options(&self) -> follow::Options {
        follow::Options {
            seconds: self.seconds,
            followers: self.followers.clone(),
            spin: self.spin,
            ..Plan::full().follow
        }
    }
}

impl HistoryArgs {
    fn options(&self) -> history::Options {
        history::Options {
            bytes: self.bytes,
            sizes: self.sizes.clone(),
            batches: self.batches.clone(),
            seconds: self.seconds,
            only_one_topic: self.only_one_topic,
        }
    }
}

impl MixedArgs {
    fn options(&self) -> mixed::Options {
        let (seconds, bytes, spin) = (self.seconds, self.bytes, self.spin);
        mixed::Options { seconds, bytes, spin }
    }
}

impl GroupsArgs {
    fn options(&self) -> groups::Options {
        groups::Options {
            backlogs: self.backlogs.clone(),
            keys: self.keys.clone(),
            members: self.members.clone(),
            windows: self.windows.clone(),
            message_bytes: self.size,
        }
    }
}

impl WireArgs {
    fn options(&self) -> wire::Options {
        wire::Options {
            seconds: self.seconds,
            messages: if self.full { wire::MESSAGES_FULL } else { self.messages.max(1) },
            connections: self.connections.max(1),
            only: self.only.clone(),
            spin: self.spin,
            ..wire::Options::default()
        }
    }
}

fn at_least_one(text: &str) -> std::result::Result<u64, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "not a number above 0".to_owned())
}

fn parse_seconds(text: &str) -> std::result::Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if seconds > 0.0 && seconds <= hardware::SECONDS_MAX {
        return Ok(seconds);
    }
    Err(format!("more than 0 and at most {} seconds", hardware::SECONDS_MAX))
}

fn parse_long_seconds(text: &str) -> std::result::Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if seconds > 0.0 && seconds <= LONG_SECONDS_MAX {
        return Ok(seconds);
    }
    Err(format!("more than 0 and at most {LONG_SECONDS_MAX} seconds"))
}

fn parse_gigabytes(text: &str) -> std::result::Result<f64, String> {
    let gigabytes: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if gigabytes > 0.0 && gigabytes <= GIGABYTES_MAX {
        return Ok(gigabytes);
    }
    Err(format!("more than 0 and at most {GIGABYTES_MAX} gigabytes"))
}

fn parse_durability(text: &str) -> std::result::Result<Durability, String> {
    Durability::from_name(text).ok_or_else(|| "one of memory, written, flushed".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn seconds_and_gigabytes_are_bounded() {
        assert_eq!(parse_seconds("0.5"), Ok(0.5));
        for wrong in ["0", "-1", "11", "NaN", "inf", "soon"] {
            assert!(parse_seconds(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_gigabytes("10"), Ok(10.0));
        for wrong in ["0", "-1", "1001", "NaN", "many"] {
            assert!(parse_gigabytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_bench_is_understood_by_its_defaults() {
        let benches = [
            "disk", "publish", "create", "follow", "history", "open", "memory", "mixed", "wire",
            "compare", "cluster", "http", "groups", "stalls", "all",
        ];
        for bench in benches {
            assert!(Cli::try_parse_from(["gapless-bench", bench]).is_ok(), "{bench}");
        }
    }
}
