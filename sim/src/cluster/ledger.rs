//! What is owed: each accepted message to each target that it had then.
//!
//! It is paid when the message is delivered (to a node's anonymous subscribers) or taken (by a named
//! subscription). It is forgiven when an event of the publisher's node names it as lost, when the
//! subscription ended, and when the publisher's node died, since it holds messages in memory only.

use std::collections::{BTreeMap, BTreeSet};

use gapless_core::cluster::{Lost, LostTarget, Named, Sender};
use gapless_core::{Message, Records, RecordsBuilder, TopicName};

use crate::world::{Checked, ensure};

type Debt = (Sender, LostTarget, TopicName);

/// Everything that is owed, and what came in which order.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Messages, and how many each counts as.
    owed: BTreeMap<Debt, BTreeMap<u64, u32>>,
    /// The last message of each publisher and subject, at each node in each life.
    last: BTreeMap<(Sender, Sender, TopicName), u64>,
    /// The same for each session.
    last_of_session: BTreeMap<(u64, Sender, TopicName), u64>,
    taken: BTreeSet<(Named, u64)>,
    pub(super) unsubscribed: BTreeSet<Named>,
}

impl Ledger {
    pub(super) fn accepted(
        &mut self,
        from: &Sender,
        targets: &[LostTarget],
        subject: &TopicName,
        (message, count): (u64, u32),
    ) {
        for target in targets {
            let debt = (from.clone(), target.clone(), subject.clone());
            self.owed.entry(debt).or_default().insert(message, count);
        }
    }

    /// A message is with the anonymous subscribers of a node.
    pub(super) fn delivered(
        &mut self,
        from: &Sender,
        at: &Sender,
        subject: &TopicName,
        message: u64,
    ) -> Checked {
        let key = (from.clone(), at.clone(), subject.clone());
        let last = self.last.insert(key, message);
        ensure(last.is_none_or(|last| last < message), || {
            format!("{message} came to {at:?} after {last:?}: out of order, or again")
        })?;
        self.pay(from, LostTarget::Node(at.node.clone()), subject, message);
        Ok(())
    }

    /// A message is in the mailbox of a session.
    pub(super) fn mailed(
        &mut self,
        from: &Sender,
        session: u64,
        subject: &TopicName,
        message: u64,
    ) -> Checked {
        let key = (session, from.clone(), subject.clone());
        let last = self.last_of_session.insert(key, message);
        ensure(last.is_none_or(|last| last < message), || {
            format!("{message} came to session {session} after {last:?}: out of order, or again")
        })
    }

    /// A named subscription took a message; whether it had taken it before.
    pub(super) fn taken(
        &mut self,
        from: &Sender,
        named: &Named,
        subject: &TopicName,
        message: u64,
    ) -> bool {
        self.pay(from, LostTarget::Named(named.clone()), subject, message);
        !self.taken.insert((named.clone(), message))
    }

    pub(super) fn pay(&mut self, from: &Sender, to: LostTarget, subject: &TopicName, message: u64) {
        let debt = (from.clone(), to, subject.clone());
        if let Some(owed) = self.owed.get_mut(&debt) {
            owed.remove(&message);
            if owed.is_empty() {
                self.owed.remove(&debt);
            }
        }
    }

    /// An event named messages as lost: it must name at least those that are owed.
    pub(super) fn lost(&mut self, from: &Sender, lost: &Lost) -> Checked {
        let named: u64 = lost.subjects.iter().map(|(_, count)| count).sum();
        ensure(named == lost.messages, || format!("{lost:?} does not add up"))?;
        for (subject, count) in &lost.subjects {
            let debt = (from.clone(), lost.target.clone(), subject.clone());
            let owed = self.owed.remove(&debt).unwrap_or_default();
            let messages: u64 = owed.values().map(|count| u64::from(*count)).sum();
            ensure(messages <= *count, || format!("{lost:?} does not name all of {owed:?}"))?;
        }
        Ok(())
    }

    /// A node heard that a named subscription ended.
    pub(super) fn ended(&mut self, from: &Sender, named: &Named) -> Checked {
        ensure(self.unsubscribed.contains(named), || format!("{named} never unsubscribed"))?;
        let target = LostTarget::Named(named.clone());
        self.owed.retain(|(owes, to, _), _| owes != from || *to != target);
        Ok(())
    }

    /// A node died.
    pub(super) fn died(&mut self, from: &Sender) {
        self.owed.retain(|(owes, ..), _| owes != from);
    }

    /// Nothing is owed by one, or by anyone.
    pub(super) fn check_paid(&self, by: Option<&Sender>) -> Checked {
        let owed = self.owed.iter().find(|((owes, ..), _)| by.is_none_or(|by| owes == by));
        ensure(owed.is_none(), || format!("neither delivered nor named as lost: {owed:?}"))
    }
}

/// Messages of a publish: each has its number in it.
pub(super) fn records(number: u64, count: u32, padding: usize) -> Records {
    let mut builder = RecordsBuilder::default();
    for _ in 0..count {
        let mut body = number.to_le_bytes().to_vec();
        body.resize(8 + padding, 0);
        builder.push(&Message::new(body)).expect("a small message");
    }
    builder.finish()
}

/// The number of a publish.
pub(super) fn number_of(records: &Records) -> Option<u64> {
    let body = records.iter().next()?.body?;
    body.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes))
}
