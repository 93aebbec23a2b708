//! What the tests over real sockets share: hosts on loopback, handlers made of closures, doors that
//! keep a handler inside until a test opens them, a byte proxy that tells the two lanes of a pair apart,
//! and a watchdog. Nothing here sleeps to let something happen: a test waits for what it can observe.

pub mod proxy;
pub mod subscriber;

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use afflux::{
    Context, Handler, Host, HostBuilder, HostStatus, IdlePolicy, LinkStatus, Message, Pinning, Placement,
    RemoteResponder, Request,
};
use bytes::Bytes;

/// Ends the whole process, with a message, if a test is not over in time: a wait that never ends must
/// fail, and must not be mistaken for a slow machine.
#[must_use = "it watches as long as it is held"]
pub struct Watchdog {
    _over: Sender<()>,
}

/// Watches the test that calls it.
pub fn watch() -> Watchdog {
    watch_for(Duration::from_secs(90))
}

/// As `watch`, for a test that takes longer.
pub fn watch_for(limit: Duration) -> Watchdog {
    let name = thread::current().name().unwrap_or("a test").to_owned();
    let (over, ended) = channel::<()>();
    thread::spawn(move || {
        if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            eprintln!("watchdog: {name} is not over after {limit:?}");
            std::process::abort();
        }
    });
    Watchdog { _over: over }
}

/// Looks until `holds`; the watchdog ends what never comes true.
#[track_caller]
pub fn until(holds: impl FnMut() -> bool) {
    until_or(holds, String::new);
}

/// As `until`, and says from time to time what it sees, for whoever reads the output of a test that hangs.
#[track_caller]
pub fn until_or(mut holds: impl FnMut() -> bool, mut seen: impl FnMut() -> String) {
    let place = std::panic::Location::caller();
    let (begin, mut told) = (Instant::now(), 1);
    while !holds() {
        thread::park_timeout(Duration::from_micros(500));
        if begin.elapsed().as_secs() >= 20 * told {
            told += 1;
            eprintln!("still waiting at {place}: {}", seen());
        }
    }
}

/// A host of one unpinned shard that parks: the smallest, and the least load on a machine that tests share.
pub fn small(name: &str) -> HostBuilder {
    Host::builder(name).shards(Placement::Count(1)).pinning(Pinning::Off).idle(IdlePolicy::Park)
}

/// As `small`, listening on a port that the system chooses.
pub fn server(name: &str) -> HostBuilder {
    small(name).listen("tcp://127.0.0.1:0")
}

/// Where it listens, as `connect` wants it.
pub fn address(host: &Host) -> String {
    format!("tcp://{}", host.addresses()[0])
}

/// A small host that is connected to `server`.
pub fn client_of(server: &Host) -> Host {
    connected(small("client").connect(address(server)))
}

/// Starts it and waits until every connection is up.
pub fn connected(builder: HostBuilder) -> Host {
    let host = builder.start().expect("valid options");
    host.ready(Duration::from_secs(60)).expect("the peers are there");
    host
}

/// The one link of a host.
pub fn link(host: &Host) -> LinkStatus {
    let mut links = host.status().links;
    assert_eq!(links.len(), 1, "one link: {links:?}");
    links.remove(0)
}

/// Waits until every counter that `of` picks has its value.
#[track_caller]
pub fn until_status(host: &Host, holds: impl Fn(&HostStatus) -> bool) {
    until_or(|| holds(&host.status()), || format!("{:#?}", host.status()));
}

