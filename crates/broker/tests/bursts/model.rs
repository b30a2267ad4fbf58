//! What must hold after a burst and a restart, whatever the order of calls that overlapped.
//!
//! What is found after a restart is what the next burst begins with, so each burst is checked
//! by itself; only what must never come again is kept for longer.

use std::collections::{BTreeMap, BTreeSet};

use gapless_broker::{Broker, GroupDoing};
use gapless_core::{Durability, GroupSettings, Seq, TopicSettings};

use crate::acts::{CELLS, GROUPS, TOPICS, cell_name, group_name, source, topic_name};
use crate::calls::{Call, Fate, What};
use crate::common;

/// A topic as it was found.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Topic {
    pub(crate) id: u64,
    pub(crate) settings: TopicSettings,
    pub(crate) first: u64,
    /// By seq: the position, and which body it is.
    pub(crate) messages: BTreeMap<u64, (u64, u64)>,
}

/// A group as it was found.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Group {
    pub(crate) id: u64,
    pub(crate) settings: GroupSettings,
    /// `None` while a gap stops it.
    pub(crate) paused: Option<bool>,
}

/// What is there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    pub(crate) topics: [Option<Topic>; TOPICS],
    pub(crate) groups: [Option<Group>; GROUPS],
    pub(crate) cells: [Option<u64>; CELLS],
}

impl Found {
    /// Looks at everything; panics if something cannot be read or is none of ours.
    pub(crate) fn look(broker: &Broker) -> Self {
        Self {
            topics: std::array::from_fn(|topic| look_at_topic(broker, topic)),
            groups: std::array::from_fn(|group| {
                let info = broker.describe_group(&group_name(group)).ok()?;
                let paused = match info.state {
                    GroupDoing::Running => Some(false),
                    GroupDoing::Paused => Some(true),
                    GroupDoing::Stopped(_) => None,
                };
                Some(Group { id: info.id, settings: info.settings, paused })
            }),
            cells: std::array::from_fn(|cell| {
                let value = broker.cell(cell_name(cell).as_bytes())?;
                Some(std::str::from_utf8(&value).ok()?.parse().expect("a value of ours"))
            }),
        }
    }
}

fn look_at_topic(broker: &Broker, topic: usize) -> Option<Topic> {
    let name = topic_name(topic);
    let info = broker.describe_topic(&name).ok()?;
    let pattern = common::pattern(name.as_str());
    let mut follower = broker.subscribe(&pattern, gapless_broker::From::Beginning).ok()?;
    let steps = common::until_live(&mut follower);
    let mut messages = BTreeMap::new();
    let mut next = None;
    for each in common::delivered(&steps) {
        assert!(next.is_none_or(|next| next == each.seq.0), "{name} has a hole at {}", each.seq);
        next = Some(each.seq.0 + 1);
        let body = common::body(&each.message);
        let (of, number) = body.split_once(':').expect("a body of ours");
        assert_eq!(of, topic.to_string(), "{name} has a message of another topic");
        let number = number.parse().expect("a body of ours");
        messages.insert(each.seq.0, (each.position.0, number));
    }
    let first = messages.keys().next().copied().unwrap_or(info.next.0);
    Some(Topic { id: info.id, settings: info.settings, first, messages })
}

/// A delayed message that was scheduled.
#[derive(Clone, Copy, Debug)]
struct Scheduled {
    topic: usize,
    body: u64,
    due: u64,
    cancelled: Fate,
    /// Whether its topic was there all the time, and nothing of it was purged.
    undisturbed: bool,
}

/// What is known of a group beyond one burst.
#[derive(Clone, Debug, Default)]
struct History {
    /// Positions that may not come again, and when they were ended.
    ended: BTreeMap<u64, (u64, u64)>,
    /// Positions that were handed out or ended, as far as callers know.
    touched: BTreeSet<u64>,
}

/// What must hold.
#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) found: Found,
    scheduled: BTreeMap<u64, Scheduled>,
    history: [History; GROUPS],
    /// Bodies that may be in a topic again, because they were dead letters.
    redriven: bool,
}

impl Model {
    /// Ids of delayed messages that may still wait.
    pub(crate) fn waiting(&self) -> Vec<u64> {
        self.scheduled.keys().copied().collect()
    }

