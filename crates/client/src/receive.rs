//! What the server says, and what becomes of it.

use gapless_core::link::{Failure, Input, Status, SubscriptionId};
use gapless_core::{Amount, Fate};
use gapless_protocol::{
    Ended, ErrorAnswer, ErrorCode, Frame, FrameLimit, Ids, Pong, PublishAck, Subscribed, VERSION,
    Verb, Welcome,
};
use std::time::Duration;
use tracing::warn;

use crate::connection::Corr;
use crate::driver::{Driver, Line};
use crate::error::{AskError, Lost, PublishError, SubscriptionError, Trouble};
use crate::feed::Item;
use crate::subscription::{Event, Messages};
use gapless_core::Token;

impl Driver {
    /// Takes one frame. An error ends the connection: what cannot be read may have been
    /// messages, and comes again on the next one.
    pub(crate) fn receive(&mut self, frame: &Frame) -> Result<(), Lost> {
        let verb = Verb::decode(frame)?;
        if !matches!(self.parts.link.status(), Status::Online | Status::Leaving { .. }) {
            return self.greeted(verb);
        }
        match (verb, Corr::of(frame)) {
            (Verb::GroupMessages(messages), _) => self.leased(messages),
            (Verb::GroupRole(role), _) => self.role(role),
            (Verb::GroupGap(gap), _) => self.group_gap(gap),
            (Verb::GroupJoined(joined), Some(Corr::Join(key))) => self.joined(key, joined),
            (Verb::GroupLeft(left), None) => return self.left(left),
            (Verb::GroupLeft(_), Some(Corr::Other)) => {}
            (Verb::Error(error), Some(Corr::Say(number))) => {
                self.said(number, Err(AskError::Server(error.into())));
            }
            (verb, Some(Corr::Say(number))) => self.said(number, Ok(verb)),
            (Verb::PublishAck(ack), Some(corr)) => self.acked(corr, ack),
            (Verb::DeliveryReport(report), Some(Corr::Publish(number))) => {
                // A caller that does not wait for it has dropped the receiver.
                let _ = self.reports.remove(&number).map(|reply| reply.send(report));
            }
            (Verb::Error(error), Some(corr)) => return self.failed(corr, error),
            (Verb::Error(error), None) => {
                // If the connection ends for it, the server will end it.
                warn!(code = error.code, text = error.message, "the server reports an error");
            }
            (Verb::Subscribed(subscribed), Some(Corr::Follow(id))) => {
                self.subscribed(id, subscribed);
            }
            (Verb::Messages(messages), _) => return self.messages(messages),
            (Verb::RecoveryResponse(response), _) => {
                let event = Event::Recovering(response.range);
                self.event(response.subscription, event, None);
            }
            (Verb::RecoveryComplete(complete), _) => {
                self.event(complete.subscription, Event::Live, Some(complete.token));
            }
            (Verb::Gap(gap), _) => {
                self.event(gap.subscription, Event::Gap(gap.gap), Some(gap.token));
            }
            (Verb::Ended(ended), _) => return self.ended(ended),
            (Verb::Ping(ping), _) => {
                self.send(&Pong { echo: ping.echo }.into(), Ids::answer_to(frame));
            }
            (Verb::Pong(_) | Verb::Unsubscribed(_), Some(Corr::Other) | None) => {}
            (Verb::Drain(drain), _) => {
                let grace = Duration::from_millis(u64::from(drain.grace_ms));
                self.step(Input::Drain { grace });
            }
            (Verb::Bye(_), _) => return Err(Lost::Closed),
            (verb, Some(Corr::Ask(number))) => self.answered(number, Ok(verb)),
            (verb, _) => return Err(Lost::Unexpected(verb.kind().name())),
        }
        Ok(())
    }

    fn greeted(&mut self, verb: Verb) -> Result<(), Lost> {
        match verb {
            Verb::Welcome(Welcome { version: VERSION, epoch, limits, .. }) => {
                if let Line::Up(connection) = &mut self.line {
                    connection.limit = FrameLimit::at_most(limits.frame_bytes as usize);
                    connection.welcome = Some(limits);
                    connection.epoch = epoch;
                }
                self.step(Input::Welcomed { epoch });
            }
            Verb::Welcome(welcome) => {
                let text = format!("it speaks version {}", welcome.version);
                self.refused(Failure::VersionMismatch, &text);
            }
            Verb::Error(error) => {
                let why = match error.known() {
                    Some(ErrorCode::VersionMismatch) => Failure::VersionMismatch,
                    Some(ErrorCode::NotAuthenticated | ErrorCode::NotAuthorised) => {
                        Failure::NotAuthorised
                    }
                    _ => error.retry_after_ms.map_or(Failure::Busy, |ms| {
                        Failure::BusyFor(Duration::from_millis(u64::from(ms)))
                    }),
                };
                self.refused(why, &error.message);
            }
            verb => return Err(Lost::Unexpected(verb.kind().name())),
        }
        Ok(())
    }

    fn acked(&mut self, corr: Corr, ack: PublishAck) {
        if let Corr::Publish(number) = corr {
            self.answer = Some(Ok(ack));
            self.step(Input::Acked { number });
        }
    }

