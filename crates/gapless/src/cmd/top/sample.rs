//! One look at the server: topics, groups, clients and numbers.

use std::time::Duration;

use gapless_broker::{Clock, SystemClock};
use gapless_client::{AskError, Client, ClientInfo};
use gapless_core::shown::{GroupInfo, TopicInfo};
use gapless_core::{Pattern, Timestamp};
use serde_json::Value;

/// Things asked for at a time.
const PAGE: u32 = 1_000;
/// Most topics, groups or clients looked at: more cannot be read by a person, and asking for them
/// each second would load the server.
pub(super) const SHOWN_MAX: usize = 5_000;

/// See the head of the file.
#[derive(Debug, Default)]
pub(super) struct Sample {
    /// When it was taken, on the clock of the loop.
    pub(super) at: Duration,
    /// When it was taken.
    pub(super) time: Timestamp,
    pub(super) topics: Vec<TopicInfo>,
    pub(super) groups: Vec<GroupInfo>,
    pub(super) clients: Vec<ClientInfo>,
    pub(super) stats: Value,
    /// What was refused, and whether there is more than is looked at.
    pub(super) notes: Vec<String>,
}

impl Sample {
    /// Asks the server. What it refuses is a note; what fails otherwise is tried again by the
    /// caller.
    pub(super) async fn take(
        client: &Client,
        pattern: &Pattern,
        clock: &SystemClock,
    ) -> Result<Self, String> {
        let mut sample = Self { at: clock.monotonic(), time: clock.now(), ..Self::default() };
        let stats = sample.or_note("stats", client.stats().await)?;
        let stats = stats.and_then(|text| serde_json::from_str(&text).ok());
        sample.stats = stats.unwrap_or_default();
        sample.ask_topics(client, pattern).await?;
        sample.ask_groups(client, pattern).await?;
        sample.ask_clients(client).await?;
        Ok(sample)
    }

    async fn ask_topics(&mut self, client: &Client, pattern: &Pattern) -> Result<(), String> {
        loop {
            let after = self.topics.last().map(|topic| topic.name.clone());
            let asked = client.topics(pattern, after.as_ref(), PAGE).await;
            let Some(page) = self.or_note("topics", asked)? else { return Ok(()) };
            let over = !page.more || page.topics.is_empty();
            self.topics.extend(page.topics);
            if over {
                return Ok(());
            }
            if self.topics.len() >= SHOWN_MAX {
                self.notes.push(format!("only the first {SHOWN_MAX} topics; see --pattern"));
                return Ok(());
            }
        }
    }

    async fn ask_groups(&mut self, client: &Client, pattern: &Pattern) -> Result<(), String> {
        let all = Pattern::parse(">").map_err(|error| error.to_string())?;
        loop {
            let after = self.groups.last().map(|group| group.name.clone());
            let asked = client.groups(&all, after.as_ref(), PAGE).await;
            let Some(page) = self.or_note("groups", asked)? else { break };
            let over = !page.more || page.groups.is_empty();
            self.groups.extend(page.groups);
            if over {
                break;
            }
            if self.groups.len() >= SHOWN_MAX {
                self.notes.push(format!("only the first {SHOWN_MAX} groups"));
                break;
            }
        }
        if *pattern != all {
            let topics = &self.topics;
            self.groups.retain(|group| {
                topics.iter().any(|topic| group.settings.source.matches(&topic.name))
            });
        }
        Ok(())
    }

    async fn ask_clients(&mut self, client: &Client) -> Result<(), String> {
        loop {
            let after = self.clients.last().map_or(0, |info| info.session);
            let asked = client.clients(after, PAGE).await;
            let Some(page) = self.or_note("clients", asked)? else { return Ok(()) };
            let over = !page.more || page.clients.is_empty();
            self.clients.extend(page.clients);
            if over {
                return Ok(());
            }
            if self.clients.len() >= SHOWN_MAX {
                self.notes.push(format!("only the first {SHOWN_MAX} clients"));
                return Ok(());
            }
        }
    }

    /// A refusal is a note: a user who may not see clients can still see topics.
    fn or_note<T>(&mut self, what: &str, asked: Result<T, AskError>) -> Result<Option<T>, String> {
        match asked {
            Ok(answer) => Ok(Some(answer)),
            Err(AskError::Server(trouble)) => {
                self.notes.push(format!("{what}: {}", trouble.message));
                Ok(None)
            }
            Err(error) => Err(error.to_string()),
        }
    }
}
