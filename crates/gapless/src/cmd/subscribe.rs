//! `gapless sub`: shows what is published, from some place on, without a gap.

use std::fmt;
use std::fs;
use std::future::{Future, poll_fn};
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use clap::{ArgGroup, Args};
use clap_complete::ArgValueCompleter;
use gapless_broker::{Clock, SystemClock};
use gapless_client::{
    Client, Event, From, GapNotice, Identity, Messages, PlaceRange, Subscription,
    SubscriptionError, Token,
};
use gapless_core::{Message, Mode, Pattern, TopicName, calendar};
use gapless_server::json as shown;
use serde_json::{Value, json};

use super::Global;
use super::events::event_line;
use super::group::group_start;
use super::sub_group::{GroupPlan, consume};
use crate::complete;
use crate::exit::{Done, Exit, Failure};
use crate::output::Output;
use crate::remote::{Interrupt, asked, exists, followed, no_topic, with_client};
use crate::show::Shown;
use crate::template::{self, Format};
use crate::values::{self, Start};

const EXAMPLES: &str = "\
Examples:
  gapless sub orders.created                     everything there is, then what comes
  gapless sub 'orders.>' --from now              only what comes
  gapless sub 'orders.>' --no-follow             what is there, then end
  gapless sub orders.created --from seq:42 --count 10
  gapless sub prices --from last-per-key         the newest of each key, then what comes
  gapless sub 'audit.>' --from -2h               the last two hours, then what comes
  gapless sub orders.created -t                  with the time before each message
  gapless sub 'orders.>' --format '{time} {key} {header:source} {body}'
  gapless sub 'orders.>' --key apples --header source=till-7   only these
  gapless sub 'orders.>' --save orders.place     stop and start it as you like: no gap, no repeat
  gapless sub 'orders.>' --json | jq 'select(.event == \"message\").text'
  gapless sub orders.created --group billing     share the work with others; acked when printed
  gapless sub 'chat.>' --identity ana            a name in a cluster: goes on after a lost connection
  gapless sub 'chat.>' --await-visible           say when all nodes of the cluster know it

Places to begin: beginning, now, last-per-key, seq:N, time:WHEN, -DURATION, or a cursor as it is
printed at the end. Patterns: * is one token, > is the rest; put them in quotes. It goes on by
itself when the server comes back. A line is: topic, seq, key (- if none), body. Placeholders of
--format: {topic} {seq} {position} {cursor} {time} {time_ms} {key} {id} {body} {headers} {header:NAME};
{{ is a brace, \\n a line end.";

/// Show what is published to topics and patterns, history first, then live
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args(["patterns", "pattern", "group"]))]
pub(crate) struct SubOptions {
    /// Topics or patterns, as orders.created or 'orders.>'
    #[arg(value_name = "PATTERN", value_parser = values::pattern)]
    #[arg(add = ArgValueCompleter::new(complete::topics))]
    patterns: Vec<Pattern>,
    /// The same as a flag; may be repeated
    #[arg(long, value_name = "PATTERN", value_parser = values::pattern)]
    pattern: Vec<Pattern>,
    /// Where to begin [default: beginning]
    #[arg(long, value_name = "PLACE", value_parser = values::start, allow_hyphen_values = true)]
    from: Option<Start>,
    /// End after so many messages
    #[arg(long, short = 'n', value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Go on with what comes; this is so unless --no-follow says otherwise
    #[arg(long, overrides_with = "no_follow")]
    follow: bool,
    /// End when everything that is there was shown
    #[arg(long)]
    no_follow: bool,
    /// Keep the place in this file, and go on from it if it is there, even if --from is given
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Follow volatile subjects under this name: after a lost connection, also on another node of
    /// the cluster, it goes on with what was held for it
    #[arg(long, value_name = "NAME")]
    #[arg(conflicts_with_all = ["group", "save", "from", "no_follow"])]
    identity: Option<Identity>,
    /// Say on stderr when all nodes of the cluster know what is followed, and end with an error if they
    /// do not in this time (5s if none is given; at most 60s)
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "5s")]
    #[arg(conflicts_with = "group")]
    await_visible: Option<Duration>,
    /// Be a member of this group: take messages from it, and ack them when they are printed.
    /// It is created if it is not there and a topic or pattern is named
    #[arg(long, value_name = "GROUP", value_parser = values::topic, conflicts_with = "save")]
    #[arg(add = ArgValueCompleter::new(complete::groups))]
    group: Option<TopicName>,
    /// The mode of a group that is created [default: shared]
    #[arg(long, value_parser = values::mode(), requires = "group")]
    mode: Option<Mode>,
    /// Print bodies only, each with a line end
    #[arg(long, conflicts_with = "json")]
    raw: bool,
    /// Print when each message was accepted, before it
    #[arg(long, short, conflicts_with_all = ["json", "raw", "format"])]
    timestamps: bool,
    /// Print each message so, as '{topic} {seq} {key} {body}'
    #[arg(long, value_name = "TEMPLATE", value_parser = template::format)]
    #[arg(conflicts_with_all = ["json", "raw"])]
    format: Option<Format>,
    /// Only messages with this key; may be repeated
    #[arg(long, short, conflicts_with = "group")]
    key: Vec<String>,
    /// Only messages with this header, as NAME=VALUE or 'Name: value'; may be repeated, and all
    /// must be there
    #[arg(long, short = 'H', value_name = "NAME=VALUE", value_parser = values::header)]
    #[arg(conflicts_with = "group")]
    header: Vec<(String, String)>,
}

