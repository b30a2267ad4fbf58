//! Questions about groups and their dead letters.

use gapless_core::{
    DeadLetter, GroupInfo, GroupSettings, GroupStart, LetterFilter, Pattern, Seq, TopicName,
};
use gapless_protocol::{
    GroupConfigure, GroupCreate, GroupDelete, GroupDescribe, GroupInfos, GroupList, GroupPause,
    GroupReset, GroupResume, Letter, LetterList, LetterRead, LetterRedrive, LetterRemove,
    LettersMoved, Verb,
};

use crate::ask::{Again, expected};
use crate::client::Client;
use crate::error::AskError;

/// The letter in a frame; `None` if there is no message in it.
fn dead_letter(letter: Letter) -> Option<DeadLetter> {
    let message = letter.records.iter().next()?.to_message(&letter.records.bytes);
    Some(DeadLetter {
        seq: letter.seq,
        topic: letter.topic,
        origin: letter.origin,
        attempts: letter.attempts,
        error: letter.error,
        first_failed: letter.first_failed,
        died: letter.died,
        message,
    })
}

impl Client {
    /// Creates a group. Succeeds if it exists with equal settings.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn create_group(
        &self,
        group: &TopicName,
        settings: GroupSettings,
    ) -> Result<GroupInfo, AskError> {
        let asked = GroupCreate { group: group.clone(), settings };
        expected!(self.ask(asked.into(), Again::Yes).await?, Verb::GroupInfo(info) => *info)
    }

    /// Gives a group other settings, all of them; source, mode and start stay what they are.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn configure_group(
        &self,
        group: &TopicName,
        settings: GroupSettings,
    ) -> Result<GroupInfo, AskError> {
        let asked = GroupConfigure { group: group.clone(), settings };
        expected!(self.ask(asked.into(), Again::No).await?, Verb::GroupInfo(info) => *info)
    }

    /// What a group is and how it stands.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn describe_group(&self, group: &TopicName) -> Result<GroupInfo, AskError> {
        let asked = GroupDescribe { group: group.clone() };
        expected!(self.ask(asked.into(), Again::Yes).await?, Verb::GroupInfo(info) => *info)
    }

    /// A page of the groups that match a pattern, by name, after the last name of the page
    /// before. The server may send fewer than `limit`; `more` says whether there are more.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn groups(
        &self,
        pattern: &Pattern,
        after: Option<&TopicName>,
        limit: u32,
    ) -> Result<GroupInfos, AskError> {
        let asked = GroupList { pattern: pattern.clone(), after: after.cloned(), limit };
        expected!(self.ask(asked.into(), Again::Yes).await?, Verb::GroupInfos(infos) => infos)
    }

    /// Removes a group with its dead letters; its members are notified.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn delete_group(&self, group: &TopicName) -> Result<(), AskError> {
        let asked = GroupDelete { group: group.clone() };
        expected!(self.ask(asked.into(), Again::No).await?, Verb::Done(_) => ())
    }

    /// Lets a group hand out nothing more; acks still count.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn pause_group(&self, group: &TopicName) -> Result<GroupInfo, AskError> {
        let asked = GroupPause { group: group.clone() };
        expected!(self.ask(asked.into(), Again::Yes).await?, Verb::GroupInfo(info) => *info)
    }

    /// Lets a group go on, after a pause or over a gap that stopped it.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn resume_group(&self, group: &TopicName) -> Result<GroupInfo, AskError> {
        let asked = GroupResume { group: group.clone() };
        expected!(self.ask(asked.into(), Again::Yes).await?, Verb::GroupInfo(info) => *info)
    }

    /// Lets a group start again somewhere else. With members it must be forced.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn reset_group(
        &self,
        group: &TopicName,
        to: GroupStart,
        force: bool,
    ) -> Result<GroupInfo, AskError> {
        let asked = GroupReset { group: group.clone(), to, force };
        expected!(self.ask(asked.into(), Again::No).await?, Verb::GroupInfo(info) => *info)
    }

    /// A page of the dead letters of a group, from this number on, and whether there are
    /// more.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn dead_letters(
        &self,
        group: &TopicName,
        from: Seq,
        limit: u32,
    ) -> Result<(Vec<DeadLetter>, bool), AskError> {
        let asked = LetterList { group: group.clone(), from, limit };
        expected!(self.ask(asked.into(), Again::Yes).await?, Verb::Letters(found) => {
            (found.letters.into_iter().filter_map(dead_letter).collect(), found.more)
        })
    }

    /// One dead letter, by its number.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn dead_letter(
        &self,
        group: &TopicName,
        seq: Seq,
    ) -> Result<Option<DeadLetter>, AskError> {
        let asked = LetterRead { group: group.clone(), seq };
        expected!(
            self.ask(asked.into(), Again::Yes).await?,
            Verb::NotFound(_) => None,
            Verb::Letters(mut found) => found.letters.pop().and_then(dead_letter)
        )
    }

    /// Puts dead letters back into the topics they came from: at once, or so many per second
    /// in the background, over restarts too; a rate of zero ends that.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn redrive(
        &self,
        group: &TopicName,
        filter: LetterFilter,
        rate: Option<u32>,
    ) -> Result<LettersMoved, AskError> {
        let asked = LetterRedrive { group: group.clone(), filter, rate };
        expected!(self.ask(asked.into(), Again::No).await?, Verb::LettersMoved(moved) => moved)
    }

    /// Removes dead letters, for ever. Returns how many.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn remove_dead_letters(
        &self,
        group: &TopicName,
        filter: LetterFilter,
    ) -> Result<u64, AskError> {
        let asked = LetterRemove { group: group.clone(), filter };
        expected!(self.ask(asked.into(), Again::No).await?, Verb::LettersMoved(moved) => moved.count)
    }
}
