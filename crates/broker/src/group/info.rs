//! How a group stands, in numbers and in words.

use std::time::Duration;

use gapless_core::group::Group;
use gapless_core::{
    GroupDoing, GroupInfo, GroupSettings, MemberInfo, Mode, Position, Timestamp, TopicName,
};
use gapless_journal::ReadError;

use crate::broker::Inner;
use crate::group::dead_letters::dead_name;
use crate::group::{GroupState, LiveGroup, notice};

/// Topics whose lag is counted one by one; with more, it is an upper bound.
const COUNTED_TOPICS_MAX: usize = 1000;

/// What of a group's source was not read yet.
#[derive(Default)]
struct Unread {
    /// Messages: so many, or at most so many.
    count: u64,
    exact: bool,
    /// When the first of them was accepted.
    oldest: Option<Timestamp>,
    /// Topics that match the source.
    topics: usize,
    /// Why it cannot be counted.
    trouble: Option<ReadError>,
}

impl Inner {
    pub(crate) fn group_info(&self, group: &LiveGroup) -> GroupInfo {
        let now = self.clock.now();
        let (mut info, frontier) = {
            let state = group.lock();
            (describe(group, &state), state.machine.frontier())
        };
        let unread = self.unread(&info.settings, frontier);
        let oldest = unread.oldest;
        info.lag = unread.count + info.counts.open();
        info.lag_exact = unread.exact;
        if info.counts.open() == 0 {
            info.oldest_age = oldest.map(|time| now.since(time));
        } else {
            info.oldest_age =
                info.oldest_age.map(|time| now.since(Timestamp(time.as_millis() as u64)));
        }
        info.dead_letters = self.letters(group);
        info.why = why(&info, &unread, now);
        info
    }

    /// What of a source lies after a position.
    fn unread(&self, settings: &GroupSettings, frontier: Position) -> Unread {
        let cells = self.topics.matching(&settings.source);
        let last = self.journal.last_settled();
        let mut unread = Unread { topics: cells.len(), exact: true, ..Unread::default() };
        if cells.len() > COUNTED_TOPICS_MAX {
            return Unread { count: last.distance(frontier), exact: false, ..unread };
        }
        for cell in cells {
            let (visible, first, next, durable) = {
                let state = cell.lock();
                (state.visible, state.first(), state.next(), state.is_durable())
            };
            if visible <= frontier || !durable {
                continue;
            }
            match self.seq_after(&cell, frontier) {
                Ok(Some(seq)) => {
                    unread.count += next.distance(seq);
                    if let Ok(Some(batch)) = self.batch_at(&cell, seq) {
                        let time = batch.time();
                        unread.oldest = Some(unread.oldest.map_or(time, |each| each.min(time)));
                    }
                }
                Ok(None) => {}
                Err(error) => {
                    // Some are present, and it is unknown which: all that are kept may be.
                    unread.count += next.distance(first).min(visible.distance(frontier));
                    unread.exact = false;
                    unread.trouble = Some(error);
                }
            }
        }
        unread
    }

    /// Dead letters of a group that were neither redriven nor removed.
    pub(crate) fn letters(&self, group: &LiveGroup) -> u64 {
        let Some(cell) = self.topics.find(&dead_name(&group.name)) else { return 0 };
        let (first, next) = {
            let state = cell.lock();
            (state.first(), state.next())
        };
        let state = group.lock();
        let ended = state.machine.letters_ended().iter().map(|(from, to)| {
            to.min(next.0 - 1).saturating_add(1).saturating_sub(from.max(first.0))
        });
        next.distance(first).saturating_sub(ended.sum())
    }
}

