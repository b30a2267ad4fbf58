//! A consumer: a member of a group around an async handler.
//!
//! One task takes messages, runs so many handlers at once, extends the leases of what it
//! holds while they run, and says what became of it. Acks gather while earlier ones are on
//! their way to the disk, so that a fast handler costs few frames. What a handler began before
//! a connection was lost is finished, but its ack is not sent: it comes again.
//!
//! Rules of groups are the server's; what members say is in `member.rs`.

use std::collections::VecDeque;
use std::fmt::Display;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use gapless_core::{Fate, Mode, TopicName};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::{debug, warn};

use crate::client::Client;
use crate::error::MemberError;
use crate::leased::{LeasedMessage, Leases};
use crate::member::{Answering, GroupEvent, Member, MemberOptions};

/// Answers to acks that may be waited for at once; what is done meanwhile gathers.
const ACKS_ON_THE_WAY_MAX: usize = 4;
/// Leases are extended so many times before they would run out.
const EXTENSIONS_PER_LEASE: u32 = 3;
/// Never more often than this, however short the lease.
const EXTEND_EVERY_MIN: Duration = Duration::from_millis(5);

/// Why a handler could not do a message. Any error becomes one: it is tried again by the
/// group's schedule, with the error's text as the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failed {
    /// To be tried again.
    Retry {
        /// After so long; by the group's schedule if it does not say.
        delay: Option<Duration>,
        /// What was wrong.
        reason: String,
    },
    /// Never to be tried again: a dead letter.
    Dead {
        /// What was wrong.
        reason: String,
    },
}

impl Failed {
    /// To be tried again by the group's schedule.
    pub fn retry(reason: impl Display) -> Self {
        Self::Retry { delay: None, reason: reason.to_string() }
    }

    /// To be tried again after so long.
    pub fn retry_after(delay: Duration, reason: impl Display) -> Self {
        Self::Retry { delay: Some(delay), reason: reason.to_string() }
    }

    /// Never to be tried again.
    pub fn dead(reason: impl Display) -> Self {
        Self::Dead { reason: reason.to_string() }
    }
}

impl<E: std::error::Error> From<E> for Failed {
    fn from(error: E) -> Self {
        Self::retry(error)
    }
}

/// How a consumer works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerOptions {
    /// What its member is called, for people.
    pub name: String,
    /// Handlers that run at once. In a group of mode ordered it is always one.
    pub concurrency: u32,
    /// Messages that wait in the consumer, beyond those that are handled: enough to bridge
    /// the way to the server, few enough not to keep them from others.
    pub prefetch: u32,
}

impl Default for ConsumerOptions {
    /// Sixteen handlers, and as many messages waiting.
    fn default() -> Self {
        Self { name: String::new(), concurrency: 16, prefetch: 16 }
    }
}

/// What a consumer did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConsumerReport {
    /// Messages whose handlers ended well and whose acks are durable.
    pub acked: u64,
    /// Messages whose handlers failed.
    pub failed: u64,
    /// Messages that were handled but were not with this consumer any more when it said so:
    /// they come again, or another has done them.
    pub lost: u64,
}

/// A running consumer. Dropping it stops it without waiting.
#[derive(Debug)]
pub struct Consumer {
    stop: watch::Sender<Option<Duration>>,
    task: JoinHandle<Result<ConsumerReport, MemberError>>,
}

