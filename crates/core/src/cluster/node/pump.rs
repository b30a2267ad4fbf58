//! What is sent: reports, interest, probes, messages, in this order.
//!
//! A node that is suspended gets everything but messages. A message goes once to each node: the
//! queue of its anonymous subscribers and what is held for each named subscription there are merged
//! by the order of admission.

use alloc::vec::Vec;

use super::{Delivery, Effect, Node};
use crate::batch::Records;
use crate::cluster::config::ClusterConfig;
use crate::cluster::frame::{FRAME_BYTES_MAX, FRAME_ITEMS_MAX, Frame, Item};
use crate::cluster::interest::Interest;
use crate::cluster::message::Shared;
use crate::cluster::name::NodeName;
use crate::cluster::named::{NamedId, Place, Table};
use crate::cluster::outbound::{Outbound, Sent};
use crate::cluster::peer::{InterestDue, ME, NodeId, Peer};
use crate::time::Timestamp;

impl Node {
    /// Sends what is due. To be called once after a burst of inputs.
    pub fn settle(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if !self.has_left {
            // Twice: one that missed it may have been suspended for that long before it asks.
            self.interest.forget_ended(now, self.config.suspended_ttl * 2);
            let Self { config, interest, peers, .. } = self;
            for peer in peers.values_mut() {
                say(now, config, interest, peer, effects);
            }
            self.interest.flushed();
            self.pump_local(now, effects);
            let ids: Vec<NodeId> = self.peers.keys().copied().collect();
            for id in ids {
                self.pump(now, id, effects);
            }
        }
        self.flush(effects);
    }

    /// Hands out what has happened.
    pub(super) fn flush(&mut self, effects: &mut Vec<Effect>) {
        self.give_reports(effects);
        let visible = self.visible();
        if visible > self.visible {
            effects.push(Effect::Visible { version: visible });
        }
        // It falls when a node comes that knows nothing yet.
        self.visible = visible;
        let events = core::mem::take(&mut self.events).into_iter().chain(self.losses.take());
        effects.extend(events.map(Effect::Event));
    }

    /// Messages for named subscriptions of this node.
    fn pump_local(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        let Self { local, named, config, .. } = self;
        let mut touched = Vec::new();
        while peek(local, named).is_some() {
            let (sent, freed) = draw(now, (ME, local), named, config, &mut touched);
            self.queued_bytes -= freed;
            let Some(sent) = sent else { continue };
            local.next = sent.number + 1;
            if sent.is_charged {
                self.queued_bytes -= local.uncharge(&sent.message);
            }
            let name = |(_, session): &(NamedId, u64)| {
                self.interest.session(*session).map(|named| (named.clone(), *session))
            };
            let delivery = Delivery {
                subject: sent.message.subject.clone(),
                records: sent.message.records.clone(),
                age_ms: age_ms(now, &sent.message),
                anonymous: false,
                named: sent.named.iter().filter_map(name).collect(),
                report: false,
            };
            let order = sent.admission;
            effects.push(Effect::Deliver { from: self.me.clone(), order, delivery });
        }
        touched.into_iter().for_each(|id| self.arm(id));
    }

    /// Messages for another node: again what is not received, then as much as the window allows.
    fn pump(&mut self, now: Timestamp, id: NodeId, effects: &mut Vec<Effect>) {
        let Self { peers, named, config, counts, .. } = self;
        let Some(peer) = peers.get_mut(&id).filter(|peer| peer.has_link && peer.is_active()) else {
            return;
        };
        let (out, mut touched) = (&mut peer.out, Vec::new());
        let mut frames = Frames::new(&peer.name, out.base());
        while let Some(sent) = out.sent.get(out.cursor) {
            frames.add(sent.number, item(now, id, sent, named), effects);
            out.cursor += 1;
            counts.items_resent += 1;
        }
        while peek(out, named).is_some_and(|cost| out.fits(cost, config.window_bytes)) {
            let (sent, freed) = draw(now, (id, out), named, config, &mut touched);
            self.queued_bytes -= freed;
            if let Some(sent) = sent {
                frames.add(sent.number, item(now, id, &sent, named), effects);
                out.send(now, sent);
                counts.items_sent += 1;
            }
        }
        frames.finish(effects);
        touched.into_iter().for_each(|id| self.arm(id));
    }
}

/// Everything but messages, for one node.
fn say(
    now: Timestamp,
    config: &ClusterConfig,
    interest: &Interest,
    peer: &mut Peer,
    effects: &mut Vec<Effect>,
) {
    if !peer.has_link || peer.has_left {
        peer.inbound.forget_gone();
        return;
    }
    let mut frames = peer.inbound.reports(now, peer.view.version.unwrap_or(0));
    let before = frames.len();
    let version = interest.version();
    let stand = || Frame::Interest { base: version, version, changes: Vec::new() };
    match peer.interest_due {
        InterestDue::All => frames.extend(interest.full()),
        // It had everything up to there when the link came up.
        InterestDue::Stand if peer.seen == version => frames.push(stand()),
        InterestDue::Changes if interest.has_since(peer.told) => {
            frames.extend(interest.since(peer.told));
        }
        InterestDue::Stand | InterestDue::Changes => frames.extend(interest.full()),
    }
    // If it does not say that it has seen it, it may have missed it, and must ask.
    if frames.len() == before
        && peer.seen < version
        && peer.told_at.after(config.resend_after) <= now
    {
        frames.push(stand());
    }
    if frames.len() > before {
        peer.told_at = now;
    }
    peer.interest_due = InterestDue::Changes;
    peer.told = version;
    frames.extend(peer.answer.take().map(Frame::Probed));
    if let Some(asked) = &mut peer.asked
        && asked.after(config.resend_after) <= now
    {
        *asked = now;
        frames.push(Frame::InterestAsk);
    }
    if let Some((number, at)) = &mut peer.probe
        && at.is_none_or(|at| at.after(config.resend_after) <= now)
    {
        *at = Some(now);
        frames.push(Frame::Probe(*number));
    }
    let send = |frame| Effect::Send { to: peer.name.clone(), frame };
    effects.extend(frames.into_iter().map(send));
}

