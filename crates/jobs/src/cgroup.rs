//! A job's processes as one group of the kernel (cgroup v2): limits for all of them together, and
//! one order that kills them all.
//!
//! A runner goes into the job's group, starts the program there, and goes back to where it was: so
//! the program and all that it starts are in the group from their first instruction, and there is
//! no moment between start and limit. That needs a process that runs one job at a time; a worker
//! that runs programs itself has no groups.
//!
//! The folder for groups is given to the worker, and empty: where groups have limits, the kernel
//! wants no processes above them. What cannot be used is left out, and the result says what it had.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::clock;

/// The controllers that jobs are limited by.
const CONTROLLERS: [&str; 2] = ["memory", "cpu"];
/// Period over which processor time is shared out, in microseconds.
const CPU_PERIOD_US: u64 = 100_000;
/// How long the killed processes of a group may take to end.
const END_WAIT: Duration = Duration::from_secs(5);
/// How often a group is looked at until it is empty.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Limits of all processes of a job together; 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct GroupLimits {
    pub(crate) memory_bytes: u64,
    /// How many processors they may use at a time, on average.
    pub(crate) cpus: f64,
}

/// The group of one job.
#[derive(Debug)]
pub(crate) struct Group {
    path: PathBuf,
    /// Where the runner was before.
    home: PathBuf,
    /// What it has: `memory cpu kill`, without those that this machine does not offer.
    pub(crate) has: String,
}

impl Group {
    /// Makes a group for a job in this folder of groups.
    pub(crate) fn create(above: &Path, name: &str, limits: GroupLimits) -> io::Result<Self> {
        let own = std::fs::read_to_string("/proc/self/cgroup")?;
        let home = home_of(above, &own)
            .ok_or_else(|| io::Error::other("it is not in a cgroup v2 that is mounted"))?;
        Self::create_from(home, above, name, limits)
    }

    fn create_from(
        home: PathBuf,
        above: &Path,
        name: &str,
        limits: GroupLimits,
    ) -> io::Result<Self> {
        let path = above.join(name);
        let offered = std::fs::read_to_string(above.join("cgroup.controllers"))?;
        let mut has = Vec::new();
        for controller in CONTROLLERS {
            // Fails where another part of the machine has it; then its limit is not in `has`.
            let enabled = offered.split_whitespace().any(|each| each == controller)
                && std::fs::write(above.join("cgroup.subtree_control"), format!("+{controller}"))
                    .is_ok();
            if enabled {
                has.push(controller);
            }
        }
        match std::fs::create_dir(&path) {
            // Left by an earlier worker: its processes end before anything starts.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                std::fs::write(path.join("cgroup.kill"), "1")?;
            }
            other => other?,
        }
        if has.contains(&"memory") && limits.memory_bytes > 0 {
            std::fs::write(path.join("memory.max"), limits.memory_bytes.to_string())?;
            // The whole group ends, not just the process that asked last.
            std::fs::write(path.join("memory.oom.group"), "1")?;
        }
        if has.contains(&"cpu") && limits.cpus > 0.0 {
            let quota = (limits.cpus * CPU_PERIOD_US as f64) as u64;
            std::fs::write(path.join("cpu.max"), format!("{quota} {CPU_PERIOD_US}"))?;
        }
        has.push("kill");
        Ok(Self { path, home, has: has.join(" ") })
    }

    /// Does something inside the group, and comes back. What is started meanwhile stays in it.
    pub(crate) fn inside<T>(&self, start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        go_to(&self.path)?;
        let started = start();
        // It cannot go on inside: the job's end would be its own.
        go_to(&self.home)?;
        started
    }

    /// Kills all that is in it and waits until they are gone.
    pub(crate) async fn kill(&self) {
        let until = clock::now() + END_WAIT;
        let order = || std::fs::write(self.path.join("cgroup.kill"), "1");
        if let Err(error) = order() {
            tracing::error!(group = %self.path.display(), %error, "a job's group cannot be killed");
            return;
        }
        while is_populated(&self.path) && clock::now() < until {
            clock::pause(LOOK_EVERY).await;
        }
    }

    /// Whether the kernel ended it because it used too much memory.
    pub(crate) fn ran_out_of_memory(&self) -> bool {
        let events = std::fs::read_to_string(self.path.join("memory.events")).unwrap_or_default();
        count_of(&events, "oom_kill") > 0
    }

    /// Removes it; it is empty.
    pub(crate) fn remove(&self) {
        if let Err(error) = std::fs::remove_dir(&self.path) {
            tracing::warn!(group = %self.path.display(), %error, "a job's group cannot be removed");
        }
    }
}

/// This process and its threads go into a group.
fn go_to(group: &Path) -> io::Result<()> {
    std::fs::write(group.join("cgroup.procs"), "0")
}

fn is_populated(group: &Path) -> bool {
    let events = std::fs::read_to_string(group.join("cgroup.events")).unwrap_or_default();
    count_of(&events, "populated") > 0
}

/// A number in lines of names and numbers.
fn count_of(lines: &str, name: &str) -> u64 {
    let found = lines.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    found.unwrap_or(0)
}

/// The folder of the group that a process is in: the mount that `above` is in, and the path that
/// `/proc/self/cgroup` has for version 2.
fn home_of(above: &Path, own: &str) -> Option<PathBuf> {
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let is_group = |folder: &&Path| folder.join("cgroup.procs").exists();
    let top = above.ancestors().take_while(is_group).last()?;
    Some(top.join(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that looks like one of groups, as far as files go.
    fn pretended(controllers: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("cgroup.controllers"), controllers).expect("written");
        folder
    }

    #[test]
    fn limits_are_written_where_the_machine_offers_them_and_the_level_says_so() {
        let limits = GroupLimits { memory_bytes: 1 << 20, cpus: 1.5 };
        let make = |folder: &Path| Group::create_from(folder.into(), folder, "job-1", limits);
        let all = pretended("cpuset cpu io memory pids\n");
        let group = make(all.path()).expect("it is made");
        assert_eq!(group.has, "memory cpu kill");
        let read = |name| std::fs::read_to_string(group.path.join(name)).expect("written");
        assert_eq!((&*read("memory.max"), &*read("cpu.max")), ("1048576", "150000 100000"));
        let none = pretended("hugetlb\n");
        let group = make(none.path()).expect("it is made");
        assert_eq!(group.has, "kill");
        assert!(!group.path.join("memory.max").exists());
        assert!(make(Path::new("/nowhere")).is_err());
    }

    #[test]
    fn the_group_that_a_runner_comes_back_to_is_found() {
        let top = tempfile::tempdir().expect("a folder");
        let above = top.path().join("jobs");
        std::fs::create_dir(&above).expect("a folder");
        for folder in [top.path(), &above] {
            std::fs::write(folder.join("cgroup.procs"), "").expect("written");
        }
        let own = "4:memory:/x\n0::/some/group\n";
        assert_eq!(home_of(&above, own), Some(top.path().join("some/group")));
        assert_eq!(home_of(&above, "0::/\n"), Some(top.path().join("")));
        assert_eq!(home_of(&above, "4:memory:/x\n"), None);
        assert_eq!(home_of(Path::new("/tmp"), own), None, "not a group");
        assert_eq!(count_of("low 0\noom 1\noom_kill 3\n", "oom_kill"), 3);
    }
}
