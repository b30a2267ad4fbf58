//! Jobs that another leader leads: frames about them are passed on, so that a client needs one
//! connection.
//!
//! A leader has a list of executables that others lead. A submit for one of these is not stored
//! here: it goes on to its leader over a connection in the client's name, and so does what is asked
//! later about the job; what that leader says comes back as it is. A submit is kept here until its
//! leader has stored it, so a lost connection between the leaders loses none: after the next one
//! comes either the submit again, which is harmless by job id, or the wish for the result. If this
//! leader dies, the client asks again, and the job is known where it went.
//!
//! What is passed on says so in its hello and is not passed on again: leaders that name each other
//! make no circle. A job that this leader has itself stays here, whatever the routes say now.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use gapless_core::backoff::{Backoff, Retries};
use gapless_core::job::JobId;
use gapless_core::{Pattern, TopicName};
use gapless_protocol::{Frame, FrameLimit, Kind};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;

use crate::access::{Access, Outgoing};
use crate::client::{Greeted, encoded, greet, next_frame, send};
use crate::clock;
use crate::leader::Leader;
use crate::room::{Owed, Room};
use crate::session::{Reply, refusal};
use crate::wire::{ClientConfig, JobAnswer, JobRef, JobRequest, SUBMIT_PREFIX};

/// Most routes of a leader.
const ROUTES_MAX: usize = 1024;
/// Of so many jobs the leader remembers where they went, for those who ask by another connection.
const REMEMBERED_MAX: usize = 100_000;
/// Most jobs of one connection whose results are awaited from one leader.
const OPEN_MAX: usize = 65_536;
/// Most frames of one connection that wait to be written to one leader.
const ORDERS_MAX: usize = 64;
/// Most KiB of submits of one connection that no leader has stored yet. With more, nothing is read
/// from the client until one is.
const HELD_KIB_MAX: u32 = 16 * 1024;
/// Most frames that wait to be passed on to the client.
pub(crate) const PASSED_MAX: usize = 4;
/// How long a leader may take nothing of what is written to it.
const WRITE_WAIT: Duration = Duration::from_secs(60);

/// Which executables other leaders lead, and where jobs went.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    leaders: Arc<[(Pattern, Arc<str>)]>,
    access: Access,
    went: Arc<Mutex<Went>>,
}

#[derive(Debug, Default)]
struct Went {
    to: BTreeMap<JobId, Arc<str>>,
    oldest_first: VecDeque<JobId>,
}

impl FromStr for Routes {
    type Err = String;

    /// Reads `render=10.0.0.5:4281, train=10.0.0.6:4281`; `*` is every executable.
    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let route = |part: &str| {
            let (exec, leader) = part.split_once('=').ok_or("write it as exec=host:port")?;
            let pattern = Pattern::parse(&format!("{SUBMIT_PREFIX}{}", exec.trim()))
                .map_err(|error| error.to_string())?;
            let leader = leader.trim();
            match leader.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>())) {
                Some((host, Ok(_))) if !host.is_empty() => Ok((pattern, leader.into())),
                _ => Err(format!("{leader:?} is not host:port")),
            }
        };
        let leaders: Vec<_> = parts.map(route).collect::<Result<_, String>>()?;
        if leaders.len() > ROUTES_MAX {
            return Err(format!("at most {ROUTES_MAX} routes"));
        }
        Ok(Self { leaders: leaders.into(), ..Self::default() })
    }
}

impl Routes {
    /// The same routes, to leaders that are reached in this way.
    #[must_use]
    pub fn by(self, access: Access) -> Self {
        Self { access, ..self }
    }

    /// Who leads this executable, if it is another leader: the first route that fits counts.
    pub(crate) fn leader_of(&self, exec: &str) -> Option<&Arc<str>> {
        let subject = TopicName::parse(&format!("{SUBMIT_PREFIX}{exec}")).ok()?;
        let mut fitting = self.leaders.iter().filter(|(pattern, _)| pattern.matches(&subject));
        fitting.next().map(|(_, leader)| leader)
    }