fn describe(group: &LiveGroup, state: &GroupState) -> GroupInfo {
    let machine: &Group = &state.machine;
    let doing = match (machine.stopped(), machine.is_paused()) {
        (Some(stop), _) => GroupDoing::Stopped(notice(stop)),
        (None, true) => GroupDoing::Paused,
        (None, false) => GroupDoing::Running,
    };
    let name = |id| state.members.get(&id).map(|member| member.name.clone()).unwrap_or_default();
    let members = machine.members().map(|member| MemberInfo {
        id: member.id.0,
        name: name(member.id),
        window: member.window,
        in_flight: member.in_flight,
        active: member.active,
    });
    GroupInfo {
        name: group.name.clone(),
        id: group.id.0,
        settings: machine.settings().clone(),
        state: doing,
        floor: machine.floor(),
        frontier: machine.frontier(),
        lag: 0,
        lag_exact: true,
        counts: machine.counts(),
        // A time for now; the caller turns it into an age.
        oldest_age: machine.oldest().map(|time| Duration::from_millis(time.0)),
        next_retry: machine.next_retry(),
        dead_letters: 0,
        totals: state.totals,
        members: members.collect(),
        redriving: machine.redrive().is_some(),
        why: String::new(),
    }
}

/// Why a group does not move, in a sentence.
fn why(info: &GroupInfo, unread: &Unread, now: Timestamp) -> String {
    let name = &info.name;
    let counts = &info.counts;
    match &info.state {
        GroupDoing::Paused => {
            return format!("It is paused; `gapless group resume {name}` lets it go on.");
        }
        GroupDoing::Stopped(gap) => {
            let topic = gap.topic.as_ref().map_or("its source", TopicName::as_str);
            let reason = gap.reason.name();
            return format!(
                "It stopped because messages of {topic} are gone ({reason}) that it had not \
                 done; `gapless group resume {name}` goes on with the first that is there, \
                 `gapless group reset {name}` chooses another place."
            );
        }
        GroupDoing::Running => {}
    }
    if let Some(error) = &unread.trouble {
        return format!(
            "Messages of its source cannot be read ({error}), at most {} wait; `gapless doctor` \
             examines the store.",
            info.lag
        );
    }
    if info.lag == 0 && unread.topics == 0 {
        return format!("No topic matches {} yet.", info.settings.source.as_str());
    }
    if info.lag == 0 {
        return "It is caught up: everything is done.".to_owned();
    }
    if info.members.is_empty() {
        return format!("It has no members; {} messages wait for one.", info.lag);
    }
    if counts.in_flight >= u64::from(info.settings.in_flight_max) {
        let max = info.settings.in_flight_max;
        return format!("As many are in flight as may be ({max}): it waits for acks.");
    }
    if counts.open() >= u64::from(info.settings.open_max) {
        return format!(
            "As many are open as may be ({}): {} in flight, {} waiting for another attempt, {} \
             behind another of their key; it waits for acks.",
            info.settings.open_max, counts.in_flight, counts.parked, counts.waiting
        );
    }
    let full = info.members.iter().filter(|member| member.active);
    if full.clone().all(|member| member.in_flight >= u64::from(member.window)) {
        return format!(
            "Every member has as many messages as it allows ({} in flight); it waits for acks.",
            counts.in_flight
        );
    }
    let retry = info.next_retry.map(|due| due.since(now).as_millis()).unwrap_or_default();
    let held_up = info.settings.mode == Mode::Ordered && counts.parked > 0;
    if counts.parked > 0 && (held_up || counts.parked + counts.waiting == info.lag) {
        return format!(
            "{} messages failed and wait for another attempt, the next in {retry} ms{}.",
            counts.parked,
            if counts.waiting > 0 { "; others of their key wait behind them" } else { "" }
        );
    }
    if counts.in_flight > 0 && counts.in_flight + counts.waiting + counts.parked == info.lag {
        return format!(
            "Everything is handed out: {} in flight, {} behind another of their key, {} waiting \
             for another attempt.",
            counts.in_flight, counts.waiting, counts.parked
        );
    }
    if counts.in_flight == 0 {
        return format!("No member asks for more; {} messages wait for one that does.", info.lag);
    }
    format!("It moves: {} of {} messages are in flight.", counts.in_flight, info.lag)
}
