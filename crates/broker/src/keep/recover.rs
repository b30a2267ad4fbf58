//! The broker's state as bytes: items of a checkpoint, and entries of the log.
//!
//! A checkpoint is taken while publishing goes on. Each item carries the position as of
//! which it is true; replaying an entry changes a topic or a cell only if it came later.
//! Batches go to the topic's tail in any case: what is in the log is in no segment.
//!
//! A topic or group that an entry names must be known: from an item, from its creation in the
//! log, or because it was deleted. A deletion that the log itself holds explains entries on
//! both sides of it; what nothing explains is refused, since something would be lost.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};
use gapless_core::batch::{FLAG_IDS, put_varint, take_bytes, take_varint};
use gapless_core::group::op::{Op, OpReader};
use gapless_core::topic::{Effect, Input};
use gapless_core::{
    Batch, Entry, EntryKind, GapReason, Group, Position, Reuse, ReusedNames, Seq, Timestamp, Topic,
    TopicId, TopicName, TopicSettings,
};
use gapless_journal::blobs::BlobError;
use gapless_journal::layout::Folder;
use gapless_journal::{ItemWriter, Lsn, OpenError, Policy, Recover, Snapshot, State};

use crate::broker::Inner;
use crate::group::LiveGroup;
use crate::group::groups::Groups;
use crate::publish::delayed::{delayed_name, due_of};
use crate::topic::live_topic::{LiveTopic, LiveTopicState, lock};
use crate::topic::topics::Topics;

const ITEM_TOPIC: u8 = 1;
const ITEM_CELL: u8 = 2;
const ITEM_COUNTERS: u8 = 3;
const ITEM_GROUP: u8 = 4;
const ITEM_REUSED: u8 = 5;

/// A named value: what it is, and as of which position.
pub(crate) type Cells = BTreeMap<Bytes, (Option<Bytes>, Position)>;

/// Sets a cell or removes it. Of a removed one nothing needs to stay: if an older value is
/// replayed, so is its removal after it.
pub(crate) fn put_cell(cells: &mut Cells, name: Bytes, value: Option<Bytes>, as_of: Position) {
    match value {
        Some(_) => cells.insert(name, (value, as_of)),
        None => cells.remove(&name),
    };
}

impl State for Inner {
    fn checkpoint(&self, write: &mut ItemWriter<'_>) -> Result<(), BlobError> {
        // What was created before the first frame that will be replayed is in these lists.
        let listed = lock(&self.registering);
        let (last_id, topics, groups) =
            (self.topics.last_id(), self.topics.all(), self.groups.all());
        drop(listed);
        let reused = || self.topics.reused(|names| names.clone());
        write_items(last_id, &topics, &groups, || self.cells_snapshot(), reused, write)
    }

    fn policy(&self, topic: TopicId) -> Policy {
        let Some(cell) = self.topics.by_id_or_leaving(topic) else { return Policy::Gone };
        let state = cell.lock();
        if state.gone {
            return Policy::Gone;
        }
        let compaction = state.settings.compaction.map(|each| each.tombstone_grace);
        let (floor, flushed) = (state.machine.first(), state.flushed_floor);
        drop(state);
        if floor == flushed {
            return Policy::Kept { floor, compaction };
        }
        // If the floor were lost with the power, what lies below it would be missed.
        self.journal.flush();
        if self.journal.failure().is_some() || self.journal.is_blocked() {
            return Policy::Kept { floor: flushed, compaction };
        }
        cell.lock().flushed_floor = floor;
        Policy::Kept { floor, compaction }
    }

    fn evicted(&self, topic: TopicId, through: Lsn) {
        if let Some(cell) = self.topics.by_id_or_leaving(topic) {
            cell.lock().evict(through);
        }
    }
}

