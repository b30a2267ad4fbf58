//! What the commands of jobs share: connecting to leaders, waiting for a result, showing it.
//!
//! A lost connection is not the end: the client resends the job under its id, and the leader
//! answers with the state it stored. Only when no leader was there for the whole `--timeout` is it
//! given up, and then the message says how to ask again.

use std::path::Path;
use std::time::Duration;

use gapless_core::job::multi::Policy;
use gapless_jobs::manage::{ManageError, Manager};
pub(crate) use gapless_jobs::names::new_id;
use gapless_jobs::outputs;
use gapless_jobs::wire::{self, CAP_MAX, JobRequest, JobResult, Status};
use gapless_jobs::{Access, ClientOptions, JobClient, JobEvent, SubmitError};
use tokio::sync::{mpsc, watch};

use crate::cmd::Global;
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::remote::token;
use crate::tls;

/// How long a lost leader may be away until its jobs go to another one.
const GRACE: Duration = Duration::from_secs(10);

/// How long a leader that did not welcome a client is asked for the reason.
const ASK_WAIT: Duration = Duration::from_secs(2);

/// How many jobs of a client may run at a time, as the command line takes it.
pub(crate) fn cap(text: &str) -> Result<u32, String> {
    let given = text.parse().ok().filter(|cap| (1..=CAP_MAX).contains(cap));
    given.ok_or_else(|| format!("give 1 to {CAP_MAX} jobs"))
}

/// The address of a leader, as the command line takes it.
pub(crate) fn leader(text: &str) -> Result<String, String> {
    let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    match port.and_then(|(_, port)| port.parse::<u16>().ok()) {
        Some(_) => Ok(text.to_owned()),
        None => Err("write it as host:port, like 127.0.0.1:4281".to_owned()),
    }
}

/// How leaders are reached, as the command line says it.
pub(crate) fn access(global: &Global) -> Result<Access, Failure> {
    let tls = tls::client(global).map(|options| options.config()).transpose();
    Ok(Access { token: token(global)?, tls: tls.map_err(Failure::words)? })
}

/// A client of these leaders, when at least one of them has welcomed it.
pub(crate) async fn connect(
    global: &Global,
    leaders: &[String],
    client_id: &str,
    cap: u32,
) -> Result<JobClient, Failure> {
    let client = JobClient::connect(ClientOptions {
        leaders: leaders.to_vec(),
        client_id: client_id.to_owned(),
        access: access(global)?,
        cap,
        policy: Policy::Home,
        grace: GRACE,
    });
    let mut connected = client.connected();
    let welcomed = connected.wait_for(|leaders| *leaders > 0);
    if !matches!(tokio::time::timeout(global.wait, welcomed).await, Ok(Ok(_))) {
        // A leader that refuses every client says why.
        let access = access(global)?;
        for leader in leaders {
            let asked = Manager::connect(leader, &access, ASK_WAIT);
            if let Ok(Err(refused @ ManageError::Refused(_))) =
                tokio::time::timeout(ASK_WAIT, asked).await
            {
                return Err(not_done(refused));
            }
        }
        let names = leaders.join(", ");
        return Err(Failure::new(Exit::NoConnection, format!("no leader answers at {names}"))
            .hint("start one with: gapless serve\nor name another with --leader host:port"));
    }
    Ok(client)
}

/// Submits a job and waits for its result; what happens meanwhile goes to `events`.
pub(crate) async fn result_of(
    client: &JobClient,
    request: &JobRequest,
    events: mpsc::Sender<JobEvent>,
    timeout: Duration,
) -> Result<JobResult, Failure> {
    tokio::select! {
        result = client.follow(request, events) => result.map_err(|error| match error {
            SubmitError::Refused(_) => Failure::new(Exit::Rejected, error),
            SubmitError::TooLarge { .. } => Failure::words(error),
            SubmitError::Stopped => Failure::failed(error),
        }),
        () = cut_off(client.connected(), timeout) => {
            let message = format!("no leader could be reached for {timeout:?}");
            Err(Failure::new(Exit::NoConnection, message).hint(ask_again(request)))
        }
    }
}

