//! Who a connection is for and what it may do: handed in by the code that accepts connections, asked before
//! the leader is.
//!
//! A connection that may do everything of its kind is asked about once. For others the leader is asked
//! what a job runs before anything is done with it, and lists leave out what may not be seen.

use std::time::Duration;

use gapless_core::Pattern;
use gapless_core::job::JobId;
use gapless_core::job::leader::ASSIGN_PREFIX;
use gapless_protocol::{Frame, Kind};
use serde::Deserialize;

use crate::leader::Leader;
use crate::shown::{JobQuery, Question};
use crate::wire::{Attempts, JobRef};

/// What is done with jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// To submit, see, cancel and retry them.
    Submit,
    /// To run them.
    Work,
}

/// That a connection was not let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub why: String,
    /// How long the answer waits.
    pub delay: Duration,
}

/// Knows who a connection is for.
pub trait Guard: Send + Sync {
    /// Lets the connection in, by the token of its hello if there is one.
    ///
    /// # Errors
    /// When it is not let in.
    fn admit(&mut self, token: Option<&str>) -> Result<(), Refused>;

    /// On whose behalf it is.
    fn identity(&self) -> &str;

    /// Whether it may do this with jobs of every executable. Asking is not an attempt: it is not audited.
    fn may_all(&self, deed: Deed) -> bool;

    /// Whether it may do this with jobs of the executables that match.
    ///
    /// # Errors
    /// Says what is missing.
    fn may(&self, deed: Deed, execs: &Pattern) -> Result<(), String>;

    /// Whether jobs of this executable are shown to it.
    fn sees(&self, exec: &str) -> bool;

    /// Resolves, with the reason, when it may not do any more what it was allowed.
    fn lost(&self) -> impl Future<Output = String> + Send;
}

/// Everybody may do everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Open;

impl Guard for Open {
    fn admit(&mut self, _: Option<&str>) -> Result<(), Refused> {
        Ok(())
    }

    fn identity(&self) -> &str {
        ""
    }

    fn may_all(&self, _: Deed) -> bool {
        true
    }

    fn may(&self, _: Deed, _: &Pattern) -> Result<(), String> {
        Ok(())
    }

    fn sees(&self, _: &str) -> bool {
        true
    }

    fn lost(&self) -> impl Future<Output = String> + Send {
        std::future::pending()
    }
}

/// The proof in a hello of either kind.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Hello {
    token: Option<String>,
}

/// What a submit runs.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Submitted {
    exec_name: String,
}

/// A connection that was let in, and what it may do with all jobs.
pub(crate) struct Admitted<G> {
    guard: G,
    submits_all: bool,
    works_all: bool,
}

impl<G: Guard> Admitted<G> {
    /// Lets a connection in by its first frame; a worker must be allowed all that it takes.
    pub(crate) fn new(mut guard: G, hello: &Frame) -> Result<Self, Refused> {
        let proof: Hello = serde_json::from_slice(&hello.payload).unwrap_or_default();
        guard.admit(proof.token.as_deref())?;
        let [submits_all, works_all] = [Deed::Submit, Deed::Work].map(|deed| guard.may_all(deed));
        if hello.kind == Kind::JobWorkerHello.number() && !works_all {
            let refused = |why| Refused { why, delay: Duration::ZERO };
            guard.may(Deed::Work, &execs_of(&hello.subject)).map_err(refused)?;
        }
        Ok(Self { guard, submits_all, works_all })
    }

