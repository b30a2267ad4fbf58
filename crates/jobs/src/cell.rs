//! Where a runner's jobs run, one after the other: a folder, and a thread that is bound to it.
//!
//! Binding a thread to a folder costs about as much as starting a program. So a runner does it once:
//! the folder is renamed for each job, and the thread that starts their programs stays bound to it,
//! whatever its name is. A folder that a job left anything in, or changed, is removed and never used
//! again, and the thread with it.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tokio::process::{Child, Command};

use crate::isolate::{self, Bound, Sandbox};
use crate::wire::Isolation;

/// How the name of a folder begins that is of no job.
const IDLE_PREFIX: &str = ".runner-";

/// Whether a folder is one that a runner keeps, or kept, for its next job.
pub(crate) fn is_idle(name: &std::ffi::OsStr) -> bool {
    name.to_str().is_some_and(|name| name.starts_with(IDLE_PREFIX))
}

/// See the module.
pub(crate) struct Cell {
    /// The name of the folder while it is of no job.
    idle: PathBuf,
    /// The folder as it was made, and the thread that is bound to it.
    kept: Option<(Folder, Bound)>,
}

/// What of a folder a job may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Folder {
    inode: u64,
    mode: u32,
    owner: (u32, u32),
}

impl Folder {
    /// `None` if a job left something in or at it.
    fn unused(path: &Path) -> Option<Self> {
        let about = std::fs::symlink_metadata(path).ok()?;
        let mut names = [0_u8; 1];
        // Names that do not fit are names too.
        let no_attributes = rustix::fs::listxattr(path, &mut names).is_ok_and(|bytes| bytes == 0);
        let is_empty = std::fs::read_dir(path).ok()?.next().is_none();
        (is_empty && no_attributes && about.is_dir()).then(|| Self {
            inode: about.ino(),
            mode: about.mode(),
            owner: (about.uid(), about.gid()),
        })
    }
}

impl Cell {
    /// One that has no folder yet; its name in this folder when it is of no job.
    pub(crate) fn new(work_dir: &Path) -> Self {
        let idle = work_dir.join(format!("{IDLE_PREFIX}{}", std::process::id()));
        Self { idle, kept: None }
    }

    /// Makes the folder of a job.
    pub(crate) fn enter(&mut self, folder: &Path) -> io::Result<()> {
        if self.kept.is_some() && std::fs::rename(&self.idle, folder).is_ok() {
            return Ok(());
        }
        self.kept = None;
        std::fs::create_dir(folder)
    }

    /// Starts a program that is bound as far as the machine allows; see [`isolate::spawn`].
    pub(crate) fn spawn(
        &mut self,
        command: Command,
        (folder, exec_dir): (&Path, &Path),
        sandbox: &Sandbox,
        least: Option<Isolation>,
    ) -> io::Result<(Child, Isolation)> {
        if self.kept.is_none() {
            let about = std::fs::symlink_metadata(folder)?;
            let (inode, mode) = (about.ino(), about.mode());
            let owner = (about.uid(), about.gid());
            let bound = Bound::start((folder, exec_dir), sandbox)?;
            self.kept = Some((Folder { inode, mode, owner }, bound));
        }
        let (_, bound) = self.kept.as_ref().expect("it was just made");
        bound.spawn(command, isolate::user_of(sandbox), least)
    }

    /// Takes the folder of a job that is over; whether it is gone from its place.
    pub(crate) fn leave(&mut self, folder: &Path) -> bool {
        let same = |(made, _): &(Folder, Bound)| Folder::unused(folder) == Some(*made);
        if self.kept.as_ref().is_some_and(same) && std::fs::rename(folder, &self.idle).is_ok() {
            return true;
        }
        self.kept = None;
        std::fs::remove_dir(folder).is_ok()
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        if self.kept.is_some() {
            let _ = std::fs::remove_dir(&self.idle);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[tokio::test]
    async fn a_folder_is_used_again_only_if_the_job_before_left_nothing_in_or_at_it() {
        let place = tempfile::tempdir().expect("a folder");
        let mut cell = Cell::new(place.path());
        let mut number = 0;
        let mut next = |cell: &mut Cell, change: &dyn Fn(&Path)| {
            number += 1;
            let folder = place.path().join(format!("job-{number}"));
            cell.enter(&folder).expect("it is made");
            let inode = std::fs::metadata(&folder).expect("it is there").ino();
            let mut command = Command::new("/bin/pwd");
            command.current_dir(&folder).stdout(std::process::Stdio::piped());
            let places = (&*folder, Path::new("/bin"));
            let spawned = cell.spawn(command, places, &Sandbox::default(), None);
            let (child, level) = spawned.expect("it starts");
            change(&folder);
            (folder, inode, child, level)
        };
        let nothing: &dyn Fn(&Path) = &|_| {};
        let (one, first, child, level) = next(&mut cell, nothing);
        let told = child.wait_with_output().await.expect("it runs").stdout;
        assert_eq!(String::from_utf8_lossy(&told).trim(), one.display().to_string());
        assert!(cell.leave(&one) && !one.exists());
        let (two, second, mut child, again) = next(&mut cell, &|folder| {
            std::fs::write(folder.join("left"), "x").expect("written");
        });
        assert_eq!((first, level), (second, again), "the same folder, as well isolated");
        child.wait().await.expect("it runs");
        assert!(!cell.leave(&two), "something is left for the caller to remove");
        std::fs::remove_dir_all(&two).expect("removed");
        let (three, _, mut child, _) = next(&mut cell, &|folder| {
            let open = std::fs::Permissions::from_mode(0o777);
            std::fs::set_permissions(folder, open).expect("changed");
        });
        child.wait().await.expect("it runs");
        assert!(cell.leave(&three) && !three.exists());
        let (four, _, mut child, _) = next(&mut cell, nothing);
        let mode = std::fs::metadata(&four).expect("it is there").mode();
        assert_ne!(mode & 0o777, 0o777, "a folder that was changed is not used again");
        child.wait().await.expect("it runs");
        assert!(cell.leave(&four));
        drop(cell);
        let left = std::fs::read_dir(place.path()).expect("a folder").count();
        assert_eq!(left, 0, "it leaves nothing");
    }
}
