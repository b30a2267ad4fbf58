//! The proof, at each start, that a store enforces create-if-absent: several race for one name.
//!
//! A store that ignores the condition lets all of them win; one that does not know it says so. Both
//! are refused, since everything rests on it (`docs/adr/0017`).

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;
use object_store::path::Path;
use object_store::{ObjectStore, PutMode, PutOptions, PutPayload};

use crate::remote::{Remote, Trouble};
use crate::store::{StoreError, unreachable};

/// How many race.
const RACERS: usize = 8;
/// How many of them must be answered for the race to prove anything.
const ANSWERS_MIN: usize = 3;
/// Where they race.
const FOLDER: &str = "check";

/// Races writers for a name.
pub(crate) fn race(remote: &Remote) -> Result<(), StoreError> {
    let not = |why: String| StoreError::NotEnforced { place: format!("{remote:?}"), why };
    // A race with too few answers proves nothing; the next one has another name.
    let raced = remote.retry(|| run(remote)).map_err(|trouble| match trouble {
        Trouble::Refused(error) => not(error.to_string()),
        other => unreachable(remote, other),
    })?;
    remote.delete_later(vec![raced.path]);
    let is_of = |racers: &[usize]| racers.iter().any(|racer| raced.found == mine(*racer));
    match raced.winners.as_slice() {
        [_, _, ..] => {
            Err(not(format!("{} of {RACERS} could create one name", raced.winners.len())))
        }
        [_] if is_of(&raced.winners) => Ok(()),
        [] if is_of(&raced.unclear) => Ok(()),
        _ => Err(not("the one who created a name did not write what is there".to_owned())),
    }
}

/// How a race ended.
struct Raced {
    path: Path,
    winners: Vec<usize>,
    /// Those who got no answer: one of them may have won.
    unclear: Vec<usize>,
    found: Bytes,
}

fn run(remote: &Remote) -> Result<Raced, Trouble> {
    let path = remote.path(FOLDER, &format!("{:016x}", remote.time.nonce()));
    let (store, raced) = (Arc::clone(remote.store()), path.clone());
    let results = remote.wait(remote.spans.request, async move {
        let racers = (0..RACERS).map(|number| {
            let (store, path) = (Arc::clone(&store), raced.clone());
            async move {
                let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
                let payload = PutPayload::from(mine(number));
                store.put_opts(&path, payload, options).await.map_err(Trouble::of)
            }
        });
        Ok(join_all(racers.map(tokio::spawn)).await)
    })?;
    let (mut winners, mut unclear, mut why) = (Vec::new(), Vec::new(), None);
    for (number, result) in results.into_iter().enumerate() {
        match result {
            Ok(Ok(_)) => winners.push(number),
            Ok(Err(Trouble::Taken)) => {}
            Ok(Err(Trouble::Refused(error))) => return Err(Trouble::Refused(error)),
            Ok(Err(trouble)) => {
                unclear.push(number);
                why = Some(trouble);
            }
            Err(error) => return Err(Trouble::Unclear(io::Error::other(error))),
        }
    }
    if let Some(why) = why.filter(|_| unclear.len() > RACERS - ANSWERS_MIN) {
        return Err(why);
    }
    let found = remote.get(remote.spans.request, &path, None)?;
    Ok(Raced { path, winners, unclear, found })
}

fn mine(number: usize) -> Bytes {
    Bytes::from(format!("racer {number}"))
}
