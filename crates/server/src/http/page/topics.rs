//! The topics as the page sees them: how far each is, how fast it grows, how large it is.
//!
//! Read of all topics at once, so it must be cheap for each: an idle topic costs a few words,
//! and only those that had messages lately have a series of points. Sizes need a look into
//! the segments' indexes; they are taken of a bounded number of topics at a time and carried
//! on in between by what came in.

use gapless_broker::{Broker, TopicCounts};
use gapless_core::TopicName;

use crate::http::page::ring::Ring;

/// Points of a topic's small chart: a minute.
pub(crate) const RECENT_POINTS: usize = 60;
/// Points over which a rate is the mean: short enough to be now, long enough to be calm.
pub(crate) const RATE_POINTS: usize = 5;
/// Topics that have a series at the same time, about 600 bytes each. Beyond it a topic's
/// rate is that of the last interval.
const SERIES_MAX: usize = 20_000;
/// Sizes that are computed again at one reading.
const SIZES_AT_ONCE: usize = 1000;
/// Readings after which a size is computed again, since compaction changes it without notice.
const SIZE_TICKS: u64 = 60;

/// A topic and what was seen of it.
#[derive(Debug)]
pub(crate) struct Topic {
    pub(crate) counts: TopicCounts,
    /// How far it was at the last tick.
    at_tick: Flow,
    /// What happened between the last two ticks.
    last: Flow,
    series: Option<Box<Series>>,
    size: Option<Size>,
}

/// What came in and went out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flow {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    /// Messages handed to subscribers and members of groups.
    pub(crate) out: u64,
}

impl Flow {
    fn of(counts: &TopicCounts) -> Self {
        Self { messages: counts.next.0, bytes: counts.bytes_in, out: counts.messages_out }
    }

    fn since(self, then: Self) -> Self {
        Self {
            messages: self.messages.saturating_sub(then.messages),
            bytes: self.bytes.saturating_sub(then.bytes),
            out: self.out.saturating_sub(then.out),
        }
    }

    fn plus(self, more: Self) -> Self {
        Self {
            messages: self.messages + more.messages,
            bytes: self.bytes + more.bytes,
            out: self.out + more.out,
        }
    }

    fn is_idle(self) -> bool {
        self.messages == 0 && self.out == 0
    }
}

#[derive(Debug)]
struct Series {
    messages: Ring<u64>,
    lately: Ring<Flow>,
    idle: usize,
}

/// Bytes kept, as of the last reading.
#[derive(Clone, Copy, Debug)]
struct Size {
    bytes: u64,
    bytes_in: u64,
    first: u64,
    tick: u64,
}

impl Topic {
    /// A topic that was created (`made`) since the last reading had nothing then.
    fn new(counts: TopicCounts, made: bool) -> Self {
        let nothing = Flow { messages: 1, ..Flow::default() };
        let at_tick = if made { nothing } else { Flow::of(&counts) };
        Self { counts, at_tick, last: Flow::default(), series: None, size: None }
    }

    pub(crate) fn name(&self) -> &TopicName {
        &self.counts.name
    }

    /// How many messages came in each of the last intervals, oldest first; empty when none
    /// did.
    pub(crate) fn recent(&self) -> impl Iterator<Item = u64> {
        self.series.iter().flat_map(|series| series.messages.iter().copied())
    }

    /// What happened in the last intervals, at most [`RATE_POINTS`] of them.
    pub(crate) fn lately(&self, intervals: usize) -> Flow {
        match &self.series {
            Some(series) => {
                let points = series.lately.newest(intervals.min(RATE_POINTS));
                points.fold(Flow::default(), |sum, each| sum.plus(*each))
            }
            None => self.last,
        }
    }

    /// Whether [`Topic::lately`] is of one interval only.
    pub(crate) fn has_series(&self) -> bool {
        self.series.is_some()
    }

    /// Bytes kept, if they were ever looked up.
    pub(crate) fn size(&self) -> Option<u64> {
        self.size.map(|size| size.bytes + self.counts.bytes_in.saturating_sub(size.bytes_in))
    }

    fn wants_size(&self, tick: u64) -> bool {
        self.size
            .is_none_or(|size| size.first != self.counts.first.0 || size.tick + SIZE_TICKS <= tick)
    }

    /// Looks its size up.
    pub(crate) fn take_size(&mut self, broker: &Broker, tick: u64) {
        let bytes_in = self.counts.bytes_in;
        // A topic that was deleted meanwhile is gone with the next reading.
        if let Ok(info) = broker.describe_topic(&self.counts.name) {
            self.size = Some(Size { bytes: info.bytes, bytes_in, first: info.first.0, tick });
        }
    }

