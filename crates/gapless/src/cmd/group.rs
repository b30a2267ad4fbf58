//! `gapless group`: creates, lists, shows, sets, pauses, resets and removes groups.

use std::time::Duration;

use clap::{Args, Subcommand};
use clap_complete::ArgValueCompleter;
use gapless_broker::{Clock, SystemClock};
use gapless_client::{AskError, Client, ErrorCode, GroupInfo};
use gapless_core::{
    Durability, GroupSettings, GroupStart, Mode, OnGap, Pattern, RetryPolicy, TopicName, Waits,
};
use gapless_server::json as shown;
use serde_json::json;

use super::Global;
use crate::complete;
use crate::exit::{Done, Exit, Failure};
use crate::output::{Output, Table, ask, human_duration, human_number, human_span};
use crate::remote::{asked, with_client};
use crate::show::readable;
use crate::values::{self, Start};

const EXAMPLES: &str = "\
Examples:
  gapless group create billing orders.created --mode keyed
  gapless group ls
  gapless group show billing                 how it stands, and why it does not move
  gapless group pause billing
  gapless group reset billing --to -2h
  gapless sub --group billing                become a member of it";

const CREATE_EXAMPLES: &str = "\
Examples:
  gapless group create billing orders.created
  gapless group create billing 'orders.>' --mode keyed --lease 1m --attempts 10
  gapless group create audit 'orders.>' --mode ordered --from now
  gapless group create mails outbox --retry 1s,10s,1m,10m

Modes: shared (any member gets any message), keyed (messages of one key one after the other),
ordered (one member gets all, in order; the others stand by). A group that is there with equal
settings is fine; with other settings it is exit code 5.";

const RESET_EXAMPLES: &str = "\
Examples:
  gapless group reset billing --to beginning      do everything again
  gapless group reset billing --to now            forget what is left to do
  gapless group reset billing --to seq:1000       of one topic only
  gapless group reset billing --to -2h --force    though it has members";

/// Groups asked for at a time.
const PAGE: u32 = 500;

/// Create, list, show, set, pause, reset and remove groups
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GroupOptions {
    #[command(subcommand)]
    command: GroupCommand,
}

