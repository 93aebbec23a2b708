//! What a user writes: a handler per shard, made there by a factory. Factories cross threads,
//! handlers never do: they need no locks and may hold what is not `Send`.

use std::borrow::Borrow;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::answer::{Debt, Party};
use super::call::{Lineage, OneWay, Op, Origin, RequestOp, SendOp, Started, Terminal, TwoWay};
use super::core::Core;
use super::destinations::Held;
use super::handle::{Handle, Waiter};
use super::lanes;
use super::publish::Publisher;
use super::seat::{Continuations, Peer};
use super::shared::Outcome;
use crate::base::error::{Error, ErrorKind, RequestError};
use crate::base::record::{Kind, Method};
use crate::pattern::route::Named;
use crate::wire::stock::Publication;

/// A service: one instance per shard and channel. Callbacks run to their end without interruption;
/// one that blocks stops its shard (others go on, and replies keep flowing). A panic ends the
/// instance, not the shard: the caller gets an error, and the factory makes a new instance.
pub trait Handler: Sized + 'static {
    /// A request came. It is owed exactly one answer; dropping it answers with an error. The
    /// default answers `NotFound`.
    fn request(&mut self, request: Request, cx: &mut Context<'_, Self>) {
        cx.core.shared().counts.no_handler.add(1);
        request.responder.pay(cx, |debt| debt.fail(ErrorKind::NotFound, 0, "the channel takes no requests"));
    }

    /// A one-way message came. The default counts it under `no_handler` and drops it.
    fn message(&mut self, message: Message, cx: &mut Context<'_, Self>) {
        drop(message);
        cx.core.shared().counts.no_handler.add(1);
    }

    /// A publication came, if this is the handler of a subscriber. Who published it is told by
    /// [`Context::peer`]. The default counts it under `no_handler` and drops it.
    fn publication(&mut self, publication: Publication, cx: &mut Context<'_, Self>) {
        drop(publication);
        cx.core.shared().counts.no_handler.add(1);
    }
}

/// A request that waits for its answer.
#[derive(Debug)]
pub struct Request {
    pub(crate) method: Method,
    pub(crate) payload: Bytes,
    pub(crate) responder: Responder,
    pub(crate) peer: Peer,
}

impl Request {
    /// What is asked of the channel.
    pub fn method(&self) -> &str {
        self.method.as_str()
    }

    /// The bytes. Cloning them is cheap and keeps them alive. Do not rely on being their only owner: those of small
    /// requests are always taken for shared, so making them mutable copies them.
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// The node that asks, or its address if it has no name.
    pub fn peer(&self) -> Arc<str> {
        self.peer.label()
    }

    /// Answers. See [`Responder::reply`].
    pub fn reply<H: 'static>(self, cx: &mut Context<'_, H>, payload: impl Into<Bytes>) {
        self.responder.reply(cx, payload);
    }

    /// Answers with an error. See [`Responder::fail`].
    pub fn fail<H: 'static>(self, cx: &mut Context<'_, H>, code: u16, sentence: &str) {
        self.responder.fail(cx, code, sentence);
    }

    /// The right to answer, and the bytes, apart: for an answer that comes later.
    pub fn into_parts(self) -> (Responder, Bytes) {
        (self.responder, self.payload)
    }
}

/// A one-way message. Who sent it is told by [`Context::peer`].
#[derive(Debug)]
pub struct Message {
    pub(crate) method: Method,
    pub(crate) payload: Bytes,
}

impl Message {
    /// What is told to the channel.
    pub fn method(&self) -> &str {
        self.method.as_str()
    }

    /// The bytes.
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// The bytes, taken out.
    pub fn into_payload(self) -> Bytes {
        self.payload
    }
}

/// The right and the duty to answer one request, exactly once. Stays on its shard; see
/// [`Responder::into_remote`]. Dropped without an answer it answers with an error, so that no caller
/// waits for nothing.
pub struct Responder {
    debt: Option<Debt>,
    /// `!Send`: it accounts for its started place without a lock.
    shard: PhantomData<*mut ()>,
}

