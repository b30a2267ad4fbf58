//! Dispatches a frame to the code that handles it.

use std::sync::PoisonError;

use gapless_protocol::{
    Bye, CellValue, ErrorCode, Features, Frame, GroupLeft, Hello, Ids, Kind, Limits, PartAck, Pong,
    PublishAck, Rejection, Unsubscribed, VERSION, Verb, VerbError, Welcome,
};

use super::publish::Due;
use super::{Connection, Stage, rights};
use crate::answers::topic_error;
use crate::native::requests::client_list;

/// What a hello may ask for beyond the version.
const OFFERED: Features = Features(Features::GROUPS.0 | Features::RETRY_AFTER.0);

impl Connection {
    pub(super) fn handle(&mut self, frame: Frame) {
        let ids = Ids::answer_to(&frame);
        // Whose kind it is comes before what is in it.
        if self.stage != Stage::New
            && let Some(kind) = Kind::from_number(frame.kind)
            && !kind.is_of_jobs()
            && !kind.side().is_clients()
        {
            let why = format!("{} is the server's", kind.name());
            return self.refuse(ErrorCode::UnexpectedKind, &why, ids);
        }
        if self.stage != Stage::New
            && Features::GROUPS.holds(frame.kind)
            && !self.features.has(Features::GROUPS)
        {
            let why = "the hello did not offer groups (feature bit 1)";
            return self.refuse(ErrorCode::NotOffered, &why, ids);
        }
        let verb = match Verb::decode(&frame) {
            Ok(verb) => verb,
            Err(bad) => return self.bad_verb(&frame, &bad, ids),
        };
        if self.stage != Stage::New
            && let Err(refused) = rights::check(&mut self.caller, &verb)
        {
            return self.not_allowed(&verb, &refused, ids);
        }
        self.log_verb(&verb);
        match (self.stage, verb) {
            (Stage::New, Verb::Hello(hello)) => self.welcome(&hello, ids),
            (Stage::New, _) => self.end_with(ErrorCode::NotHello, "say hello first", ids),
            (_, Verb::Hello(_)) => {
                self.end_with(ErrorCode::HelloAgain, "hello was said already", ids);
            }
            (_, Verb::Publish(publish)) => self.publish(frame, publish, ids),
            (_, Verb::Commit(commit)) => self.commit(frame, commit, ids),
            (_, Verb::TopicCreate(asked)) => {
                match self.shared.broker.creating_topic(&asked.topic, asked.settings) {
                    Ok(topic) => self.owe_later(Due::Making(topic), frame.bytes(), ids),
                    Err(failed) => self.put(topic_error(&failed), ids),
                }
            }
            (_, Verb::Subscribe(subscribe)) => self.subscribe(subscribe, ids),
            (_, Verb::Unsubscribe(asked)) => match self.follows.remove(asked.subscription) {
                Some(followed) => {
                    self.forget(asked.subscription);
                    let (subscription, token) = (asked.subscription, followed.token());
                    if !asked.hold {
                        followed.unsubscribe();
                    }
                    self.put(Unsubscribed { subscription, token }, ids);
                }
                None => self.refuse(ErrorCode::UnknownSubscription, &"no such subscription", ids),
            },
            (_, Verb::Credit(credit)) => {
                let options = &self.shared.options;
                let max = (u64::from(options.credit_messages_max), options.credit_bytes_max);
                let granted = u64::from(credit.messages);
                // It may have ended while the credit was on its way.
                let Some(followed) = self.follows.get_mut(credit.subscription) else { return };
                if followed.grant(granted, credit.bytes, max) {
                    self.hungry.push_back(credit.subscription);
                } else {
                    self.refuse(ErrorCode::CreditExceeded, &"too much credit", ids);
                }
            }
            (_, Verb::Ping(ping)) => self.put(Pong { echo: ping.echo }, ids),
            (_, Verb::Pong(_)) => {}
            (_, Verb::GroupJoin(asked)) => self.join(asked, ids),
            (_, Verb::GroupLeave(asked)) => {
                let member = asked.member;
                if self.members.leave(member) {
                    self.put(GroupLeft { member, error: None }, ids);
                } else {
                    self.refuse(ErrorCode::UnknownMember, &"no such membership", ids);
                }
            }
            (_, Verb::GroupStep(step)) => self.step(frame, step, ids),
            (
                _,
                verb @ (Verb::GroupAck(_)
                | Verb::GroupNack(_)
                | Verb::GroupExtend(_)
                | Verb::GroupTerminate(_)
                | Verb::GroupCredit(_)),
            ) => match self.members.say(&verb) {
                Ok(Some(said)) => self.owe_later(Due::Said(said), frame.bytes(), ids),
                Ok(None) => {}
                Err(failed) => self.put(failed, ids),
            },
            (_, Verb::Bye(_)) => {
                self.members.leave_all();
                self.ends_because("the client said goodbye");
                self.put(Bye, ids);
                self.finish();
            }
            (_, Verb::Clients(asked)) => {
                let list = client_list(&self.shared, asked.after, asked.limit);
                self.put(list, ids);
            }
            (_, Verb::AwaitVisible(asked)) => self.await_visible(asked, ids),
            (_, Verb::CellRead(asked)) => {
                let value = self.shared.broker.cell(&asked.name);
                self.put(CellValue { value }, ids);
            }
            (_, verb) => self.ask(verb, ids),
        }
    }

    /// A frame that is not a valid verb: a publish is rejected, anything else is an error.
    pub(super) fn bad_verb(&mut self, frame: &Frame, bad: &VerbError, ids: Ids) {
        if self.stage == Stage::New {
            let is_hello = frame.kind == Kind::Hello.number();
            let code = if is_hello { bad.code() } else { ErrorCode::NotHello };
            return self.end_with(code, bad, ids);
        }
        let publishes = [Kind::Publish.number(), Kind::Commit.number()].contains(&frame.kind);
        match bad.reject_reason() {
            Some(reason) if publishes => {
                let parts = vec![PartAck::Rejected(Rejection::Reason(reason))];
                self.ack(PublishAck { parts }, ids);
            }
            _ => self.refuse(bad.code(), bad, ids),
        }
    }

    pub(super) fn welcome(&mut self, hello: &Hello, ids: Ids) {
        let Some(version) = hello.common_version() else {
            let why = format!("this server speaks version {VERSION}");
            return self.end_with(ErrorCode::VersionMismatch, why, ids);
        };
        self.features = hello.features.common(OFFERED);
        if !self.introduce(hello.token.as_deref(), ids) {
            return;
        }
        let options = &self.shared.options;
        let mut name = self.session.name.lock().unwrap_or_else(PoisonError::into_inner);
        name.clone_from(&hello.client_name);
        drop(name);
        let welcome = Welcome {
            version,
            features: self.features,
            server_name: options.server_name.clone(),
            server_version: env!("CARGO_PKG_VERSION").to_owned(),
            epoch: self.shared.broker.epoch(),
            session: self.session.number,
            limits: Limits {
                frame_bytes: self.limit.bytes() as u32,
                in_flight_bytes: options.in_flight_bytes_max as u64,
                subscriptions: options.subscriptions_max,
                credit_messages: options.credit_messages_max,
                credit_bytes: options.credit_bytes_max,
                idle_ms: u32::try_from(options.idle_timeout.as_millis()).unwrap_or(u32::MAX),
            },
        };
        self.stage = Stage::Open;
        self.log_connected();
        self.put(welcome, ids);
    }
}