#[derive(Debug, Subcommand)]
enum GroupCommand {
    /// Create a group
    #[command(after_help = CREATE_EXAMPLES, visible_alias = "add")]
    Create {
        /// Its name
        #[arg(add = ArgValueCompleter::new(complete::groups), value_parser = values::topic)]
        name: TopicName,
        /// What it reads: a topic or a pattern
        #[arg(value_parser = values::pattern)]
        source: Pattern,
        /// Which member gets which message: shared, keyed or ordered
        #[arg(long, default_value = "shared", value_parser = values::mode())]
        mode: Mode,
        /// Where to begin
        #[arg(long, value_name = "PLACE", value_parser = values::start)]
        #[arg(default_value = "beginning", allow_hyphen_values = true)]
        from: Start,
        #[command(flatten)]
        given: Given,
    },
    /// List groups
    #[command(after_help = "Examples:\n  gapless group ls\n  gapless group ls 'orders.>' --json")]
    #[command(visible_alias = "list")]
    Ls {
        /// Which groups
        #[arg(default_value = ">", value_parser = values::pattern)]
        pattern: Pattern,
    },
    /// Show how a group stands, and why it does not move
    #[command(after_help = "Examples:\n  gapless group show billing")]
    #[command(visible_alias = "info")]
    Show {
        /// Which group
        #[arg(add = ArgValueCompleter::new(complete::groups), value_parser = values::topic)]
        name: TopicName,
    },
    /// Change settings; what is not named stays as it is
    #[command(after_help = "Examples:\n  gapless group set billing --lease 1m --attempts 10\n\n\
                            Source, mode and start cannot be changed: make another group.")]
    Set {
        /// Which group
        #[arg(add = ArgValueCompleter::new(complete::groups), value_parser = values::topic)]
        name: TopicName,
        #[command(flatten)]
        given: Given,
    },
    /// Let a group hand out nothing more; acks still count
    #[command(after_help = "Examples:\n  gapless group pause billing")]
    Pause {
        /// Which group
        #[arg(add = ArgValueCompleter::new(complete::groups), value_parser = values::topic)]
        name: TopicName,
    },
    /// Let a group go on, after a pause or over a gap that stopped it
    #[command(after_help = "Examples:\n  gapless group resume billing")]
    Resume {
        /// Which group
        #[arg(add = ArgValueCompleter::new(complete::groups), value_parser = values::topic)]
        name: TopicName,
    },
    /// Let a group start again somewhere else
    #[command(after_help = RESET_EXAMPLES)]
    Reset {
        /// Which group
        #[arg(add = ArgValueCompleter::new(complete::groups), value_parser = values::topic)]
        name: TopicName,
        /// Where to begin
        #[arg(long, value_name = "PLACE", value_parser = values::start)]
        #[arg(allow_hyphen_values = true)]
        to: Start,
        /// Even if it has members; they lose what they hold
        #[arg(long)]
        force: bool,
    },
    /// Remove a group with its dead letters; its source stays
    #[command(after_help = "Examples:\n  gapless group rm billing\n  gapless group rm billing \
                            --yes     without asking")]
    #[command(visible_aliases = ["remove", "delete"])]
    Rm {
        /// Which group
        #[arg(add = ArgValueCompleter::new(complete::groups), value_parser = values::topic)]
        name: TopicName,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
}

/// Settings that are given.
#[derive(Debug, Default, Args)]
pub(crate) struct Given {
    /// How long a member may work on a message before it must ack or extend [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    lease: Option<Duration>,
    /// How many deliveries may fail before a message is a dead letter [default: 5]
    #[arg(long, value_name = "COUNT")]
    attempts: Option<u32>,
    /// Waits before the next attempts, the last one again and again [default: 1s, doubling to
    /// 5m]
    #[arg(long, value_name = "TIMES", value_delimiter = ',', value_parser = values::duration)]
    retry: Vec<Duration>,
    /// Whether to keep what failed too often [default: true]
    #[arg(long, value_name = "BOOL")]
    dead_letters: Option<bool>,
    /// What to do when messages it had not done are gone: stop or continue [default: stop]
    #[arg(long, value_parser = values::on_gap())]
    on_gap: Option<OnGap>,
    /// Most messages in flight with all members [default: 1000000]
    #[arg(long, value_name = "COUNT")]
    in_flight: Option<u32>,
    /// Most messages in flight with one member [default: 65536]
    #[arg(long, value_name = "COUNT")]
    member_in_flight: Option<u32>,
    /// How safe acks must be before they are confirmed: memory, written or flushed
    #[arg(long, value_parser = values::durability())]
    durability: Option<Durability>,
}

impl Given {
    fn apply(&self, settings: &mut GroupSettings) {
        settings.lease = self.lease.unwrap_or(settings.lease);
        settings.attempts_max = self.attempts.unwrap_or(settings.attempts_max);
        if !self.retry.is_empty() {
            let waits = Waits::Steps(self.retry.clone());
            let jitter_percent = settings.retry.jitter_percent;
            settings.retry = RetryPolicy { waits, jitter_percent };
        }
        settings.dead_letters = self.dead_letters.unwrap_or(settings.dead_letters);
        settings.on_gap = self.on_gap.unwrap_or(settings.on_gap);
        settings.in_flight_max = self.in_flight.unwrap_or(settings.in_flight_max);
        settings.member_in_flight_max =
            self.member_in_flight.unwrap_or(settings.member_in_flight_max);
        settings.durability = self.durability.unwrap_or(settings.durability);
    }
}

/// The settings of a new group.
pub(crate) fn new_settings(source: Pattern, mode: Mode, start: GroupStart) -> GroupSettings {
    GroupSettings { mode, start, ..GroupSettings::new(source) }
}

/// A place to begin, for a group.
pub(crate) fn group_start(start: Start) -> Result<GroupStart, Failure> {
    Ok(match start {
        Start::Beginning => GroupStart::Beginning,
        Start::Now => GroupStart::Now,
        Start::Seq(seq) => GroupStart::Seq(seq),
        Start::Time(when) => GroupStart::Time(when.resolve(SystemClock::default().now())),
        Start::Token(token) => GroupStart::Position(token.position),
        Start::LastPerKey => {
            let why = "a group cannot begin with last-per-key";
            return Err(Failure::words(why).hint("use beginning, now, seq:42, -2h or a token"));
        }
    })
}

pub(crate) fn run(options: GroupOptions, global: &Global, out: &mut Output) -> Done {
    match options.command {
        GroupCommand::Create { name, source, mode, from, given } => {
            let mut settings = new_settings(source, mode, group_start(from)?);
            given.apply(&mut settings);
            settings.validate().map_err(Failure::words)?;
            with_client(global, out, async |client, out| {
                let was_there = client.describe_group(&name).await.is_ok();
                let made = client.create_group(&name, settings).await;
                let info = or_failure(client, &name, made).await?;
                let what = if was_there { "is there already" } else { "created" };
                let text = format!("group {name} {what} ({})", summary(&info.settings));
                let mut value = shown::group(&info);
                value["created"] = (!was_there).into();
                out.result(&value, text)?;
                // A typo in the source looks like this; so does a topic that is to come.
                let source = &info.settings.source;
                if client.topics(source, None, 1).await.is_ok_and(|page| page.topics.is_empty()) {
                    out.note(format!("no topic matches {} yet", source.as_str()));
                }
                Ok(Exit::Ok)
            })
        }
        GroupCommand::Ls { pattern } => {
            with_client(global, out, async |client, out| list(client, &pattern, out).await)
        }
        GroupCommand::Show { name } => with_client(global, out, async |client, out| {
            let info = or_failure(client, &name, client.describe_group(&name).await).await?;
            show(&info, out)?;
            Ok(Exit::Ok)
        }),
        GroupCommand::Set { name, given } => with_client(global, out, async |client, out| {
            let info = or_failure(client, &name, client.describe_group(&name).await).await?;
            let mut settings = info.settings;
            given.apply(&mut settings);
            settings.validate().map_err(Failure::words)?;
            let set = client.configure_group(&name, settings).await;
            let info = or_failure(client, &name, set).await?;
            let text = format!("group {name} is set: {}", summary(&info.settings));
            out.result(&shown::group(&info), text)?;
            Ok(Exit::Ok)
        }),
        GroupCommand::Pause { name } => with_client(global, out, async |client, out| {
            let info = or_failure(client, &name, client.pause_group(&name).await).await?;
            let text = format!("group {name} is paused; gapless group resume {name} lets it go on");
            out.result(&shown::group(&info), text)?;
            Ok(Exit::Ok)
        }),
        GroupCommand::Resume { name } => with_client(global, out, async |client, out| {
            let info = or_failure(client, &name, client.resume_group(&name).await).await?;
            out.result(&shown::group(&info), format_args!("group {name} goes on"))?;
            Ok(Exit::Ok)
        }),
        GroupCommand::Reset { name, to, force } => {
            let to = group_start(to)?;
            with_client(global, out, async |client, out| {
                let reset = client.reset_group(&name, to, force).await;
                let info = or_failure(client, &name, reset).await?;
                let left = human_number(info.lag);
                let text = format!("group {name} starts again, with {left} messages to do");
                out.result(&shown::group(&info), text)?;
                Ok(Exit::Ok)
            })
        }
        GroupCommand::Rm { name, yes } => remove(&name, yes, global, out),
    }
}

fn remove(name: &TopicName, yes: bool, global: &Global, out: &mut Output) -> Done {
    if !yes && !out.can_ask() {
        return Err(Failure::words(format!("removing group {name} is for good"))
            .hint("add --yes to do it without asking"));
    }
    with_client(global, out, async |client, out| {
        let info = or_failure(client, name, client.describe_group(name).await).await?;
        let letters = human_number(info.dead_letters);
        if !yes && !ask(&format!("Remove group {name} with {letters} dead letters, for good?"))? {
            return Err(Failure::failed("nothing was removed"));
        }
        or_failure(client, name, client.delete_group(name).await).await?;
        let value = json!({ "group": name.as_str(), "removed": true });
        out.result(&value, format_args!("group {name} is gone, with {letters} dead letters"))?;
        Ok(Exit::Ok)
    })
}

async fn list(client: &Client, pattern: &Pattern, out: &mut Output) -> Done {
    let headings = ["GROUP", "MODE", "STATE", ">LAG", ">IN FLIGHT", ">DEAD", ">MEMBERS", "SOURCE"];
    let mut table = Table::new(&headings);
    let mut after: Option<TopicName> = None;
    let mut groups: u64 = 0;
    loop {
        let page = match client.groups(pattern, after.as_ref(), PAGE).await {
            Ok(page) => page,
            Err(error) => return Err(asked(client, error, None).await),
        };
        for info in &page.groups {
            groups += 1;
            if out.json {
                out.json_line(&shown::group(info))?;
                continue;
            }
            table.row(vec![
                info.name.to_string(),
                info.settings.mode.to_string(),
                info.state.name().to_owned(),
                lag(info),
                human_number(info.counts.in_flight),
                human_number(info.dead_letters),
                human_number(info.members.len() as u64),
                info.settings.source.to_string(),
            ]);
        }
        after = page.groups.last().map(|info| info.name.clone());
        if !page.more || after.is_none() {
            break;
        }
    }
    if groups == 0 {
        let how = "create one with: gapless group create NAME SOURCE";
        out.note(format_args!("no group matches {pattern}; {how}"));
    } else if !out.json {
        out.table(&table)?;
    }
    Ok(Exit::Ok)
}

fn show(info: &GroupInfo, out: &mut Output) -> std::io::Result<()> {
    if out.json {
        return out.json_line(&shown::group(info));
    }
    for (label, value) in describe(info) {
        out.line(format_args!("{label:<18} {value}"))?;
    }
    if !info.members.is_empty() {
        let mut table = Table::new(&[">MEMBER", ">IN FLIGHT", ">WINDOW", "ROLE", "NAME"]);
        for member in &info.members {
            table.row(vec![
                member.id.to_string(),
                human_number(member.in_flight),
                human_number(member.window.into()),
                if member.active { "active" } else { "standby" }.to_owned(),
                readable(member.name.as_bytes()),
            ]);
        }
        out.line("")?;
        out.table(&table)?;
    }
    Ok(())
}

fn lag(info: &GroupInfo) -> String {
    let number = human_number(info.lag);
    if info.lag_exact { number } else { format!("at most {number}") }
}

/// The settings that matter most, as they are typed.
fn summary(settings: &GroupSettings) -> String {
    let lease = human_duration(settings.lease);
    let (mode, source) = (settings.mode, &settings.source);
    format!("{mode}, reads {source}, lease {lease}, {} attempts", settings.attempts_max)
}

fn retry_text(retry: &RetryPolicy) -> String {
    let waits = match &retry.waits {
        Waits::Steps(steps) if steps.is_empty() => "at once".to_owned(),
        Waits::Steps(steps) => {
            steps.iter().map(|step| human_duration(*step)).collect::<Vec<_>>().join(",")
        }
        Waits::Growing { first, factor, most } => {
            format!("{}, times {factor}, up to {}", human_duration(*first), human_duration(*most))
        }
    };
    format!("{waits} (±{} %)", retry.jitter_percent)
}

fn describe(info: &GroupInfo) -> Vec<(&'static str, String)> {
    let settings = &info.settings;
    let (counts, totals) = (&info.counts, &info.totals);
    let age = info.oldest_age.map_or_else(|| "-".to_owned(), human_span);
    let redriving = if info.redriving { ", some are being redriven" } else { "" };
    vec![
        ("group", info.name.to_string()),
        ("source", settings.source.to_string()),
        ("mode", settings.mode.to_string()),
        ("state", info.state.name().to_owned()),
        ("why", info.why.clone()),
        ("lag", lag(info)),
        ("oldest", age),
        ("in flight", human_number(counts.in_flight)),
        ("ready", human_number(counts.ready)),
        ("behind their key", human_number(counts.waiting)),
        ("to be retried", human_number(counts.parked)),
        ("dead letters", format!("{}{redriving}", human_number(info.dead_letters))),
        (
            "since the start",
            format!(
                "{} delivered, {} again, {} acked, {} nacked, {} expired, {} lost",
                human_number(totals.delivered),
                human_number(totals.redelivered),
                human_number(totals.acked),
                human_number(totals.nacked),
                human_number(totals.expired),
                human_number(totals.lost),
            ),
        ),
        ("lease", human_duration(settings.lease)),
        ("attempts", settings.attempts_max.to_string()),
        ("retry after", retry_text(&settings.retry)),
        ("keeps dead letters", if settings.dead_letters { "yes" } else { "no" }.to_owned()),
        ("on a gap", settings.on_gap.to_string()),
        ("acks are", settings.durability.to_string()),
    ]
}

/// What a failed question about a group means for the user.
pub(crate) async fn or_failure<T>(
    client: &Client,
    group: &TopicName,
    answer: Result<T, AskError>,
) -> Result<T, Failure> {
    let error = match answer {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    let code = match &error {
        AskError::Server(trouble) => trouble.known(),
        _ => None,
    };
    Err(match code {
        Some(code @ ErrorCode::UnknownGroup) => no_group(group).code(code.number()),
        Some(code @ ErrorCode::GroupExists) => {
            let why = format!("group {group} exists with other settings");
            let hint = format!("see it: gapless group show {group}; change it: gapless group set");
            Failure::new(Exit::Rejected, why).hint(hint).code(code.number())
        }
        Some(code @ ErrorCode::GroupActive) => asked(client, error, None)
            .await
            .hint("add --force to take from its members what they hold")
            .code(code.number()),
        _ => asked(client, error, None).await,
    })
}

/// That a group does not exist.
pub(crate) fn no_group(group: &TopicName) -> Failure {
    Failure::not_found(format!("there is no group {group}")).hint(format!(
        "make it with: gapless group create {group} SOURCE; see all: gapless group ls"
    ))
}
