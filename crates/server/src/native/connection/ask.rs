//! Questions that are answered where blocking does no harm, and what comes of them.
//!
//! They are answered in their order; one that waits for other nodes is passed by those behind it.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use gapless_auth::Held;
use gapless_broker::{SubscribeError, Subscription};
use gapless_core::Pattern;
use gapless_core::rights::Right;
use gapless_protocol::{
    AwaitVisible, ErrorCode, GroupJoin, Ids, StartFrom, Subscribe, Subscribed, Verb,
};

use super::{Connection, Stage};
use crate::answers::{error, subscribe_error};
use crate::budget::Share;
use crate::cluster;
use crate::native::deliver::Followed;
use crate::native::group::{NewMember, join};
use crate::native::requests::answer;

/// Questions of a connection that wait for other nodes at the same time.
const AWAITED_MAX: usize = 16;

/// The answer to a request, computed on a thread that may block.
pub(super) enum Answer {
    /// A verb, and the memory it holds until it is with the output.
    Verb(Verb, Option<Share>),
    Subscribed(Box<(Subscription, Pattern, Held)>, (u64, u64)),
    Joined(Box<NewMember>),
}

pub(super) struct Asked {
    pub(super) ids: Ids,
    pub(super) subscribes: bool,
    /// It waits for other nodes: it may be answered after those behind it.
    awaits: bool,
    pub(super) answer: tokio::task::JoinHandle<Answer>,
}

impl Connection {
    pub(super) fn subscribe(&mut self, asked: Subscribe, ids: Ids) {
        let options = &self.shared.options;
        if self.stage != Stage::Open {
            return self.refuse(ErrorCode::ShuttingDown, &"the connection is ending", ids);
        }
        if self.has_all_it_may() {
            return self.refuse(ErrorCode::TooManySubscriptions, &"too many subscriptions", ids);
        }
        let credit = (u64::from(asked.credit_messages), asked.credit_bytes);
        if credit.0 > u64::from(options.credit_messages_max) || credit.1 > options.credit_bytes_max
        {
            return self.refuse(ErrorCode::CreditExceeded, &"too much credit", ids);
        }
        if let Some(identity) = &asked.identity {
            if !matches!(asked.from, StartFrom::Now | StartFrom::Token(_)) {
                let why = "an identity begins now, or goes on where it stopped";
                return self.refuse(ErrorCode::NeedsTopic, &why, ids);
            }
            if let Err(denied) = self.caller.may_follow_as(identity.as_str()) {
                return self.refuse(ErrorCode::NotAuthorised, &denied, ids);
            }
            let is_same = |followed: &Followed| followed.is_named(identity, &asked.pattern);
            if self.follows.values().any(|followed| is_same(followed)) {
                let why = format!("{identity} follows {} already", asked.pattern);
                return self.refuse(ErrorCode::AlreadySubscribed, &why, ids);
            }
        }
        let from = asked.from;
        let held = match self.caller.follow() {
            Ok(held) => held,
            Err(over) => {
                let code = ErrorCode::QuotaExceeded;
                return self.refuse_for(code, &over, over.retry_after, ids);
            }
        };
        let pattern = asked.pattern.clone();
        let done = move |done: Result<Subscription, SubscribeError>| match done {
            Ok(subscription) => Answer::Subscribed(Box::new((subscription, pattern, held)), credit),
            Err(failed) => Answer::Verb(subscribe_error(&failed).into(), None),
        };
        let broker = self.shared.broker.clone();
        let Subscribe { pattern, identity, .. } = asked;
        let at_once = || match &identity {
            Some(identity) => Some(broker.subscribe_named(identity, &pattern)),
            None => broker.subscribe_at_once(&pattern, from),
        };
        // Questions are answered in their order, so none is answered before one that waits.
        if self.asked.iter().all(|asked| asked.awaits)
            && let Some(begun) = at_once()
        {
            return self.answered(done(begun), ids);
        }
        let answer = tokio::task::spawn_blocking(move || {
            done(match &identity {
                Some(identity) => broker.subscribe_named(identity, &pattern),
                None => broker.subscribe(&pattern, from),
            })
        });
        self.asked.push_back(Asked { ids, subscribes: true, awaits: false, answer });
    }

    /// Whether there are as many subscriptions and memberships as there may be.
    pub(super) fn has_all_it_may(&self) -> bool {
        let waiting = self.asked.iter().filter(|asked| asked.subscribes).count();
        let all = self.follows.len() + self.members.len() + waiting;
        all >= self.shared.options.subscriptions_max as usize
    }

    pub(super) fn join(&mut self, asked: GroupJoin, ids: Ids) {
        if self.stage != Stage::Open {
            return self.refuse(ErrorCode::ShuttingDown, &"the connection is ending", ids);
        }
        if self.has_all_it_may() {
            return self.refuse(ErrorCode::TooManyMembers, &"too many memberships", ids);
        }
        let held = match self.caller.follow() {
            Ok(held) => held,
            Err(over) => {
                let code = ErrorCode::QuotaExceeded;
                return self.refuse_for(code, &over, over.retry_after, ids);
            }
        };
        let caller = self.caller.clone();
        let answer = tokio::task::spawn_blocking(move || match join(&caller, held, asked) {
            Ok(new) => Answer::Joined(Box::new(new)),
            Err(failed) => Answer::Verb(failed.into(), None),
        });
        self.asked.push_back(Asked { ids, subscribes: true, awaits: false, answer });
    }

