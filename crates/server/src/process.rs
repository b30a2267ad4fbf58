//! Figures of the process itself, as the system keeps them: reading them costs microseconds.
//!
//! What a system does not provide is `None`, and then it is not shown.

use std::path::Path;
use std::time::Duration;

/// Processor time used so far, user and system.
pub(crate) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Bytes of memory that are resident.
pub(crate) fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(kib.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

/// How many files and sockets are open.
pub(crate) fn open_files() -> Option<usize> {
    // One of them is the folder that is being read.
    Some(std::fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1))
}

/// How many may be open.
pub(crate) fn open_files_max() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

/// A disk, or what the system shows as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Disk {
    /// Bytes that this process may still use.
    pub(crate) free_bytes: u64,
    /// All bytes of it.
    pub(crate) size_bytes: u64,
}

/// The disk that a folder is on.
pub(crate) fn disk(folder: &Path) -> Option<Disk> {
    let found = rustix::fs::statvfs(folder).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    Some(Disk { free_bytes: bytes(found.f_bavail), size_bytes: bytes(found.f_blocks) })
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    #[test]
    fn figures_are_of_this_process() {
        let (files, memory) = (open_files().unwrap(), resident_bytes().unwrap());
        assert!(memory > 100_000, "{memory} bytes");
        let more: Vec<_> = (0..50).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        assert!(open_files().unwrap() >= files + more.len() / 2, "{files}");
        assert!(open_files_max().unwrap() > 0);
        assert!(cpu_time() > Duration::ZERO);
        let disk = disk(Path::new("/")).unwrap();
        assert!(disk.size_bytes >= disk.free_bytes && disk.size_bytes > 0, "{disk:?}");
        assert_eq!(super::disk(Path::new("/no/such/folder")), None);
    }
}
