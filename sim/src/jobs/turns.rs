//! Whose turn it is, as seen from outside: no executable and no client is passed over for long.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gapless_core::TopicName;
use gapless_core::job::leader::{ASSIGN_PREFIX, Effect, Filter, State};

use super::World;
use super::host::Host;
use super::links::Peer;
use crate::world::{Checked, ensure};

/// Most ready jobs that are looked at.
const LOOKED_AT_MAX: usize = 1_000;

/// An executable, the client that was passed over there, and the one that was served instead.
type PassedOver = (Arc<str>, Arc<str>, Arc<str>);

/// How often each was passed over since it was served last, while it could have been served.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// By executable.
    execs: BTreeMap<Arc<str>, u32>,
    /// By executable and by both clients.
    clients: BTreeMap<PassedOver, u32>,
}

impl World {
    /// What was assigned, beside what could have been.
    pub(super) fn check_turns(&mut self, at: usize, effects: &[Effect]) -> Checked {
        let assigns = effects.iter().filter_map(|effect| match effect {
            Effect::Assign { session, token } => Some((session.0, *token)),
            _ => None,
        });
        let assigns: Vec<_> = assigns.collect();
        // An executable of which all jobs ended begins again.
        let Host { machine, turns, .. } = &mut self.hosts[at];
        turns.execs.retain(|exec, _| machine.has_open(exec));
        if assigns.is_empty() && !self.plan.is_fair {
            return Ok(());
        }
        let machine = &self.hosts[at].machine;
        let below: BTreeSet<Arc<str>> = machine
            .clients()
            .filter(|client| client.in_flight < client.cap)
            .map(|client| client.name)
            .collect();
        let ready = Filter { state: Some(State::Ready), ..Filter::default() };
        let ready = machine.find(&ready, u64::MAX, LOOKED_AT_MAX).jobs;
        // Who could be served, if a worker were free.
        let eligible: BTreeSet<(Arc<str>, Arc<str>)> = ready
            .iter()
            .filter_map(|job| machine.record(*job))
            .filter(|record| below.contains(&record.spec.client))
            .map(|record| (Arc::clone(&record.spec.exec), Arc::clone(&record.spec.client)))
            .collect();
        let mut turns = std::mem::take(&mut self.hosts[at].turns);
        if self.plan.is_fair {
            let waits = |(exec, client): (&Arc<str>, &Arc<str>)| {
                eligible.contains(&(Arc::clone(exec), Arc::clone(client)))
            };
            turns.clients.retain(|(exec, client, _), _| waits((exec, client)));
        }
        for (link, token) in assigns {
            let Some(record) = self.hosts[at].machine.record(token.job) else { continue };
            let (exec, client) = (&record.spec.exec, &record.spec.client);
            turns.execs.remove(exec);
            turns.clients.retain(|(of, who, _), _| of != exec || who != client);
            let Some(Peer::Worker(worker)) = self.links.get(link).map(|link| link.peer) else {
                continue;
            };
            let pattern = &self.workers[worker].pattern;
            let others: BTreeSet<&Arc<str>> = eligible.iter().map(|(exec, _)| exec).collect();
            for other in others.into_iter().filter(|other| *other != exec) {
                let subject = TopicName::parse(&format!("{ASSIGN_PREFIX}{other}"));
                if subject.is_ok_and(|subject| pattern.matches(&subject)) {
                    let passed = turns.execs.entry(Arc::clone(other)).or_default();
                    *passed += 1;
                    ensure(*passed <= self.plan.execs, || {
                        format!("{other} was passed over {passed} times, now for {exec}")
                    })?;
                }
            }
            if self.plan.is_fair {
                let caps = &self.ledger.caps;
                for (of, who) in eligible.iter().filter(|(of, who)| of == exec && who != client) {
                    let key = (Arc::clone(of), Arc::clone(who), Arc::clone(client));
                    let passed = turns.clients.entry(key).or_default();
                    *passed += 1;
                    let weight = |name: &Arc<str>| {
                        let client = self.clients.iter().find(|client| client.name == *name);
                        client.map_or(1, |client| client.weight)
                    };
                    let ratio = weight(client).div_ceil(weight(who));
                    let most = (caps[who] + caps[client] + 4) * ratio;
                    ensure(*passed <= most, || {
                        format!("{who} was passed over {passed} times at {of} for {client}")
                    })?;
                }
            }
        }
        self.hosts[at].turns = turns;
        Ok(())
    }
}