    fn failed(&mut self, corr: Corr, error: ErrorAnswer) -> Result<(), Lost> {
        // A server that shuts down has done nothing: it is done on the next connection.
        let shuts_down =
            error.known() == Some(ErrorCode::ShuttingDown) && error.fate == Fate::DidNotHappen;
        match corr {
            Corr::Publish(_) if shuts_down => return self.shuts_down(),
            Corr::Publish(number) => {
                self.answer = Some(Err(PublishError::System(error.into())));
                self.step(Input::Acked { number });
            }
            Corr::Ask(number) => self.answered(number, Err(AskError::Server(error.into()))),
            Corr::Follow(_) | Corr::Join(_) if shuts_down => return self.shuts_down(),
            Corr::Join(key) => self.join_failed(key, error),
            Corr::Say(number) => self.said(number, Err(AskError::Server(error.into()))),
            Corr::Follow(id) => {
                if let Some(follow) = self.follows.remove(&id) {
                    let trouble = Trouble::from(error);
                    // It was accepted before, so it has a place.
                    follow.feed.end(Err(match follow.last.filter(|_| follow.confirmed) {
                        Some(token) => SubscriptionError::Ended { trouble, token },
                        None => SubscriptionError::Refused(trouble),
                    }));
                }
                self.step(Input::Ended { id });
            }
            Corr::Other => warn!(code = error.code, text = error.message, "an error"),
        }
        Ok(())
    }

    /// A server that has announced it is left when it has answered; another at once.
    pub(crate) fn shuts_down(&self) -> Result<(), Lost> {
        match self.parts.link.status() {
            Status::Leaving { .. } => Ok(()),
            _ => Err(Lost::ShuttingDown),
        }
    }

    fn answered(&mut self, number: u64, answer: Result<Verb, AskError>) {
        if let Some(asked) = self.asks.remove(&number) {
            // A caller that no longer waits has dropped the receiver.
            let _ = asked.question.reply.send(answer);
        }
    }

    fn subscribed(&mut self, id: SubscriptionId, subscribed: Subscribed) {
        let Subscribed { subscription, token } = subscribed;
        let (Some(follow), Line::Up(connection)) = (self.follows.get_mut(&id), &mut self.line)
        else {
            // Its user went away before the answer.
            return self.unsubscribe(subscription, false);
        };
        connection.follows.insert(subscription, id);
        follow.server = Some(subscription);
        if std::mem::replace(&mut follow.confirmed, true) {
            follow.feed.resumed();
        } else {
            follow.feed.confirm();
            if follow.is_from_now() {
                follow.last = Some(token);
            }
        }
        self.step(Input::Subscribed { id, token });
        self.grant(id);
    }

    fn messages(&mut self, messages: gapless_protocol::Messages) -> Result<(), Lost> {
        let Line::Up(connection) = &self.line else { return Ok(()) };
        let Some(id) = connection.follows.get(&messages.subscription).copied() else {
            return Ok(());
        };
        let token = Token { epoch: connection.epoch, position: messages.last_position };
        let Some(follow) = self.follows.get_mut(&id) else { return Ok(()) };
        let cost = Amount { messages: messages.credit_messages(), bytes: messages.credit_bytes() };
        let left = &mut follow.left;
        // A single message may have more bytes than are left.
        if cost.messages > left.messages || (cost.messages > 0 && left.bytes == 0) {
            return Err(Lost::TooMuch);
        }
        left.messages -= cost.messages;
        left.bytes = left.bytes.saturating_sub(cost.bytes);
        let event = Event::Messages(Messages {
            topic: messages.topic,
            from: messages.from,
            to: messages.to,
            token,
            batches: messages.batches,
            registry: self.parts.registry.clone(),
        });
        self.push(id, Item { event, token: Some(token), cost });
        Ok(())
    }

    /// Something that takes no credit.
    fn event(&mut self, subscription: u64, event: Event, token: Option<Token>) {
        let Line::Up(connection) = &self.line else { return };
        if let Some(id) = connection.follows.get(&subscription).copied() {
            self.push(id, Item { event, token, cost: Amount::default() });
        }
    }

    /// Puts something into a feed. The link goes on after it: the feed outlives connections.
    fn push(&mut self, id: SubscriptionId, item: Item) {
        let Some(follow) = self.follows.get_mut(&id) else { return };
        let token = item.token;
        follow.last = token.or(follow.last);
        let too_many = follow.feed.push(item);
        if let Some(token) = token {
            self.step(Input::Progress { id, token });
        }
        if too_many {
            self.park(id);
        }
    }

    fn ended(&mut self, ended: Ended) -> Result<(), Lost> {
        let Line::Up(connection) = &mut self.line else { return Ok(()) };
        let Some(id) = connection.follows.remove(&ended.subscription) else { return Ok(()) };
        if ended.error.known() == Some(ErrorCode::ShuttingDown) {
            return self.shuts_down();
        }
        if let Some(follow) = self.follows.remove(&id) {
            let (trouble, token) = (ended.error.into(), ended.token);
            follow.feed.end(Err(SubscriptionError::Ended { trouble, token }));
        }
        self.step(Input::Ended { id });
        Ok(())
    }
}
