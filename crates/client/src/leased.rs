//! Leased messages as a member gets them, and by what it names them afterwards.
//!
//! A lease is worth something only on the connection on which it was given: what was held
//! when a connection was lost comes again, to this member or another. So leases carry the
//! session of their membership, and those of an earlier one are never sent.

use gapless_core::{BatchRef, Batches, Lease, Message, Position, Seq, Timestamp, TopicName};

/// Messages that a member holds, to be named when it says what became of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leases {
    pub(crate) session: u64,
    pub(crate) ranges: Vec<Lease>,
}

impl Leases {
    /// None yet; others are added.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds others. Those of a connection that is gone give way to those of a later one.
    pub fn add(&mut self, other: &Self) {
        if other.session > self.session {
            self.session = other.session;
            self.ranges.clear();
        }
        if other.session == self.session {
            self.ranges.extend_from_slice(&other.ranges);
        }
    }

    /// How many messages they name.
    pub fn count(&self) -> u64 {
        self.ranges.iter().map(Lease::count).sum()
    }

    /// Whether they name none.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The ranges as they are sent: rising, neighbours as one, each message once.
    pub(crate) fn rising(&self) -> Vec<Lease> {
        let mut ranges = self.ranges.clone();
        if ranges.windows(2).all(|pair| pair[0].last < pair[1].first) {
            return ranges;
        }
        ranges.sort_unstable();
        let mut rising: Vec<Lease> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match rising.last_mut() {
                Some(last) if range.first <= last.last => last.last = last.last.max(range.last),
                Some(last) if last.last.next() == range.first && last.attempt == range.attempt => {
                    last.last = range.last;
                }
                _ => rising.push(range),
            }
        }
        rising
    }
}

/// Messages of one topic that a member has to say something about.
#[derive(Clone, Debug)]
pub struct Leased {
    pub(crate) topic: TopicName,
    pub(crate) deadline: Timestamp,
    pub(crate) leases: Leases,
    pub(crate) batches: Batches,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasedMessage {
    /// Where it was published.
    pub topic: TopicName,
    /// Its place in its topic.
    pub seq: Seq,
    /// Its place in the journal.
    pub position: Position,
    /// When it was accepted.
    pub time: Timestamp,
    /// Which attempt this is; the first is 1.
    pub attempt: u32,
    /// What was sent.
    pub message: Message,
    pub(crate) session: u64,
}

impl LeasedMessage {
    /// By what to ack it.
    pub fn leases(&self) -> Leases {
        let (first, last) = (self.position, self.position);
        let lease = Lease { first, last, attempt: self.attempt };
        Leases { session: self.session, ranges: vec![lease] }
    }
}

impl Leased {
    /// Where they were published.
    pub fn topic(&self) -> &TopicName {
        &self.topic
    }

    /// Until when they must be acked or extended, by the server's clock.
    pub fn deadline(&self) -> Timestamp {
        self.deadline
    }

    /// By what to ack all of them.
    pub fn leases(&self) -> &Leases {
        &self.leases
    }

    /// How many they are.
    pub fn count(&self) -> u64 {
        self.leases.count()
    }

    /// The messages, in order, each sharing the bytes it came in.
    pub fn iter(&self) -> impl Iterator<Item = LeasedMessage> + '_ {
        let mut ranges = self.leases.ranges.iter().peekable();
        let session = self.leases.session;
        let all = self.batches.parts().flat_map(|part| {
            BatchRef::all(part).flat_map(move |batch| {
                let records = batch.records();
                let time = batch.header().time;
                records.map(move |record| {
                    (part, (batch.seq_of(&record), batch.position_of(&record), time), record)
                })
            })
        });
        all.filter_map(move |(part, (seq, position, time), record)| {
            // Both rise; what no lease names came along with its batch.
            while ranges.next_if(|range| range.last < position).is_some() {}
            let attempt = ranges.peek().filter(|range| range.first <= position)?.attempt;
            Some(LeasedMessage {
                topic: self.topic.clone(),
                seq,
                position,
                time,
                attempt,
                message: record.to_message(part),
                session,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(first: u64, last: u64, attempt: u32) -> Lease {
        Lease { first: Position(first), last: Position(last), attempt }
    }

    #[test]
    fn leases_are_sent_rising_with_neighbours_as_one() {
        let ranges = vec![lease(9, 9, 1), lease(3, 5, 1), lease(6, 6, 1), lease(7, 7, 2)];
        let leases = Leases { session: 1, ranges };
        assert_eq!(leases.rising(), [lease(3, 6, 1), lease(7, 7, 2), lease(9, 9, 1)]);
        let twice = Leases { session: 1, ranges: vec![lease(3, 5, 1), lease(4, 8, 1)] };
        assert_eq!(twice.rising(), [lease(3, 8, 1)]);
    }

    #[test]
    fn leases_of_a_lost_connection_give_way_to_later_ones() {
        let old = Leases { session: 1, ranges: vec![lease(1, 1, 1)] };
        let new = Leases { session: 2, ranges: vec![lease(2, 2, 1)] };
        let mut all = Leases::new();
        all.add(&old);
        all.add(&new);
        all.add(&old);
        assert_eq!(all, new);
        assert_eq!((all.count(), all.is_empty()), (1, false));
    }
}
