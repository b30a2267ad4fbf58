//! Requests: topics, single messages, cells, connected clients.
//!
//! A question waits for a connection and for its answer, together at most as long as
//! [`crate::ClientLimits::answer_wait`]. One that does no harm is asked again after a lost
//! connection; the others then end in an error whose fate is unknown.

use std::time::Duration;

use bytes::Bytes;
use gapless_core::{Delivered, Pattern, Position, Seq, TopicInfo, TopicName, TopicSettings};
use gapless_protocol::{
    Auth, AwaitVisible, CancelDelayed, CellRead, ClientClose, ClientList, Clients, Cluster,
    Explain, Found, Get, Ping, Read, Stats, TopicConfigure, TopicCreate, TopicDelete,
    TopicDescribe, TopicInfos, TopicList, TopicPurge, Verb, Visible,
};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::client::Client;
use crate::error::AskError;
use crate::inbox::{Command, Question};

/// Whether a question may be asked again after a lost connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    Yes,
    No,
}

/// What an answer must be; anything else is unexpected.
macro_rules! expected {
    ($answer:expr, $($pattern:pat => $value:expr),+) => {
        match $answer {
            $($pattern => Ok($value),)+
            _ => Err(AskError::Unexpected),
        }
    };
}

pub(crate) use expected;

impl Client {
    pub(crate) async fn ask(&self, verb: Verb, again: Again) -> Result<Verb, AskError> {
        self.ask_for(Duration::ZERO, verb, again).await
    }

    /// Asks what the server may take so long for, beside the usual time.
    async fn ask_for(&self, wait: Duration, verb: Verb, again: Again) -> Result<Verb, AskError> {
        let answered = async {
            // Held until the answer, so that questions are bounded.
            let _permit = self.asks().acquire().await.map_err(|_| AskError::Closed)?;
            let (reply, answer) = oneshot::channel();
            let question = Question { verb, repeatable: again == Again::Yes, reply };
            if !self.inbox().send(Command::Ask(question)) {
                return Err(AskError::Closed);
            }
            answer.await.unwrap_or(Err(AskError::Closed))
        };
        let wait = self.limits().answer_wait.saturating_add(wait);
        timeout(wait, answered).await.unwrap_or(Err(AskError::TimedOut))
    }