/// Writes all items of a checkpoint. Cells and names are taken when it is their turn: what was
/// deleted while topics were written is among the names.
pub(crate) fn write_items(
    last_id: TopicId,
    topics: &[Arc<LiveTopic>],
    groups: &[Arc<LiveGroup>],
    cells: impl FnOnce() -> Cells,
    reused: impl FnOnce() -> ReusedNames,
    write: &mut ItemWriter<'_>,
) -> Result<(), BlobError> {
    let mut item = vec![ITEM_COUNTERS];
    item.put_u64_le(last_id.0);
    write(&item)?;
    for item in topics.iter().filter_map(|cell| topic_item(cell)) {
        write(&item)?;
    }
    for group in groups {
        let state = group.lock();
        if state.deleted {
            continue;
        }
        let mut item = vec![ITEM_GROUP];
        item.put_u64_le(group.id.0);
        item.put_u64_le(state.as_of.0);
        item.put_slice(&state.encode(&group.name));
        drop(state);
        write(&item)?;
    }
    for (name, (value, as_of)) in &cells() {
        let mut item = vec![ITEM_CELL];
        item.put_u64_le(as_of.0);
        item.put_u8(u8::from(value.is_some()));
        put_varint(&mut item, name.len() as u64);
        item.put_slice(name);
        item.put_slice(value.as_deref().unwrap_or_default());
        write(&item)?;
    }
    for (name, reuse) in reused().iter() {
        let mut item = vec![ITEM_REUSED];
        item.put_u64_le(reuse.at.0);
        item.put_u64_le(reuse.by.map_or(0, |id| id.0));
        item.put_slice(name.as_str().as_bytes());
        write(&item)?;
    }
    Ok(())
}

/// A topic as an item. Of a volatile one only its settings are kept: it starts empty.
fn topic_item(cell: &LiveTopic) -> Option<Vec<u8>> {
    let state = cell.lock();
    if state.deleted {
        return None;
    }
    if !state.is_durable() {
        let empty =
            LiveTopic::new(cell.id, cell.name.clone(), Arc::clone(&state.settings), Arc::default());
        let mut fresh = empty.lock();
        fresh.as_of = state.as_of;
        return Some(encode_topic(cell, &fresh));
    }
    Some(encode_topic(cell, &state))
}

fn encode_topic(cell: &LiveTopic, state: &LiveTopicState) -> Vec<u8> {
    let mut item = vec![ITEM_TOPIC];
    item.put_u64_le(cell.id.0);
    item.put_u64_le(state.as_of.0);
    item.put_u64_le(state.floor_position.0);
    item.put_u64_le(state.oldest_time.0);
    put_named(&mut item, &cell.name, &state.settings);
    let mut machine = Vec::new();
    state.machine.encode(&mut machine);
    put_varint(&mut item, machine.len() as u64);
    item.put_slice(&machine);
    let waiting = state.delayed();
    put_varint(&mut item, waiting.map_or(0, |waiting| waiting.len() as u64));
    for (seq, due) in waiting.into_iter().flat_map(|waiting| waiting.iter()) {
        item.put_u64_le(seq.0);
        item.put_u64_le(due.0);
    }
    item
}

/// Name and settings, as in a `TopicSet` entry and in an item.
pub(crate) fn put_named(out: &mut Vec<u8>, name: &TopicName, settings: &TopicSettings) {
    put_varint(out, name.as_str().len() as u64);
    out.put_slice(name.as_str().as_bytes());
    let mut encoded = Vec::new();
    settings.encode(&mut encoded);
    put_varint(out, encoded.len() as u64);
    out.put_slice(&encoded);
}

pub(crate) fn take_named(rest: &mut &[u8]) -> Result<(TopicName, TopicSettings), String> {
    let name = parse_name(take_part(rest)?)?;
    let settings = TopicSettings::decode(take_part(rest)?).map_err(|error| error.to_string())?;
    Ok((name, settings))
}

fn parse_name(bytes: &[u8]) -> Result<TopicName, String> {
    let name = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    TopicName::parse(name).map_err(|error| error.to_string())
}

fn take_part<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], String> {
    let len = take_varint(rest);
    len.and_then(|len| take_bytes(rest, len)).ok_or_else(short)
}