impl Consumer {
    /// Joins a group and handles its messages, until it is stopped.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use gapless_client::{Client, Consumer, ConsumerOptions, Failed, TopicName};
    ///
    /// # async fn example(client: Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let billing: TopicName = "billing".parse()?;
    /// let options = ConsumerOptions { concurrency: 8, ..ConsumerOptions::default() };
    /// let consumer = Consumer::start(&client, &billing, options, |each| async move {
    ///     let Some(body) = each.message.body else { return Err(Failed::dead("no body")) };
    ///     let total: u64 = std::str::from_utf8(&body)?.parse()?; // An error is a retry.
    ///     println!("{total}");
    ///     Ok(())
    /// })
    /// .await?;
    /// // ...
    /// let report = consumer.stop(Duration::from_secs(10)).await?;
    /// println!("{} done", report.acked);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When there is no such group, or the server refuses or does not answer in time.
    pub async fn start<H, F>(
        client: &Client,
        group: &TopicName,
        options: ConsumerOptions,
        handler: H,
    ) -> Result<Self, MemberError>
    where
        H: Fn(LeasedMessage) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), Failed>> + Send + 'static,
    {
        let concurrency = options.concurrency.max(1);
        let window = concurrency.saturating_add(options.prefetch);
        let joined = MemberOptions { name: options.name, window };
        let member = client.join_group(group, joined).await?;
        let concurrency = if member.mode() == Mode::Ordered { 1 } else { concurrency as usize };
        let (stop, stopped) = watch::channel(None);
        let work = Work {
            member,
            handler: Arc::new(handler),
            concurrency,
            waiting: VecDeque::new(),
            running: JoinSet::new(),
            done: Leases::new(),
            acks: VecDeque::new(),
            report: ConsumerReport::default(),
        };
        Ok(Self { stop, task: tokio::spawn(work.run(stopped)) })
    }

    /// Whether it has ended, by itself or because it was stopped.
    pub fn is_finished(&self) -> bool {
        self.task.is_finished()
    }

    /// Begins nothing new, waits at most so long for the handlers that run, acks what they
    /// did, and leaves the group. What was not begun goes to others and does not count as
    /// failed.
    ///
    /// # Errors
    /// Why the membership had ended before.
    pub async fn stop(self, wait: Duration) -> Result<ConsumerReport, MemberError> {
        self.stop.send_replace(Some(wait));
        self.task.await.unwrap_or(Err(MemberError::Closed))
    }
}

/// What became of one message.
struct Handled {
    leases: Leases,
    outcome: Result<(), Failed>,
}

struct Work<H> {
    member: Member,
    handler: Arc<H>,
    concurrency: usize,
    waiting: VecDeque<LeasedMessage>,
    running: JoinSet<Handled>,
    /// Done, and not yet sent to the server.
    done: Leases,
    /// Sent and not yet answered, in order.
    acks: VecDeque<(Leases, Answering)>,
    report: ConsumerReport,
}

/// What a turn of the work was about.
enum Turn {
    Event(Option<Result<GroupEvent, MemberError>>),
    Handled(Handled),
    Acked,
    Extend,
    Stop(Duration),
}

