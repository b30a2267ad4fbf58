//! The machines as the golden scripts drive them: words in, words out.

mod cluster;
mod fence;
mod group;
mod leader;
mod link;
mod sweep;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use gapless_core::cluster::Node;
use gapless_core::job::leader::Leader;
use gapless_core::outbox::fence::Fence;
use gapless_core::{
    Batcher, BatcherLimits, Cursor, DedupWindow, Expect, FailReason, GapReason, Group, Link, Seq,
    Start, Subscriber, Sweep, Timestamp, Topic, View, batcher, cursor, subscriber, topic,
};

/// One machine of a story.
pub(crate) enum Machine {
    Topic(Topic),
    Cursor(Cursor, View),
    Batcher(Batcher),
    Subscriber(Subscriber),
    Link(Link),
    Group(Box<Group>),
    Sweep(Box<Sweep>),
    Fence(Fence),
    Leader(Box<Leader>),
    Cluster(Box<Node>),
}

/// The `name=value` words of a command.
struct Words<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Words<'a> {
    fn new(words: impl Iterator<Item = &'a str>) -> Self {
        let pair = |word: &'a str| word.split_once('=').unwrap_or((word, ""));
        Self(words.map(pair).collect())
    }

    fn text(&self, name: &str) -> Option<&'a str> {
        self.0.get(name).copied()
    }

    fn number(&self, name: &str) -> u64 {
        let text = self.text(name).unwrap_or_else(|| panic!("{name}= is missing"));
        text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number"))
    }

    fn small(&self, name: &str) -> u32 {
        u32::try_from(self.number(name)).expect("a small number")
    }

    fn seq(&self, name: &str) -> Seq {
        Seq(self.number(name))
    }

    fn millis(&self, name: &str) -> Duration {
        Duration::from_millis(self.number(name))
    }

    fn view(&self) -> View {
        View {
            first: self.seq("first"),
            floor_reason: gap_reason(self.text("reason").unwrap_or("retention")),
            tail: self.seq("tail"),
            next: self.seq("next"),
        }
    }

    /// `0:x,2:y` as index and id.
    fn ids(&self) -> Vec<(u32, &'a [u8])> {
        let pair = |text: &'a str| {
            let (index, id) = text.split_once(':').expect("an id is written index:id");
            (index.parse().expect("an index"), id.as_bytes())
        };
        self.text("ids").map(|text| text.split(',').map(pair).collect()).unwrap_or_default()
    }

    fn expect(&self) -> Option<Expect> {
        let (what, seq) = self.text("expect")?.split_once(':').expect("expect=what:seq");
        let seq = Seq(seq.parse().expect("a seq"));
        Some(if what == "key" { Expect::KeyLast(seq) } else { Expect::TopicLast(seq) })
    }
}

fn gap_reason(name: &str) -> GapReason {
    let found = GapReason::ALL.iter().find(|(_, reason)| reason.name() == name);
    found.unwrap_or_else(|| panic!("no gap reason {name}")).1
}

impl Machine {
    /// Makes the machine a `new` command asks for.
    pub(crate) fn new(command: &str) -> Self {
        let mut words = command.split_whitespace();
        let kind = words.next().expect("a machine");
        let words = Words::new(words);
        match kind {
            "topic" => {
                let window =
                    DedupWindow { time: words.millis("time"), count: words.small("count") };
                Self::Topic(Topic::new(window))
            }
            "cursor" => {
                let start = match words.text("start").expect("start=") {
                    "beginning" => Start::Beginning,
                    "now" => Start::Now,
                    seq => Start::Seq(Seq(seq.parse().expect("a seq"))),
                };
                let view = words.view();
                Self::Cursor(Cursor::start(start, &view).expect("a place to begin"), view)
            }
            "batcher" => {
                let limits = BatcherLimits {
                    batch_count_max: words.small("batch_count"),
                    batch_bytes_max: words.number("batch_bytes"),
                    wait: words.millis("wait"),
                    queue_count_max: words.small("queue_count"),
                    queue_bytes_max: words.number("queue_bytes"),
                };
                Self::Batcher(Batcher::new(limits).expect("good limits"))
            }
            "subscriber" => Self::Subscriber(Subscriber::new(words.millis("ttl"))),
            "link" => Self::Link(link::new(&words)),
            "group" => Self::Group(Box::new(group::new(&words))),
            "sweep" => Self::Sweep(Box::new(sweep::new(&words))),
            "leader" => Self::Leader(Box::new(leader::new(&words))),
            "cluster" => Self::Cluster(Box::new(cluster::new(&words))),
            "fence" => Self::Fence(Fence::new(words.number("safe"))),
            other => panic!("no machine {other}"),
        }
    }