fn take_number(rest: &mut &[u8]) -> Result<u64, String> {
    rest.try_get_u64_le().map_err(|_| short())
}

fn short() -> String {
    "it is cut short".to_owned()
}

/// The state while it is being rebuilt.
#[derive(Default)]
pub(crate) struct Recovering {
    pub(crate) topics: Topics,
    pub(crate) cells: Cells,
    pub(crate) groups: Groups,
    /// Topics and groups that the log names but that are in no item: they must have been
    /// deleted while the checkpoint was taken, so the log must hold their deletion too.
    unknown: BTreeSet<TopicId>,
    /// Topics that are in no item and that the log has settings for: they were created there, or
    /// given other settings and deleted while the checkpoint was taken. Their content shows which.
    set_by_log: BTreeSet<TopicId>,
    /// Topics and groups whose deletion the log holds. Numbers are never given twice, so changes
    /// that follow it belong to nothing: earlier versions wrote such changes of groups.
    pub(crate) deleted: BTreeSet<TopicId>,
    /// The highest number that was given when the checkpoint was taken.
    numbered: TopicId,
}

impl Recovering {
    /// Notes that an entry names a topic or a group that is not there.
    fn missing(&mut self, id: TopicId) {
        if !self.deleted.contains(&id) {
            self.unknown.insert(id);
        }
    }

    fn note_deleted(&mut self, id: TopicId) {
        self.topics.note_id(id);
        self.unknown.remove(&id);
        self.deleted.insert(id);
    }

    fn restore_topic(&mut self, rest: &mut &[u8]) -> Result<(), String> {
        let id = TopicId(take_number(rest)?);
        let as_of = Position(take_number(rest)?);
        let floor_position = Position(take_number(rest)?);
        let oldest_time = Timestamp(take_number(rest)?);
        let (name, settings) = take_named(rest)?;
        let machine = Topic::decode(take_part(rest)?).map_err(|error| error.to_string())?;
        let waiting = take_varint(rest).ok_or_else(short)?;
        let cell = self.add_topic(id, name, settings);
        let mut state = cell.lock();
        // Everything that an item records was flushed before the item became valid.
        let last = machine.last();
        state.machine = machine;
        if last > state.machine.settled() {
            state.step(Timestamp(0), Input::Settled { through: last });
        }
        state.as_of = as_of;
        if state.is_durable() {
            state.visible = as_of;
        }
        state.floor_position = floor_position;
        state.oldest_time = oldest_time;
        for _ in 0..waiting {
            let (seq, due) = (Seq(take_number(rest)?), Timestamp(take_number(rest)?));
            state.hold_delayed().insert(seq, due);
        }
        Ok(())
    }

    pub(crate) fn add_topic(
        &mut self,
        id: TopicId,
        name: TopicName,
        settings: TopicSettings,
    ) -> Arc<LiveTopic> {
        let settings = self.topics.share(settings);
        let trims = Arc::clone(&self.topics.trims);
        let is_delayed = name == delayed_name();
        let cell = Arc::new(LiveTopic::new(id, name, settings, trims));
        if is_delayed {
            cell.lock().hold_delayed();
        }
        self.topics.insert(Arc::clone(&cell));
        self.unknown.remove(&id);
        cell
    }

    fn replay_topic_set(&mut self, entry: &Entry) -> Result<(), String> {
        let body = entry.body();
        let (name, settings) = take_named(&mut &body[..])?;
        let id = entry.header.topic;
        // Its creation would have come before the entries that were lost.
        if self.deleted.contains(&id) || self.unknown.contains(&id) {
            return Ok(());
        }
        let Some(cell) = self.topics.by_id(id) else {
            self.topics.reused(|names| names.created(&name, entry.header.position, id));
            self.add_topic(id, name, settings).lock().as_of = entry.header.position;
            self.set_by_log.insert(id);
            return Ok(());
        };
        let shared = self.topics.share(settings);
        let mut state = cell.lock();
        if entry.header.position > state.as_of {
            state.as_of = entry.header.position;
            state.settings = shared;
            state.step(entry.header.time, Input::Window(settings.dedup));
            drop(state);
            self.topics.note_age(id, settings.retention.age.is_some());
        }
        Ok(())
    }