    fn remember(&self, job: JobId, leader: &Arc<str>) {
        let mut went = self.went.lock().unwrap_or_else(PoisonError::into_inner);
        if went.to.insert(job, Arc::clone(leader)).is_none() {
            went.oldest_first.push_back(job);
        }
        if went.oldest_first.len() > REMEMBERED_MAX
            && let Some(oldest) = went.oldest_first.pop_front()
        {
            went.to.remove(&oldest);
        }
    }

    fn went_to(&self, job: JobId) -> Option<Arc<str>> {
        self.went.lock().unwrap_or_else(PoisonError::into_inner).to.get(&job).cloned()
    }
}

/// A frame on its way to another leader.
struct Order {
    kind: Kind,
    job: JobId,
    msg_id: [u8; 16],
    bytes: Bytes,
    /// For a submit: its part of what may be held.
    held: Option<OwnedSemaphorePermit>,
}

/// What one connection passes on. All of it ends with this.
pub(crate) struct Forward {
    leader: Leader,
    hello: Bytes,
    observer: bool,
    held: Arc<Semaphore>,
    /// What comes back; `None` when the connection is to end.
    passed: mpsc::Sender<Option<Reply>>,
    targets: BTreeMap<Arc<str>, mpsc::Sender<Order>>,
    tasks: JoinSet<()>,
}

impl Forward {
    /// Nothing yet, for a connection with this hello; `None` if nothing of it is ever passed on.
    pub(crate) fn new(
        leader: &Leader,
        hello: &Frame,
        passed: mpsc::Sender<Option<Reply>>,
    ) -> Option<Self> {
        if leader.routes().leaders.is_empty() || hello.kind != Kind::JobClientHello.number() {
            return None;
        }
        let mut config: ClientConfig = serde_json::from_slice(&hello.payload).ok()?;
        if std::mem::replace(&mut config.routed, true) {
            return None;
        }
        // A token is for the leader that it was sent to; this one has another for those.
        config.token = leader.routes().access.token.clone();
        let payload = serde_json::to_vec(&config).expect("a hello is plain data");
        Some(Self {
            leader: leader.clone(),
            hello: encoded(Kind::JobClientHello, [0; 16], payload.into()),
            observer: config.observer,
            held: Arc::new(Semaphore::new(HELD_KIB_MAX as usize)),
            passed,
            targets: BTreeMap::new(),
            tasks: JoinSet::new(),
        })
    }

    /// Passes a frame on, if it is about a job that another leader leads.
    pub(crate) async fn take<R: Room>(&mut self, frame: &Frame, owed: &Owed<R>) -> bool {
        let Some(kind) = Kind::from_number(frame.kind) else { return false };
        let going = match kind {
            Kind::JobSubmit => self.submitted(&frame.payload).await,
            Kind::JobCancel | Kind::JobWatch | Kind::JobRetry | Kind::JobQuery => {
                let about = serde_json::from_slice::<JobRef>(&frame.payload).ok();
                let job = about.and_then(|about| about.job_id.parse().ok());
                job.and_then(|job| Some((job, self.leader.routes().went_to(job)?)))
            }
            _ => None,
        };
        let Some((job, target)) = going else { return false };
        let held = match kind {
            Kind::JobSubmit => {
                owed.add(job, frame.payload.len());
                let kib = frame.payload.len().div_ceil(1024) as u32;
                Arc::clone(&self.held).acquire_many_owned(kib.min(HELD_KIB_MAX)).await.ok()
            }
            _ => None,
        };
        let mut bytes = BytesMut::new();
        frame.encode(FrameLimit::MAX, &mut bytes).expect("it came in a frame");
        let order = Order { kind, job, msg_id: frame.msg_id, bytes: bytes.freeze(), held };
        // Its task ends with this, or with the connection.
        let _ = self.target(&target).send(order).await;
        true
    }

    /// Where a submit goes. One that cannot be understood is refused where all others are.
    async fn submitted(&self, payload: &[u8]) -> Option<(JobId, Arc<str>)> {
        let (_, spec) = JobRequest::parse(payload).ok()?;
        let routes = self.leader.routes();
        let target = routes.leader_of(&spec.exec)?;
        if self.leader.describe(spec.id).await.ok()?.is_some() {
            return None;
        }
        routes.remember(spec.id, target);
        Some((spec.id, Arc::clone(target)))
    }