    /// Runs one command and tells what came of it; a panic is an answer too.
    pub(crate) fn run(&mut self, command: &str) -> String {
        let mut words = command.split_whitespace().peekable();
        let now = words.next_if(|word| word.starts_with('@'));
        let now = Timestamp(now.map_or(0, |word| word[1..].parse().expect("a time")));
        let verb = words.next().expect("a verb");
        let words = Words::new(words);
        let result = catch_unwind(AssertUnwindSafe(|| match self {
            Self::Topic(machine) => run_topic(machine, now, verb, &words),
            Self::Cursor(machine, view) => run_cursor(machine, view, now, verb, &words),
            Self::Batcher(machine) => run_batcher(machine, now, verb, &words),
            Self::Subscriber(machine) => run_subscriber(machine, now, verb, &words),
            Self::Link(machine) => link::run(machine, now, verb, &words),
            Self::Group(machine) => group::run(machine, now, verb, &words),
            Self::Sweep(machine) => sweep::run(machine, now, verb, &words),
            Self::Leader(machine) => leader::run(machine, now, verb, &words),
            Self::Cluster(machine) => cluster::run(machine, now, verb, &words),
            Self::Fence(machine) => fence::run(machine, now, verb, &words),
        }));
        result.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("?");
            format!("refused: {}\n", text.lines().next().unwrap_or_default())
        })
    }
}

/// Effects and standing, one a line, without the wrappers that only the compiler needs.
fn trace<E: Debug>(effects: &[E], standing: &str) -> String {
    let mut out = String::new();
    for effect in effects {
        out.push_str(&plain(&format!("{effect:?}\n")));
    }
    out.push_str(&plain(&format!("= {standing}\n")));
    out
}

fn plain(text: &str) -> String {
    let mut text = text.to_owned();
    for wrapper in
        ["Seq(", "Timestamp(", "Some(", "PublishNumber(", "SubscriptionId(", "Epoch(", "Position("]
    {
        while let Some(at) = text.find(wrapper).filter(|at| !text[..*at].ends_with("Expected")) {
            let inner = at + wrapper.len();
            let end = inner + text[inner..].find(')').expect("a closing bracket");
            text.replace_range(end..=end, "");
            text.replace_range(at..inner, "");
        }
    }
    text
}

fn run_topic(machine: &mut Topic, now: Timestamp, verb: &str, words: &Words<'_>) -> String {
    let ids = words.ids();
    let input = match verb {
        "offer" => topic::Input::Offer {
            count: words.small("count"),
            ids: &ids,
            expect: words.expect(),
            key_last: words.text("key_last").map(|seq| Seq(seq.parse().expect("a seq"))),
        },
        "replayed" => topic::Input::Replayed {
            first: words.seq("first"),
            count: words.small("count"),
            ids: &ids,
            time: now,
        },
        "trim" => topic::Input::Trim {
            below: words.seq("below"),
            reason: gap_reason(words.text("reason").unwrap_or("retention")),
        },
        "settled" => topic::Input::Settled { through: words.seq("through") },
        "window" => topic::Input::Window(DedupWindow {
            time: words.millis("time"),
            count: words.small("count"),
        }),
        "tick" => topic::Input::Tick,
        other => panic!("a topic has no {other}"),
    };
    let mut effects = Vec::new();
    machine.step(now, input, &mut effects);
    machine.check();
    let (first, next, settled) = (machine.first(), machine.next(), machine.settled());
    let ids = machine.remembered();
    trace(&effects, &format!("first {first}, next {next}, settled {settled}, ids {ids}"))
}

fn run_cursor(
    machine: &mut Cursor,
    view: &mut View,
    now: Timestamp,
    verb: &str,
    words: &Words<'_>,
) -> String {
    let input = match verb {
        "look" => {
            if words.text("next").is_some() {
                *view = words.view();
            }
            cursor::Input::Look(*view)
        }
        "took" => cursor::Input::Took { from: words.seq("from"), to: words.seq("to") },
        other => panic!("a cursor has no {other}"),
    };
    let mut effects = Vec::new();
    machine.step(now, input, &mut effects);
    machine.check();
    let state = if machine.is_live() { "live" } else { "recovering" };
    trace(&effects, &format!("next {}, {state}", machine.next()))
}

fn run_batcher(machine: &mut Batcher, now: Timestamp, verb: &str, words: &Words<'_>) -> String {
    let input = match verb {
        "add" => batcher::Input::Add { bytes: words.number("bytes") },
        "tick" => batcher::Input::Tick,
        "done" => batcher::Input::Done(words.number("batch")),
        "stop" => batcher::Input::Stop { flush: words.text("flush").is_some() },
        other => panic!("a batcher has no {other}"),
    };
    let mut effects = Vec::new();
    machine.step(now, input, &mut effects);
    machine.check();
    let due = machine.deadline().map_or("none".into(), |due| due.to_string());
    trace(&effects, &format!("queued {}, due {due}", machine.queued()))
}

fn run_subscriber(
    machine: &mut Subscriber,
    now: Timestamp,
    verb: &str,
    words: &Words<'_>,
) -> String {
    let input = match verb {
        "delivered" => subscriber::Input::Delivered,
        "failed" => subscriber::Input::Failed {
            reason: match words.text("reason").expect("reason=") {
                "timeout" => FailReason::Timeout,
                "subscriber-unreachable" => FailReason::SubscriberUnreachable,
                "node-unreachable" => FailReason::NodeUnreachable,
                _ => FailReason::OtherError,
            },
        },
        "node-back" => subscriber::Input::NodeBack,
        "tick" => subscriber::Input::Tick,
        other => panic!("a subscriber has no {other}"),
    };
    let mut effects = Vec::new();
    machine.step(now, input, &mut effects);
    machine.check();
    trace(&effects, &format!("{:?}", machine.status()))
}
