//! `gapless torture`, for a moment: it must end, clean up, and find every promise kept.

use crate::support::alone;

#[test]
fn e1_what_was_acked_survives_kills_tears_and_a_full_disk() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let ran = alone(&["torture", dir, "--seconds", "4", "--json"]).ok();
    let json = ran.json().remove(0);
    assert_eq!(json["broken"], 0, "{json:#}");
    let results = json["results"].as_array().unwrap();
    let row = |blow: &str, durability: &str| {
        let is =
            |each: &&serde_json::Value| each["blow"] == blow && each["durability"] == durability;
        results.iter().find(is).expect("the row").clone()
    };
    // A busy machine may do one round only.
    assert!(row("kill", "flushed")["rounds"].as_u64() >= Some(1), "{json:#}");
    assert_eq!(row("tear", "written")["promised"], false);
    assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none(), "it cleans up");
    alone(&["torture", "/nowhere"]).exits(2).says("cannot create");
}