    fn target(&mut self, address: &Arc<str>) -> &mpsc::Sender<Order> {
        self.targets.entry(Arc::clone(address)).or_insert_with(|| {
            let (sender, orders) = mpsc::channel(ORDERS_MAX);
            let target = Target {
                address: Arc::clone(address),
                access: self.leader.routes().access.clone(),
                hello: self.hello.clone(),
                passed: self.passed.clone(),
                open: BTreeMap::new(),
            };
            match self.observer {
                true => self.tasks.spawn(target.serve_observer(orders)),
                false => self.tasks.spawn(target.serve_client(orders)),
            };
            sender
        })
    }
}

/// A job whose result is awaited.
#[derive(Default)]
struct Open {
    /// The submit, until its leader has stored it.
    submit: Option<(Bytes, Option<OwnedSemaphorePermit>)>,
    cancelled: bool,
}

/// One other leader, for one connection of a client.
struct Target {
    address: Arc<str>,
    access: Access,
    hello: Bytes,
    passed: mpsc::Sender<Option<Reply>>,
    open: BTreeMap<JobId, Open>,
}

impl Target {
    /// For a client: what it waits for is asked for again after each lost connection.
    async fn serve_client(mut self, mut orders: mpsc::Receiver<Order>) {
        let mut retries = Retries::new(Backoff::default(), u64::from(std::process::id()))
            .expect("the usual waits make sense");
        loop {
            let (address, hello) = (Arc::clone(&self.address), self.hello.clone());
            let access = self.access.clone();
            let greeting = greet(&address, &access, &hello);
            let Some(greeted) = self.keep(&mut orders, greeting).await else {
                return;
            };
            let ended = match greeted {
                Ok(greeted) => {
                    retries.succeeded();
                    self.converse(greeted, &mut orders).await
                }
                Err(error) => Err(error),
            };
            let Err(error) = ended else { return };
            tracing::warn!(%address, %error, "no connection to a leader that jobs are routed to");
            if self.keep(&mut orders, clock::pause(retries.failed())).await.is_none() {
                return;
            }
        }
    }

    /// For those who look and manage: they wait for nothing after a lost connection.
    async fn serve_observer(mut self, mut orders: mpsc::Receiver<Order>) {
        while let Some(order) = orders.recv().await {
            match greet(&self.address, &self.access, &self.hello).await {
                Ok(mut greeted) => {
                    if write(&mut greeted.output, &order.bytes).await.is_ok() {
                        let _ = self.converse(greeted, &mut orders).await;
                    }
                    let _ = self.passed.send(None).await;
                    return;
                }
                Err(error) => {
                    let why = format!("the leader {} cannot be reached: {error}", self.address);
                    self.refuse(order.msg_id, &why).await;
                }
            }
        }
    }

    /// Takes what comes for this leader until something else is done; `None` if the client is gone.
    async fn keep<T>(
        &mut self,
        orders: &mut mpsc::Receiver<Order>,
        until: impl Future<Output = T>,
    ) -> Option<T> {
        let mut until = std::pin::pin!(until);
        loop {
            tokio::select! {
                done = &mut until => return Some(done),
                order = orders.recv() => {
                    let order = order?;
                    let away = format!("the leader {} cannot be reached", self.address);
                    let asked = order.msg_id;
                    if let Err(why) = self.note(order, Some(away)) {
                        self.refuse(asked, &why).await;
                    }
                }
            }
        }
    }

