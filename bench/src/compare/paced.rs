//! Live messages at a pace, open loop: how long after it was due each one came.
//!
//! A message carries the time at which it was due, not the time at which it went out: a publisher or
//! a server that is held up makes messages late, and hides nothing. Each follower has a thread of
//! its own, so that none is read late because of another.

use std::thread;
use std::time::{Duration, Instant};

use super::link::{Link, Seen};
use super::live::{MESSAGE_BYTES, follower};
use super::report::{Counts, Measured};
use super::run::{Meter, Run};
use super::stats::per_mille;
use super::stored::count_name;
use super::systems::{Contender, Part, Store, System, To};
use crate::benches::pace::rest_until;
use crate::benches::store::{Result, message};

/// How much before it is due the publisher wakes up, to be on time: more than the system's
/// timers and a wake-up take together.
const EARLY: Duration = Duration::from_micros(200);

/// The topic of live messages at a pace.
const TOPIC: &str = "paced";

/// Longer than a measurement at full speed, since what is rare is looked for.
const TIMES: u32 = 2;

/// One publisher and one subscriber at each pace.
pub(super) fn all(run: &mut Run<'_>) -> Result<()> {
    for per_second in run.plan.paces.clone() {
        let what = format!("live at {}/s, open loop", count_name(u64::from(per_second)));
        let rounds = run.plan.rounds;
        run.alternate((&what, rounds), Contender::all(Store::Live, None), |run, contender| {
            let stage = run.stage(contender)?;
            let (system, address) = (contender.who.system(), stage.server.address());
            let mut publisher = system.connect(address)?;
            system.create(&mut publisher, TOPIC, Store::Live)?;
            let following = vec![follower(system, address, TOPIC)?];
            let meter = Meter::start(&stage.server)?;
            let pace = (per_second, run.plan.time * TIMES);
            let micros = paced(system, &mut publisher, following, TOPIC, pace)?;
            let cost = meter.cost(&stage.server, micros.len() as u64)?;
            for (name, mille) in [("p50", 500), ("p99", 990), ("p99.9", 999)] {
                let measured = Measured { figure: per_mille(&micros, mille), ..cost };
                let title = format!("{what}: {name}");
                run.add("paced", (&title, Counts::Micros), contender, measured);
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Publishes to a live topic so many times a second; tells how many microseconds after it was due
/// each message came at each follower, sorted.
pub(super) fn paced(
    system: &dyn System,
    publisher: &mut Link,
    followers: Vec<Link>,
    topic: &str,
    (per_second, time): (u32, Duration),
) -> Result<Vec<f64>> {
    let interval = Duration::from_secs(1) / per_second;
    let count = (time.as_secs_f64() * f64::from(per_second)).ceil() as u64;
    let epoch = Instant::now();
    thread::scope(|scope| {
        let read = |follower| scope.spawn(move || read(follower, count, epoch));
        let readers: Vec<_> = followers.into_iter().map(read).collect();
        let mut body = message(MESSAGE_BYTES).body.unwrap_or_default().to_vec();
        let mut due = epoch + interval;
        for _ in 0..count {
            rest_until(due - EARLY);
            while Instant::now() < due {
                std::hint::spin_loop();
            }
            let nanos = u64::try_from((due - epoch).as_nanos()).unwrap_or(u64::MAX);
            body[..8].copy_from_slice(&nanos.to_le_bytes());
            let to = To { topic, store: Store::Live };
            let publish = system.publish(publisher, to, &body, Part { number: 1, batch: 1 })?;
            publisher.send(&publish)?;
            if system.answers(Store::Live) {
                publisher.answers(1)?;
            }
            due += interval;
        }
        let mut micros = Vec::new();
        for reader in readers {
            micros.extend(reader.join().unwrap_or_else(|_| Err("a reader panicked".into()))?);
        }
        micros.sort_unstable_by(f64::total_cmp);
        Ok(micros)
    })
}

/// Takes so many messages, and tells how late each was.
fn read(mut follower: Link, count: u64, epoch: Instant) -> Result<Vec<f64>> {
    let mut micros = Vec::new();
    let mut each = |body: &[u8]| micros.extend(age_micros(body, epoch));
    let mut seen = Seen::with(&mut each);
    while seen.messages < count {
        follower.receive(&mut seen)?;
    }
    if micros.len() as u64 != count {
        return Err(format!("{} of {count} messages carry their time", micros.len()).into());
    }
    Ok(micros)
}

/// How long ago a message was due, which stands at the beginning of its body.
fn age_micros(body: &[u8], epoch: Instant) -> Option<f64> {
    let (nanos, _) = body.split_first_chunk::<8>()?;
    let due = Duration::from_nanos(u64::from_le_bytes(*nanos));
    Some(epoch.elapsed().saturating_sub(due).as_secs_f64() * 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_tells_how_long_ago_it_was_due() {
        let epoch = Instant::now() - Duration::from_secs(3);
        let mut body = vec![9; MESSAGE_BYTES];
        body[..8].copy_from_slice(&1_000_000_000_u64.to_le_bytes());
        assert!(age_micros(&body, epoch).unwrap() >= 2e6);
        assert_eq!(age_micros(&body[..7], epoch), None);
    }
}