pub(crate) fn run(options: SubOptions, global: &Global, out: &mut Output) -> Done {
    if let Some(group) = options.group {
        let mut sources = options.patterns.into_iter().chain(options.pattern);
        let source = sources.next();
        if sources.next().is_some() {
            return Err(Failure::words("a group reads one topic or pattern"));
        }
        let plan = GroupPlan {
            group,
            source,
            mode: options.mode,
            start: options.from.map(group_start).transpose()?,
            count: options.count,
            follow: !options.no_follow,
            show: show_as(options.raw, options.timestamps, options.format),
        };
        return with_client(global, out, async |client, out| consume(client, &plan, out).await);
    }
    let saved = match &options.save {
        Some(path) => {
            let places = read_places(path)?;
            can_keep(path)?;
            places
        }
        None => Vec::new(),
    };
    let first = begin(options.from.unwrap_or(Start::Beginning));
    let mut wanted: Vec<(Pattern, From)> = Vec::new();
    for pattern in options.patterns.into_iter().chain(options.pattern) {
        if wanted.iter().all(|(known, _)| *known != pattern) {
            let place = saved.iter().find(|(known, _)| *known == pattern);
            wanted.push((pattern, place.map_or(first, |(_, token)| From::Token(*token))));
        }
    }
    let plan = Plan {
        wanted,
        count: options.count,
        follow: !options.no_follow,
        save: options.save,
        show: show_as(options.raw, options.timestamps, options.format),
        only: Only { keys: options.key, headers: options.header },
        identity: options.identity,
        await_visible: options.await_visible,
    };
    with_client(global, out, async |client, out| follow(client, &plan, out).await)
}

pub(super) fn begin(start: Start) -> From {
    match start {
        Start::Beginning => From::Beginning,
        Start::Now => From::Now,
        Start::LastPerKey => From::LastPerKey,
        Start::Seq(seq) => From::Seq(seq),
        Start::Time(when) => From::Time(when.resolve(SystemClock::default().now())),
        Start::Token(token) => From::Token(token),
    }
}

fn show_as(raw: bool, timestamps: bool, format: Option<Format>) -> Show {
    match format {
        Some(format) => Show::Format(format),
        None if raw => Show::Raw,
        None => Show::Lines { timestamps },
    }
}

/// Which messages are printed; the others are passed over, and do not count.
#[derive(Clone, Debug, Default)]
pub(crate) struct Only {
    /// One of these, unless there are none.
    pub(crate) keys: Vec<String>,
    /// All of these.
    pub(crate) headers: Vec<(String, String)>,
}

impl Only {
    fn wants(&self, message: &Message) -> bool {
        let key = message.key.as_deref();
        let has = |(name, value): &(String, String)| {
            let same = |(known, bytes): &(String, bytes::Bytes)| {
                known == name && bytes.as_ref() == value.as_bytes()
            };
            message.headers.iter().any(same)
        };
        let keyed =
            self.keys.is_empty() || self.keys.iter().any(|each| key == Some(each.as_bytes()));
        keyed && self.headers.iter().all(has)
    }
}

/// How messages are printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Show {
    /// A line for each, perhaps with its time before it.
    Lines { timestamps: bool },
    /// As a template says.
    Format(Format),
    /// The bodies alone.
    Raw,
    /// Events of the broker, whose bodies are JSON.
    Events,
}

/// What to follow, and until when.
pub(crate) struct Plan {
    pub(crate) wanted: Vec<(Pattern, From)>,
    pub(crate) count: Option<u64>,
    pub(crate) follow: bool,
    pub(crate) save: Option<PathBuf>,
    pub(crate) show: Show,
    pub(crate) only: Only,
    /// The name under which it follows.
    pub(crate) identity: Option<Identity>,
    /// How long it may take until all nodes of the cluster know it.
    pub(crate) await_visible: Option<Duration>,
}

