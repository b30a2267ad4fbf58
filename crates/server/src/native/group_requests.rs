//! Questions about groups and their dead letters, and their answers.

use gapless_auth::Caller;
use gapless_broker::{DeadLetter, GroupError, GroupInfo};
use gapless_core::RecordsBuilder;
use gapless_core::rights::Right;
use gapless_protocol::verbs::group::REASON_BYTES_MAX;
use gapless_protocol::verbs::group_admin::{MEMBERS_SHOWN_MAX, WHY_BYTES_MAX};
use gapless_protocol::verbs::session::NAME_TEXT_BYTES_MAX;
use gapless_protocol::{
    Done, ErrorCode, GroupInfos, Letter, Letters, LettersMoved, NotFound, Verb,
};

use crate::answers::{error, group_error};
use crate::native::requests::{LIST_MAX, fits, page_bytes};
use crate::native::server::Shared;

/// Dead letters in one answer, at most: each may be as large as a message.
const LETTERS_AT_ONCE: usize = 100;
/// Bytes of a group without names, members and settings, at most.
const GROUP_BYTES: usize = 512;
/// Bytes of a group's settings, at most: a pattern and a list of waits.
const SETTINGS_BYTES: usize = 1024;
/// Bytes of a member without its name, at most.
const MEMBER_BYTES: usize = 32;
/// Bytes of a dead letter without texts and message, at most.
const LETTER_BYTES: usize = 64;

/// Answers a question about groups; may block.
pub(crate) fn answer(shared: &Shared, caller: &Caller, verb: Verb) -> Verb {
    let broker = &shared.broker;
    let info = |info| Verb::from(group_info(info, page_bytes(shared)));
    match verb {
        Verb::GroupCreate(asked) => {
            or_error(broker.create_group(&asked.group, asked.settings), info)
        }
        Verb::GroupConfigure(asked) => {
            or_error(broker.configure_group(&asked.group, asked.settings), info)
        }
        Verb::GroupDescribe(asked) => or_error(broker.describe_group(&asked.group), info),
        Verb::GroupDelete(asked) => or_error(broker.delete_group(&asked.group), |()| Done.into()),
        Verb::GroupPause(asked) => or_error(broker.pause_group(&asked.group), info),
        Verb::GroupResume(asked) => or_error(broker.resume_group(&asked.group), info),
        Verb::GroupReset(asked) => {
            or_error(broker.reset_group(&asked.group, asked.to, asked.force), info)
        }
        Verb::GroupList(asked) => {
            let limit = (asked.limit as usize).clamp(1, LIST_MAX);
            let mut groups = broker.list_groups();
            groups.retain(|info| asked.pattern.matches(&info.name));
            groups.retain(|info| caller.sees(Right::Group, &info.name));
            if let Some(after) = &asked.after {
                groups.retain(|info| info.name > *after);
            }
            let room = page_bytes(shared);
            let all = groups.len();
            let shown = groups.into_iter().take(limit).map(|info| group_info(info, room));
            let mut groups: Vec<GroupInfo> = shown.collect();
            groups.truncate(fits(&groups, room, group_bytes));
            let more = all > groups.len();
            GroupInfos { groups, more }.into()
        }
        Verb::LetterList(asked) => {
            let limit = (asked.limit as usize).clamp(1, LETTERS_AT_ONCE);
            let found = broker.dead_letters(&asked.group, asked.from, limit + 1);
            or_error(found, |found| letters(shared, &found, limit))
        }
        Verb::LetterRead(asked) => {
            or_error(broker.dead_letter(&asked.group, asked.seq), |found| match found {
                Some(found) => letters(shared, &[found], 1),
                None => NotFound.into(),
            })
        }
        Verb::LetterRedrive(asked) => {
            let redriven = broker.redrive(&asked.group, &asked.filter, asked.rate);
            or_error(redriven, |redriven| {
                LettersMoved { count: redriven.moved, goes_on: redriven.goes_on }.into()
            })
        }
        Verb::LetterRemove(asked) => {
            let removed = broker.remove_dead_letters(&asked.group, &asked.filter);
            or_error(removed, |count| LettersMoved { count, goes_on: false }.into())
        }
        other => {
            let name = other.kind().name();
            error(ErrorCode::NotOffered, &format!("{name} is not offered")).into()
        }
    }
}

fn or_error<T>(result: Result<T, GroupError>, good: impl FnOnce(T) -> Verb) -> Verb {
    match result {
        Ok(value) => good(value),
        Err(failed) => Verb::Error(group_error(&failed)),
    }
}

/// As many as fit into a frame, and whether there are more.
fn letters(shared: &Shared, found: &[DeadLetter], limit: usize) -> Verb {
    let letters: Result<Vec<Letter>, _> = found.iter().take(limit).map(letter).collect();
    let mut letters = match letters {
        Ok(letters) => letters,
        Err(failed) => return error(ErrorCode::Internal, &failed).into(),
    };
    let bytes = |letter: &Letter| {
        let texts = letter.topic.as_str().len() + letter.error.len();
        LETTER_BYTES + texts + letter.records.bytes.len()
    };
    letters.truncate(fits(&letters, page_bytes(shared), bytes));
    let more = found.len() > letters.len();
    Letters { letters, more }.into()
}

fn letter(found: &DeadLetter) -> Result<Letter, gapless_core::MessageError> {
    let mut records = RecordsBuilder::default();
    records.push(&found.message)?;
    Ok(Letter {
        seq: found.seq,
        topic: found.topic.clone(),
        origin: found.origin,
        attempts: found.attempts,
        error: short(&found.error, REASON_BYTES_MAX),
        first_failed: found.first_failed,
        died: found.died,
        records: records.finish(),
    })
}

fn group_bytes(info: &GroupInfo) -> usize {
    let members = info.members.iter().map(|member| MEMBER_BYTES + member.name.len());
    let texts = info.name.as_str().len() + info.why.len();
    GROUP_BYTES + SETTINGS_BYTES + texts + members.sum::<usize>()
}

/// A group as it goes into a frame: with as many members as there is room for.
fn group_info(mut info: GroupInfo, room: usize) -> GroupInfo {
    info.members.truncate(MEMBERS_SHOWN_MAX);
    for member in &mut info.members {
        member.name = short(&member.name, NAME_TEXT_BYTES_MAX);
    }
    let others = GROUP_BYTES + SETTINGS_BYTES + 2 * WHY_BYTES_MAX;
    let shown = fits(&info.members, room - others, |each| MEMBER_BYTES + each.name.len());
    info.members.truncate(shown);
    info.why = short(&info.why, WHY_BYTES_MAX);
    info
}

/// The beginning of a text, cut between characters.
fn short(text: &str, max: usize) -> String {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}
