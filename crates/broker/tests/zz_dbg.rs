//! debug
mod common;
use std::time::Duration;
use common::*;
use gapless_broker::From;
use gapless_core::{Compaction, Message, TopicSettings};
#[test]
fn dbg() {
    for seed in 0..3 {
        let mut world = World::new(seed);
        world.options.journal.tail_bytes = 0;
        world.options.limits.step_bytes = 700;
        let broker = world.open();
        let s = TopicSettings { compaction: Some(Compaction { tombstone_grace: Duration::from_secs(1) }), ..Default::default() };
        broker.create_topic(&name("t"), s).unwrap();
        let mut dice = Dice::new(seed);
        let mut followers = ["t", "*", "t", "*"]
            .map(|of| (broker.subscribe(&pattern(of), From::Beginning).unwrap(), Ledger::default()));
        for n in 0..300_u64 {
            let key = format!("key-{}", dice.roll(20));
            if dice.roll(10) == 0 { publish(&broker, "t", &Message::tombstone(key)); }
            else { publish(&broker, "t", &Message::new(format!("{n:>100}")).with_key(key)); }
            world.advance(dice.roll(20));
            match dice.roll(12) {
                0 => { eprintln!("n{n} seal"); broker.seal().unwrap() },
                1 => { eprintln!("n{n} compact"); broker.compact().unwrap()},
                _ => broker.turn(),
            }
            let i = dice.roll(4) as usize;
            let (follower, ledger) = &mut followers[i];
            for _ in 0..dice.roll(4) {
                let Some(delivery) = now(follower) else { break };
                let d = delivery.unwrap();
                let show = match &d { gapless_broker::Delivery::Messages(m) => format!("{}..{} pos {}", m.from(), m.to(), m.last_position()), o => format!("{o:?}") };
                eprintln!("n{n} follower {i} {} : {show}", follower.pattern().as_str());
                ledger.note(&d);
            }
        }
    }
}