    fn replay_batch(&mut self, lsn: Lsn, entry: Entry) -> Result<(), String> {
        let header = entry.header;
        let Some(cell) = self.topics.by_id(header.topic) else {
            self.missing(header.topic);
            return Ok(());
        };
        let bytes = entry.bytes.clone();
        let batch = Batch::new(entry)
            .ok_or_else(|| "an entry that should be a batch is not valid".to_owned())?;
        let mut state = cell.lock();
        if header.last_position() > state.as_of {
            let mut ids: Vec<(u32, &[u8])> = Vec::new();
            if header.flags & FLAG_IDS != 0 {
                ids.extend(batch.records().filter_map(|each| Some((each.offset, each.id?))));
            }
            let input = Input::Replayed {
                first: header.seq,
                count: header.span,
                ids: &ids,
                time: header.time,
            };
            if let Some(Effect::Mismatch { expected, found }) = state.step(header.time, input) {
                if state.machine.last() == Seq(0) && self.set_by_log.contains(&header.topic) {
                    // What seemed to create it only changed its settings.
                    drop(state);
                    self.topics.remove(&cell);
                    self.missing(header.topic);
                    return Ok(());
                }
                return Err(format!("topic {} has {found} instead of {expected}", cell.name));
            }
            state.as_of = header.last_position();
            if let Some(waiting) = state.delayed_mut() {
                let seq = |record: &gapless_core::Record<'_>| batch.seq_of(record);
                waiting.note(batch.records().map(|each| (seq(&each), due_of(each.headers))));
            }
        }
        state.push(lsn, bytes);
        Ok(())
    }

    fn replay_floor(&mut self, entry: &Entry) -> Result<(), String> {
        let header = entry.header;
        let Some(cell) = self.topics.by_id(header.topic) else {
            self.missing(header.topic);
            return Ok(());
        };
        let mut state = cell.lock();
        if header.position <= state.as_of {
            return Ok(());
        }
        let code = u8::try_from(header.flags).ok();
        let reason = code.and_then(GapReason::known).ok_or("a floor has no known reason")?;
        let position = take_number(&mut &entry.body()[..])?;
        state.step(header.time, Input::Trim { below: header.seq, reason });
        state.floor_position = state.floor_position.max(Position(position));
        state.as_of = header.position;
        Ok(())
    }

    /// Takes over changes of a group that were written down. Those of a group that is not
    /// there are its creation, or it was deleted: while the checkpoint was taken, or before it
    /// by an earlier version, which let members write behind the deletion.
    fn replay_group(&mut self, id: TopicId, as_of: Position, bytes: &[u8]) -> Result<(), String> {
        self.topics.note_id(id);
        let mut group = self.groups.by_id(id);
        if group.as_ref().is_some_and(|group| group.lock().as_of >= as_of) {
            return Ok(());
        }
        for op in OpReader::new(bytes) {
            let op = op.map_err(|error| error.to_string())?;
            match (&group, op) {
                (None, Op::Created { name, settings, floor, forgiven }) => {
                    let machine = Group::new(*settings, floor, forgiven, id.0);
                    let new = Arc::new(LiveGroup::new(id, name, machine, as_of));
                    self.groups.insert(Arc::clone(&new));
                    self.unknown.remove(&id);
                    group = Some(new);
                }
                (Some(there), Op::Deleted) => {
                    self.groups.remove(there);
                    group = None;
                    self.note_deleted(id);
                }
                (Some(there), op) => there.lock().machine.replay(op),
                (None, Op::Deleted) => self.note_deleted(id),
                // The checkpoint has all groups, so one that had a number then is gone.
                (None, _) if id <= self.numbered => {}
                (None, _) => self.missing(id),
            }
        }
        if let Some(group) = group {
            group.lock().as_of = as_of;
        }
        Ok(())
    }

