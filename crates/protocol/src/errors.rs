//! The one numbered list of errors of the protocol.
//!
//! Numbers below 100 are core's reasons for refusing a publish ([`RejectReason`]), those below
//! 200 are core's system trouble ([`PubSubError`]), those from 200 on are the protocol's own, those
//! from 300 on are of requests over HTTP.
//! One fact has one number: that a topic does not exist is 11 whether a publish, a describe or
//! a read finds it out. A number once given is never given again; `tests/golden/errors.txt`
//! holds them all.
//!
//! Which error of the broker gets which number is the listener's business.

use gapless_core::{Fate, PubSubError, RejectReason};

macro_rules! errors {
    ($($number:literal $name:ident $fate:ident $sentence:literal,)+) => {
        /// An error that the protocol has a number for. A peer may send a number that is not
        /// here: see [`crate::ErrorAnswer`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u16)]
        pub enum ErrorCode {
            $(#[doc = $sentence] $name = $number,)+
        }

        impl ErrorCode {
            /// Every error, in the order of the numbers.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// The error of this number, if this version knows it.
            pub fn from_number(number: u16) -> Option<Self> {
                match number { $($number => Some(Self::$name),)+ _ => None }
            }

            /// The number on the wire; never reused.
            pub fn number(self) -> u16 {
                self as u16
            }

            /// Its name; never reused.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),+ }
            }

            /// What became of the frame that it answers.
            pub fn fate(self) -> Fate {
                match self { $(Self::$name => Fate::$fate),+ }
            }

            /// What it means and what to do, in one sentence.
            pub fn sentence(self) -> &'static str {
                match self { $(Self::$name => $sentence),+ }
            }
        }
    };
}

// Append only.
errors! {
    1 InvalidTopic DidNotHappen "the name is not a valid topic name, or one the caller may not use",
    2 InvalidPayload DidNotHappen "a message cannot be read, or breaks a limit of its parts",
    3 NotSerializable DidNotHappen "no serialiser is registered for the payload's type",
    4 QueueFull DidNotHappen "the place where it would wait is full: wait for acks, then send again",
    5 NoSubscribers DidNotHappen "the publish asked for subscribers, and the topic has none",
    6 PartitionDrop DidNotHappen "a subscriber's node is unreachable, and the publish chose to drop",
    7 ExpectedSeq DidNotHappen "what the publish expected is no longer true",
    8 TooLarge DidNotHappen "the message is larger than its topic or the broker allows",
    9 Expired DidNotHappen "the message had expired when it arrived",
    10 NotAuthorised DidNotHappen "this session is not allowed to do that here",
    11 UnknownTopic DidNotHappen "there is no such topic: create it first",
    12 NotDurable DidNotHappen "the topic is volatile, and what was asked for needs a durable one",
    13 LeaseLost DidNotHappen "a message to be acked is not with this member any more: do not repeat",
    14 LimitReached DidNotHappen "a total that the server keeps in memory is at its limit",
    15 ExpectedCell DidNotHappen "a cell has another value than the expected one: read it and decide again",
    16 NotSupported DidNotHappen "only a cluster, or only a volatile subject, can do what is asked for",

    100 NotStarted DidNotHappen "the broker is not started",
    101 Stopped DidNotHappen "the broker is stopped",
    102 Poisoned Unknown "a flush failed, and it is unknown what is on the disk",
    103 StorageFull DidNotHappen "there is no room on the disk",
    104 Unavailable DidNotHappen "the owner of the topic cannot be reached: try again later",
    105 TimedOut Unknown "no answer came in time: send again with the same message id",
    106 Fenced Unknown "another node owns the journal now: send again to it",
    107 Internal Unknown "a fault that should not be: report it",
    108 JournalFailed DidNotHappen "a write or flush failed before, and nothing is taken until a restart",

    200 BadFrame DidNotHappen "the lengths of a frame disagree; the connection ends",
    201 FrameTooLarge DidNotHappen "a frame is larger than the welcome allows; the connection ends",
    202 UnknownKind DidNotHappen "no version this server speaks has a frame of this kind",
    203 BadPayload DidNotHappen "the payload or subject is not what the kind asks for",
    204 VersionMismatch DidNotHappen "no version is common to both; the connection ends",
    205 NotHello DidNotHappen "the first frame must be a hello; the connection ends",
    206 HelloAgain DidNotHappen "a hello was sent already; the connection ends",
    207 NotAuthenticated DidNotHappen "the hello's token is missing or not valid; the connection ends",
    208 TooManyConnections DidNotHappen "the server has all the connections it may have: come back later",
    209 TooManySubscriptions DidNotHappen "there are as many subscriptions as there may be",
    210 TooManyTopics DidNotHappen "there are as many topics as the broker allows",
    211 TooMuchInFlight DidNotHappen "more unanswered bytes than the welcome allows: wait for answers",
    212 CreditExceeded DidNotHappen "the grant is nothing, or lifts the credit above the welcome's limit",
    213 IdleTimeout DidNotHappen "nothing came for longer than the welcome allows; the connection ends",
    214 UnknownSubscription DidNotHappen "this connection has no such subscription",
    215 TopicExists DidNotHappen "a topic of this name is there with other settings",
    216 BadSettings DidNotHappen "the settings cannot be read or make no sense together",
    217 StorageFixed DidNotHappen "a topic cannot change between durable and volatile",
    218 ReservedName DidNotHappen "names that begin with `$` are the broker's own",
    219 BadPattern DidNotHappen "the subject is not a valid pattern",
    220 NeedsTopic DidNotHappen "a seq or the latest per key can begin one existing topic only",
    221 Ahead DidNotHappen "the seq does not exist yet",
    222 TopicDeleted DidNotHappen "the topic that was followed is deleted",
    223 Damaged DidNotHappen "history is damaged; nothing was skipped",
    224 ReadFailed DidNotHappen "history cannot be read at the moment: try again; nothing was skipped",
    225 ShuttingDown DidNotHappen "the server is shutting down: come back later, or elsewhere",
    226 NotOffered DidNotHappen "the kind exists, but this connection did not agree on it",
    227 UnexpectedKind DidNotHappen "a frame of this kind is not for this side to send",
    228 WriteTimeout DidNotHappen "what was sent was not taken in time; the connection ends",
    229 TooLargeToDeliver DidNotHappen "a message does not fit into a frame of this connection",
    230 UnknownGroup DidNotHappen "there is no such group: create it first",
    231 GroupExists DidNotHappen "a group of this name is there with other settings",
    232 GroupFixed DidNotHappen "a group cannot change its source or mode: create a new one",
    233 GroupActive DidNotHappen "the group has members, who would lose what they hold: force it if need be",
    234 TooManyGroups DidNotHappen "there are as many groups as the broker allows",
    235 TooManyMembers DidNotHappen "there are as many members as the group or the connection may have",
    236 UnknownMember DidNotHappen "this connection has no such membership",
    237 GroupDeleted DidNotHappen "the group is deleted",
    238 NoOrigin DidNotHappen "the topic of a dead letter is gone: create it again, then redrive",
    239 OutOfMemory DidNotHappen "the memory of all connections is used up: send again later",
    240 QuotaExceeded DidNotHappen "the identity has used up a quota: the message says when to try again",
    241 TakenOver DidNotHappen "the identity subscribed again elsewhere, and that subscription goes on",
    242 AlreadySubscribed DidNotHappen "this connection follows that pattern under that identity already",
    243 UnknownClient DidNotHappen "no client has this session: it has gone, or was never there",
    244 ClosedByAdmin DidNotHappen "an administrator closed the connection of this client",

    300 BadRequest DidNotHappen "the request cannot be read: a parameter, a header or the body is wrong",
    301 NoSuchPath DidNotHappen "there is nothing at this path",
    302 MethodNotAllowed DidNotHappen "the path is there, but not for this method",
    303 NoSuchMessage DidNotHappen "there is no such message: it is gone, or was never there",
    304 HeadTooLarge DidNotHappen "the request's line and headers are larger than the server allows",
    305 RequestTimeout DidNotHappen "the request did not arrive in time",
    306 BodyTooLarge DidNotHappen "the request's body is larger than the server allows",
    307 NoSuchJob DidNotHappen "there is no such job: it was forgotten, or never submitted",
    308 JobRefused DidNotHappen "the job is not in a state in which that can be done",
    309 StaleAttempt DidNotHappen "another attempt of the job counts, or it has ended: do not repeat",
}

