//! Memory of what is many and does nothing: connections, and topics.

use gapless_bench::process::open_files_max;

use super::link::{Link, Seen};
use super::report::{Counts, Measured};
use super::run::{Meter, Run};
use super::stored::count_name;
use super::systems::{Contender, Part, Store, To, Who};
use crate::benches::store::{Result, message};

/// Files that are open besides.
const OTHER_FILES: u64 = 200;

/// Connections before the first look: by then what is made once is made.
const WARM_UP: usize = 100;

/// Publishes in flight while topics are made.
const IN_FLIGHT: usize = 256;

/// Bytes of the one message in each topic.
const MESSAGE_BYTES: usize = 16;

/// Connections with one subscription each, on which nothing happens.
pub(super) fn connections(run: &mut Run<'_>) -> Result<()> {
    let most = usize::try_from(open_files_max()?.saturating_sub(OTHER_FILES))?;
    let count = run.plan.connections.min(most.saturating_sub(WARM_UP)).max(1);
    if count < run.plan.connections {
        run.tell("fewer connections than planned: no more files may be open (ulimit -n)");
    }
    let title = format!("memory of an idle connection, of {}", count_name(count as u64));
    let rounds = run.plan.rounds_stored;
    run.alternate((&title, rounds), Contender::all(Store::Live, None), |run, contender| {
        let stage = run.stage(contender)?;
        let (system, server) = (contender.who.system(), &stage.server);
        system.create(&mut system.connect(server.address())?, "idle", Store::Live)?;
        let connect = |_| -> Result<Link> {
            let mut link = system.connect(server.address())?;
            system.follow(&mut link, "idle")?;
            Ok(link.shrunk())
        };
        let warm = (0..WARM_UP).map(connect).collect::<Result<Vec<_>>>()?;
        let before = server.resident_bytes()?;
        let meter = Meter::start(server)?;
        let idle = (0..count).map(connect).collect::<Result<Vec<_>>>()?;
        let connected = meter.rate(server, count as u64)?;
        let each = server.resident_bytes()?.saturating_sub(before) as f64 / count as f64;
        drop((warm, idle));
        let measured = Measured { figure: each, ..connected };
        run.add("idle", (&title, Counts::Bytes), contender, measured);
        let connects = "connections made one by one, with a subscription";
        run.add("idle", (connects, Counts::PerSecond), contender, connected);
        Ok(())
    })
}

/// Topics with one message each: what the server has more in memory for each of them.
pub(super) fn topics(run: &mut Run<'_>) -> Result<()> {
    let count = run.plan.topics;
    let title = format!("memory of a topic with one message, of {}", count_name(count as u64));
    let rounds = run.plan.rounds_stored;
    run.alternate((&title, rounds), Contender::all(Store::Written, None), |run, contender| {
        let measured = make_topics(run, contender, Kind::Topic(count))?;
        let line = run.add("topics", (&title, Counts::Bytes), contender, measured);
        line.notes = match contender.who {
            Who::Gapless => "a topic each",
            Who::Nats => "a subject each, all in one stream",
            Who::Redis => "a stream (key) each",
        }
        .to_owned();
        Ok(())
    })?;
    let streams = run.plan.streams;
    let title = format!("memory of a stream of its own, of {}", count_name(streams as u64));
    run.alternate((&title, rounds), Contender::all(Store::Written, None), |run, contender| {
        let kind = match contender.who {
            Who::Nats => Kind::Stream(streams),
            Who::Gapless | Who::Redis => Kind::Topic(streams),
        };
        let measured = make_topics(run, contender, kind)?;
        let line = run.add("topics", (&title, Counts::Bytes), contender, measured);
        if contender.who == Who::Nats {
            "a stream each".clone_into(&mut line.notes);
        }
        Ok(())
    })
}

#[derive(Clone, Copy)]
enum Kind {
    /// As a user of the system would have many topics.
    Topic(usize),
    /// A JetStream stream for each.
    Stream(usize),
}

fn make_topics(run: &Run<'_>, contender: &Contender, kind: Kind) -> Result<Measured> {
    let stage = run.stage(contender)?;
    let server = &stage.server;
    let (system, store) = (contender.who.system(), contender.store);
    let mut link = system.connect(server.address())?;
    let body = message(MESSAGE_BYTES).body.unwrap_or_default();
    let publish = |link: &Link, topic: &str, number| {
        system.publish(link, To { topic, store }, &body, Part { number, batch: 1 })
    };
    // What is made once is made before the first look.
    system.create(&mut link, "warm.up", store)?;
    let first = publish(&link, "warm.up", 1)?;
    link.send(&first)?;
    link.answers(1)?;
    let shares_a_stream = matches!((contender.who, kind), (Who::Nats, Kind::Topic(_)));
    if shares_a_stream {
        system.create_below(&mut link, "many", store)?;
    }
    let (Kind::Topic(count) | Kind::Stream(count)) = kind;
    let topic = |number: usize| format!("many.topic.{number}");
    let before = server.resident_bytes()?;
    let meter = Meter::start(server)?;
    if !shares_a_stream {
        let create =
            |link: &Link, number| system.create_request(link, &topic(number), store, number);
        pipelined(&mut link, count, create)?;
    }
    pipelined(&mut link, count, |link, number| publish(link, &topic(number), number).map(Some))?;
    let cost = meter.cost(server, count as u64)?;
    let more = server.resident_bytes()?.saturating_sub(before);
    Ok(Measured { figure: more as f64 / count as f64, ..cost })
}

/// Sends the questions of all numbers, some before the first is answered.
fn pipelined(
    link: &mut Link,
    count: usize,
    question: impl Fn(&Link, usize) -> Result<Option<Vec<u8>>>,
) -> Result<()> {
    let mut in_flight = 0;
    for number in 1..=count {
        let Some(question) = question(link, number)? else { continue };
        link.send(&question)?;
        in_flight += 1;
        while in_flight >= IN_FLIGHT {
            let mut seen = Seen::default();
            link.receive(&mut seen)?;
            in_flight -= usize::try_from(seen.answers)?;
        }
    }
    link.answers(in_flight as u64)
}