    /// Whether what a frame asks for may be done. A frame that cannot be understood is refused where
    /// it is read.
    pub(crate) async fn check(&self, frame: &Frame, leader: &Leader) -> Result<(), String> {
        let Some(kind) = Kind::from_number(frame.kind) else { return Ok(()) };
        let (deed, all) = match kind {
            Kind::JobAck | Kind::JobProgress | Kind::JobRenew => (Deed::Work, self.works_all),
            // What a worker takes was checked with its hello.
            Kind::JobCredit => return Ok(()),
            _ => (Deed::Submit, self.submits_all),
        };
        if all {
            return Ok(());
        }
        if kind == Kind::JobSubmit {
            let Ok(submitted) = serde_json::from_slice::<Submitted>(&frame.payload) else {
                return Ok(());
            };
            return self.may(deed, &submitted.exec_name);
        }
        for job in jobs_of(kind, &frame.payload)? {
            // Of a job that is not known there is nothing to see or to do.
            if let Ok(Some(view)) = leader.describe(job).await {
                self.may(deed, &view.record.spec.exec)?;
            }
        }
        Ok(())
    }

    fn may(&self, deed: Deed, exec: &str) -> Result<(), String> {
        match Pattern::parse(exec) {
            Ok(exec) => self.guard.may(deed, &exec),
            // No executable has such a name.
            Err(_) => Ok(()),
        }
    }

    /// On whose behalf it is.
    pub(crate) fn identity(&self) -> &str {
        self.guard.identity()
    }

    /// Whether jobs of this executable are shown.
    pub(crate) fn sees(&self, exec: &str) -> bool {
        self.submits_all || self.guard.sees(exec)
    }

    /// See [`Guard::lost`].
    pub(crate) async fn lost(&self) -> String {
        self.guard.lost().await
    }
}

/// The executables that a worker takes by this pattern; all, if that cannot be told.
fn execs_of(subject: &[u8]) -> Pattern {
    let text = std::str::from_utf8(subject).unwrap_or_default();
    let execs = text.strip_prefix(ASSIGN_PREFIX).and_then(|execs| Pattern::parse(execs).ok());
    execs.unwrap_or_else(|| Pattern::parse(">").expect("a pattern"))
}

/// The jobs that a frame is about.
fn jobs_of(kind: Kind, payload: &[u8]) -> Result<Vec<JobId>, String> {
    let id = |text: &String| text.parse().ok();
    if kind == Kind::JobRenew {
        let attempts = serde_json::from_slice::<Attempts>(payload).map_or(vec![], |it| it.attempts);
        return Ok(attempts.iter().filter_map(|each| id(&each.job_id)).collect());
    }
    let asked = serde_json::from_slice::<JobQuery>(payload).map(|query| query.ask);
    if kind == Kind::JobQuery && matches!(asked, Ok(Question::Overview)) {
        return Err("to see how all stands needs job.submit on all executables".to_owned());
    }
    let about = serde_json::from_slice::<JobRef>(payload);
    Ok(about.iter().filter_map(|about| id(&about.job_id)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f3_a_worker_needs_the_right_for_all_that_its_pattern_may_bring() {
        for (subject, execs) in [
            ("job.assign.render", "render"),
            ("job.assign.*", "*"),
            ("job.assign.>", ">"),
            ("job.*.render", ">"),
            (">", ">"),
            ("", ">"),
        ] {
            assert_eq!(execs_of(subject.as_bytes()).as_str(), execs, "{subject}");
        }
    }

    #[test]
    fn f3_the_jobs_of_a_frame_are_found_whichever_kind_it_is() {
        let job = "01234567-89ab-cdef-0123-456789abcdef";
        let one = format!(r#"{{"JobId":"{job}","Attempt":1,"Ask":"show"}}"#);
        for kind in [Kind::JobCancel, Kind::JobWatch, Kind::JobAck, Kind::JobQuery] {
            assert_eq!(jobs_of(kind, one.as_bytes()), Ok(vec![job.parse().expect("an id")]));
        }
        let many = format!(r#"{{"Attempts":[{one},{one}]}}"#);
        assert_eq!(jobs_of(Kind::JobRenew, many.as_bytes()).map(|jobs| jobs.len()), Ok(2));
        assert_eq!(jobs_of(Kind::JobQuery, br#"{"Ask":"list"}"#), Ok(vec![]));
        assert!(jobs_of(Kind::JobQuery, b"{}").is_err(), "an overview is of all");
    }
}
