//! What the log says of a connection: that it is there, what it was refused, why it ended; and each
//! request, if that is wanted.
//!
//! Names and reasons are fields of type string: the log escapes what a client put into them.

use gapless_protocol::{ErrorCode, Verb};

use super::{Connection, End};

impl Connection {
    /// It said hello, and was let in.
    pub(super) fn log_connected(&self) {
        let (session, from) = (self.session.number, &*self.session.address);
        let (who, client) = (self.caller.name(), &*self.session.name());
        tracing::info!(target: "clients", session, from, who, client, "connected");
    }

    /// Notes why it will end; the first reason is the one that counts.
    pub(super) fn ends_because(&self, why: impl Into<Box<str>>) {
        self.session.why_ended.get_or_init(|| why.into());
    }

    /// It is over. One that never said hello is a port scan or a health check.
    pub(super) fn log_disconnected(&self, ended: &End) {
        let (session, from) = (self.session.number, &*self.session.address);
        let broke = match ended {
            End::Io(error) => Some(error.to_string()),
            End::Done | End::Jobs => None,
        };
        let reason = broke
            .as_deref()
            .or(self.session.why_ended.get().map(|why| &**why))
            .unwrap_or("all was done");
        let seconds = self.shared.broker.now().0.saturating_sub(self.session.since.0) / 1000;
        if self.counted.is_some() {
            let who = self.caller.name();
            tracing::info!(target: "clients", session, from, who, reason, seconds, "disconnected");
        } else {
            tracing::debug!(target: "clients", session, from, reason, "gone without a hello");
        }
    }

    pub(super) fn log_refusal(&self, code: ErrorCode, why: &dyn std::fmt::Display) {
        let (session, from) = (self.session.number, &*self.session.address);
        let (who, error, why) = (self.caller.name(), code.name(), &*why.to_string());
        tracing::info!(target: "clients", session, from, who, error, why, "request refused");
    }

    /// A line of the access log, if there is one.
    pub(super) fn log_access(&self, verb: &str, on: &str, messages: u64) {
        if !self.shared.options.access_log {
            return;
        }
        let (session, from) = (self.session.number, &*self.session.address);
        let who = self.caller.name();
        tracing::info!(target: "access", session, from, who, verb, on, messages, "native");
    }

    /// The same for a verb; and what administrates is said in any case.
    pub(super) fn log_verb(&self, verb: &Verb) {
        if let Some((action, on)) = admin_request(verb) {
            self.caller.acts(action, on);
        }
        if !self.shared.options.access_log {
            return;
        }
        let (on, messages) = match verb {
            Verb::Publish(it) => (it.topic.as_str(), u64::from(it.records.count)),
            Verb::Subscribe(it) => (it.pattern.as_str(), 0),
            Verb::Get(it) => (it.topic.as_str(), 0),
            Verb::Read(it) => (it.topic.as_str(), 0),
            Verb::GroupJoin(it) => (it.group.as_str(), 0),
            _ => (admin_request(verb).map_or("", |(_, on)| on), 0),
        };
        self.log_access(verb.kind().name(), on, messages);
    }
}

/// What a verb does to topics, groups or the server, and to which.
fn admin_request(verb: &Verb) -> Option<(&'static str, &str)> {
    Some(match verb {
        Verb::TopicCreate(it) => ("create topic", it.topic.as_str()),
        Verb::TopicConfigure(it) => ("configure topic", it.topic.as_str()),
        Verb::TopicDelete(it) => ("delete topic", it.topic.as_str()),
        Verb::TopicPurge(it) => ("purge topic", it.topic.as_str()),
        Verb::GroupCreate(it) => ("create group", it.group.as_str()),
        Verb::GroupConfigure(it) => ("configure group", it.group.as_str()),
        Verb::GroupDelete(it) => ("delete group", it.group.as_str()),
        Verb::GroupPause(it) => ("pause group", it.group.as_str()),
        Verb::GroupResume(it) => ("resume group", it.group.as_str()),
        Verb::GroupReset(it) => ("reset group", it.group.as_str()),
        Verb::LetterRedrive(it) => ("redrive dead letters", it.group.as_str()),
        Verb::LetterRemove(it) => ("remove dead letters", it.group.as_str()),
        _ => return None,
    })
}