impl ErrorCode {
    /// Whether it is a reason for which core refuses a publish: then a publish is answered by
    /// a rejection, and not by an error (A4).
    pub fn is_reject_reason(self) -> bool {
        self.number() < 100
    }
}

impl From<&RejectReason> for ErrorCode {
    fn from(reason: &RejectReason) -> Self {
        // A reason newer than this list still is a refusal of the message.
        Self::from_number(reason.code()).unwrap_or(Self::InvalidPayload)
    }
}

impl From<&PubSubError> for ErrorCode {
    fn from(error: &PubSubError) -> Self {
        // Trouble newer than this list leaves the fate open.
        Self::from_number(error.code()).unwrap_or(Self::Internal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a3_a4_every_number_of_core_is_in_the_list_under_its_name() {
        for (number, name) in RejectReason::CODES.iter().chain(PubSubError::CODES) {
            let known = ErrorCode::from_number(*number).expect("the number is listed");
            assert_eq!(known.name(), *name);
        }
        let cores = RejectReason::CODES.len() + PubSubError::CODES.len();
        let below = ErrorCode::ALL.iter().filter(|code| code.number() < 200).count();
        assert_eq!(below, cores, "the list has nothing below 200 that core does not have");
    }

    #[test]
    fn fates_agree_with_core() {
        let errors = [
            PubSubError::NotStarted,
            PubSubError::Stopped,
            PubSubError::Poisoned,
            PubSubError::StorageFull,
            PubSubError::Unavailable,
            PubSubError::JournalFailed,
            PubSubError::TimedOut,
            PubSubError::Fenced,
            PubSubError::Internal(alloc::string::String::new()),
        ];
        assert_eq!(errors.len(), PubSubError::CODES.len());
        for error in &errors {
            assert_eq!(ErrorCode::from(error).fate(), error.fate(), "{error}");
        }
        assert_eq!(ErrorCode::from(&RejectReason::Expired), ErrorCode::Expired);
    }

    #[test]
    fn numbers_rise_and_names_differ() {
        let rises = |pair: &[ErrorCode]| pair[0].number() < pair[1].number();
        assert!(ErrorCode::ALL.windows(2).all(rises));
        for code in ErrorCode::ALL {
            assert_eq!(ErrorCode::from_number(code.number()), Some(*code));
            let same = ErrorCode::ALL.iter().filter(|other| other.name() == code.name());
            assert_eq!(same.count(), 1);
        }
    }
}