/// Why a leader did not do what was asked of it.
pub(crate) fn not_done(error: ManageError) -> Failure {
    match error {
        ManageError::Refused(why) if why.contains("is not known") => Failure::not_found(why),
        ManageError::Refused(why) => Failure::new(Exit::Rejected, why),
        ManageError::TooLarge => Failure::words(error),
        ManageError::Lost(_) => Failure::new(Exit::NoConnection, error)
            .hint("what was asked may have been done: see gapless job ls"),
    }
}

/// What to do when the result was not waited for.
pub(crate) fn ask_again(request: &JobRequest) -> String {
    let id = &request.job_id;
    format!("the job goes on if it was accepted; submit it again with --id {id} for its result")
}

/// Resolves when no leader was connected for so long.
async fn cut_off(mut connected: watch::Receiver<usize>, most: Duration) {
    loop {
        if connected.wait_for(|leaders| *leaders == 0).await.is_err() {
            return;
        }
        let back = connected.wait_for(|leaders| *leaders > 0);
        if !matches!(tokio::time::timeout(most, back).await, Ok(Ok(_))) {
            return;
        }
    }
}

/// Writes the files that a job left to a file, as a zip archive.
pub(crate) async fn write_archive(
    result: &JobResult,
    path: &Path,
    out: &mut Output,
) -> Result<(), Failure> {
    let archive = match (&result.output_archive, &result.output_ref) {
        (Some(text), _) => wire::decode(text).map_err(Failure::failed)?,
        (None, Some(reference)) => outputs::fetch(reference).await.map_err(|error| {
            Failure::failed(format!("cannot fetch {}: {error}", reference.url))
                .hint("it is where its worker put it (--outputs), for as long as it is kept there")
        })?,
        (None, None) => {
            out.note(format_args!("the job left no files: {} stays", path.display()));
            return Ok(());
        }
    };
    std::fs::write(path, archive)
        .map_err(|error| Failure::failed(format!("cannot write {}: {error}", path.display())))
}

/// How a job ended, as the wire spells it.
pub(crate) fn status(result: &JobResult) -> &'static str {
    match result.status {
        Status::Ok => "OK",
        Status::Failed => "FAILED",
        Status::Cancelled => "CANCELLED",
        Status::Dead => "DEAD",
        Status::NotStarted => "NOT_STARTED",
        Status::Returned => "RETURNED",
    }
}

/// How a job ended and why, in a line.
pub(crate) fn ending(result: &JobResult) -> String {
    let mut line = format!("job {} ended {}", result.job_id, status(result));
    if let Some(reason) = &result.reason {
        line += &format!(": {reason}");
    } else if let Some(code) = result.exit_code.filter(|code| *code != 0) {
        line += &format!(" with exit code {code}");
    } else if let Some(signal) = result.signal {
        line += &format!(" by signal {signal}");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_random_uuids_and_differ() {
        let (one, two) = (new_id(), new_id());
        assert_ne!(one, two);
        for id in [one, two] {
            let text = id.to_string();
            assert_eq!(text.as_bytes()[14], b'4', "{text}");
            assert!(b"89ab".contains(&text.as_bytes()[19]), "{text}");
        }
    }

    #[test]
    fn e9_caps_and_addresses_out_of_range_are_refused() {
        assert_eq!(cap("8"), Ok(8));
        for wrong in ["0", "-1", "65537", "many"] {
            assert!(cap(wrong).is_err(), "{wrong}");
        }
        assert_eq!(leader("127.0.0.1:5000").as_deref(), Ok("127.0.0.1:5000"));
        for wrong in ["127.0.0.1", ":5000", "host:port", "host:70000"] {
            assert!(leader(wrong).is_err(), "{wrong}");
        }
    }
}
