//! A leader of jobs as the golden scripts drive it: sessions and jobs are numbers, no jitter.

use std::sync::Arc;
use std::time::Duration;

use gapless_core::job::leader::{Effect, Input, Leader, Limits, Outcome, Session};
use gapless_core::job::record::{Spec, WorkerId};
use gapless_core::job::{JobId, Token};
use gapless_core::{Pattern, RetryPolicy, Timestamp, Waits};

use super::Words;

pub(crate) fn new(words: &Words<'_>) -> Leader {
    let limits = Limits {
        lease: words.millis("lease"),
        margin: words.millis("margin"),
        keep: words.millis("keep"),
        ..Limits::default()
    };
    Leader::new(limits)
}

fn spec(words: &Words<'_>) -> Spec {
    let small = |name, default| words.text(name).map_or(default, |_| words.small(name));
    let after = words.text("after").map(|text| {
        text.split(',').map(|id| JobId(id.parse().expect("a job"))).collect::<Vec<_>>()
    });
    let id = u128::from(words.number("job"));
    let waits = Waits::Steps(vec![Duration::from_millis(100)]);
    Spec {
        id: JobId(id),
        client: words.text("client").expect("client=").into(),
        exec: words.text("exec").expect("exec=").into(),
        priority: 4,
        not_before: Timestamp(0),
        key: words.text("key").map(Into::into),
        unique: None,
        after: after.unwrap_or_default(),
        attempts_max: small("attempts", 3),
        deaths_max: small("deaths", 2),
        retry: Arc::new(RetryPolicy { waits, jitter_percent: 0 }),
        cron: None,
        digest: id,
    }
}

pub(crate) fn run(machine: &mut Leader, now: Timestamp, verb: &str, words: &Words<'_>) -> String {
    let session = || Session(words.number("by"));
    let job = || JobId(u128::from(words.number("job")));
    // The submission that is known, unless the script speaks of another one.
    let known = words.text("job").and_then(|_| machine.record(job()));
    let number = match words.text("number") {
        Some(_) => words.number("number"),
        None => known.map_or(0, |record| record.number),
    };
    let token = || Token { job: job(), number, attempt: words.small("attempt") };
    let name = || Arc::<str>::from(words.text("name").expect("name="));
    let input = match verb {
        "client" => {
            Input::Client { session: session(), name: name(), cap: words.small("cap"), weight: 1 }
        }
        "worker" => Input::Worker {
            session: session(),
            worker: WorkerId { name: name(), origin: words.text("of").unwrap_or_default().into() },
            pattern: Pattern::parse(words.text("takes").expect("takes=")).expect("a pattern"),
            running: words.text("job").map(|_| token()).into_iter().collect(),
        },
        "credit" => Input::Credit(session(), words.small("more") as i32),
        "submit" => Input::Submit(session(), Arc::new(spec(words))),
        "watch" => Input::Watch(session(), job()),
        "renew" => Input::Renew(session(), token()),
        "ack" => {
            let outcome = match words.text("how").expect("how=") {
                "ok" => Outcome::Succeeded,
                "failed" => Outcome::Failed { again: false },
                "again" => Outcome::Failed { again: true },
                "not-started" => Outcome::NotStarted,
                "cancelled" => Outcome::Cancelled,
                "returned" => Outcome::Returned,
                other => panic!("there is no outcome {other}"),
            };
            Input::Ack(session(), token(), outcome)
        }
        "forget" => Input::Forget(session(), job()),
        "cancel" => Input::Cancel(session(), job()),
        "retry" => Input::Retry(session(), job()),
        "gone" => Input::Gone(session()),
        "tick" => Input::Tick,
        other => panic!("a leader has no {other}"),
    };
    let mut effects = Vec::new();
    machine.step(now, input, &mut effects);
    machine.check();
    let mut out: String = effects.iter().map(|effect| told(effect, machine) + "\n").collect();
    let counts = machine.counts();
    let due = machine.deadline().map_or("none".into(), |due| due.to_string());
    out += &format!(
        "= waiting {}, ready {}, running {}, ended {}, dead {}, due {due}\n",
        counts.waiting, counts.ready, counts.running, counts.ended, counts.dead
    );
    out
}

/// An effect in words.
fn told(effect: &Effect, machine: &Leader) -> String {
    let attempt = |token: &Token| format!("attempt {} of job {}", token.attempt, token.job.0);
    match effect {
        Effect::Save(job) => {
            let phase = machine.phase_name(*job).unwrap_or("forgotten");
            format!("save job {} ({phase})", job.0)
        }
        Effect::Forget(job) => format!("forget job {}", job.0),
        Effect::Submitted { session, job, known } => {
            let known = if *known { "known" } else { "new" };
            format!("to {}: job {} is accepted, {known}", session.0, job.0)
        }
        Effect::Refused { session, job, why } => {
            format!("to {}: refused for job {}, {why:?}", session.0, job.0)
        }
        Effect::Assign { session, token } => format!("to {}: run {}", session.0, attempt(token)),
        Effect::Revoke { session, token } => format!("to {}: stop {}", session.0, attempt(token)),
        Effect::Renewed { session, token } => {
            format!("to {}: {} goes on", session.0, attempt(token))
        }
        Effect::Taken { session, token } => format!("to {}: {} counts", session.0, attempt(token)),
        Effect::Stale { session, token } => {
            format!("to {}: {} is stale", session.0, attempt(token))
        }
        Effect::Result { session, job } => format!("to {}: the result of job {}", session.0, job.0),
        Effect::Withdrawn { session, unspent } => {
            format!("to {}: {unspent} credit is void", session.0)
        }
        Effect::Done { session, job } => format!("to {}: it is done, job {}", session.0, job.0),
        Effect::Close { session, why } => format!("to {}: the end, {why:?}", session.0),
    }
}
