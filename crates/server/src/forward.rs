//! Connections of a node that does not own the journal: where they go, and how their bytes get there
//! (`docs/adr/0018`).
//!
//! [`Routes`] has where that is now; the owner of the node says so. A connection waits a bounded time
//! for an owner. One that is passed on has a buffer of fixed size each way, which counts in the memory of
//! all connections, and ends when the owner changes: what it said then is for no other.
//!
//! Not here: who owns the journal, how nodes prove who they are.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use gapless_protocol::link::{ClientApi, LinkClient, UnixPeer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use crate::Budget;
use crate::native::NativeGate;

/// Bytes of the buffer of each direction of a connection that is passed on.
pub const COPY_BYTES: usize = 16 * 1024;
/// Connections to the owner that are being made at the same time.
const DIALS_MAX: usize = 16;
/// How long a connection waits before it tries an owner again that could not be reached, or that ends.
const DIAL_PAUSE: Duration = Duration::from_millis(20);
/// How long a client may take the last bytes of an owner that ended its connection.
const LAST_BYTES: Duration = Duration::from_secs(1);

/// Bytes in both directions.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Sync + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin + 'static> Duplex for T {}

/// What another node knows of a client that it forwards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForwardedFrom {
    /// Where it is connected from.
    pub address: String,
    /// The name in its certificate, which was verified.
    pub certificate: Option<String>,
    /// Who it is by its Unix socket.
    pub peer: Option<UnixPeer>,
}

impl ForwardedFrom {
    pub(crate) fn client(self, api: ClientApi) -> LinkClient {
        let Self { address, certificate, peer } = self;
        LinkClient { api, address, certificate, peer }
    }
}

/// Where connections go.
#[derive(Clone, Debug)]
pub enum Target {
    /// Nowhere: they wait.
    Nowhere,
    /// To the broker of this node.
    Here(NativeGate),
    /// To the node of this name.
    There(String),
}

/// A target, and how often it has changed.
#[derive(Clone, Debug)]
pub(crate) struct Routed {
    pub(crate) turn: u64,
    pub(crate) target: Target,
}

/// A connection that is being made, or why there is none.
pub type Dialled<'a> = Pin<Box<dyn Future<Output = Result<Box<dyn Duplex>, String>> + Send + 'a>>;

/// Connects to another node for a client.
pub trait Dial: Send + Sync + 'static {
    /// A connection that carries this client to the node of this name; why there is none.
    fn dial(&self, node: &str, client: LinkClient) -> Dialled<'_>;
}

/// Where connections go now. Clones share it.
#[derive(Clone)]
pub struct Routes(Arc<Inner>);

struct Inner {
    routed: watch::Sender<Routed>,
    dial: Box<dyn Dial>,
    dials: Semaphore,
    wait: Duration,
    memory: Budget,
}

/// That there was no owner for as long as a connection waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no node owns the store at the moment; nothing was done, try again")]
pub struct NoOwner;

/// A connection to the owner.
pub(crate) struct Passed {
    pub(crate) owner: Box<dyn Duplex>,
    turn: u64,
}

/// Where a connection goes.
pub(crate) enum Way {
    Here(NativeGate),
    There(Passed),
}

impl Routes {
    /// Nowhere yet. Connections wait so long for an owner; what they hold counts in this memory.
    pub fn new(dial: impl Dial, wait: Duration, memory: Budget) -> Self {
        let routed = watch::channel(Routed { turn: 0, target: Target::Nowhere }).0;
        let (dial, dials) = (Box::new(dial), Semaphore::new(DIALS_MAX));
        Self(Arc::new(Inner { routed, dial, dials, wait, memory }))
    }

    /// Connections go there from now on. Those that were passed on elsewhere end.
    pub fn set(&self, target: Target) {
        self.0.routed.send_modify(|routed| {
            routed.turn += 1;
            routed.target = target;
        });
    }

    /// Where connections go now.
    pub fn target(&self) -> Target {
        self.0.routed.borrow().target.clone()
    }

    /// Whether there is an owner.
    pub fn is_known(&self) -> bool {
        !matches!(self.0.routed.borrow().target, Target::Nowhere)
    }

