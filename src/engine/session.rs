//! What a user writes for end clients: a session per connection, made on the shard that keeps it, and
//! what is sent through it.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::call::{Lineage, OneWay, Op, Origin, Pending, SendOp};
use super::handle::{Begun, Waiter};
use super::handler::Context;
use super::stream::{Right, SessionShared, What};
use crate::base::error::{Detail, Error, ErrorKind, SendError};
use crate::flow::session::SessionEnd;
use crate::sync::word::Latch;

/// One connection of an end client: made when it comes, on the shard that has it for life, so it needs no
/// locks and may hold what is not `Send`. Callbacks run to their end without interruption, one at a time;
/// one that blocks stops its shard, with every other session there. A panic ends the session and its
/// connection, never the shard.
pub trait Session: Sized + 'static {
    /// The client is here. `session` sends to it, from any thread; keep it or drop it. No frame comes
    /// before this has returned.
    fn opened(&mut self, session: SessionHandle, cx: &mut Context<'_, Self>) {
        let _ = (session, cx);
    }

    /// A frame came. An answer is not owed. The next one of this client comes when this has returned.
    fn frame(&mut self, frame: Frame, cx: &mut Context<'_, Self>);

    /// The client is gone, and this is the last callback: every frame of it was handled, and the continuations
    /// that those left have ended. Nothing can be sent to it any more.
    fn closed(&mut self, why: SessionEnd, cx: &mut Context<'_, Self>) {
        let _ = (why, cx);
    }
}

/// A frame of an end client: a header and a body, either of which may be empty. What they mean is the
/// program's business; a reply carries the header of the frame that it answers.
#[derive(Debug)]
pub struct Frame {
    right: Right,
    header: Bytes,
    body: Bytes,
}

impl Frame {
    /// `bytes` are header and body behind each other.
    pub(crate) fn new(session: Arc<SessionShared>, header: usize, mut bytes: Bytes) -> Self {
        let header = bytes.split_to(header.min(bytes.len()));
        Frame { right: Right::new(session), header, body: bytes }
    }

    /// At most 65,535 bytes.
    pub fn header(&self) -> &Bytes {
        &self.header
    }

    /// The bytes behind the header. Header and body share one piece of memory: a clone of either keeps both.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Sends to the client that sent it.
    pub fn session(&self) -> SessionHandle {
        SessionHandle { shared: self.right.session().clone() }
    }

    /// Answers it, with its header. See [`SessionReply`].
    pub fn reply(self, body: impl Into<Bytes>) -> SessionReply {
        self.into_parts().0.reply(body)
    }

    /// The right to answer it once, its header and its body, apart: for an answer that comes later or from
    /// another thread.
    pub fn into_parts(self) -> (ReplyToken, Bytes, Bytes) {
        let Frame { right, header, body } = self;
        let token = Token { right, header: header.clone(), used: Latch::new() };
        (ReplyToken { token: Arc::new(token) }, header, body)
    }
}

#[derive(Debug)]
struct Token {
    right: Right,
    header: Bytes,
    used: Latch,
}

/// The right to answer one frame, once. It is used up when a reply is started, before anything is sent, and
/// stays so if that reply fails: any later one, of a clone too, ends in `InvalidOperation`. Dropped unused it
/// sends nothing. A session whose client ended its direction stays open until the tokens that are out
/// are gone.
#[derive(Clone, Debug)]
pub struct ReplyToken {
    token: Arc<Token>,
}

impl ReplyToken {
    /// Answers, with the header of the frame that came. See [`SessionReply`].
    pub fn reply(&self, body: impl Into<Bytes>) -> SessionReply {
        let timeout = self.token.right.session().socket.plan.send_timeout;
        let order = SessionOrder::Reply(self.clone());
        SessionReply(Op::new(Origin::Session(Box::new(order)), 0, "", body.into(), timeout, Lineage::default()))
    }

    /// Whether a reply was started.
    pub fn is_used(&self) -> bool {
        self.token.used.is_raised()
    }
}

/// Sends to one end client, from any thread. All sends to a client, from whomever, go out in the order in
/// which they were accepted. It keeps nothing open: a client that is gone is `Unavailable`.
#[derive(Clone)]
pub struct SessionHandle {
    shared: Arc<SessionShared>,
}

impl fmt::Debug for SessionHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SessionHandle").field(&self.shared.peer).finish()
    }
}

impl SessionHandle {
    pub(crate) fn new(shared: Arc<SessionShared>) -> Self {
        SessionHandle { shared }
    }

    /// The client's address.
    pub fn peer(&self) -> SocketAddr {
        self.shared.peer
    }

    /// The address that the client connected to, as it was stated.
    pub fn socket(&self) -> &str {
        &self.shared.socket.plan.name
    }

    /// Whether something can still be sent.
    pub fn is_open(&self) -> bool {
        !self.shared.target.gone.is_raised()
    }

    /// A frame without a header. See [`SessionHandle::send_frame`].
    pub fn send(&self, body: impl Into<Bytes>) -> SessionSend {
        self.send_frame(Bytes::new(), body)
    }

