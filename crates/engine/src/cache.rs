//! Pieces of segments on the local disk, so that each is fetched once.
//!
//! A file for each piece, in a folder that is emptied at opening: the cache is no state, a node can
//! begin without one. The pieces that were not used for longest go when there are too many bytes. A
//! disk that fails makes it slower, nothing else: then pieces are fetched each time.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

/// What the names of its files end with: nothing else is ever deleted.
const ENDING: &str = ".piece";

/// The cache.
#[derive(Debug)]
pub(crate) struct Cache {
    folder: PathBuf,
    bytes_max: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    pieces: HashMap<(String, u64), Piece>,
    /// By when they were last used.
    used: BTreeMap<u64, (String, u64)>,
    bytes: u64,
    /// Counts uses; also names files.
    count: u64,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    file: u64,
    bytes: u64,
    used: u64,
}

impl Cache {
    /// A cache in this folder, of at most so many bytes. What an earlier one left is removed.
    pub(crate) fn open(folder: &Path, bytes_max: u64) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().ends_with(ENDING) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(Self { folder: folder.to_owned(), bytes_max, state: Mutex::default() })
    }

    /// A piece of a blob, fetched if it is not there.
    pub(crate) fn get<E>(
        &self,
        blob: &str,
        piece: u64,
        fetch: impl FnOnce() -> Result<Bytes, E>,
    ) -> Result<Bytes, E> {
        let key = (blob.to_owned(), piece);
        if let Some(found) = self.find(&key) {
            return Ok(found);
        }
        let bytes = fetch()?;
        if let Err(error) = self.keep(key, &bytes) {
            tracing::debug!(%error, "the cache does not take a piece");
        }
        Ok(bytes)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{number}{ENDING}"))
    }

    fn find(&self, key: &(String, u64)) -> Option<Bytes> {
        let mut state = self.lock();
        let piece = *state.pieces.get(key)?;
        state.count += 1;
        let now = state.count;
        state.used.remove(&piece.used);
        state.used.insert(now, key.clone());
        if let Some(piece) = state.pieces.get_mut(key) {
            piece.used = now;
        }
        drop(state);
        let bytes = fs::read(self.file(piece.file)).ok();
        // One that was cut, or removed meanwhile, is fetched again.
        bytes.filter(|bytes| bytes.len() as u64 == piece.bytes).map(Bytes::from)
    }

    fn keep(&self, key: (String, u64), bytes: &Bytes) -> io::Result<()> {
        let len = bytes.len() as u64;
        if len > self.bytes_max {
            return Ok(());
        }
        let mut state = self.lock();
        state.count += 1;
        let number = state.count;
        drop(state);
        fs::write(self.file(number), bytes)?;
        let mut gone = Vec::new();
        let mut state = self.lock();
        if let Some(old) = state.pieces.remove(&key) {
            state.used.remove(&old.used);
            state.bytes -= old.bytes;
            gone.push(old.file);
        }
        while state.bytes + len > self.bytes_max {
            let Some((_, oldest)) = state.used.pop_first() else { break };
            if let Some(piece) = state.pieces.remove(&oldest) {
                state.bytes -= piece.bytes;
                gone.push(piece.file);
            }
        }
        state.bytes += len;
        state.used.insert(number, key.clone());
        state.pieces.insert(key, Piece { file: number, bytes: len, used: number });
        drop(state);
        for file in gone {
            // If it stays, the next opening removes it.
            let _ = fs::remove_file(self.file(file));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(cache: &Cache, piece: u64) -> bool {
        let mut fetched = false;
        let bytes = cache.get("segment-1", piece, || {
            fetched = true;
            Ok::<_, ()>(Bytes::from(vec![piece as u8; 100]))
        });
        assert_eq!(bytes, Ok(Bytes::from(vec![piece as u8; 100])));
        fetched
    }

    #[test]
    fn pieces_are_fetched_once_and_the_longest_unused_go_first() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("mine"), "stays").unwrap();
        fs::write(folder.path().join("7.piece"), "goes").unwrap();
        let cache = Cache::open(folder.path(), 350).unwrap();
        assert!((0..3).all(|piece| get(&cache, piece)), "all are new");
        assert!(!get(&cache, 0), "it is there");
        assert!(get(&cache, 3), "new: 1 must go");
        assert!(!get(&cache, 0) && !get(&cache, 2) && get(&cache, 1));
        let on_disk = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(on_disk, 1 + 3, "mine and three pieces");
    }

    #[test]
    fn a_file_that_is_lost_or_cut_is_fetched_again() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path(), 1000).unwrap();
        assert!(get(&cache, 1) && !get(&cache, 1));
        for entry in fs::read_dir(folder.path()).unwrap() {
            fs::write(entry.unwrap().path(), "cut").unwrap();
        }
        assert!(get(&cache, 1) && !get(&cache, 1));
    }
}
