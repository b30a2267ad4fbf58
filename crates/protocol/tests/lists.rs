//! The numbered lists: they never change, and `docs/protocol.md` shows them as they are.

use std::fs;
use std::path::{Path, PathBuf};

use gapless_core::{Fate, GapReason};
use gapless_protocol::{
    ErrorCode, FRAME_BYTES_MAX, FRAME_BYTES_MIN, FRAME_HEAD_BYTES, Kind, NUMBER_MAX,
    SUBJECT_BYTES_MAX, verbs,
};

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf()
}

fn golden(name: &str) -> Vec<String> {
    let text = fs::read_to_string(here().join("tests/golden").join(name)).expect("the list");
    text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

fn fate(fate: Fate) -> &'static str {
    match fate {
        Fate::DidNotHappen => "did not happen",
        Fate::Unknown => "unknown",
    }
}

/// The rows of the table under a heading of the page: the cells, without code marks.
fn table(heading: &str) -> Vec<Vec<String>> {
    let page = fs::read_to_string(here().join("../../docs/protocol.md")).expect("the page");
    let (_, after) = page.split_once(&format!("\n{heading}\n")).expect("the heading");
    let rows = after.lines().skip_while(|line| !line.starts_with('|'));
    let rows = rows.take_while(|line| line.starts_with('|')).skip(2);
    let clean = |cell: &str| cell.trim().trim_matches('`').to_owned();
    rows.map(|row| row.trim_matches('|').split('|').map(clean).collect()).collect()
}

#[test]
fn error_numbers_never_change() {
    let now: Vec<String> =
        ErrorCode::ALL.iter().map(|code| format!("{} {}", code.number(), code.name())).collect();
    assert_eq!(now, golden("errors.txt"), "append to the list; change nothing in it");
}

#[test]
fn kind_numbers_never_change() {
    let now: Vec<String> =
        Kind::ALL.iter().map(|kind| format!("{} {}", kind.number(), kind.name())).collect();
    assert_eq!(now, golden("kinds.txt"), "append to the list; change nothing in it");
}

#[test]
fn kinds_are_unique_and_in_their_ranges() {
    assert!(Kind::ALL.windows(2).all(|pair| pair[0].number() < pair[1].number()));
    for kind in Kind::ALL {
        assert_eq!(Kind::from_number(kind.number()), Some(*kind));
        assert!((1..128).contains(&kind.number()));
    }
    assert_eq!(Kind::from_number(0), None);
}

#[test]
fn the_page_shows_every_kind() {
    let rows = table("## Kinds");
    let shown: Vec<String> = rows.iter().map(|row| row[..3].join(" ")).collect();
    let is: Vec<String> = Kind::ALL
        .iter()
        .map(|kind| format!("{} {} {}", kind.number(), kind.name(), kind.side().name()))
        .collect();
    assert_eq!(shown, is);
    for (row, kind) in rows.iter().zip(Kind::ALL) {
        assert_eq!(row[3] == "jobs", kind.is_of_jobs(), "{}", kind.name());
    }
}

#[test]
fn the_page_shows_every_error() {
    let shown: Vec<String> = table("## Errors").iter().map(|row| row.join(" | ")).collect();
    let line = |code: &ErrorCode| {
        let (number, name) = (code.number(), code.name());
        format!("{number} | {name} | {} | {}", fate(code.fate()), code.sentence())
    };
    assert_eq!(shown, ErrorCode::ALL.iter().map(line).collect::<Vec<_>>());
}

#[test]
fn the_page_shows_every_gap_reason() {
    let shown: Vec<String> =
        table("### Gap reasons").iter().map(|row| row[..2].join(" ")).collect();
    let is: Vec<String> =
        GapReason::ALL.iter().map(|(number, reason)| format!("{number} {reason}")).collect();
    assert_eq!(shown, is);
}

#[test]
fn the_page_shows_every_limit() {
    let limits: [(&str, u64); 29] = [
        ("FRAME_BYTES_MAX", FRAME_BYTES_MAX as u64),
        ("FRAME_BYTES_MIN", FRAME_BYTES_MIN as u64),
        ("FRAME_HEAD_BYTES", FRAME_HEAD_BYTES as u64),
        ("SUBJECT_BYTES_MAX", SUBJECT_BYTES_MAX as u64),
        ("NUMBER_MAX", NUMBER_MAX),
        ("NAME_TEXT_BYTES_MAX", verbs::session::NAME_TEXT_BYTES_MAX as u64),
        ("TOKEN_BYTES_MAX", verbs::session::TOKEN_BYTES_MAX as u64),
        ("EXTENSION_BYTES_MAX", verbs::session::EXTENSION_BYTES_MAX as u64),
        ("ERROR_TEXT_BYTES_MAX", verbs::session::ERROR_TEXT_BYTES_MAX as u64),
        ("ECHO_BYTES_MAX", verbs::session::ECHO_BYTES_MAX as u64),
        ("TOPICS_PAGE_MAX", verbs::topics::TOPICS_PAGE_MAX as u64),
        ("COMMIT_PARTS_MAX", verbs::publish::COMMIT_PARTS_MAX as u64),
        ("COMMIT_CELLS_MAX", verbs::publish::COMMIT_CELLS_MAX as u64),
        ("CELL_NAME_BYTES_MAX", verbs::publish::CELL_NAME_BYTES_MAX as u64),
        ("DETAIL_BYTES_MAX", verbs::ack::DETAIL_BYTES_MAX as u64),
        ("MESSAGES_HEAD_BYTES", verbs::follow::MESSAGES_HEAD_BYTES as u64),
        ("CLIENTS_PAGE_MAX", verbs::lookup::CLIENTS_PAGE_MAX as u64),
        ("FOLLOWS_SHOWN_MAX", verbs::lookup::FOLLOWS_SHOWN_MAX as u64),
        ("AWAIT_VISIBLE_MS_MAX", verbs::visible::AWAIT_VISIBLE_MS_MAX.into()),
        ("UNSEEN_SHOWN_MAX", verbs::visible::UNSEEN_SHOWN_MAX as u64),
        ("LEASES_MAX", verbs::group::LEASES_MAX as u64),
        ("LEASE_BYTES_MAX", verbs::group::LEASE_BYTES_MAX as u64),
        ("REASON_BYTES_MAX", verbs::group::REASON_BYTES_MAX as u64),
        ("STEP_ACKS_MAX", verbs::group::STEP_ACKS_MAX as u64),
        ("GROUPS_PAGE_MAX", verbs::group_admin::GROUPS_PAGE_MAX as u64),
        ("MEMBERS_SHOWN_MAX", verbs::group_admin::MEMBERS_SHOWN_MAX as u64),
        ("LETTERS_PAGE_MAX", verbs::group_admin::LETTERS_PAGE_MAX as u64),
        ("WHY_BYTES_MAX", verbs::group_admin::WHY_BYTES_MAX as u64),
        ("BATCH_COUNT_MAX", u64::from(gapless_core::batch::BATCH_COUNT_MAX)),
    ];
    let shown: Vec<String> = table("## Limits").iter().map(|row| row[..2].join(" ")).collect();
    let is: Vec<String> = limits.iter().map(|(name, value)| format!("{name} {value}")).collect();
    assert_eq!(shown, is);
}
