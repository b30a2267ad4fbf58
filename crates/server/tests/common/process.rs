//! What the system says about the process of a test.

#![allow(unreachable_pub, reason = "several test files have it as a module")]

/// How many files this process may have open.
pub fn files_max() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").expect("the limits of a process");
    let line = limits.lines().find(|line| line.starts_with("Max open files")).expect("a limit");
    let soft = line.split_whitespace().nth(3).expect("the soft limit");
    soft.parse().unwrap_or(usize::MAX)
}

/// Memory of this process in bytes.
pub fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("the state of a process");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("its memory");
    line.split_whitespace().nth(1).expect("a number").parse::<u64>().expect("kilobytes") * 1024
}