/// The bytes of the next message on the way to a node.
fn peek(out: &Outbound, named: &Table) -> Option<usize> {
    let waiting = out.waiting.front().map(|waiting| (waiting.admission, &waiting.message));
    let ready = out.ready.first().and_then(|(admission, id)| {
        let holding = named.get(*id)?;
        holding.held.get(holding.sent).map(|held| (*admission, &held.message))
    });
    let next = match (waiting, ready) {
        (Some(waiting), Some(ready)) => {
            if ready.0 < waiting.0 {
                ready
            } else {
                waiting
            }
        }
        (waiting, ready) => waiting.or(ready)?,
    };
    Some(next.1.cost())
}

/// Takes the next message on the way to a node, for all at it that it is for, and gives it the
/// next number. There is none if those it was for are not there any more; then bytes are free
/// again.
fn draw(
    now: Timestamp,
    (node, out): (NodeId, &mut Outbound),
    named: &mut Table,
    config: &ClusterConfig,
    touched: &mut Vec<NamedId>,
) -> (Option<Sent>, usize) {
    let number = out.next;
    let ready = out.ready.first().map(|(admission, _)| *admission);
    let waiting = out.waiting.front().map(|waiting| waiting.admission);
    let Some(admission) = ready.into_iter().chain(waiting).min() else { return (None, 0) };
    let mut sent: Option<Sent> = None;
    let mut freed = 0;
    if waiting == Some(admission)
        && let Some(waiting) = out.pop()
    {
        let is_here = |(id, session): &(NamedId, u64)| is_at(named, *id, node, *session);
        let once: Vec<(NamedId, u64)> = waiting.once.into_iter().filter(is_here).collect();
        if waiting.anonymous || !once.is_empty() {
            for (id, _) in &once {
                if let (Some(report), Some(holding)) = (waiting.report, named.get_mut(*id)) {
                    holding.ask(admission, report, config.named_ahead_messages);
                }
            }
            sent = Some(Sent {
                number,
                admission,
                message: waiting.message,
                anonymous: waiting.anonymous,
                named: once,
                is_once: waiting.is_once,
                report: waiting.report,
                is_charged: true,
            });
        } else {
            freed = out.uncharge(&waiting.message);
        }
    }
    while let Some((at, id)) = out.ready.first().copied()
        && at == admission
    {
        out.ready.pop_first();
        let Some(holding) = named.get_mut(id) else { continue };
        let Some(place) = holding.place else { continue };
        let message = holding.held[holding.sent].message.clone();
        holding.send(now);
        if let Some(next) = holding.ready(config.named_ahead_messages) {
            out.ready.insert((next, id));
        }
        touched.push(id);
        let new = Sent {
            number,
            admission,
            message,
            anonymous: false,
            named: Vec::new(),
            is_once: false,
            report: None,
            is_charged: false,
        };
        sent.get_or_insert(new).named.push((id, place.session));
    }
    (sent, freed)
}

/// An item as the other node gets it. Sessions that it is not for any more are left out; if
/// none is left, only its number goes.
fn item(now: Timestamp, node: NodeId, sent: &Sent, named: &Table) -> Item {
    let here = sent.named.iter().filter(|(id, session)| is_at(named, *id, node, *session));
    let sessions: Vec<u64> = here.map(|(_, session)| *session).collect();
    let is_empty = !sent.anonymous && sessions.is_empty();
    let records = if is_empty { Records::default() } else { sent.message.records.clone() };
    Item {
        subject: sent.message.subject.clone(),
        records,
        order: sent.admission,
        age_ms: age_ms(now, &sent.message),
        anonymous: sent.anonymous,
        sessions,
        report: sent.anonymous && sent.report.is_some(),
    }
}

fn is_at(named: &Table, id: NamedId, node: NodeId, session: u64) -> bool {
    named.get(id).is_some_and(|holding| holding.place == Some(Place { node, session }))
}

fn age_ms(now: Timestamp, message: &Shared) -> u64 {
    now.0.saturating_sub(message.at.0)
}

/// Items gathered into frames of a bounded size.
struct Frames<'a> {
    to: &'a NodeName,
    base: u64,
    first: u64,
    items: Vec<Item>,
    bytes: usize,
}

impl<'a> Frames<'a> {
    fn new(to: &'a NodeName, base: u64) -> Self {
        Self { to, base, first: 0, items: Vec::new(), bytes: 0 }
    }

    fn add(&mut self, number: u64, item: Item, effects: &mut Vec<Effect>) {
        let bytes = item.subject.as_str().len() + item.records.bytes.len();
        if self.items.len() == FRAME_ITEMS_MAX || self.bytes + bytes > FRAME_BYTES_MAX {
            self.finish(effects);
        }
        if self.items.is_empty() {
            self.first = number;
        }
        self.bytes += bytes;
        self.items.push(item);
    }

    fn finish(&mut self, effects: &mut Vec<Effect>) {
        if self.items.is_empty() {
            return;
        }
        let (base, first, items) = (self.base, self.first, core::mem::take(&mut self.items));
        self.bytes = 0;
        let frame = Frame::Deliver { base, first, items };
        effects.push(Effect::Send { to: self.to.clone(), frame });
    }
}
