//! Publish, crash, resume: the broker inside a program. Run it with
//! `cargo run -p gapless-broker --example embedded`.
//!
//! The program starts itself a second time; that process publishes and dies without a word.
//! The first then opens the same folder and goes on where its follower stood.

use std::error::Error;
use std::process::Command;

use gapless_broker::{Broker, BrokerOptions, Delivery, From, Subscription, Token, block_on};
use gapless_core::{Message, Pattern, PublishOptions, TopicName, TopicSettings};

fn main() -> Result<(), Box<dyn Error>> {
    let orders = TopicName::parse("orders.created")?;
    if let Some(folder) = std::env::args().nth(1) {
        let broker = Broker::open(BrokerOptions::new(folder))?;
        broker.create_topic(&orders, TopicSettings::default())?;
        let mut follower = broker.subscribe(&Pattern::parse("orders.>")?, From::Now)?;
        for body in ["one", "two", "three"] {
            // When the ack is there, the message survives whatever happens next.
            broker.publish(&orders, &Message::new(body), &PublishOptions::default()).wait()?;
            if body == "one" {
                assert_eq!(read(&mut follower, 1)?, ["one"]);
                println!("{}", follower.token());
            }
        }
        std::process::abort();
    }

    let folder = tempfile::tempdir()?;
    let crashed = Command::new(std::env::current_exe()?).arg(folder.path()).output()?;
    assert!(!crashed.status.success(), "it was meant to crash");
    let token: Token = String::from_utf8(crashed.stdout)?.trim().parse()?;
    println!("the other process crashed; its follower stood at {token}");

    let broker = Broker::open(BrokerOptions::new(folder.path()))?;
    let mut follower = broker.subscribe(&Pattern::parse("orders.>")?, From::Token(token))?;
    println!("resumed without gap or repeat: {}", read(&mut follower, 2)?.join(", "));
    drop(follower);
    broker.close()?;
    Ok(())
}

fn read(follower: &mut Subscription, count: usize) -> Result<Vec<String>, Box<dyn Error>> {
    let mut bodies = Vec::new();
    while bodies.len() < count {
        if let Delivery::Messages(messages) = block_on(follower.next())? {
            let texts = messages.iter().filter_map(|each| each.message.body);
            bodies.extend(texts.map(|body| String::from_utf8_lossy(&body).into_owned()));
        }
    }
    Ok(bodies)
}
