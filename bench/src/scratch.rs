//! A folder to measure in, which is gone afterwards.
//!
//! A measurement never writes into a folder that holds something else: it makes a fresh one
//! inside the folder it was given, and removes exactly what it made.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where scratch folders are made when no folder is given: in the current folder, because the
/// disk that holds it is more likely the one that matters than the system's temporary one.
pub const DEFAULT_PARENT: &str = "bench-data";

/// How many names are tried before giving up.
const NAMES_MAX: u32 = 1000;

/// A fresh folder, removed with all it holds when dropped.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    /// The folders above that were made here too, innermost first; each is removed if
    /// nothing else is in it.
    made_above: Vec<PathBuf>,
}

impl Scratch {
    /// A fresh folder inside `parent`, or inside [`DEFAULT_PARENT`]. Its path is absolute: programs
    /// that are measured run in folders of their own.
    ///
    /// # Errors
    ///
    /// When a folder cannot be made there; the message names it.
    pub fn fresh(parent: Option<&Path>) -> io::Result<Self> {
        let parent = std::path::absolute(parent.unwrap_or(Path::new(DEFAULT_PARENT)))?;
        let missing = |path: &&Path| !path.exists();
        let made_above = parent.ancestors().take_while(missing).map(Path::to_path_buf).collect();
        fs::create_dir_all(&parent).map_err(|error| named(&parent, &error))?;
        let process = std::process::id();
        for number in 0..NAMES_MAX {
            let path = parent.join(format!("scratch-{process}-{number}"));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Self { path, made_above }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(named(&path, &error)),
            }
        }
        Err(io::Error::other(format!("{} is full of scratch folders", parent.display())))
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // There is no caller left to report it to; what stays behind is visible under its name.
        let _ = fs::remove_dir_all(&self.path);
        for folder in &self.made_above {
            let _ = fs::remove_dir(folder);
        }
    }
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("making {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_folder_is_fresh_and_goes_with_all_that_was_made_for_it() {
        let top = std::env::temp_dir().join(format!("gapless-scratch-test-{}", std::process::id()));
        let parent = top.join("a").join("b");
        let first = Scratch::fresh(Some(&parent)).unwrap();
        let second = Scratch::fresh(Some(&parent)).unwrap();
        assert_ne!(first.path(), second.path());
        fs::write(first.path().join("file"), b"x").unwrap();
        let path = second.path().to_path_buf();
        drop(second);
        assert!(!path.exists());
        assert!(parent.exists());
        drop(first);
        assert!(!top.exists());
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let file =
            std::env::temp_dir().join(format!("gapless-scratch-file-{}", std::process::id()));
        fs::write(&file, b"x").unwrap();
        let error = Scratch::fresh(Some(&file)).unwrap_err();
        assert!(error.to_string().contains("gapless-scratch-file"), "{error}");
        fs::remove_file(&file).unwrap();
    }

    #[test]
    fn a_scratch_folder_is_found_from_every_working_directory() {
        let parent = format!("gapless-scratch-relative-{}", std::process::id());
        let scratch = Scratch::fresh(Some(Path::new(&parent))).unwrap();
        assert!(scratch.path().is_absolute(), "{}", scratch.path().display());
        drop(scratch);
        assert!(!Path::new(&parent).exists());
    }

    #[test]
    fn a_parent_that_was_there_stays() {
        let parent =
            std::env::temp_dir().join(format!("gapless-scratch-kept-{}", std::process::id()));
        fs::create_dir(&parent).unwrap();
        drop(Scratch::fresh(Some(&parent)).unwrap());
        assert!(parent.exists());
        fs::remove_dir(&parent).unwrap();
    }
}