    /// A frame to the client. Its success says that this host accepted it, not that the client has it. It
    /// waits for room under the socket's ceiling. Larger than what the client's queue can ever take, or a
    /// header above 65,535 bytes: `Rejected` at once.
    pub fn send_frame(&self, header: impl Into<Bytes>, body: impl Into<Bytes>) -> SessionSend {
        let timeout = self.shared.socket.plan.send_timeout;
        let order = SessionOrder::Send { session: self.shared.clone(), header: header.into() };
        SessionSend(Op::new(Origin::Session(Box::new(order)), 0, "", body.into(), timeout, Lineage::default()))
    }

    /// Admits a frame now or gives its body back. Never waits and never overtakes a send that does.
    pub fn try_send(&self, header: impl Into<Bytes>, body: impl Into<Bytes>) -> Result<(), SendError> {
        let sent = self.shared.try_send(&header.into(), body.into());
        sent.map_err(|(error, body)| SendError::new(error, body))
    }

    /// Closes the connection when what was received is handled and answered and what was accepted is written;
    /// the client has the host's assembly timeout (30 s) for taking it, and once more for ending its own side.
    /// Nothing more is read, and a send that begins after this is `Unavailable`. Returns at once.
    pub fn close(&self) {
        if self.shared.close.raise() {
            self.shared.poke();
        }
    }
}

/// Where a send of a session goes, inside its operation.
#[derive(Clone, Debug)]
pub(crate) enum SessionOrder {
    Send { session: Arc<SessionShared>, header: Bytes },
    Reply(ReplyToken),
}

impl SessionOrder {
    pub(crate) fn session(&self) -> &Arc<SessionShared> {
        match self {
            SessionOrder::Send { session, .. } => session,
            SessionOrder::Reply(token) => token.token.right.session(),
        }
    }

    /// Starts it: a token is used up here, whatever comes of the reply. `timeout` only shortens the
    /// socket's ceiling.
    pub(crate) fn begin(&self, body: Bytes, timeout: Duration, waiter: Waiter<'_>) -> Begun {
        let session = self.session();
        let timeout = timeout.min(session.socket.plan.send_timeout);
        match self {
            SessionOrder::Send { header, .. } => session.begin(What::Send, header, body, timeout, waiter),
            SessionOrder::Reply(ReplyToken { token }) => {
                if !token.used.raise() && !cfg!(afflux_mutation = "token_twice") {
                    let error = Error::new(ErrorKind::InvalidOperation, Detail::TokenUsed);
                    let error = error.with(|n| n.target = Some(session.target.label()));
                    return Begun::Failed(error, body);
                }
                session.begin(What::Reply, &token.header, body, timeout, waiter)
            }
        }
    }
}

/// A frame to an end client, not sent yet. Its ceiling is the socket's.
#[derive(Debug)]
#[must_use = "nothing was sent yet: wait(), await, then() or submit() starts it"]
pub struct SessionSend(SendOp<'static>);

/// The answer to a frame, not sent yet. Its ceiling is the socket's and no call changes it. Starting it uses
/// the frame's right to an answer up.
#[derive(Debug)]
#[must_use = "nothing was sent yet: wait(), await, then() or submit() starts it"]
pub struct SessionReply(SendOp<'static>);

impl SessionSend {
    /// Shortens the wait for room: the earlier of this and the socket's ceiling ends it. Rounded up to
    /// milliseconds, 1 ms..=`i32::MAX` ms; anything else ends it in `InvalidOperation` when it is started.
    pub fn timeout(self, timeout: Duration) -> Self {
        SessionSend(self.0.timeout(timeout))
    }
}

macro_rules! starts {
    ($op:ident) => {
        impl $op {
            /// Starts it and sleeps until it was accepted or has failed; not on a thread of the runtime, where
            /// it ends at once in `InvalidOperation`.
            pub fn wait(self) -> Result<(), SendError> {
                self.0.wait()
            }

            /// Starts it; its end can be waited for, polled or taken later.
            pub fn submit(self) -> Pending<OneWay> {
                self.0.submit()
            }

            /// Starts it and lets it run; nobody hears of its end.
            pub fn detach(self) {
                self.0.detach();
            }

            /// Starts it and runs `f` on this session or handler when it has ended, in a turn of its own.
            pub fn then<H: 'static>(
                self,
                cx: &mut Context<'_, H>,
                f: impl FnOnce(&mut H, Result<(), SendError>, &mut Context<'_, H>) + 'static,
            ) {
                self.0.then(cx, f);
            }
        }

        impl IntoFuture for $op {
            type Output = Result<(), SendError>;
            type IntoFuture = Sending;

            fn into_future(self) -> Sending {
                Sending(self.0)
            }
        }
    };
}

starts!(SessionSend);
starts!(SessionReply);

/// A send or a reply to an end client as a future; started at its first poll.
#[derive(Debug)]
pub struct Sending(SendOp<'static>);

impl Future for Sending {
    type Output = Result<(), SendError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> std::task::Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}
