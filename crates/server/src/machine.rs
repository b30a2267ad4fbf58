//! How much memory this process may use: the machine's, or less if its control group says so.
//!
//! Linux shows it in files. Elsewhere, and where they cannot be read, it is not known.

use std::path::{Path, PathBuf};

/// Bytes of memory that this process may use, if that is known.
pub(crate) fn memory_bytes() -> Option<usize> {
    memory_below(Path::new("/"))
}

/// The same, with the system's files below another folder.
fn memory_below(root: &Path) -> Option<usize> {
    let read = |path: &Path| std::fs::read_to_string(root.join(path)).ok();
    let meminfo = read(Path::new("proc/meminfo"))?;
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: usize = total.trim().trim_end_matches("kB").trim().parse().ok()?;
    let groups = read(Path::new("proc/self/cgroup")).unwrap_or_default();
    let limits = limit_files(&groups).into_iter().filter_map(|path| {
        // A group without a limit says "max" (version 2) or a number beyond all memory (version 1).
        read(&path)?.trim().parse::<usize>().ok()
    });
    Some(limits.fold(kib.saturating_mul(1024), usize::min))
}

/// The files that may hold a limit: those of the process's groups and of all groups above them.
/// Inside a container the group's own folder is often the root, so that is looked at too.
fn limit_files(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else { continue };
        let (folder, file) = match controllers {
            "" => ("sys/fs/cgroup", "memory.max"),
            list if list.split(',').any(|each| each == "memory") => {
                ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let group = Path::new(group.trim_start_matches('/'));
        files.extend(group.ancestors().map(|above| Path::new(folder).join(above).join(file)));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system(files: &[(&str, &str)]) -> Option<usize> {
        let root = tempfile::tempdir().expect("a folder");
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        }
        memory_below(root.path())
    }

    const MEMINFO: (&str, &str) =
        ("proc/meminfo", "MemTotal:        2048 kB\nMemFree:          100 kB\n");

    #[test]
    fn without_a_limit_it_is_the_machines() {
        assert_eq!(system(&[MEMINFO]), Some(2048 * 1024));
        let none = ("sys/fs/cgroup/a/memory.max", "max\n");
        assert_eq!(system(&[MEMINFO, ("proc/self/cgroup", "0::/a\n"), none]), Some(2048 * 1024));
        assert_eq!(system(&[]), None);
    }

    #[test]
    fn the_least_limit_of_all_groups_above_counts() {
        let own = ("proc/self/cgroup", "0::/a/b\n");
        let (above, below) =
            (("sys/fs/cgroup/a/memory.max", "4096\n"), ("sys/fs/cgroup/a/b/memory.max", "8192\n"));
        assert_eq!(system(&[MEMINFO, own, above, below]), Some(4096));
        // In a container the folder of the group is the root.
        let inside = ("sys/fs/cgroup/memory.max", "1024\n");
        assert_eq!(system(&[MEMINFO, own, inside]), Some(1024));
    }

    #[test]
    fn version_one_is_read_too() {
        let own = ("proc/self/cgroup", "7:cpu,cpuacct:/x\n5:memory:/docker/1\n");
        let limit = ("sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes", "65536\n");
        assert_eq!(system(&[MEMINFO, own, limit]), Some(65536));
        let none = ("sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(system(&[MEMINFO, own, none]), Some(2048 * 1024));
    }
}
