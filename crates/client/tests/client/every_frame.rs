//! The connection is lost at every frame in turn, in both directions.
//!
//! A server with a log that forgets nothing serves one connection after the other and ends
//! each after so many frames. Whatever the number: every publish is acked once and stored
//! once, in order, and the subscriber sees every message once, in order.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use gapless_client::{Amount, ClientLimits, Event, From, Message, TopicName};
use gapless_protocol::{Ids, RecoveryComplete, StartFrom, Subscribed, Unsubscribed, Verb};
use tokio::time::timeout;

use crate::server::{LIMITS, Peer, SOON, Server, accepted, batch, duplicate, messages, token};

const MESSAGES: u64 = 12;

#[derive(Default)]
struct Store {
    log: Vec<Bytes>,
    known: BTreeMap<Bytes, u64>,
}

/// What is left until the connection is lost.
struct Fuse {
    frames_in: u32,
    frames_out: u32,
}

impl Fuse {
    fn burn(count: &mut u32) -> Result<(), ()> {
        *count = count.checked_sub(1).ok_or(())?;
        Ok(())
    }
}

/// A follower on this connection.
struct Follower {
    next: u64,
    credit: u64,
}

/// Serves until the fuse has burnt or the client has gone.
async fn serve(peer: &mut Peer, store: &Mutex<Store>, mut fuse: Fuse) -> Result<(), ()> {
    peer.welcome(LIMITS).await;
    let mut follower: Option<Follower> = None;
    loop {
        let (verb, ids) = peer.verb().await.ok_or(())?;
        Fuse::burn(&mut fuse.frames_in)?;
        let answer: Option<Verb> = match verb {
            Verb::Publish(publish) => {
                let record = publish.records.iter().next().unwrap();
                let id = Bytes::copy_from_slice(record.id.unwrap());
                let body = Bytes::copy_from_slice(record.body.unwrap());
                let mut store = store.lock().unwrap();
                let next = store.log.len() as u64 + 1;
                Some(match store.known.get(&id) {
                    Some(seq) => duplicate(*seq).into(),
                    None => {
                        store.log.push(body);
                        store.known.insert(id, next);
                        accepted(next, 1).into()
                    }
                })
            }
            Verb::Subscribe(asked) => {
                let next = match asked.from {
                    StartFrom::Beginning => 1,
                    StartFrom::Token(token) => token.position.0 + 1,
                    other => panic!("{other:?}"),
                };
                follower = Some(Follower { next, credit: u64::from(asked.credit_messages) });
                Some(Subscribed { subscription: 1, token: token(next - 1) }.into())
            }
            Verb::Credit(credit) => {
                if let Some(follower) = &mut follower {
                    follower.credit += u64::from(credit.messages);
                }
                None
            }
            Verb::Unsubscribe(_) => {
                follower = None;
                Some(Unsubscribed { subscription: 1, token: token(0) }.into())
            }
            other => panic!("{other:?}"),
        };
        let subscribed = matches!(answer, Some(Verb::Subscribed(_)));
        if let Some(answer) = answer {
            Fuse::burn(&mut fuse.frames_out)?;
            peer.send(answer, ids).await;
        }
        let Some(follower) = &mut follower else { continue };
        if subscribed {
            Fuse::burn(&mut fuse.frames_out)?;
            let token = token(follower.next - 1);
            peer.send(RecoveryComplete { subscription: 1, token }, Ids::NONE).await;
        }
        while follower.credit > 0 {
            let body = store.lock().unwrap().log.get(follower.next as usize - 1).cloned();
            let Some(body) = body else { break };
            let mut delivery = messages(1, follower.next, follower.next);
            let made = batch(follower.next, &[Message::new(body)]);
            delivery.batches = [made].into_iter().collect();
            Fuse::burn(&mut fuse.frames_out)?;
            peer.send(delivery, Ids::NONE).await;
            follower.next += 1;
            follower.credit -= 1;
        }
    }
}

/// Runs the story with the first connections ending after so many frames.
async fn story(frames_in: u32, frames_out: u32) {
    let server = Arc::new(Server::unix());
    let store = Arc::new(Mutex::new(Store::default()));
    let window = Amount { messages: 4, bytes: 1 << 20 };
    let limits = ClientLimits { window, ..ClientLimits::default() };
    let options = server.options().limits(limits);
    let serving = tokio::spawn({
        let (server, store) = (Arc::clone(&server), Arc::clone(&store));
        async move {
            let mut lives = 0;
            loop {
                let mut peer = server.accept().await;
                let short = lives < 3;
                lives += 1;
                let (frames_in, frames_out) =
                    if short { (frames_in, frames_out) } else { (u32::MAX, u32::MAX) };
                let _ = serve(&mut peer, &store, Fuse { frames_in, frames_out }).await;
            }
        }
    });
    let client = gapless_client::Client::connect(options).await.unwrap();
    let orders: TopicName = "orders".parse().unwrap();
    let mut subscription = client.subscribe_lazy("orders", From::Beginning).unwrap();
    let acks: Vec<_> = (1..=MESSAGES)
        .map(|number| client.publish(&orders, Message::new(number.to_string())))
        .collect();
    let reading = async {
        let mut seen = Vec::new();
        while seen.len() < MESSAGES as usize {
            match subscription.next().await.unwrap().unwrap() {
                Event::Messages(messages) => seen
                    .extend(messages.iter().map(|each| (each.seq.0, each.message.body.unwrap()))),
                Event::Gap(gap) => panic!("{gap:?}"),
                _ => {}
            }
        }
        seen
    };
    let story = format!("{frames_in} frames in, {frames_out} out");
    let seen = timeout(SOON, reading).await.expect(&story);
    let wanted: Vec<_> = (1..=MESSAGES).map(|n| (n, Bytes::from(n.to_string()))).collect();
    assert_eq!(seen, wanted, "{story}");
    for (number, ack) in (1..).zip(acks) {
        let ack = timeout(SOON, ack).await.expect(&story).unwrap();
        assert_eq!(ack.seq().map(|seq| seq.0), Some(number), "{story}");
    }
    assert_eq!(store.lock().unwrap().log.len() as u64, MESSAGES, "{story}");
    serving.abort();
}

#[tokio::test]
async fn a_connection_lost_before_any_frame_of_the_client_costs_nothing() {
    for frames_in in 0..=20 {
        story(frames_in, u32::MAX).await;
    }
}

#[tokio::test]
async fn a_connection_lost_before_any_frame_of_the_server_costs_nothing() {
    for frames_out in 0..=40 {
        story(u32::MAX, frames_out).await;
    }
}