    /// Creates a topic. Succeeds if it exists with equal settings.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn create_topic(
        &self,
        topic: &TopicName,
        settings: TopicSettings,
    ) -> Result<TopicInfo, AskError> {
        let asked = TopicCreate { topic: topic.clone(), settings };
        expected!(self.ask(asked.into(), Again::Yes).await?, Verb::TopicInfo(info) => info)
    }

    /// Gives a topic other settings, all of them.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn configure_topic(
        &self,
        topic: &TopicName,
        settings: TopicSettings,
    ) -> Result<TopicInfo, AskError> {
        let asked = TopicConfigure { topic: topic.clone(), settings };
        expected!(self.ask(asked.into(), Again::No).await?, Verb::TopicInfo(info) => info)
    }

    /// What a topic is and holds.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn describe_topic(&self, topic: &TopicName) -> Result<TopicInfo, AskError> {
        let asked = TopicDescribe { topic: topic.clone() };
        expected!(self.ask(asked.into(), Again::Yes).await?, Verb::TopicInfo(info) => info)
    }

    /// A page of the topics that match a pattern, by name, after the last name of the page
    /// before. The server may send fewer than `limit`; `more` says whether there are more.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn topics(
        &self,
        pattern: &Pattern,
        after: Option<&TopicName>,
        limit: u32,
    ) -> Result<TopicInfos, AskError> {
        let asked = TopicList { pattern: pattern.clone(), after: after.cloned(), limit };
        expected!(self.ask(asked.into(), Again::Yes).await?, Verb::TopicInfos(infos) => infos)
    }

    /// Removes a topic with all its messages.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn delete_topic(&self, topic: &TopicName) -> Result<(), AskError> {
        let asked = TopicDelete { topic: topic.clone() };
        expected!(self.ask(asked.into(), Again::No).await?, Verb::Done(_) => ())
    }

    /// Removes the messages of a topic below a seq, for ever.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn purge_topic(&self, topic: &TopicName, below: Seq) -> Result<(), AskError> {
        let asked = TopicPurge { topic: topic.clone(), below };
        // What is purged stays purged: doing it twice is doing it once.
        expected!(self.ask(asked.into(), Again::Yes).await?, Verb::Done(_) => ())
    }

    /// The newest message of a key.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn latest(
        &self,
        topic: &TopicName,
        key: impl Into<Bytes>,
    ) -> Result<Option<Delivered>, AskError> {
        let asked = Get { topic: topic.clone(), key: key.into() };
        found(self.ask(asked.into(), Again::Yes).await?)
    }

    /// The message of a seq.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn read(&self, topic: &TopicName, seq: Seq) -> Result<Option<Delivered>, AskError> {
        let asked = Read { topic: topic.clone(), seq };
        found(self.ask(asked.into(), Again::Yes).await?)
    }

    /// Where a message is and how far groups are with it, as the JSON object that `docs/http.md`
    /// describes.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn explain(&self, topic: &TopicName, seq: Seq) -> Result<String, AskError> {
        let asked = Explain { topic: topic.clone(), seq };
        expected!(self.ask(asked.into(), Again::Yes).await?, Verb::Explained(text) => text.json)
    }

    /// The value of a cell, as [`Client::commit`] writes them.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn cell(&self, name: impl Into<Bytes>) -> Result<Option<Bytes>, AskError> {
        let asked = CellRead { name: name.into() };
        expected!(self.ask(asked.into(), Again::Yes).await?, Verb::CellValue(cell) => cell.value)
    }

    /// Cancels a delayed message before it is due, by the id of its ack. Returns whether it was
    /// still waiting.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn cancel_delayed(&self, id: Position) -> Result<bool, AskError> {
        let asked = CancelDelayed { id };
        let answer = self.ask(asked.into(), Again::No).await?;
        expected!(answer, Verb::Cancelled(cancelled) => cancelled.was_waiting)
    }

    /// A page of the connected clients, after the last session of the page before (zero for the
    /// first page).
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn clients(&self, after: u64, limit: u32) -> Result<ClientList, AskError> {
        let asked = Clients { after, limit };
        expected!(self.ask(asked.into(), Again::Yes).await?, Verb::ClientList(list) => list)
    }

    /// Ends the connection of the client that has this session. It is not asked again when the
    /// connection is lost: the answer may have been the closing of this very client.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn close_client(&self, session: u64) -> Result<(), AskError> {
        let asked = ClientClose { session };
        expected!(self.ask(asked.into(), Again::No).await?, Verb::Done(_) => ())
    }

    /// Numbers about the server, as a JSON object.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn stats(&self) -> Result<String, AskError> {
        expected!(self.ask(Stats.into(), Again::Yes).await?, Verb::StatsText(text) => text.json)
    }

    /// Asks about identities, roles and tokens, or changes them; both are JSON objects, which
    /// `docs/security.md` describes. It is not asked again when the connection is lost.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn auth(&self, json: String) -> Result<String, AskError> {
        let asked = Auth { json };
        expected!(self.ask(asked.into(), Again::No).await?, Verb::AuthAnswer(text) => text.json)
    }

    /// Asks how the server's cluster stands, or that the server leaves it; both are JSON objects, which
    /// `docs/cluster.md` describes. It is not asked again when the connection is lost.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn cluster(&self, json: String) -> Result<String, AskError> {
        let asked = Cluster { json };
        expected!(self.ask(asked.into(), Again::No).await?, Verb::ClusterAnswer(text) => text.json)
    }

    /// Waits until every node that the server of this client knows in its cluster knows what is followed
    /// there, at most for `wait` (a minute is the longest): from then on a publish at any of them comes
    /// to the subscriptions that were there when this was called. [`Visible`] says how many nodes do
    /// not know it; without a cluster there are none. It is not asked again when the connection is
    /// lost.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn await_visible(&self, wait: Duration) -> Result<Visible, AskError> {
        let asked = AwaitVisible::for_at_most(wait).into();
        let answer = self.ask_for(wait, asked, Again::No).await?;
        expected!(answer, Verb::Visible(visible) => visible)
    }

    /// Whether a server is there.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn ping(&self) -> Result<(), AskError> {
        let asked = Ping::default();
        expected!(self.ask(asked.into(), Again::Yes).await?, Verb::Pong(_) => ())
    }
}

fn found(answer: Verb) -> Result<Option<Delivered>, AskError> {
    expected!(answer, Verb::NotFound(_) => None, Verb::Found(found) => delivered(&found))
}

fn delivered(found: &Found) -> Option<Delivered> {
    let record = found.records.iter().next()?;
    let message = record.to_message(&found.records.bytes);
    Some(Delivered { seq: found.seq, position: found.position, time: found.time, message })
}