/// One subscription of the command.
struct Followed {
    pattern: Pattern,
    subscription: Subscription,
    live: bool,
    /// Everything up to here was printed.
    token: Option<Token>,
}

/// Follows until it is interrupted, has shown enough, or is live and shall not go on.
pub(crate) async fn follow(client: &Client, plan: &Plan, out: &mut Output) -> Done {
    let mut interrupt = Interrupt::listen()?;
    let mut all = tokio::select! {
        all = subscribe_all(client, plan, out) => all?,
        () = interrupt.came() => return Ok(Exit::Ok),
    };
    if plan.show == Show::Events {
        out.note("waiting for events; Ctrl-C ends it");
    }
    if let Some(wait) = plan.await_visible {
        tokio::select! {
            known = await_visible(client, wait, out) => known?,
            () = interrupt.came() => return Ok(Exit::Ok),
        }
    }
    let mut left = plan.count.unwrap_or(u64::MAX);
    let done = loop {
        tokio::select! {
            biased;
            () = interrupt.came() => break Ok(Exit::Ok),
            (at, event) = next(&mut all) => {
                let one = &mut all[at];
                match event {
                    Some(Ok(event)) => left = show(one, event, left, plan, out)?,
                    Some(Err(error)) => break Err(followed(client, error, &one.pattern).await),
                    None => break Err(Failure::new(Exit::NoConnection, "the client has ended")),
                }
                out.flush()?;
                if let Some(path) = &plan.save {
                    write_places(path, &all)?;
                }
                if left == 0 || (!plan.follow && all.iter().all(|one| one.live)) {
                    break Ok(Exit::Ok);
                }
            }
        }
    };
    tell_end(&all, plan, out)?;
    done
}

/// Waits until all nodes know what is followed. What comes meanwhile is printed afterwards.
async fn await_visible(client: &Client, wait: Duration, out: &mut Output) -> Result<(), Failure> {
    let visible = match client.await_visible(wait).await {
        Ok(visible) => visible,
        Err(error) => return Err(asked(client, error, None).await),
    };
    if visible.unseen == 0 {
        out.note("all nodes know what is followed");
        return Ok(());
    }
    let names: Vec<&str> = visible.nodes.iter().map(|node| node.as_str()).collect();
    let names = if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) };
    let (unseen, ms) = (visible.unseen, wait.as_millis());
    let why = format!("{unseen} nodes do not know what is followed after {ms} ms{names}");
    Err(Failure::failed(why))
}

async fn subscribe_all(
    client: &Client,
    plan: &Plan,
    out: &mut Output,
) -> Result<Vec<Followed>, Failure> {
    let mut all = Vec::new();
    for (pattern, from) in &plan.wanted {
        all.push(match &plan.identity {
            Some(identity) => {
                Followed::new(
                    client,
                    pattern,
                    client.subscribe_as(identity, pattern.as_str()).await,
                )
                .await?
            }
            None => subscribe(client, pattern, *from, plan.follow, out).await?,
        });
    }
    Ok(all)
}

async fn subscribe(
    client: &Client,
    pattern: &Pattern,
    from: From,
    follow: bool,
    out: &mut Output,
) -> Result<Followed, Failure> {
    if let Some(topic) = pattern.as_name()
        && !topic.is_system()
        && !exists(client, &topic).await
    {
        let failure = no_topic(client, &topic).await;
        let waits = matches!(from, From::Beginning | From::Now | From::Token(_));
        if !follow || !waits {
            return Err(failure);
        }
        out.note(format_args!("{}; waiting for it", failure.message));
    }
    Followed::new(client, pattern, client.subscribe(pattern.as_str(), from).await).await
}

impl Followed {
    async fn new(
        client: &Client,
        pattern: &Pattern,
        begun: Result<Subscription, SubscriptionError>,
    ) -> Result<Self, Failure> {
        let subscription = match begun {
            Ok(subscription) => subscription,
            Err(error) => return Err(followed(client, error, pattern).await),
        };
        let token = subscription.token();
        Ok(Self { pattern: pattern.clone(), subscription, live: false, token })
    }
}

/// The next event of any of them, and of which.
async fn next(all: &mut [Followed]) -> (usize, Option<Result<Event, SubscriptionError>>) {
    poll_fn(|context| {
        for (at, one) in all.iter_mut().enumerate() {
            // What is not ready is asked again; nothing is lost by dropping it.
            if let Poll::Ready(event) = pin!(one.subscription.next()).poll(context) {
                return Poll::Ready((at, event));
            }
        }
        Poll::Pending
    })
    .await
}