    /// Checks what was found after a burst that ended so that everything of this durability
    /// survived, and goes on from there. `now` is the time when the store was opened.
    pub(crate) fn check(&mut self, calls: &[Call], found: Found, kept: Durability, now: u64) {
        self.redriven |= calls.iter().any(|call| matches!(call.what, What::Letters));
        self.check_handed(calls);
        for topic in 0..TOPICS {
            self.check_topic(topic, calls, found.topics[topic].as_ref(), kept);
        }
        for group in 0..GROUPS {
            self.check_group(group, calls, found.groups[group].as_ref());
        }
        for cell in 0..CELLS {
            let base = self.found.cells[cell];
            let writes = calls.iter().filter_map(|call| match call.what {
                What::Cell { cell: at, value, reached } if at == cell => {
                    Some((call, value, reached >= kept))
                }
                _ => None,
            });
            let writes: Vec<_> = writes.collect();
            let may_be = candidates(base, &writes);
            let value = found.cells[cell];
            assert!(may_be.contains(&value), "cell {cell} is {value:?}, not of {may_be:?}");
        }
        self.check_commits(calls, &found);
        self.check_delayed(&found, now);
        self.found = found;
    }

    fn check_topic(&self, at: usize, calls: &[Call], found: Option<&Topic>, kept: Durability) {
        let base = self.found.topics[at].as_ref();
        let changes = calls.iter().filter_map(|call| match &call.what {
            What::Topic { topic, settings, .. } if *topic == at => Some((call, *settings, true)),
            _ => None,
        });
        let changes: Vec<_> = changes.collect();
        let may_be = candidates(base.map(|topic| topic.settings), &changes);
        let settings = found.map(|topic| topic.settings);
        assert!(may_be.contains(&settings), "t{at} has {settings:?}, not of {may_be:?}");
        let deletions: Vec<&Call> = changes
            .iter()
            .filter(|(call, settings, _)| settings.is_none() && call.may_count())
            .map(|(call, ..)| *call)
            .collect();
        let Some(found) = found else { return };
        // One that was there before a deletion began is another topic, or gone.
        let makers = changes.iter().filter(|(call, ..)| {
            matches!(call.what, What::Topic { id, .. } if id == Some(found.id)) && call.is_done()
        });
        let made_by = makers.map(|(call, ..)| call.to).min();
        let made_by = base.filter(|base| base.id == found.id).map(|_| 0).or(made_by);
        if let Some(made_by) = made_by {
            let deleted = deletions.iter().find(|call| call.is_done() && call.from > made_by);
            assert!(deleted.is_none(), "t{at} came back after {deleted:?}");
        }
        if let Some(base) = base.filter(|base| base.id == found.id) {
            let trims = |settings: &TopicSettings| settings.retention.count.is_some();
            let trimmed = calls.iter().any(|call| match &call.what {
                What::Purge { topic } => *topic == at && call.may_count(),
                _ => false,
            });
            let trimmed = trimmed
                || trims(&base.settings)
                || changes.iter().any(|(_, settings, _)| settings.as_ref().is_some_and(trims));
            assert!(trimmed || found.first == base.first, "t{at} begins at {}", found.first);
            for (seq, message) in base.messages.range(found.first..) {
                assert_eq!(found.messages.get(seq), Some(message), "t{at} at {seq}");
            }
        }
        let mut places: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
        for (seq, (position, body)) in &found.messages {
            places.entry(*body).or_default().push((*seq, *position));
        }
        let twice = places.iter().find(|(_, places)| places.len() > 1);
        assert!(twice.is_none() || self.redriven, "t{at} has a message twice: {twice:?}");
        for call in calls {
            let What::Publish { topic, body, place: Some(place), .. } = call.what else { continue };
            if topic != at {
                continue;
            }
            let there = places.get(&body);
            let stands = (place.seq, place.position);
            // One before the topic that is there now began is not in it.
            let gone =
                deletions.iter().any(|deletion| deletion.is_done() && deletion.follows(call));
            if gone {
                assert!(there.is_none() || self.redriven, "t{at} kept {body}, which was deleted");
                continue;
            }
            if let Some(there) = there {
                assert!(there.contains(&stands) || self.redriven, "{body} is at {there:?}");
            }
            let may_be_gone = deletions.iter().any(|deletion| deletion.to > call.from);
            let must_be = place.reached >= kept && !may_be_gone && place.seq >= found.first;
            let is_there = there.is_some_and(|there| there.contains(&stands));
            assert!(is_there || !must_be, "t{at} lost {body}, acked at {place:?}");
        }
    }