impl fmt::Debug for Responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Responder").field("debt", &self.debt).finish()
    }
}

impl Responder {
    pub(crate) fn new(debt: Debt) -> Self {
        Responder { debt: Some(debt), shard: PhantomData }
    }

    /// Of a request whose answer is somebody else's business: the shard's, for a future.
    pub(crate) fn none() -> Self {
        Responder { debt: None, shard: PhantomData }
    }

    fn pay<H: 'static>(mut self, cx: &mut Context<'_, H>, how: impl FnOnce(Debt)) {
        if let Some(debt) = self.debt.take() {
            let place = debt.place;
            how(debt);
            cx.core.leave_place(place);
        }
    }

    /// Answers. Leaves at once, even if every ordinary queue is full; if this peer does not take
    /// its replies and its mark is reached, the reply waits under the socket's own ceiling and is
    /// replaced by a small error if that ends first. The caller's timeout plays no part in it.
    pub fn reply<H: 'static>(mut self, cx: &mut Context<'_, H>, payload: impl Into<Bytes>) {
        if let Some(debt) = self.debt.take() {
            let place = debt.place;
            cx.core.reply(debt, payload.into());
            cx.core.leave_place(place);
        }
    }

    /// Answers with an error of kind `Remote`: a number of your own and a sentence, cut at 1 KiB.
    pub fn fail<H: 'static>(self, cx: &mut Context<'_, H>, code: u16, sentence: &str) {
        self.pay(cx, |debt| debt.fail(ErrorKind::Remote, code, sentence));
    }

    /// Passes on how a request of this handler's own ended.
    pub fn reply_with<H: 'static>(self, cx: &mut Context<'_, H>, end: Result<Bytes, RequestError>) {
        match end {
            Ok(payload) => self.reply(cx, payload),
            Err(e) => self.pay(cx, |debt| debt.fail(e.kind(), e.error().code(), &e.to_string())),
        }
    }

    /// A responder that any thread may answer, for work that is done elsewhere.
    pub fn into_remote(mut self) -> RemoteResponder {
        RemoteResponder { debt: self.debt.take().map(Debt::into_remote) }
    }

    /// Answers from where there is no context: a future that the shard polls.
    pub(crate) fn settle(mut self, end: Result<Bytes, Failure>) {
        if let Some(debt) = self.debt.take() {
            settle(debt, end);
        }
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if let Some(debt) = self.debt.take() {
            settle(debt, Err(Failure::unanswered()));
        }
    }
}

/// Pays and reports the started place through the shard's port.
fn settle<P: Borrow<Party> + Clone>(debt: Debt<P>, end: Result<Bytes, Failure>) {
    let (party, place) = (debt.party.clone(), debt.place);
    match end {
        Ok(payload) => debt.reply(payload),
        Err(failure) if cfg!(afflux_mutation = "dropped_unanswered") && failure.kind == ErrorKind::Internal => {}
        Err(failure) => debt.fail(failure.kind, failure.code, &failure.text),
    }
    finish(party.borrow(), place);
}

/// Answers many requests at once, from the calling thread: what goes to one peer leaves in as few writes as it
/// fits. Each answer is as if given by [`RemoteResponder::reply`].
pub fn reply_all(answers: impl IntoIterator<Item = (RemoteResponder, Bytes)>) {
    let mut left: Vec<Party> = Vec::new();
    for (mut responder, payload) in answers {
        let Some(debt) = responder.debt.take() else { continue };
        let (party, place) = (debt.party.clone(), debt.place);
        if let Some(party) = debt.leave_reply(payload)
            && !left.iter().any(|known| Arc::ptr_eq(known, &party))
        {
            left.push(party);
        }
        finish(&party, place);
    }
    for Party { shared, target, .. } in left {
        lanes::drive_completion(&shared, &target);
    }
}

/// Tells a shard that the request in one of its places was answered elsewhere.
fn finish(party: &Party, place: u32) {
    let port = party.shared.port(party.shard);
    if cfg!(afflux_mutation = "return_path_bounded") && port.finished.lock().len() >= 16 {
        return;
    }
    port.finished.leave(place);
    port.wake.wake();
}