impl<H, F> Work<H>
where
    H: Fn(LeasedMessage) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), Failed>> + Send + 'static,
{
    async fn run(
        mut self,
        mut stopped: watch::Receiver<Option<Duration>>,
    ) -> Result<ConsumerReport, MemberError> {
        let every = (self.member.lease() / EXTENSIONS_PER_LEASE).max(EXTEND_EVERY_MIN);
        let mut extend = interval(every);
        extend.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let wait = loop {
            self.begin();
            self.tell();
            let turn = tokio::select! {
                biased;
                wait = stopped.wait_for(Option::is_some) => match wait {
                    Ok(wait) => Turn::Stop(wait.unwrap_or_default()),
                    // Its owner dropped it.
                    Err(_) => Turn::Stop(Duration::ZERO),
                },
                _ = extend.tick() => Turn::Extend,
                Some(handled) = self.running.join_next() => {
                    Turn::Handled(handled.unwrap_or_else(panicked))
                }
                () = answered(&mut self.acks), if !self.acks.is_empty() => Turn::Acked,
                event = self.member.next() => Turn::Event(event),
            };
            match turn {
                Turn::Event(Some(Ok(event))) => self.event(event),
                Turn::Event(Some(Err(error))) => return Err(error),
                Turn::Event(None) => return Ok(self.report),
                Turn::Handled(handled) => {
                    self.handled(handled);
                    while let Some(handled) = self.running.try_join_next() {
                        self.handled(handled.unwrap_or_else(panicked));
                    }
                }
                Turn::Acked => self.acked().await,
                Turn::Extend => self.extend(),
                Turn::Stop(wait) => break wait,
            }
        };
        self.drain(wait, extend).await;
        let Self { member, report, .. } = self;
        member.leave().await;
        Ok(report)
    }

    /// Waits for running handlers, and reports their outcomes.
    async fn drain(&mut self, wait: Duration, mut extend: tokio::time::Interval) {
        self.waiting.clear();
        let all = async {
            while !self.running.is_empty() {
                tokio::select! {
                    biased;
                    Some(handled) = self.running.join_next() => {
                        self.handled(handled.unwrap_or_else(panicked));
                    }
                    () = answered(&mut self.acks), if !self.acks.is_empty() => self.acked().await,
                    _ = extend.tick() => self.member.handle().extend_all(),
                }
                self.tell();
            }
            while !(self.done.is_empty() && self.acks.is_empty()) {
                self.tell();
                self.acked().await;
            }
        };
        if timeout(wait, all).await.is_err() {
            warn!(running = self.running.len(), "handlers did not end in time");
            self.running.abort_all();
        }
    }

    fn event(&mut self, event: GroupEvent) {
        match event {
            GroupEvent::Messages(leased) => self.waiting.extend(leased.iter()),
            GroupEvent::Rejoined => {
                // What was held before belongs to another member now.
                self.waiting.clear();
                debug!("the group is joined again");
            }
            GroupEvent::Gap(gap) => warn!(?gap, "messages of the group's source are gone"),
            GroupEvent::Active | GroupEvent::Standby => {}
        }
    }

    /// Begins as many handlers as may run.
    fn begin(&mut self) {
        while self.running.len() < self.concurrency
            && let Some(each) = self.waiting.pop_front()
        {
            let leases = each.leases();
            let handler = Arc::clone(&self.handler);
            self.running.spawn(async move {
                let running = tokio::spawn(async move { handler(each).await });
                let guard = AbortOnDrop(running);
                let outcome = guard.await;
                Handled { leases, outcome }
            });
        }
    }

    fn handled(&mut self, handled: Handled) {
        let Handled { leases, outcome } = handled;
        let Err(failed) = outcome else { return self.done.add(&leases) };
        if leases.is_empty() {
            return;
        }
        self.report.failed += leases.count();
        // Its answer changes nothing: what is not with us any more comes again anyway.
        drop(match failed {
            Failed::Retry { delay, reason } => self.member.nack(&leases, delay, &reason),
            Failed::Dead { reason } => self.member.terminate(&leases, &reason),
        });
        if self.member.mode() == Mode::Ordered {
            // What comes after it comes again, after it.
            self.waiting.clear();
        }
    }

    /// Acks what is done, unless enough acks are on their way.
    fn tell(&mut self) {
        if !self.done.is_empty() && self.acks.len() < ACKS_ON_THE_WAY_MAX {
            let done = std::mem::take(&mut self.done);
            let answering = self.member.ack(&done);
            self.acks.push_back((done, answering));
        }
    }

    /// Takes the answer to the oldest ack.
    async fn acked(&mut self) {
        let Some((leases, answering)) = self.acks.pop_front() else { return };
        match answering.await {
            Ok(outcome) => {
                self.report.acked += outcome.taken;
                self.report.lost += outcome.refused;
            }
            // It did not happen, so it is said again; the leases are extended meanwhile.
            Err(MemberError::Server(trouble)) if trouble.fate == Fate::DidNotHappen => {
                warn!(%trouble, "an ack is tried again");
                let mut again = leases;
                again.add(&self.done);
                self.done = again;
            }
            Err(error) => {
                debug!(%error, "acks were lost with their connection");
                self.report.lost += leases.count();
            }
        }
    }

    fn extend(&self) {
        if !(self.running.is_empty() && self.waiting.is_empty() && self.done.is_empty()) {
            self.member.handle().extend_all();
        }
    }
}

/// Waits until the oldest ack is answered, without taking the answer.
async fn answered(acks: &mut VecDeque<(Leases, Answering)>) {
    poll_fn(|context| match acks.front_mut() {
        Some((_, answering)) => answering.poll_arrived(context),
        None => Poll::Pending,
    })
    .await;
}

/// A handler in a task of its own, so that a panic of it is its message's failure only.
struct AbortOnDrop(JoinHandle<Result<(), Failed>>);

impl Future for AbortOnDrop {
    type Output = Result<(), Failed>;

    fn poll(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> Poll<Result<(), Failed>> {
        Pin::new(&mut self.0)
            .poll(context)
            .map(|ended| ended.unwrap_or_else(|_| Err(Failed::retry("the handler panicked"))))
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A task around a handler does not panic; one that was aborted says nothing.
fn panicked(_: tokio::task::JoinError) -> Handled {
    Handled { leases: Leases::new(), outcome: Err(Failed::retry("aborted")) }
}
