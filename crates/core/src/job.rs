//! Jobs: what a leader knows of each, and the machine that decides who runs what.
//!
//! A job names an executable and is run by one worker at a time. Its record is written to the
//! journal at every change that matters, before anything is sent that depends on it: so a job
//! that was accepted is never lost, and a number of an attempt is never given twice.
//!
//! - [`record`]: a job as it is written down.
//! - [`leader`]: queues, credit, caps, leases, attempts, backoff, dead jobs, cancelling.
//! - [`lease`]: until when a worker may go on with its attempts.
//! - [`multi`]: a client of several leaders.
//! - `turn`: whose turn it is, among executables and clients.
//!
//! Not here: arguments, files and results. The leader's shell keeps them in topics, by job id.

use alloc::string::String;
use core::fmt;
use core::str::FromStr;

pub mod leader;
pub mod lease;
pub mod multi;
pub mod record;
mod turn;

#[cfg(test)]
mod tests;

/// The id of a job, chosen by its client: a UUID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u128);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.0;
        write!(
            f,
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            id >> 96,
            id >> 80 & 0xffff,
            id >> 64 & 0xffff,
            id >> 48 & 0xffff,
            id & 0xffff_ffff_ffff
        )
    }
}

/// Why a text is not the id of a job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a job id: write 32 hexadecimal digits, with or without hyphens")]
pub struct JobIdError {
    /// What was written; the beginning of it if it is long.
    pub text: String,
}

/// How much of a wrong text an error shows, in characters.
const SHOWN_MAX: usize = 64;

impl FromStr for JobId {
    type Err = JobIdError;

    fn from_str(text: &str) -> Result<Self, JobIdError> {
        let wrong = || JobIdError { text: text.chars().take(SHOWN_MAX).collect() };
        let hyphens_fit = match text.len() {
            32 => true,
            36 => [8, 13, 18, 23].iter().all(|&at| text.as_bytes()[at] == b'-'),
            _ => false,
        };
        let digits: String = text.chars().filter(|&each| each != '-').collect();
        let plain = digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !hyphens_fit || !plain {
            return Err(wrong());
        }
        u128::from_str_radix(&digits, 16).map(Self).map_err(|_| wrong())
    }
}

/// One attempt at a job. With the leader's store it fences the attempt: a result that carries
/// another token is not of the attempt that counts. No token is given twice, also when an id is
/// used again after its job was forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    /// The job.
    pub job: JobId,
    /// Which submission of this id: the job's number, which no other job ever has.
    pub number: u64,
    /// Which attempt: 1, 2, 3 …; a number is given once.
    pub attempt: u32,
}