    /// Until when a connection that comes now waits for an owner.
    pub(crate) fn until(&self) -> Instant {
        Instant::now() + self.0.wait
    }

    /// Waits a moment for what is about to change; `false` if the time is over.
    pub(crate) async fn pause(&self, until: Instant) -> bool {
        tokio::time::sleep(DIAL_PAUSE).await;
        Instant::now() < until
    }

    /// The way of a connection of this client, when there is one; a new one for each try.
    pub(crate) async fn way(
        &self,
        api: ClientApi,
        from: &ForwardedFrom,
        until: Instant,
    ) -> Result<Way, NoOwner> {
        let mut routed = self.0.routed.subscribe();
        let finding = async {
            loop {
                let known = |routed: &Routed| !matches!(routed.target, Target::Nowhere);
                let Ok(found) = routed.wait_for(known).await.map(|found| found.clone()) else {
                    return std::future::pending().await;
                };
                let node = match found.target {
                    Target::Nowhere => continue,
                    Target::Here(gate) => return Way::Here(gate),
                    Target::There(node) => node,
                };
                // No one closes it.
                let Ok(_turn) = self.0.dials.acquire().await else { continue };
                match self.0.dial.dial(&node, from.clone().client(api)).await {
                    Ok(owner) => return Way::There(Passed { owner, turn: found.turn }),
                    Err(why) => {
                        tracing::debug!(node, why, "a client cannot be forwarded yet");
                        self.pause(until).await;
                    }
                }
            }
        };
        tokio::time::timeout_at(until, finding).await.map_err(|_| NoOwner)
    }

    /// Resolves when connections go elsewhere than in this turn.
    async fn changed(&self, turn: u64) {
        let mut routed = self.0.routed.subscribe();
        // An error means that the routes are gone, which is a change as well.
        let _ = routed.wait_for(|routed| routed.turn != turn).await;
    }

    /// Passes bytes between a client and the owner until one of them ends, or the owner changes.
    pub(crate) async fn pass<C: AsyncRead + AsyncWrite + Unpin>(&self, client: C, passed: Passed) {
        let mut share = self.0.memory.share();
        if let Err(short) = share.grow(2 * COPY_BYTES).await {
            tracing::debug!(%short, "a client is not forwarded");
            return;
        }
        let counted = metrics::gauge!("gapless_forwarded_connections");
        counted.increment(1.0);
        let Passed { owner, turn } = passed;
        tokio::select! {
            () = splice(client, owner) => {}
            () = self.changed(turn) => {}
        }
        counted.decrement(1.0);
    }

    /// The same in a task of its own, for who needs an end to hold.
    pub(crate) fn pass_apart(&self, passed: Passed) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(COPY_BYTES);
        let routes = self.clone();
        tokio::spawn(async move { routes.pass(theirs, passed).await });
        ours
    }
}

/// Copies both ways. When the owner ends, the client gets what is left, and both end; a client that
/// only says nothing more still gets its answers.
pub(crate) async fn splice<C, O>(client: C, owner: O)
where
    C: AsyncRead + AsyncWrite + Unpin,
    O: AsyncRead + AsyncWrite + Unpin,
{
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_owner, mut to_owner) = tokio::io::split(owner);
    let up = async {
        let copied = copy(&mut from_client, &mut to_owner).await;
        // Either the owner is gone, or it learns that the client says nothing more.
        let _ = to_owner.shutdown().await;
        copied
    };
    let down = async {
        if copy(&mut from_owner, &mut to_client).await.is_ok() {
            let _ = tokio::time::timeout(LAST_BYTES, to_client.shutdown()).await;
        }
    };
    tokio::pin!(up, down);
    tokio::select! {
        () = &mut down => {}
        sent = &mut up => {
            if sent.is_ok() {
                down.await;
            }
        }
    }
}