/// Prints an event; gives how many messages are still wanted.
fn show(
    one: &mut Followed,
    event: Event,
    left: u64,
    plan: &Plan,
    out: &mut Output,
) -> io::Result<u64> {
    let pattern = one.pattern.as_str();
    let quiet = plan.show == Show::Events;
    match event {
        Event::Messages(messages) => {
            let (shown, token) = show_messages(&messages, left, plan, out)?;
            one.token = Some(token);
            return Ok(left - shown);
        }
        Event::Gap(gap) => {
            say(out, &gap_json(&gap, pattern), &gap_text(&gap))?;
        }
        Event::Recovering(range) if !quiet => {
            let (unit, from, to) = match range {
                PlaceRange::Seqs(from, to) => ("seq", from.0, to.0),
                PlaceRange::Positions(from, to) => ("position", from.0, to.0),
            };
            let json = json!({
                "event": "recovering", "pattern": pattern, "by": unit, "from": from, "to": to,
            });
            say(out, &json, &format!("{pattern}: history, {unit} {from} to {to}"))?;
        }
        Event::Live => {
            one.live = true;
            if !quiet {
                let json = json!({ "event": "live", "pattern": pattern });
                say(out, &json, &format!("{pattern}: live"))?;
            }
        }
        Event::Resumed => {
            let json = json!({ "event": "resumed", "pattern": pattern });
            say(out, &json, &format!("{pattern}: connected again, going on where it was"))?;
        }
        _ => {}
    }
    one.token = one.subscription.token().or(one.token);
    Ok(left)
}

/// How a subscription is doing: a line for programs, a note for people.
fn say(out: &mut Output, value: &Value, text: &str) -> io::Result<()> {
    if out.json {
        return out.json_line(value);
    }
    out.note(text);
    Ok(())
}

/// Prints messages, at most `left`; gives how many, and the place after the last.
fn show_messages(
    messages: &Messages,
    left: u64,
    plan: &Plan,
    out: &mut Output,
) -> io::Result<(u64, Token)> {
    let epoch = messages.token().epoch;
    let topic = messages.topic().as_str();
    let mut shown = 0;
    for each in messages.iter() {
        if shown == left {
            break;
        }
        if !plan.only.wants(&each.message) {
            continue;
        }
        shown += 1;
        let (seq, position, time) = (each.seq, each.position, each.time);
        let message = &each.message;
        let line = Shown { topic, seq, position, time, message, epoch: Some(epoch) };
        show_one(&line, &plan.show, &[("event", "message".into())], out)?;
        if shown == left {
            // Perhaps not all of them were shown: the place is that of the last one.
            return Ok((shown, Token { epoch, position }));
        }
    }
    Ok((shown, messages.token()))
}

pub(super) fn gap_text(gap: &GapNotice) -> String {
    let reason = gap.reason;
    let topic = gap.topic.as_ref().map_or("all topics", |topic| topic.as_str());
    let range = match (gap.from, gap.to) {
        (Some(from), Some(to)) if from == to => format!("seq {to} is gone"),
        (Some(from), Some(to)) => format!("seq {from} to {to} are gone"),
        (None, Some(to)) => format!("what was not seen up to seq {to} is gone"),
        _ => "the cursor is not of this store; reading starts again".to_owned(),
    };
    format!("gap: {topic}: {range} ({reason})")
}

/// Prints one message.
pub(super) fn show_one(
    line: &Shown<'_>,
    show: &Show,
    before: &[(&str, Value)],
    out: &mut Output,
) -> io::Result<()> {
    let body = line.message.body.as_deref().unwrap_or_default();
    match show {
        Show::Raw => {
            out.bytes(body)?;
            out.bytes(b"\n")
        }
        Show::Events => {
            let text = event_line(body, out);
            out.line(text)
        }
        Show::Format(format) => out.line(format.line(line)),
        Show::Lines { .. } if out.json => out.json_bytes(&line.json(before)),
        Show::Lines { timestamps: false } => out.line(line.line(out.paint)),
        Show::Lines { timestamps: true } => {
            let time = out.paint.dim(calendar::format(line.time.0));
            out.line(format_args!("{time} {}", line.line(out.paint)))
        }
    }
}

fn gap_json(gap: &GapNotice, pattern: &str) -> Value {
    let mut value = shown::gap(gap);
    value["event"] = "gap".into();
    value["pattern"] = pattern.into();
    value
}

