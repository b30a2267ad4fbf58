//! Requests: a message whose answer comes back on a subject of its own.
//!
//! The request names that subject in a header, [`REPLY_TO`]. The client follows it before it sends
//! the request, so an answer cannot come too early; in a cluster too, since what a node follows is
//! known before what it publishes. Nothing is sent to a subject that has no followers: that is
//! answered at once. What responders do is theirs; the first answer counts.

use std::time::Duration;

use bytes::Bytes;
use gapless_core::{Message, PublishOptions, RejectReason, StartFrom as From, TopicName};
use tokio::time::timeout;

use crate::client::Client;
use crate::error::{PublishError, SubscriptionError};
use crate::publish::random;

/// The header of a request that names the subject of its answer.
pub const REPLY_TO: &str = "reply-to";

/// What the subjects of answers begin with. Those who ask need the right to follow it, those who
/// answer the right to publish to it.
pub const REPLIES: &str = "_reply";

/// Why a request has no answer.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// Nothing follows the subject; nothing was sent.
    #[error("there is no responder: nothing follows {0}")]
    NoResponders(TopicName),
    /// The request was sent, and no answer came in time. It may have been carried out.
    #[error("no answer came in {0:?}; the request may have been carried out")]
    TimedOut(Duration),
    /// The request was not accepted.
    #[error(transparent)]
    Publish(PublishError),
    /// The subject of the answer could not be followed; nothing was sent.
    #[error(transparent)]
    Subscribe(#[from] SubscriptionError),
}

/// The subject to which a request wants its answer, if it is one.
pub fn reply_to(request: &Message) -> Option<TopicName> {
    let (_, value) = request.headers.iter().find(|(name, _)| name == REPLY_TO)?;
    TopicName::parse(std::str::from_utf8(value).ok()?).ok()
}

/// A subject for one answer, which no other request uses.
pub fn reply_subject() -> TopicName {
    let name = format!("{REPLIES}.{:016x}{:016x}", random(), random());
    TopicName::parse(&name).expect("letters and digits are a name")
}

impl Client {
    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// See [`RequestError`]: in particular, that there is no responder.
    pub async fn request(
        &self,
        subject: &TopicName,
        mut request: Message,
        wait: Duration,
    ) -> Result<Message, RequestError> {
        let reply_to = reply_subject();
        let value = Bytes::copy_from_slice(reply_to.as_str().as_bytes());
        request.headers.push((REPLY_TO.to_owned(), value));
        let asking = async {
            let mut answers = self.subscribe(reply_to.as_str(), From::Now).await?;
            let options =
                PublishOptions { require_subscribers: Some(true), ..PublishOptions::default() };
            let sent = self.publish_with(subject, request, &options).await;
            sent.map_err(|error| match error {
                PublishError::Rejected(RejectReason::NoSubscribers) => {
                    RequestError::NoResponders(subject.clone())
                }
                error => RequestError::Publish(error),
            })?;
            loop {
                match answers.next_messages().await {
                    Some(Ok(Ok(messages))) => {
                        if let Some(answer) = messages.iter().next() {
                            return Ok(answer.message);
                        }
                    }
                    Some(Ok(Err(_))) => {}
                    Some(Err(error)) => return Err(error.into()),
                    None => return Err(SubscriptionError::Closed.into()),
                }
            }
        };
        timeout(wait, asking).await.unwrap_or(Err(RequestError::TimedOut(wait)))
    }
}