    fn check_group(&mut self, at: usize, calls: &[Call], found: Option<&Group>) {
        let base = self.found.groups[at].as_ref();
        let changes = calls.iter().filter_map(|call| match &call.what {
            What::Group { group, settings, .. } if *group == at => {
                Some((call, settings.clone(), true))
            }
            _ => None,
        });
        let changes: Vec<_> = changes.collect();
        let may_be = candidates(base.map(|group| group.settings.clone()), &changes);
        let settings = found.map(|group| group.settings.clone());
        assert!(may_be.contains(&settings), "g{at} has {settings:?}, not of {may_be:?}");
        let makers = changes.iter().filter(|(call, ..)| {
            let made = |id: Option<u64>| id.is_some() && id == found.map(|group| group.id);
            matches!(call.what, What::Group { id, .. } if made(id)) && call.is_done()
        });
        let made_by = makers.map(|(call, ..)| call.to).min();
        let stayed = base.map(|base| base.id) == found.map(|group| group.id);
        let made_by = if stayed { Some(0) } else { made_by };
        let mut ends: Vec<&Call> = Vec::new();
        for (call, settings, _) in &changes {
            if settings.is_some() || !call.may_count() {
                continue;
            }
            let deleted = call.is_done() && made_by.is_some_and(|made_by| call.from > made_by);
            assert!(found.is_none() || !deleted, "g{at} came back after {call:?}");
            ends.push(call);
        }
        if changes.iter().all(|(call, ..)| !call.may_count()) {
            let pauses = calls.iter().filter_map(|call| match call.what {
                What::Paused { group, paused } if group == at => Some((call, Some(paused), true)),
                _ => None,
            });
            let pauses: Vec<_> = pauses.collect();
            let was = base.and_then(|base| base.paused);
            let paused = found.and_then(|group| group.paused);
            let may_be = candidates(was, &pauses);
            let fits = paused.is_none() || was.is_none() || may_be.contains(&paused);
            assert!(fits, "g{at} is paused: {paused:?}, not of {may_be:?}");
        }
        // What must never be redelivered, unless the group was reset since.
        let recreated = calls.iter().filter(|call| {
            matches!(call.what, What::Reset { group } if group == at) && call.may_count()
        });
        ends.extend(recreated);
        let last_end = ends.iter().map(|call| call.to).max();
        let history = &mut self.history[at];
        for call in calls {
            match call.what {
                What::Handed { group, position } if group == at => {
                    history.touched.insert(position);
                }
                What::Ended { group, position } if group == at && call.may_count() => {
                    history.touched.insert(position);
                    if call.is_done() {
                        history.ended.insert(position, (call.from, call.to));
                    }
                }
                _ => {}
            }
        }
        if let Some(last_end) = last_end {
            history.ended.retain(|_, (from, _)| *from > last_end);
        }
        if !stayed {
            history.touched.clear();
            // Of another group, or of this one: then nothing is said of it.
            history.touched.extend(handed_since(at, calls));
        }
    }

    /// Nothing that was ended was handed out later.
    fn check_handed(&self, calls: &[Call]) {
        for group in 0..GROUPS {
            let recreated: Vec<&Call> = calls
                .iter()
                .filter(|call| match call.what {
                    What::Reset { group: at } => at == group && call.may_count(),
                    What::Group { group: at, settings: None, .. } => {
                        at == group && call.may_count()
                    }
                    _ => false,
                })
                .collect();
            let mut ended: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
            for (position, times) in &self.history[group].ended {
                ended.entry(*position).or_default().push(*times);
            }
            for call in calls {
                if let What::Ended { group: at, position } = call.what
                    && at == group
                    && call.is_done()
                {
                    ended.entry(position).or_default().push((call.from, call.to));
                }
            }
            for call in calls {
                let What::Handed { group: at, position } = call.what else { continue };
                if at != group {
                    continue;
                }
                for (from, to) in ended.get(&position).into_iter().flatten() {
                    let again = recreated.iter().any(|each| each.to > *from);
                    let wrong = call.from > *to && !again;
                    assert!(!wrong, "g{group} handed out {position} again: {call:?}");
                }
            }
        }
    }

    /// Of a commit all is there, or nothing.
    fn check_commits(&self, calls: &[Call], found: &Found) {
        let mut commits: BTreeMap<u64, Vec<bool>> = BTreeMap::new();
        for call in calls {
            let What::Publish { topic, body, commit: Some(commit), place } = call.what else {
                continue;
            };
            let deleted = calls.iter().any(|each| match &each.what {
                What::Topic { topic: at, settings, .. } => {
                    *at == topic && each.may_count() && (settings.is_none() || trims(settings))
                }
                What::Purge { topic: at } => *at == topic && each.may_count(),
                _ => false,
            });
            let Some(there) = &found.topics[topic] else { continue };
            let trimmed = there.settings.retention.count.is_some();
            let low = place.is_some_and(|place| place.seq < there.first);
            if !deleted && !trimmed && !low {
                let is_there = there.messages.values().any(|(_, number)| *number == body);
                commits.entry(commit).or_default().push(is_there);
            }
        }
        for (commit, parts) in commits {
            assert!(parts.windows(2).all(|pair| pair[0] == pair[1]), "half of commit {commit}");
        }
    }