type OnRequest = dyn Fn(Request, &mut Context<'_, Service>) + Send + Sync;
type OnMessage = dyn Fn(Message, &mut Context<'_, Service>) + Send + Sync;

/// A handler made of closures.
#[derive(Clone)]
pub struct Service {
    request: Arc<OnRequest>,
    message: Arc<OnMessage>,
}

impl Handler for Service {
    fn request(&mut self, request: Request, cx: &mut Context<'_, Self>) {
        (self.request.clone())(request, cx);
    }

    fn message(&mut self, message: Message, cx: &mut Context<'_, Self>) {
        (self.message.clone())(message, cx);
    }
}

/// A factory of handlers that treat both kinds.
pub fn serving(
    request: impl Fn(Request, &mut Context<'_, Service>) + Send + Sync + 'static,
    message: impl Fn(Message, &mut Context<'_, Service>) + Send + Sync + 'static,
) -> impl Fn(usize) -> Service + Send + Sync + 'static {
    let service = Service { request: Arc::new(request), message: Arc::new(message) };
    move |_shard| service.clone()
}

/// A factory of handlers of requests.
pub fn asked(
    request: impl Fn(Request, &mut Context<'_, Service>) + Send + Sync + 'static,
) -> impl Fn(usize) -> Service + Send + Sync + 'static {
    serving(request, |message, _| drop(message))
}

/// A factory of handlers of one-way messages.
pub fn told(
    message: impl Fn(Message, &mut Context<'_, Service>) + Send + Sync + 'static,
) -> impl Fn(usize) -> Service + Send + Sync + 'static {
    serving(|request, cx| request.fail(cx, 1, "one-way only"), message)
}

/// Answers with the payload.
pub fn echo(request: Request, cx: &mut Context<'_, Service>) {
    let payload = request.payload().clone();
    request.reply(cx, payload);
}

#[derive(Default)]
struct Passage {
    open: Mutex<bool>,
    moved: Condvar,
    inside: AtomicU64,
}

/// A door that keeps whoever passes waiting until it is opened, and counts who came.
#[derive(Clone, Default)]
pub struct Door(Arc<Passage>);

impl Door {
    pub fn shut() -> Self {
        Door::default()
    }

    /// Blocks until it is open.
    pub fn pass(&self) {
        let mut open = self.0.open.lock().unwrap();
        self.0.inside.fetch_add(1, Ordering::SeqCst);
        while !*open {
            open = self.0.moved.wait(open).unwrap();
        }
    }

    /// How many have come so far.
    pub fn came(&self) -> u64 {
        self.0.inside.load(Ordering::SeqCst)
    }

    pub fn open(&self) {
        *self.0.open.lock().unwrap() = true;
        self.0.moved.notify_all();
    }

    /// Opens the door when it is dropped. Made after the hosts, it goes before them: a test that fails
    /// does not leave a handler inside for which the host's end would wait.
    #[must_use]
    pub fn key(&self) -> Key {
        Key(self.clone())
    }
}

/// See [`Door::key`].
pub struct Key(Door);

impl Drop for Key {
    fn drop(&mut self) {
        self.0.open();
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The smallest executor: one future, this thread.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut TaskContext::from_waker(&waker)) {
            Poll::Ready(end) => return end,
            Poll::Pending => thread::park(),
        }
    }
}

/// A number as a payload, and back.
pub fn number(n: u64) -> Vec<u8> {
    n.to_le_bytes().to_vec()
}

/// See `number`; longer payloads carry it in front.
pub fn as_number(payload: &[u8]) -> u64 {
    u64::from_le_bytes(payload[..8].try_into().expect("eight bytes"))
}

/// A number in front of a payload of `len` bytes.
pub fn padded(n: u64, len: usize) -> Vec<u8> {
    let mut payload = number(n);
    payload.resize(len.max(8), 0xA5);
    payload
}

/// A factory of handlers that answer nothing themselves: each request comes out of the channel, for the
/// test to answer from its own thread, or not.
pub fn kept() -> (impl Fn(usize) -> Service + Send + Sync + 'static, Receiver<(RemoteResponder, Bytes)>) {
    let (keep, held) = channel();
    let factory = asked(move |request, _| {
        let (responder, payload) = request.into_parts();
        // The test may be over already; then the responder answers with an error.
        let _ = keep.send((responder.into_remote(), payload));
    });
    (factory, held)
}