/// Says where to go on from.
fn tell_end(all: &[Followed], plan: &Plan, out: &mut Output) -> Result<(), Failure> {
    if let Some(path) = &plan.save {
        write_places(path, all)?;
    }
    if plan.show == Show::Events || plan.identity.is_some() {
        return Ok(());
    }
    for one in all {
        let (pattern, token) = (one.pattern.as_str(), one.token.map(|token| token.to_string()));
        if out.json {
            out.json_line(&json!({ "event": "end", "pattern": pattern, "cursor": token }))?;
        } else if let (Some(token), None) = (token, &plan.save) {
            out.note(format_args!("go on with: gapless sub '{pattern}' --from {token}"));
        }
    }
    if let (Some(path), false) = (&plan.save, out.json) {
        out.note(format_args!("the place is kept in {}", path.display()));
    }
    Ok(())
}

/// Reads the places of patterns: one line each, `token pattern`.
fn read_places(path: &Path) -> Result<Vec<(Pattern, Token)>, Failure> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            return Err(Failure::words(format!("cannot read {}: {error}", path.display())));
        }
        Ok(text) => text,
    };
    let place = |line: &str| {
        let (token, pattern) = line.split_once(' ')?;
        Some((Pattern::parse(pattern).ok()?, token.parse().ok()?))
    };
    let places = text.lines().map(|line| {
        place(line).ok_or_else(|| {
            Failure::words(format!("{} holds no places: {line:?}", path.display()))
                .hint("name another file, or remove this one to start again")
        })
    });
    places.collect()
}

/// Whether places can be kept there: to be known before anything is printed.
fn can_keep(path: &Path) -> Result<(), Failure> {
    let aside = beside(path);
    let made = fs::write(&aside, "").and_then(|()| fs::remove_file(&aside));
    made.map_err(|error| {
        Failure::words(format!("cannot keep the place in {}: {error}", path.display()))
    })
}

/// Where the file is written before it is put in place.
pub(super) fn beside(path: &Path) -> PathBuf {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".new");
    aside.into()
}

/// Keeps the places, and those of other patterns that were in the file. The file is whole
/// at any time: it is written aside and put in place.
fn write_places(path: &Path, all: &[Followed]) -> Result<(), Failure> {
    let mine: Vec<(&Pattern, Token)> =
        all.iter().filter_map(|one| Some((&one.pattern, one.token?))).collect();
    if mine.is_empty() {
        return Ok(());
    }
    let failed = |error: io::Error| {
        Failure::failed(format!("cannot keep the place in {}: {error}", path.display()))
    };
    let mut text = String::new();
    for (pattern, token) in read_places(path)? {
        if all.iter().all(|one| one.pattern != pattern) {
            put_place(&mut text, &pattern, token);
        }
    }
    mine.iter().for_each(|(pattern, token)| put_place(&mut text, *pattern, *token));
    let aside = beside(path);
    fs::write(&aside, text).map_err(failed)?;
    fs::rename(&aside, path).map_err(failed)
}

fn put_place(text: &mut String, pattern: impl fmt::Display, token: Token) {
    *text += &format!("{token} {pattern}\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_core::{GapReason, Seq, TopicName};

    fn gap(from: Option<u64>, to: Option<u64>) -> GapNotice {
        GapNotice {
            topic: TopicName::parse("orders").ok(),
            from: from.map(Seq),
            to: to.map(Seq),
            positions: None,
            reason: GapReason::Retention,
        }
    }

    #[test]
    fn gaps_are_told_in_words() {
        let text = gap_text(&gap(Some(1), Some(5)));
        assert_eq!(text, "gap: orders: seq 1 to 5 are gone (retention)");
        assert!(gap_text(&gap(Some(5), Some(5))).contains("seq 5 is gone"));
        assert!(gap_text(&gap(None, Some(5))).contains("up to seq 5"));
        let json = gap_json(&gap(Some(1), Some(5)), "orders");
        assert_eq!((json["from"].clone(), json["reason"].clone()), (1.into(), "retention".into()));
    }

    #[test]
    fn a_file_of_places_reads_back_and_rubbish_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("place");
        assert!(read_places(&path).unwrap().is_empty());
        let mut text = String::new();
        let token: Token = "00000000000000ab:42".parse().unwrap();
        put_place(&mut text, "orders.>", token);
        fs::write(&path, text).unwrap();
        let places = read_places(&path).unwrap();
        assert_eq!(places, [(Pattern::parse("orders.>").unwrap(), token)]);
        fs::write(&path, "something else\n").unwrap();
        assert_eq!(read_places(&path).unwrap_err().exit, Exit::Words);
    }
}