    /// Takes over what was asked of delayed messages.
    pub(crate) fn note_delayed(&mut self, calls: &[Call]) {
        for call in calls {
            if let What::Schedule { topic, body, id: Some(id), due } = call.what {
                let (cancelled, undisturbed) = (Fate::Nothing, true);
                self.scheduled.insert(id, Scheduled { topic, body, due, cancelled, undisturbed });
            }
        }
        for call in calls {
            match &call.what {
                What::Cancel { id } => {
                    if let Some(scheduled) = self.scheduled.get_mut(id)
                        && call.may_count()
                        && scheduled.cancelled != Fate::Done
                    {
                        scheduled.cancelled = call.fate;
                    }
                }
                What::Topic { topic, settings, .. } if settings.is_none() || trims(settings) => {
                    self.disturb(*topic);
                }
                What::Purge { topic } => self.disturb(*topic),
                _ => {}
            }
        }
    }

    /// A delayed message that must be in its topic by now and is not.
    pub(crate) fn overdue(&self, found: &Found, now: u64) -> Option<u64> {
        let late = self.scheduled.iter().find(|(_, each)| {
            let must_be = each.undisturbed && each.cancelled == Fate::Nothing && each.due <= now;
            let topic = found.topics[each.topic].as_ref();
            let kept = topic.is_some_and(|topic| topic.settings.retention.count.is_none());
            must_be && kept && count(found, each) == 0
        });
        late.map(|(id, _)| *id)
    }

    fn check_delayed(&mut self, found: &Found, now: u64) {
        assert_eq!(self.overdue(found, now), None, "a delayed message is late");
        let redriven = self.redriven;
        self.scheduled.retain(|id, each| {
            let count = count(found, each);
            assert!(count <= 1 || redriven, "delayed message {id} was published {count} times");
            let cancelled = each.cancelled == Fate::Done;
            assert!(count == 0 || !cancelled, "delayed message {id} was cancelled and published");
            // One that was due may be on its way while its topic is deleted: looked at again.
            each.due > now || (count == 0 && each.undisturbed)
        });
    }

    fn disturb(&mut self, topic: usize) {
        let of_topic = |each: &&mut Scheduled| each.topic == topic;
        self.scheduled.values_mut().filter(of_topic).for_each(|each| each.undisturbed = false);
    }

    /// Everything of a group's source was handed out to one who acked all of it, until nothing
    /// was left: what was there `before` and was never handed out must be among it.
    pub(crate) fn drained(
        &mut self,
        (group, before): (usize, &Found),
        broker: &Broker,
        handed: &[(u64, u64, u64)],
    ) {
        let history = &mut self.history[group];
        let got: BTreeSet<u64> = handed.iter().map(|(position, ..)| *position).collect();
        for (position, from, to) in handed {
            let again = history.ended.get(position);
            assert!(again.is_none(), "g{group} handed out {position} again, ended at {again:?}");
            history.ended.insert(*position, (*from, *to));
        }
        let letters = broker.dead_letters(&group_name(group), Seq(1), 10_000);
        let letters = letters.expect("letters can be read");
        let pattern = common::pattern(source(group).0);
        for topic in (0..TOPICS).filter(|topic| pattern.matches(&topic_name(*topic))) {
            let Some(there) = look_at_topic(broker, topic) else { continue };
            let Some(before) = &before.topics[topic] else { continue };
            for (seq, (position, body)) in before.messages.range(there.first..) {
                let is_letter = letters
                    .iter()
                    .any(|each| each.topic == topic_name(topic) && each.origin.0 == *seq);
                let known = got.contains(position) || history.touched.contains(position);
                assert!(known || is_letter, "g{group} forgot {body} of t{topic} at {position}");
            }
        }
        history.touched.extend(got);
    }
}

/// How often a delayed message is in its topic.
fn count(found: &Found, scheduled: &Scheduled) -> usize {
    let messages = found.topics[scheduled.topic].iter().flat_map(|topic| topic.messages.values());
    messages.filter(|(_, body)| *body == scheduled.body).count()
}

fn trims(settings: &Option<TopicSettings>) -> bool {
    settings.as_ref().is_some_and(|settings| settings.retention.count.is_some())
}

fn handed_since(at: usize, calls: &[Call]) -> impl Iterator<Item = u64> {
    calls.iter().filter_map(move |call| match call.what {
        What::Handed { group, position } | What::Ended { group, position } if group == at => {
            Some(position)
        }
        _ => None,
    })
}

/// What a value may be after writes, each with whether it was sure to survive: those that no
/// write which certainly counts came after.
fn candidates<T: Clone + PartialEq>(
    base: Option<T>,
    writes: &[(&Call, Option<T>, bool)],
) -> Vec<Option<T>> {
    let counts = |(call, _, kept): &&(&Call, Option<T>, bool)| call.is_done() && *kept;
    let mut may_be = Vec::new();
    if !writes.iter().any(|write| counts(&write)) {
        may_be.push(base);
    }
    for (call, value, _) in writes.iter().filter(|(call, ..)| call.may_count()) {
        if !writes.iter().filter(counts).any(|(later, ..)| later.follows(call)) {
            may_be.push(value.clone());
        }
    }
    may_be
}