/// As [`Responder`], for any thread.
#[derive(Debug)]
pub struct RemoteResponder {
    debt: Option<Debt<Party>>,
}

impl RemoteResponder {
    /// Answers, from the calling thread. See [`Responder::reply`].
    pub fn reply(mut self, payload: impl Into<Bytes>) {
        if let Some(debt) = self.debt.take() {
            settle(debt, Ok(payload.into()));
        }
    }

    /// Answers with an error of kind `Remote`.
    pub fn fail(mut self, code: u16, sentence: &str) {
        if let Some(debt) = self.debt.take() {
            settle(debt, Err(Failure { kind: ErrorKind::Remote, code, text: sentence.into() }));
        }
    }
}

impl Drop for RemoteResponder {
    fn drop(&mut self) {
        if let Some(debt) = self.debt.take() {
            settle(debt, Err(Failure::unanswered()));
        }
    }
}

/// How an async handler says no: a number of your own and a sentence.
#[derive(Clone, Debug)]
pub struct Failure {
    pub(crate) kind: ErrorKind,
    pub(crate) code: u16,
    pub(crate) text: String,
}

impl Failure {
    /// An error answer of kind `Remote`.
    pub fn new(code: u16, sentence: impl Into<String>) -> Self {
        Failure { kind: ErrorKind::Remote, code, text: sentence.into() }
    }

    pub(crate) fn unanswered() -> Self {
        Failure { kind: ErrorKind::Internal, code: 0, text: "the handler gave no answer".into() }
    }

    pub(crate) fn panicked() -> Self {
        Failure { kind: ErrorKind::Internal, code: 0, text: "the handler panicked".into() }
    }
}

impl From<RequestError> for Failure {
    fn from(e: RequestError) -> Self {
        Failure { kind: e.kind(), code: e.error().code(), text: e.to_string() }
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Failure { kind: e.kind(), code: e.code(), text: e.to_string() }
    }
}

/// What a callback may use besides itself. Borrows the shard, never the handler.
pub struct Context<'a, H: 'static> {
    pub(crate) core: &'a mut Core,
    pub(crate) continuations: &'a mut Continuations<H>,
    pub(crate) seat: u16,
    pub(crate) place: u32,
    pub(crate) lineage: Lineage,
    pub(crate) peer: Peer,
}

impl<H: 'static> fmt::Debug for Context<'_, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("seat", &self.seat).field("place", &self.place).finish_non_exhaustive()
    }
}

impl<H: 'static> Context<'_, H> {
    /// A channel to call from here. Calls inherit what is left of the request being handled.
    pub fn channel(&self, name: &str) -> LocalChannel {
        LocalClient { handle: self.core.handle.clone(), lineage: self.lineage, shard: PhantomData }.channel(name)
    }

    /// A node to call from here.
    pub fn node(&self, name: &str) -> LocalChannel {
        LocalClient { handle: self.core.handle.clone(), lineage: self.lineage, shard: PhantomData }.node(name)
    }

    /// Servers of a role of this host, to call from here; see [`Client::server`](crate::Client::server).
    pub fn server(&self, name: &str) -> Result<LocalChannel, Error> {
        LocalClient { handle: self.core.handle.clone(), lineage: self.lineage, shard: PhantomData }.server(name)
    }

    /// A property that the peer told in its handshake: `X-Region`, in whatever capitals. The peer is that of
    /// [`Context::peer`]. `None` if it told no such; it is the peer's word, and nobody has checked it.
    pub fn metadata(&self, name: &str) -> Option<Bytes> {
        let told = self.peer.metadata();
        told.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.clone())
    }

    /// Publishes to this host's subscribers from here; see [`Publisher::publish`]. `NotConfigured` if the
    /// host has no publisher. Its `wait()` never blocks here.
    pub fn publisher(&self) -> Result<Publisher, Error> {
        Publisher::new(self.core.shared().clone())
    }

    /// The number of this shard.
    pub fn shard(&self) -> usize {
        self.core.shard.index()
    }

    /// The node whose message or request is being handled, or its address if it has no name; in a
    /// continuation, the one whose record led to it.
    pub fn peer(&self) -> Arc<str> {
        self.peer.label()
    }
}