    /// Passes frames both ways until the client is gone; an error if the leader is.
    async fn converse(
        &mut self,
        Greeted { mut input, mut output, mut read }: Greeted,
        orders: &mut mpsc::Receiver<Order>,
    ) -> io::Result<()> {
        for (job, open) in &self.open {
            let about = || Bytes::from(format!("{{\"JobId\":\"{job}\"}}"));
            let id = job.0.to_be_bytes();
            match &open.submit {
                Some((submit, _)) => write(&mut output, submit).await?,
                None => write(&mut output, &encoded(Kind::JobWatch, id, about())).await?,
            }
            if open.cancelled {
                write(&mut output, &encoded(Kind::JobCancel, id, about())).await?;
            }
        }
        loop {
            tokio::select! {
                order = orders.recv() => {
                    let Some(order) = order else { return Ok(()) };
                    let (asked, bytes) = (order.msg_id, order.bytes.clone());
                    match self.note(order, None) {
                        Ok(()) => write(&mut output, &bytes).await?,
                        Err(why) => self.refuse(asked, &why).await,
                    }
                }
                frame = next_frame(&mut input, &mut read) => {
                    let frame = frame?.ok_or(io::ErrorKind::UnexpectedEof)?;
                    let Some(kind) = Kind::from_number(frame.kind) else { continue };
                    self.answered(kind, &frame);
                    let reply = (kind, frame.corr_id, frame.payload.to_vec());
                    if self.passed.send(Some(reply)).await.is_err() {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Notes what the client waits for from now on. What is answered at once cannot wait while the
    /// leader is `away`.
    fn note(&mut self, order: Order, away: Option<String>) -> Result<(), String> {
        let known = self.open.contains_key(&order.job);
        match order.kind {
            Kind::JobSubmit | Kind::JobWatch if !known && self.open.len() >= OPEN_MAX => {
                return Err(format!("{OPEN_MAX} jobs of this client wait for {}", self.address));
            }
            Kind::JobSubmit => {
                let open = self.open.entry(order.job).or_default();
                open.submit = Some((order.bytes, order.held));
            }
            Kind::JobWatch => drop(self.open.entry(order.job).or_default()),
            Kind::JobCancel if known => {
                self.open.entry(order.job).or_default().cancelled = true;
            }
            _ => return away.map_or(Ok(()), Err),
        }
        Ok(())
    }

    fn answered(&mut self, kind: Kind, frame: &Frame) {
        let job = JobId(u128::from_be_bytes(frame.corr_id));
        match (kind, self.open.get_mut(&job)) {
            (Kind::JobResult, Some(_)) => drop(self.open.remove(&job)),
            (Kind::JobAnswer, Some(open)) => {
                let answer = serde_json::from_slice::<JobAnswer>(&frame.payload);
                match answer.is_ok_and(|answer| answer.accepted) {
                    true => open.submit = None,
                    // The answer to a submit; a cancel may be refused because a result is near.
                    false if open.submit.is_some() => drop(self.open.remove(&job)),
                    false => {}
                }
            }
            _ => {}
        }
    }

    async fn refuse(&self, asked: [u8; 16], why: &str) {
        // A client that is gone needs no answer.
        let _ = self.passed.send(Some((Kind::JobAnswer, asked, refusal(why)))).await;
    }
}

async fn write(output: &mut Outgoing, bytes: &[u8]) -> io::Result<()> {
    tokio::time::timeout(WRITE_WAIT, send(output, bytes)).await?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e10_routes_are_read_and_the_first_that_fits_counts() {
        let routes: Routes = "render=a:1, *=[::1]:2,".parse().expect("routes");
        assert_eq!(routes.leader_of("render").map(|leader| &**leader), Some("a:1"));
        assert_eq!(routes.leader_of("other").map(|leader| &**leader), Some("[::1]:2"));
        assert_eq!(Routes::default().leader_of("render"), None);
        for wrong in ["render", "render=a", "render=a:x", "render=:1", "a b=c:1"] {
            assert!(wrong.parse::<Routes>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn of_a_bounded_number_of_jobs_it_is_remembered_where_they_went() {
        let (routes, leader) = (Routes::default(), Arc::from("a:1"));
        for number in 0..=REMEMBERED_MAX as u128 {
            routes.remember(JobId(number), &leader);
            routes.remember(JobId(number), &leader);
        }
        assert_eq!(routes.went_to(JobId(0)), None, "the oldest is forgotten");
        assert_eq!(routes.went_to(JobId(1)), Some(Arc::clone(&leader)));
        assert_eq!(routes.went_to(JobId(REMEMBERED_MAX as u128)), Some(leader));
    }
}
