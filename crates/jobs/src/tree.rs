//! The end of a job's whole process tree.
//!
//! A runner is a process that runs one job at a time and adopts whatever that job's processes
//! leave behind ([`adopt`]): all its descendants are of the job, however often they forked and
//! whatever they did to their environment. If the runner itself is killed, they are the worker's, which
//! adopts too ([`kill_strays`]). A worker that runs programs itself, several at a time, finds them by
//! a mark in their environment and by their folder instead, and so does one that sweeps away what an
//! earlier one left.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions};

use crate::clock;

/// The variable by which processes of a job are found.
pub(crate) const MARK: &str = "GAPLESS_JOB_MARK";
/// How long a killed tree is looked after until it is given up.
const KILL_WAIT: Duration = Duration::from_secs(5);
/// How long processes that were killed may take until the next look.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// How the processes of a job are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tree {
    /// By their mark.
    Marked,
    /// They are all that this process has below it.
    Own,
}

/// From now on this process is the parent of what its descendants leave behind.
#[cfg(target_os = "linux")]
pub(crate) fn adopt() -> std::io::Result<()> {
    let own = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(own)).map_err(Into::into)
}

/// The mark of a job's processes: its folder, which no other worker of the machine has.
pub(crate) fn mark_of(folder: &Path) -> String {
    let whole = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    whole.display().to_string()
}

/// Kills the process group that a job began with.
pub(crate) fn kill_group(group: Option<Pid>) {
    if let Some(group) = group {
        // It may be gone already.
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
    }
}

impl Tree {
    /// Kills every process of a job, until there is none. The first one must have been waited
    /// for.
    pub(crate) async fn kill(self, mark: &str) {
        let until = clock::now() + KILL_WAIT;
        loop {
            let left = match self {
                Self::Marked => {
                    let mark = mark.to_owned();
                    let find = tokio::task::spawn_blocking(move || find_marked(&mark));
                    find.await.unwrap_or_default()
                }
                Self::Own if none_left() => return,
                Self::Own => descendants(&HashSet::new()),
            };
            if left.is_empty() && self == Self::Marked {
                return;
            }
            for pid in left {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
            if clock::now() > until {
                tracing::error!(mark, "processes of a job cannot be killed");
                return;
            }
            clock::pause(LOOK_EVERY).await;
        }
    }
}

/// Kills everything below this process but these runners and what they run. Runners are not started
/// meanwhile.
pub(crate) async fn kill_strays(runners: &Mutex<HashSet<Pid>>) {
    let until = clock::now() + KILL_WAIT;
    loop {
        let left = {
            let runners = runners.lock().unwrap_or_else(PoisonError::into_inner);
            let left = descendants(&runners);
            for pid in &left {
                let _ = rustix::process::kill_process(*pid, Signal::KILL);
                // Of those that are not its children it hears nothing, yet.
                let _ = rustix::process::waitpid(Some(*pid), WaitOptions::NOHANG);
            }
            left
        };
        if left.is_empty() {
            return;
        }
        if clock::now() > until {
            tracing::error!(?left, "processes of a job cannot be killed");
            return;
        }
        clock::pause(LOOK_EVERY).await;
    }
}

/// Takes leave of children that have ended; whether there are no others.
fn none_left() -> bool {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            Ok(None) => return false,
            Err(error) => return error == Errno::CHILD,
        }
    }
}

/// Everything below this process but these and what is below them.
fn descendants(but: &HashSet<Pid>) -> Vec<Pid> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for (pid, folder) in processes() {
        let stat = std::fs::read_to_string(folder.join("stat")).unwrap_or_default();
        if let Some(parent) = parent_of(&stat) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut next = vec![rustix::process::getpid().as_raw_nonzero().get()];
    while let Some(pid) = next.pop() {
        for child in children.remove(&pid).unwrap_or_default() {
            let Some(known) = Pid::from_raw(child).filter(|pid| !but.contains(pid)) else {
                continue;
            };
            next.push(child);
            found.push(known);
        }
    }
    found
}

/// The parent in a line of `/proc/<pid>/stat`: `pid (name) state parent …`. The name may hold
/// anything, brackets too.
fn parent_of(stat: &str) -> Option<i32> {
    let (_, behind) = stat.rsplit_once(')')?;
    behind.split_whitespace().nth(1)?.parse().ok()
}

/// The processes with this mark in their environment, and those that are in the job's folder, which
/// is the mark: they may have changed their environment.
fn find_marked(mark: &str) -> Vec<Pid> {
    let wanted = format!("{MARK}={mark}");
    let is_marked = |folder: &Path| {
        // Others' processes cannot be read; a zombie's environment is empty.
        let environment = std::fs::read(folder.join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|each| each == wanted.as_bytes())
            || (std::fs::read_link(folder.join("cwd")).is_ok_and(|cwd| cwd.starts_with(mark))
                && has_no_terminal(&folder.join("stat")))
    };
    let marked = processes().filter(|(_, folder)| is_marked(folder));
    marked.filter_map(|(pid, _)| Pid::from_raw(pid)).collect()
}

/// Whether nothing is typed there: a person may be looking at the folder.
fn has_no_terminal(stat: &Path) -> bool {
    let stat = std::fs::read_to_string(stat).unwrap_or_default();
    let behind = stat.rsplit_once(')').map(|(_, behind)| behind).unwrap_or_default();
    behind.split_whitespace().nth(4) == Some("0")
}

fn processes() -> impl Iterator<Item = (i32, std::path::PathBuf)> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        Some((pid, entry.path()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_s_name_cannot_hide_its_parent() {
        assert_eq!(parent_of("12 (sh) S 7 12 12 0"), Some(7));
        assert_eq!(parent_of("12 (a) S 9 (b)) R 7 12"), Some(7));
        assert_eq!(parent_of("nonsense"), None);
    }
}