/// For futures that a shard polls: makes calls under the deadline of the request being handled.
#[derive(Clone)]
pub struct LocalClient {
    pub(crate) handle: Arc<Handle>,
    pub(crate) lineage: Lineage,
    /// `!Send`: it stands for work of this shard, which has a part of the waiting room of its own.
    pub(crate) shard: PhantomData<*mut ()>,
}

impl fmt::Debug for LocalClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalClient").finish_non_exhaustive()
    }
}

impl LocalClient {
    /// Any ready member of the channel.
    pub fn channel(&self, name: &str) -> LocalChannel {
        self.address(Named::Channel(name))
    }

    /// Any ready server of a role of this host; `NotConfigured` if it is no client of that name.
    pub fn server(&self, name: &str) -> Result<LocalChannel, Error> {
        Ok(self.address(self.handle.shared().server(name)?.named()))
    }

    /// The node of that name.
    pub fn node(&self, name: &str) -> LocalChannel {
        self.address(Named::Node(name))
    }

    fn address(&self, named: Named<'_>) -> LocalChannel {
        let (slot, held) = self.handle.slot(named);
        let send_timeout = self.handle.shared().send_ceiling(named);
        LocalChannel {
            handle: self.handle.clone(),
            slot,
            held,
            send_timeout,
            lineage: self.lineage,
            shard: PhantomData,
        }
    }
}

/// A channel, node or role of servers, to be called from a shard.
#[derive(Clone, Debug)]
pub struct LocalChannel {
    handle: Arc<Handle>,
    slot: usize,
    held: Held,
    /// Of the socket that its sends go out by.
    send_timeout: Duration,
    lineage: Lineage,
    shard: PhantomData<*mut ()>,
}

impl LocalChannel {
    /// A one-way send.
    pub fn send(&self, method: &str, payload: impl Into<Bytes>) -> SendOp<'static> {
        self.op::<OneWay>(method, payload.into(), self.send_timeout)
    }

    /// A request.
    pub fn request(&self, method: &str, payload: impl Into<Bytes>) -> RequestOp<'static> {
        let timeout = self.handle.shared().plan.request_timeout;
        self.op::<TwoWay>(method, payload.into(), timeout)
    }

    fn op<K: Terminal>(&self, method: &str, payload: Bytes, timeout: Duration) -> Op<'static, K> {
        Op::new(
            Origin::Owned { handle: self.handle.clone(), _held: self.held.clone() },
            self.slot,
            method,
            payload,
            timeout,
            self.lineage,
        )
    }
}

impl<K: Terminal> Op<'_, K> {
    /// Starts it and runs `f` on this handler when it has ended, in a turn of its own: never
    /// inline, not even when it fails at once. If the instance panics before that, `f` is dropped.
    pub fn then<H: 'static>(
        self,
        cx: &mut Context<'_, H>,
        f: impl FnOnce(&mut H, Result<K::Ok, K::Err>, &mut Context<'_, H>) + 'static,
    ) {
        let key = cx.continuations.insert(
            cx.place,
            cx.lineage,
            cx.peer.clone(),
            Box::new(move |handler, outcome, cx| f(handler, K::end(outcome), cx)),
        );
        cx.core.join_place(cx.place);
        let since = cx.core.now;
        match self.start(Waiter::Shard(cx.core.shard)) {
            Started::Waits(pending) => match pending.into_cell() {
                Some((cell, target)) => {
                    cx.core.await_cell(cell, cx.seat, key, since);
                    if let Some(target) = target.filter(|_| K::KIND == Kind::Request) {
                        cx.core.asked(target, cell);
                    }
                }
                None => debug_assert!(false, "a started operation has a cell"),
            },
            Started::Ended(outcome) => cx.core.end_at_once(cx.seat, key, outcome),
        }
    }
}

/// Outcomes travel as they are.
pub(crate) type Continuation<H> = Box<dyn FnOnce(&mut H, Outcome, &mut Context<'_, H>)>;