    fn replay_cell(&mut self, entry: &Entry) -> Result<(), String> {
        let body = entry.body();
        let mut rest = &body[..];
        let name = body.slice_ref(take_part(&mut rest)?);
        let value = (entry.header.flags == 0).then(|| body.slice_ref(rest));
        let position = entry.header.position;
        let known = self.cells.get(&name).is_some_and(|(_, as_of)| *as_of >= position);
        if !known {
            // Copied, because a cell must not keep a whole frame in memory.
            let copy = |bytes: Bytes| Bytes::copy_from_slice(&bytes);
            put_cell(&mut self.cells, copy(name), value.map(copy), position);
        }
        Ok(())
    }
}

impl Recover for Recovering {
    fn restore(&mut self, item: Bytes) -> Result<(), String> {
        let mut rest = &item[..];
        match rest.try_get_u8().map_err(|_| short())? {
            ITEM_COUNTERS => {
                self.numbered = TopicId(take_number(&mut rest)?);
                self.topics.note_id(self.numbered);
                Ok(())
            }
            ITEM_TOPIC => self.restore_topic(&mut rest),
            ITEM_CELL => {
                let as_of = Position(take_number(&mut rest)?);
                let is_set = rest.try_get_u8().map_err(|_| short())? == 1;
                let name = Bytes::copy_from_slice(take_part(&mut rest)?);
                let value = is_set.then(|| Bytes::copy_from_slice(rest));
                put_cell(&mut self.cells, name, value, as_of);
                Ok(())
            }
            ITEM_GROUP => {
                let id = TopicId(take_number(&mut rest)?);
                let as_of = Position(take_number(&mut rest)?);
                self.replay_group(id, as_of, rest)
            }
            ITEM_REUSED => {
                let at = Position(take_number(&mut rest)?);
                let by = Some(TopicId(take_number(&mut rest)?)).filter(|id| id.0 > 0);
                let name = parse_name(rest)?;
                self.topics.reused(|names| names.restore(name, Reuse { at, by }));
                Ok(())
            }
            kind => Err(format!("item of kind {kind} was written by a newer program")),
        }
    }

    fn replay(&mut self, lsn: Lsn, entry: Entry) -> Result<(), String> {
        let header = entry.header;
        match header.kind {
            EntryKind::Batch => self.replay_batch(lsn, entry),
            EntryKind::TopicSet => self.replay_topic_set(&entry),
            EntryKind::TopicDelete => {
                self.note_deleted(header.topic);
                if let Some(cell) = self.topics.by_id(header.topic) {
                    self.topics.reused(|names| names.deleted(&cell.name, header.position));
                    self.topics.remove(&cell);
                }
                Ok(())
            }
            EntryKind::Floor => self.replay_floor(&entry),
            EntryKind::DelayDone => {
                if let Some(cell) = self.topics.by_id(header.topic) {
                    let mut state = cell.lock();
                    if header.position > state.as_of {
                        state.as_of = header.position;
                        if let Some(waiting) = state.delayed_mut() {
                            waiting.remove(header.seq);
                        }
                    }
                }
                Ok(())
            }
            EntryKind::Cell => self.replay_cell(&entry),
            EntryKind::Group => self.replay_group(header.topic, header.position, &entry.body()),
        }
    }

    fn finish(&mut self) -> Result<(), String> {
        match self.unknown.first() {
            None => Ok(()),
            Some(id) => Err(format!("the log names topic or group {id}, which is not there")),
        }
    }
}

/// Reads all of a snapshot and runs the replay of an opening over it; nothing is changed.
///
/// # Errors
/// Says what is wrong first.
pub fn check_snapshot(
    snapshot: &Snapshot,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), OpenError> {
    snapshot.check::<Recovering>(progress)
}

/// Runs the replay of an opening over a folder and changes nothing there: what it refuses,
/// opening refuses for the same reason.
///
/// # Errors
/// Says why the store would not open.
pub fn rehearse(folder: &Folder) -> Result<(), OpenError> {
    gapless_journal::rehearse::<Recovering>(folder)
}