/// Copies to the end, with one buffer.
async fn copy(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
) -> std::io::Result<()> {
    let mut buffer = vec![0; COPY_BYTES];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..read]).await?;
        to.flush().await?;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    /// Owners by name: what is dialled comes out here.
    #[derive(Clone, Default)]
    struct Owners(Arc<Mutex<Vec<(String, LinkClient, DuplexStream)>>>);

    impl Dial for Owners {
        fn dial(&self, node: &str, client: LinkClient) -> Dialled<'_> {
            let (ours, theirs) = duplex(64);
            self.0.lock().unwrap().push((node.to_owned(), client, theirs));
            Box::pin(async move { Ok(Box::new(ours) as Box<dyn Duplex>) })
        }
    }

    impl Owners {
        fn taken(&self) -> (String, LinkClient, DuplexStream) {
            self.0.lock().unwrap().pop().expect("one was dialled")
        }
    }

    fn routes(owners: &Owners) -> Routes {
        Routes::new(owners.clone(), Duration::from_secs(5), Budget::default())
    }

    fn from() -> ForwardedFrom {
        ForwardedFrom { address: "10.0.0.1:7".into(), ..ForwardedFrom::default() }
    }

    async fn passed(routes: &Routes) -> Passed {
        let until = routes.until();
        match routes.way(ClientApi::Native, &from(), until).await {
            Ok(Way::There(passed)) => passed,
            _ => panic!("there is an owner elsewhere"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn f1_a_connection_waits_a_bounded_time_for_an_owner() {
        let owners = Owners::default();
        let routes = routes(&owners);
        let until = routes.until();
        let way = routes.way(ClientApi::Http, &from(), until).await;
        assert_eq!(way.err(), Some(NoOwner));
        assert_eq!(Instant::now(), until);
        // One that comes meanwhile is used.
        let waiting = tokio::spawn({
            let routes = routes.clone();
            async move { passed(&routes).await }
        });
        tokio::task::yield_now().await;
        routes.set(Target::There("b".into()));
        waiting.await.expect("passed on");
        let (node, client, _) = owners.taken();
        assert_eq!((node.as_str(), client.address.as_str()), ("b", "10.0.0.1:7"));
    }

    #[tokio::test]
    async fn a_client_talks_to_the_owner_and_gets_answers_after_its_last_word() {
        let owners = Owners::default();
        let routes = routes(&owners);
        routes.set(Target::There("b".into()));
        let passed = passed(&routes).await;
        let (_, _, mut owner) = owners.taken();
        let mut client = routes.pass_apart(passed);
        client.write_all(b"question").await.unwrap();
        client.shutdown().await.unwrap();
        let mut heard = Vec::new();
        owner.read_to_end(&mut heard).await.unwrap();
        assert_eq!(heard, b"question");
        owner.write_all(b"answer").await.unwrap();
        drop(owner);
        heard.clear();
        client.read_to_end(&mut heard).await.unwrap();
        assert_eq!(heard, b"answer");
    }

    #[tokio::test]
    async fn f2_connections_to_an_owner_end_when_there_is_another() {
        let owners = Owners::default();
        let routes = routes(&owners);
        for next in [Target::Nowhere, Target::There("c".into())] {
            routes.set(Target::There("b".into()));
            let passed = passed(&routes).await;
            let (_, _, mut owner) = owners.taken();
            let mut client = routes.pass_apart(passed);
            client.write_all(b"x").await.unwrap();
            assert_eq!(owner.read_u8().await.unwrap(), b'x');
            routes.set(next);
            assert_eq!(client.read(&mut [0]).await.unwrap_or(0), 0, "the client sees the end");
            assert_eq!(owner.read(&mut [0]).await.unwrap_or(0), 0, "and so does the owner");
        }
    }

    #[tokio::test]
    async fn l8_a_client_that_does_not_read_holds_a_fixed_number_of_bytes() {
        let owners = Owners::default();
        let routes = routes(&owners);
        routes.set(Target::There("b".into()));
        let passed = passed(&routes).await;
        let (_, _, mut owner) = owners.taken();
        let mut client = routes.pass_apart(passed);
        let flood = tokio::spawn(async move {
            let mut sent = 0;
            while owner.write_all(&[7; 1024]).await.is_ok() {
                sent += 1024;
            }
            sent
        });
        client.write_all(b"x").await.unwrap();
        // As much as fits into the buffers; the rest waits at the owner.
        tokio::task::yield_now().await;
        drop(client);
        let sent: usize = flood.await.unwrap();
        assert!(sent <= 4 * COPY_BYTES, "{sent} bytes were taken");
        assert_eq!(routes.0.memory.used(), 0, "what it held is given back");
    }
}
