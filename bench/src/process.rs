//! What a process has cost so far, as the system counts it, and what the disk has left.
//!
//! All of it is read from `/proc` (and from `df`): no call of the system is made that the
//! standard library does not offer.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The system counts CPU time for `/proc` in hundredths of a second, on every machine.
const TICK: Duration = Duration::from_millis(10);

/// Time on all CPUs, of all threads, in the program and in the kernel. Counts in steps of
/// 10 ms, so take it over a second or so.
///
/// # Errors
///
/// When the system does not tell.
pub fn cpu_time() -> io::Result<Duration> {
    cpu_time_in("/proc/self/stat")
}

/// The same of another process.
///
/// # Errors
///
/// When the system does not tell, or there is no such process.
pub fn cpu_time_of(process: u32) -> io::Result<Duration> {
    cpu_time_in(&format!("/proc/{process}/stat"))
}

/// Bytes of memory that are in use now.
///
/// # Errors
///
/// When the system does not tell.
pub fn resident_bytes() -> io::Result<u64> {
    status_bytes("/proc/self/status", "VmRSS:")
}

/// The same of another process.
///
/// # Errors
///
/// When the system does not tell, or there is no such process.
pub fn resident_bytes_of(process: u32) -> io::Result<u64> {
    status_bytes(&format!("/proc/{process}/status"), "VmRSS:")
}

/// The most bytes of memory that were ever in use.
///
/// # Errors
///
/// When the system does not tell.
pub fn resident_bytes_max() -> io::Result<u64> {
    status_bytes("/proc/self/status", "VmHWM:")
}

/// The same of another process.
///
/// # Errors
///
/// When the system does not tell, or there is no such process.
pub fn resident_bytes_max_of(process: u32) -> io::Result<u64> {
    status_bytes(&format!("/proc/{process}/status"), "VmHWM:")
}

/// How many files, sockets included, this process may have open.
///
/// # Errors
///
/// When the system does not tell.
pub fn open_files_max() -> io::Result<u64> {
    let limits = fs::read_to_string("/proc/self/limits")?;
    parse_open_files(&limits).ok_or_else(|| malformed("/proc/self/limits"))
}

/// How many processes want a CPU, as a mean of the last minute.
///
/// # Errors
///
/// When the system does not tell.
pub fn load_average() -> io::Result<f64> {
    let text = fs::read_to_string("/proc/loadavg")?;
    let first = text.split_ascii_whitespace().next().and_then(|word| word.parse().ok());
    first.ok_or_else(|| malformed("/proc/loadavg"))
}

/// Bytes that are free on the disk which holds `dir`.
///
/// # Errors
///
/// When `df` is not there or says something unexpected.
pub fn disk_bytes_free(dir: &Path) -> io::Result<u64> {
    let output = Command::new("df").args(["--output=avail", "-B1"]).arg(dir).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let number = text.lines().nth(1).and_then(|line| line.trim().parse().ok());
    number.ok_or_else(|| malformed("df"))
}

fn cpu_time_in(path: &str) -> io::Result<Duration> {
    let stat = fs::read_to_string(path)?;
    parse_cpu_ticks(&stat).map(|ticks| TICK * ticks).ok_or_else(|| malformed(path))
}

fn status_bytes(path: &str, field: &str) -> io::Result<u64> {
    let status = fs::read_to_string(path)?;
    parse_status_bytes(&status, field).ok_or_else(|| malformed(path))
}

/// The lower of the two limits, which is the one that holds.
fn parse_open_files(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_ascii_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

/// The 14th and 15th fields together. The second may hold blanks, but ends the last bracket.
fn parse_cpu_ticks(stat: &str) -> Option<u32> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace().skip(11);
    let user: u32 = fields.next()?.parse().ok()?;
    let system: u32 = fields.next()?.parse().ok()?;
    user.checked_add(system)
}

fn parse_status_bytes(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("cannot understand {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_ticks_are_found_whatever_the_program_is_called() {
        let stat = "7 (a) b) R 1 7 7 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 1 0 332719";
        assert_eq!(parse_cpu_ticks(stat), Some(300));
        assert_eq!(parse_cpu_ticks("7 (a) R 1"), None);
    }

    #[test]
    fn memory_is_found_by_its_name() {
        let status = "Name:\tx\nVmHWM:\t  20 kB\nVmRSS:\t    12 kB\n";
        assert_eq!(parse_status_bytes(status, "VmRSS:"), Some(12 * 1024));
        assert_eq!(parse_status_bytes(status, "VmSwap:"), None);
    }

    #[test]
    fn the_limit_of_open_files_is_the_lower_one() {
        let limits = "Limit      Soft  Hard  Units\nMax open files  1024  4096  files\n";
        assert_eq!(parse_open_files(limits), Some(1024));
        assert_eq!(parse_open_files("Max open files unlimited unlimited files"), Some(u64::MAX));
        assert_eq!(parse_open_files(""), None);
    }

    #[test]
    fn another_process_is_looked_at_by_its_id() {
        let own = std::process::id();
        assert!(cpu_time_of(own).is_ok());
        assert!(resident_bytes_of(own).unwrap() > 0);
        assert!(load_average().unwrap() >= 0.0);
        assert!(open_files_max().unwrap() > 0);
    }

    #[test]
    fn this_process_has_cost_something() {
        assert!(cpu_time().is_ok());
        assert!(resident_bytes().unwrap() > 0);
        assert!(resident_bytes_max().unwrap() >= resident_bytes().unwrap() / 2);
        assert!(disk_bytes_free(Path::new("/")).is_ok());
    }
}