    /// Ends an interval. Gives whether it keeps a series.
    fn tick(&mut self, may_have_series: bool) -> bool {
        let now = Flow::of(&self.counts);
        self.last = now.since(self.at_tick);
        self.at_tick = now;
        if !self.last.is_idle() && self.series.is_none() && may_have_series {
            let (messages, lately) = (Ring::new(RECENT_POINTS), Ring::new(RATE_POINTS));
            self.series = Some(Box::new(Series { messages, lately, idle: 0 }));
        }
        if let Some(series) = &mut self.series {
            series.messages.push(self.last.messages);
            series.lately.push(self.last);
            series.idle = if self.last.is_idle() { series.idle + 1 } else { 0 };
            if series.idle >= RECENT_POINTS {
                self.series = None;
            }
        }
        self.series.is_some()
    }
}

/// All topics.
#[derive(Debug, Default)]
pub(crate) struct Topics {
    /// In the order of their numbers.
    all: Vec<Topic>,
    /// Places in `all`, in the order of names.
    by_name: Vec<usize>,
    was_read: bool,
    /// Where looking up sizes goes on.
    size_from: usize,
}

impl Topics {
    /// Takes in how far all are. Both lists are in the order of numbers, which only grow.
    pub(crate) fn read(&mut self, counts: Vec<TopicCounts>) {
        let before = std::mem::take(&mut self.all);
        let mut changed = before.len() != counts.len();
        let mut known = before.into_iter().peekable();
        self.all.reserve(counts.len());
        for counts in counts {
            while known.next_if(|topic| topic.counts.id < counts.id).is_some() {
                changed = true;
            }
            match known.next_if(|topic| topic.counts.id == counts.id) {
                Some(mut topic) => {
                    topic.counts = counts;
                    self.all.push(topic);
                }
                None => {
                    changed = true;
                    self.all.push(Topic::new(counts, self.was_read));
                }
            }
        }
        self.was_read = true;
        if changed {
            self.by_name = (0..self.all.len()).collect();
            self.by_name.sort_unstable_by(|a, b| self.all[*a].name().cmp(self.all[*b].name()));
        }
    }

    /// Ends an interval: what came since the last one is a point of each series.
    pub(crate) fn tick(&mut self) {
        let mut series = self.all.iter().filter(|topic| topic.has_series()).count();
        for topic in &mut self.all {
            let had = topic.has_series();
            let has = topic.tick(had || series < SERIES_MAX);
            series = series + usize::from(has) - usize::from(had);
        }
    }

    /// Looks some sizes up, where they are wanted.
    pub(crate) fn take_sizes(&mut self, broker: &Broker, tick: u64) {
        let len = self.all.len();
        let mut taken = 0;
        for _ in 0..len {
            self.size_from = (self.size_from + 1) % len;
            let topic = &mut self.all[self.size_from];
            if topic.wants_size(tick) {
                topic.take_size(broker, tick);
                taken += 1;
                if taken == SIZES_AT_ONCE {
                    return;
                }
            }
        }
    }

    /// In the order of names.
    pub(crate) fn by_name(&self) -> impl DoubleEndedIterator<Item = &Topic> {
        self.by_name.iter().map(|at| &self.all[*at])
    }

    pub(crate) fn find(&self, name: &str) -> Option<&Topic> {
        let found = self.by_name.binary_search_by(|at| self.all[*at].name().as_str().cmp(name));
        found.ok().map(|at| &self.all[self.by_name[at]])
    }

    /// Without the broker's own.
    pub(crate) fn count(&self) -> usize {
        self.all.iter().filter(|topic| !topic.name().is_system()).count()
    }

    /// Messages ever accepted and bytes that came in, of all topics.
    pub(crate) fn total(&self) -> (u64, u64) {
        let each = self.all.iter().map(|topic| (topic.counts.next.0 - 1, topic.counts.bytes_in));
        each.fold((0, 0), |sum, each| (sum.0 + each.0, sum.1 + each.1))
    }

    /// Messages that were handed out since the store was opened.
    pub(crate) fn messages_out(&self) -> u64 {
        self.all.iter().map(|topic| topic.counts.messages_out).sum()
    }

    /// What happened between the last two ticks.
    pub(crate) fn came(&self) -> Flow {
        self.all.iter().fold(Flow::default(), |sum, topic| sum.plus(topic.last))
    }
}