    pub(super) fn joined(&mut self, new: NewMember, ids: Ids) {
        if self.stage != Stage::Open {
            return self.refuse(ErrorCode::ShuttingDown, &"the connection is ending", ids);
        }
        // It may have been taken away while the group was joined.
        let (group, source) = (new.group().clone(), new.source().clone());
        let may = self.caller.may(Right::Group, &group);
        if let Err(denied) = may.and_then(|()| self.caller.may_all(Right::Subscribe, &source)) {
            return self.refuse(ErrorCode::NotAuthorised, &denied, ids);
        }
        // With the term in it: leases are named by the membership, and what a client says of one that
        // the store gave before it was opened again is not taken for one of now.
        let term = self.caller.broker().term() & u64::from(u32::MAX >> 1);
        let number = term << 32 | self.next_follow;
        self.next_follow += 1;
        let joined = self.members.add(new, number, (&self.ready, &self.session));
        self.put(joined, ids);
        self.hungry.push_back(number);
    }

    /// Has a question answered where blocking does no harm.
    pub(super) fn ask(&mut self, verb: Verb, ids: Ids) {
        let (shared, caller) = (Arc::clone(&self.shared), self.caller.clone());
        let answer = tokio::task::spawn_blocking(move || {
            let (verb, mut share) = (answer(&shared, &caller, verb), shared.options.memory.share());
            let bytes = bulk_bytes(&verb);
            if !share.allows(bytes) {
                let why = share.budget().out_of_memory();
                return Answer::Verb(error(ErrorCode::OutOfMemory, &why).into(), None);
            }
            share.set(bytes);
            Answer::Verb(verb, Some(share))
        });
        self.asked.push_back(Asked { ids, subscribes: false, awaits: false, answer });
    }

    /// Answers when all nodes know what is followed here, or after the wait.
    pub(super) fn await_visible(&mut self, asked: AwaitVisible, ids: Ids) {
        if self.asked.iter().filter(|asked| asked.awaits).count() >= AWAITED_MAX {
            let why = format!("{AWAITED_MAX} questions wait for other nodes already");
            return self.refuse(ErrorCode::TooMuchInFlight, &why, ids);
        }
        let wait = Duration::from_millis(asked.wait_ms.into());
        let visible = cluster::visible(&self.caller, wait);
        let answer = tokio::spawn(async move { Answer::Verb(visible.await.into(), None) });
        self.asked.push_back(Asked { ids, subscribes: false, awaits: true, answer });
    }

    pub(super) fn answer_asked(&mut self, context: &mut Context<'_>) -> bool {
        let (mut did, mut at, mut is_first) = (false, 0, true);
        while let Some(asked) = self.asked.get_mut(at) {
            let is_due = asked.awaits || std::mem::take(&mut is_first);
            let done =
                if is_due { Pin::new(&mut asked.answer).poll(context) } else { Poll::Pending };
            let Poll::Ready(done) = done else {
                at += 1;
                continue;
            };
            let Some(asked) = self.asked.remove(at) else { break };
            is_first |= !asked.awaits;
            did = true;
            match done {
                Ok(answer) => self.answered(answer, asked.ids),
                Err(failed) => self.refuse(ErrorCode::Internal, &failed, asked.ids),
            }
        }
        did
    }

    fn answered(&mut self, answer: Answer, ids: Ids) {
        match answer {
            Answer::Verb(verb, _share) => self.put(verb, ids),
            Answer::Subscribed(followed, credit) => self.follow(*followed, credit, ids),
            Answer::Joined(new) => self.joined(*new, ids),
        }
    }

    pub(super) fn follow(
        &mut self,
        (subscription, pattern, held): (Subscription, Pattern, Held),
        credit: (u64, u64),
        ids: Ids,
    ) {
        if self.stage != Stage::Open {
            return self.refuse(ErrorCode::ShuttingDown, &"the connection is ending", ids);
        }
        // It may have been taken away while the subscription began.
        if let Err(denied) = self.caller.may_all(Right::Subscribe, &pattern) {
            return self.refuse(ErrorCode::NotAuthorised, &denied, ids);
        }
        let number = self.next_follow;
        self.next_follow += 1;
        let followed = Followed::new(number, (subscription, pattern, held), credit, &self.ready);
        self.put(Subscribed { subscription: number, token: followed.token() }, ids);
        let mut follows = self.session.follows.lock().unwrap_or_else(PoisonError::into_inner);
        follows.add(number, (followed.broker_id(), followed.by_topic()));
        drop(follows);
        self.follows.add(number, Box::new(followed));
        self.hungry.push_back(number);
    }

    pub(super) fn forget(&self, number: u64) {
        let mut follows = self.session.follows.lock().unwrap_or_else(PoisonError::into_inner);
        follows.remove(number);
    }
}

/// Bytes of the messages in an answer: many answers may wait for one that is not taken.
fn bulk_bytes(verb: &Verb) -> usize {
    match verb {
        Verb::Found(found) => found.records.bytes.len(),
        _ => 0,
    }
}
