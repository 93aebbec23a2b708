//! One operation, one terminal: every way to start one, and every way in which it ends.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use afflux::{ByteSize, Context, Detail, ErrorKind, Failure, Handler, Host, Message, Request, Stage};
use bytes::Bytes;

use crate::support::proxy::Proxy;
use crate::support::{
    Door, address, asked, block_on, client_of, connected, echo, kept, number, server, serving, small, told, until,
    until_status, watch,
};

const LONG: Duration = Duration::from_secs(60);
/// Of waits that are meant to end.
const SHORT: Duration = Duration::from_millis(150);

/// `wait()`, `await` and `submit()` start the same operation and bring the same reply.
#[test]
fn a_request_is_answered_whichever_way_it_is_awaited() {
    let _dog = watch();
    let server = server("server").channel("echo", asked(echo)).start().unwrap();
    let client = client_of(&server);
    let echo = client.client().channel("echo");
    assert_eq!(echo.request("m", "by wait").wait().unwrap(), "by wait");
    assert_eq!(block_on(echo.request("m", "by await")).unwrap(), "by await");
    assert_eq!(echo.request("m", "by submit").submit().wait().unwrap(), "by submit");
    assert_eq!(block_on(echo.request("m", "by both").submit()).unwrap(), "by both");
    let mut taken = echo.request("m", "by taking").submit();
    let mut end = None;
    until(|| {
        end = taken.try_take();
        end.is_some()
    });
    assert_eq!(end.unwrap().unwrap(), "by taking");
    assert!(taken.try_take().is_none(), "an end is taken once");
    // Who waits is woken first, and counted after.
    until_status(&client, |s| (s.replies, s.late_replies, s.requests) == (5, 0, 0));
}

/// One thread can have a thousand requests outstanding, and each gets its own reply, in whatever order
/// they are answered. Answered by another thread: a `RemoteResponder` needs no shard.
#[test]
fn a_thousand_are_outstanding_from_one_thread() {
    let _dog = watch();
    let (keep, held) = kept();
    let server = server("server").max_jobs(1000).max_started_handlers(1000).channel("keep", keep).start().unwrap();
    let client = client_of(&server);
    let keep = client.client().channel("keep");
    let pending: Vec<_> = (0..1000).map(|n| keep.request("", number(n)).timeout(LONG).submit()).collect();
    let mut debts: Vec<_> = held.iter().take(1000).collect();
    assert_eq!(client.status().requests, 1000);
    assert_eq!(server.status().shards[0].started, 1000);
    debts.reverse();
    let answering = thread::spawn(move || debts.into_iter().for_each(|(debt, payload)| debt.reply(payload)));
    for (n, pending) in pending.into_iter().enumerate() {
        assert_eq!(pending.wait().unwrap(), number(n as u64));
    }
    answering.join().unwrap();
    until_status(&server, |s| s.shards[0].started == 0 && s.owned_bytes == 0);
    until_status(&client, |s| s.requests == 0);
}

/// A send's success says that the runtime took it over; `send`, `try_send` and `detach` all arrive.
#[test]
fn one_way_records_arrive_with_method_and_sender() {
    let _dog = watch();
    let (tell, heard) = channel();
    let server = server("server")
        .channel(
            "news",
            told(move |m, cx| {
                tell.send((m.method().to_owned(), cx.peer().to_string(), m.into_payload())).unwrap();
            }),
        )
        .start()
        .unwrap();
    let client = client_of(&server);
    let news = client.client().channel("news");
    news.send("a", "1").wait().unwrap();
    news.try_send("b", "2").unwrap();
    news.send("c", "3").detach();
    block_on(news.send("", "4")).unwrap();
    let long = "m".repeat(255);
    news.send(&long, "5").submit().wait().unwrap();
    let heard: Vec<_> = heard.iter().take(5).collect();
    let methods = ["a", "b", "c", "", &long];
    for (at, (method, peer, payload)) in heard.into_iter().enumerate() {
        assert_eq!((method.as_str(), peer.as_str()), (methods[at], "client"));
        assert_eq!(payload, (at + 1).to_string());
    }
}

/// What is not started has not happened, and gives no sign.
#[test]
fn an_operation_that_is_not_started_does_nothing() {
    let _dog = watch();
    let server = server("server").channel("echo", asked(echo)).start().unwrap();
    let client = client_of(&server);
    let echo = client.client().channel("echo");
    drop(echo.request("", "never"));
    drop(echo.send("", "never"));
    echo.request("", "once").wait().unwrap();
    assert_eq!(server.status().received, 1);
}

/// Counts of its own instance, and asks another host before it answers.
struct Front {
    finished: u64,
    inline: Rc<Cell<bool>>,
}

impl Handler for Front {
    fn request(&mut self, request: Request, cx: &mut Context<'_, Self>) {
        let to = request.method().to_owned();
        let (responder, payload) = request.into_parts();
        let inline = self.inline.clone();
        inline.set(true);
        let seen = inline.clone();
        cx.channel(&to).request("", payload).then(cx, move |front, end, cx| {
            assert!(!seen.get(), "a continuation is never called inline");
            front.finished += 1;
            let answer = end.map(|reply| Bytes::from([&reply[..], front.finished.to_string().as_bytes()].concat()));
            responder.reply_with(cx, answer);
        });
        inline.set(false);
    }
}

/// A continuation runs on its handler in a turn of its own, also where the call fails at once, and passes
/// on what became of the call.
#[test]
fn a_handler_asks_others_before_it_answers() {
    let _dog = watch();
    let back = server("back").channel("stock", asked(echo)).start().unwrap();
    let front = connected(
        server("front").connect(address(&back)).channel("front", |_| Front { finished: 0, inline: Rc::default() }),
    );
    let client = client_of(&front);
    let front_channel = client.client().channel("front");
    assert_eq!(front_channel.request("stock", "a").wait().unwrap(), "a1");
    assert_eq!(front_channel.request("stock", "b").wait().unwrap(), "b2");
    let error = front_channel.request("nobody", "c").wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert_eq!(front_channel.request("stock", "d").wait().unwrap(), "d4");
    assert_eq!(front.status().handler_panics, 0);
}

/// A request made from a handler has at most what is left of the request being handled; both ends end by
/// it, and the next call succeeds. `own_deadline` opts out.
#[test]
fn a_nested_request_inherits_the_deadline() {
    let _dog = watch();
    let (keep, held) = kept();
    let back = server("back").channel("slow", keep).start().unwrap();
    let (tell, ends) = channel();
    let front = connected(server("front").connect(address(&back)).channel(
        "front",
        asked(move |request, cx| {
            let own = request.method() == "own";
            let (responder, payload) = request.into_parts();
            // Longer than the watchdog's patience: it ends by what it inherits, or it is seen not to.
            let nested = cx.channel("slow").request("", payload).timeout(Duration::from_secs(3600));
            let nested = if own { nested.own_deadline() } else { nested };
            let tell = tell.clone();
            nested.then(cx, move |_, end, cx| {
                tell.send(end.clone()).unwrap();
                responder.reply_with(cx, end);
            });
        }),
    ));
    let client = client_of(&front);
    let channel = client.client().channel("front");

    let error = channel.request("inherits", "x").timeout(SHORT).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    // Nobody has answered the nested one; it ended by the deadline that it inherited.
    let nested = ends.recv().unwrap().unwrap_err();
    assert_eq!((nested.kind(), nested.error().detail()), (ErrorKind::DeadlineExceeded, Detail::NoReply));
    let figures = nested.error().figures();
    assert_eq!((figures.stage, figures.target.as_deref()), (Some(Stage::Reply), Some("back")));
    drop(held.recv().unwrap());

    let error = channel.request("own", "y").timeout(SHORT).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    let (debt, payload) = held.recv().unwrap();
    debt.reply(payload);
    assert_eq!(ends.recv().unwrap().unwrap(), "y", "it had a deadline of its own");

    let again = channel.request("inherits", "z").timeout(LONG).submit();
    let (debt, payload) = held.recv().unwrap();
    debt.reply(payload);
    assert_eq!(again.wait().unwrap(), "z");
}

/// The shard itself polls a future that holds what is not `Send` and asks others; an `Err` is an error reply
/// with its code, and a panic ends that future alone.
#[test]
fn a_channel_is_served_by_futures() {
    let _dog = watch();
    let back = server("back").channel("stock", asked(echo)).start().unwrap();
    let front = connected(server("front").connect(address(&back)).channel_async("front", |_shard| {
        let placed = Rc::new(Cell::new(0));
        move |request: Request, client: afflux::LocalClient| {
            let placed = placed.clone();
            async move {
                let reply = client.channel("stock").request("", request.payload().clone()).await?;
                placed.set(placed.get() + 1);
                match &reply[..] {
                    b"no" => Err(Failure::new(7, "said no")),
                    b"panic" => panic!("on purpose"),
                    _ => Ok(Bytes::from(format!("{}:{}", placed.get(), reply.len()))),
                }
            }
        }
    }));
    let client = client_of(&front);
    let channel = client.client().channel("front");
    assert_eq!(channel.request("", "abc").wait().unwrap(), "1:3");
    let error = channel.request("", "no").wait().unwrap_err();
    assert_eq!((error.kind(), error.error().code()), (ErrorKind::Remote, 7));
    assert!(error.to_string().contains("said no"), "{error}");
    assert_eq!(channel.request("", "panic").wait().unwrap_err().kind(), ErrorKind::Internal);
    assert_eq!(channel.request("", "abcd").wait().unwrap(), "4:4", "the closure's state is the old one");
    // Unwinding answers first, and is counted after.
    until_status(&front, |s| s.handler_panics == 1);
    until_status(&front, |s| s.shards[0].started == 0);
}

/// A node may be addressed by its name before it was ever seen: the call queues and waits.
#[test]
fn a_node_is_called_by_name_before_it_was_ever_seen() {
    let _dog = watch();
    let proxy = Proxy::to_nobody();
    let client = small("client")
        .connect(proxy.address())
        .named("orders-2")
        .reconnect(Duration::from_millis(20), Duration::from_millis(50))
        .start()
        .unwrap();
    let node = client.client().node("orders-2");
    let early = node.request("where", "early").timeout(LONG).submit();
    node.send("note", "queued").wait().unwrap();
    let (tell, heard) = channel();
    let server = server("orders-2")
        .node_handler(serving(echo, move |m, _| tell.send(m.into_payload()).unwrap()))
        .start()
        .unwrap();
    proxy.lead_to(&server);
    assert_eq!(early.wait().unwrap(), "early");
    assert_eq!(heard.recv().unwrap(), "queued");
    assert_eq!(node.request("where", "late").wait().unwrap(), "late");
    assert_eq!(client.client().node("orders-3").send("", "x").wait().unwrap_err().kind(), ErrorKind::NotFound);
}

/// Another name in the peer's READY than was asked for is refused.
#[test]
fn a_node_of_another_name_is_refused() {
    let _dog = watch();
    let server = server("orders-1").node_handler(asked(echo)).start().unwrap();
    let client = small("client").connect(address(&server)).named("orders-2").start().unwrap();
    until_status(&client, |s| s.handshakes_failed > 0);
    assert_eq!(client.status().links_up, 0);
}

/// A caller never waits for nothing: a responder that is dropped answers with an error, on its shard and
/// from another thread alike.
#[test]
fn a_dropped_responder_answers_with_an_error() {
    let _dog = watch();
    let (keep, held) = kept();
    let server = server("server").channel("drop", asked(|request, _| drop(request))).channel("keep", keep);
    let server = server.start().unwrap();
    let client = client_of(&server);
    let error = client.client().channel("drop").request("", "x").wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal, "{error}");
    let pending = client.client().channel("keep").request("", "x").submit();
    drop(held.recv().unwrap());
    assert_eq!(pending.wait().unwrap_err().kind(), ErrorKind::Internal);
    until_status(&server, |s| s.shards[0].started == 0 && s.owned_bytes == 0);
}

/// An error answer carries its number and sentence; nothing comes back of what was sent.
#[test]
fn an_error_answer_carries_its_number_and_sentence() {
    let _dog = watch();
    let server = server("server").channel("no", asked(|request, cx| request.fail(cx, 404, "no such order")));
    let server = server.start().unwrap();
    let client = client_of(&server);
    let error = client.client().channel("no").request("", "x").wait().unwrap_err();
    assert_eq!((error.kind(), error.error().code()), (ErrorKind::Remote, 404));
    assert!(error.to_string().contains("no such order"), "{error}");
    assert_eq!(error.unsent_payload(), None);
}

/// A panic is an error reply and a count; the instance is made anew, its continuations end in an error, the
/// shard lives.
#[test]
fn a_panic_ends_the_instance_and_not_the_shard() {
    struct Fragile {
        calls: u64,
        kept: Option<afflux::Responder>,
    }
    impl Handler for Fragile {
        fn request(&mut self, request: Request, cx: &mut Context<'_, Self>) {
            self.calls += 1;
            match request.method() {
                "panic" => panic!("on purpose"),
                "keep" => self.kept = Some(request.into_parts().0),
                "wait" => {
                    let (responder, payload) = request.into_parts();
                    cx.channel("nobody-answers")
                        .request("", payload)
                        .then(cx, |_, end, cx| responder.reply_with(cx, end));
                }
                _ => request.reply(cx, self.calls.to_string()),
            }
        }

        fn message(&mut self, _: Message, _: &mut Context<'_, Self>) {
            panic!("on purpose");
        }
    }
    let _dog = watch();
    let (keep, held) = kept();
    let back = server("back").channel("nobody-answers", keep).start().unwrap();
    let made = Arc::new(AtomicUsize::new(0));
    let count = made.clone();
    let server = connected(server("server").connect(address(&back)).channel("fragile", move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        Fragile { calls: 0, kept: None }
    }));
    let client = client_of(&server);
    let fragile = client.client().channel("fragile");
    assert_eq!(fragile.request("", "").wait().unwrap(), "1");
    let kept = fragile.request("keep", "").timeout(LONG).submit();
    let waiting = fragile.request("wait", "").timeout(LONG).submit();
    let nested = held.recv().unwrap();
    let error = fragile.request("panic", "").wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal, "{error}");
    assert_eq!(kept.wait().unwrap_err().kind(), ErrorKind::Internal, "what the instance kept is answered");
    assert_eq!(waiting.wait().unwrap_err().kind(), ErrorKind::Internal, "its continuations end in an error");
    nested.0.reply("too late");
    assert_eq!(fragile.request("", "").wait().unwrap(), "1", "a new instance");
    fragile.send("", "").wait().unwrap();
    assert_eq!(fragile.request("", "").wait().unwrap(), "1", "and again");
    until_status(&server, |s| s.handler_panics == 2);
    assert_eq!(made.load(Ordering::SeqCst), 3);
    until_status(&server, |s| s.shards[0].started == 0 && s.owned_bytes == 0 && s.requests == 0);
}

/// Panics where it is dropped, unless its thread is panicking already.
struct LastWord;

impl Drop for LastWord {
    fn drop(&mut self) {
        assert!(thread::panicking(), "a last word");
    }
}

/// What a panic leaves behind may panic again while it is dropped: that is counted too, and the shard lives.
#[test]
fn a_last_word_that_panics_does_not_end_the_shard() {
    struct Fragile(#[allow(dead_code)] LastWord);
    impl Handler for Fragile {
        fn request(&mut self, request: Request, cx: &mut Context<'_, Self>) {
            match request.method() {
                "panic" => panic!("on purpose"),
                "panic with" => std::panic::panic_any(LastWord),
                "wait" => {
                    let (responder, payload) = request.into_parts();
                    let captured = LastWord;
                    cx.channel("nobody-answers").request("", payload).then(cx, move |_, end, cx| {
                        let _captured = captured;
                        responder.reply_with(cx, end);
                    });
                }
                _ => request.reply(cx, "alive"),
            }
        }
    }
    let _dog = watch();
    let (keep, held) = kept();
    let back = server("back").channel("nobody-answers", keep).start().unwrap();
    let server =
        connected(server("server").connect(address(&back)).channel("fragile", |_| Fragile(LastWord)).channel_async(
            "closure",
            |_| {
                let captured = LastWord;
                move |request: Request, _| {
                    let _captured = &captured;
                    assert_ne!(request.method(), "panic", "on purpose");
                    async { Ok("alive".into()) }
                }
            },
        ));
    let client = client_of(&server);
    let fragile = client.client().channel("fragile");
    let waiting = fragile.request("wait", "").timeout(LONG).submit();
    let _nested = held.recv().unwrap();
    assert_eq!(fragile.request("panic", "").wait().unwrap_err().kind(), ErrorKind::Internal);
    assert_eq!(waiting.wait().unwrap_err().kind(), ErrorKind::Internal);
    assert_eq!(fragile.request("", "").wait().unwrap(), "alive", "the callback, the instance, the continuation");
    until_status(&server, |s| s.handler_panics == 3);
    assert_eq!(fragile.request("panic with", "").wait().unwrap_err().kind(), ErrorKind::Internal);
    assert_eq!(fragile.request("", "").wait().unwrap(), "alive");
    let closure = client.client().channel("closure");
    assert_eq!(closure.request("panic", "").wait().unwrap_err().kind(), ErrorKind::Internal);
    assert_eq!(closure.request("", "").wait().unwrap(), "alive");
    until_status(&server, |s| s.shards[0].started == 0 && s.owned_bytes == 0);
}

/// A factory that panics again makes calls to its seat end in `Internal`; the shard and its other channels
/// live.
#[test]
fn a_factory_that_panics_harms_its_own_channel_alone() {
    let _dog = watch();
    let server = server("server")
        .channel("broken", |_| -> crate::support::Service { panic!("on purpose") })
        .channel("echo", asked(echo))
        .start()
        .unwrap();
    let client = client_of(&server);
    for _ in 0..2 {
        let error = client.client().channel("broken").request("", "x").wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal, "{error}");
    }
    assert_eq!(client.client().channel("echo").request("", "x").wait().unwrap(), "x");
    until_status(&server, |s| s.shards[0].started == 0);
}

/// Once every configured connection has had an outcome: never announced is `NotFound` at once, known but not
/// connected is `Unavailable` at once. The payload comes back.
#[test]
fn what_cannot_be_reached_is_told_at_once() {
    let _dog = watch();
    let server = server("server").channel("echo", asked(echo)).start().unwrap();
    let proxy = Proxy::before(&server);
    let client = connected(small("client").connect(proxy.address()));
    let (known, unknown) = (client.client().channel("echo"), client.client().channel("nobody"));
    let error = unknown.send("", "mine").timeout(LONG).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(error.into_payload(), "mine");
    let error = unknown.request("", "mine").timeout(LONG).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(error.unsent_payload().unwrap(), "mine");
    known.request("", "x").wait().unwrap();
    proxy.lead_to_nobody();
    drop(server);
    until_status(&client, |s| s.links_lost == 1 && !s.links[0].up);
    let mut error = None;
    until(|| {
        error = known.send("", "mine").timeout(LONG).wait().err();
        error.is_some()
    });
    let error = error.unwrap();
    assert_eq!((error.kind(), error.error().detail()), (ErrorKind::Unavailable, Detail::NotConnected));
    assert_eq!(error.into_payload(), "mine");
    assert_eq!(known.try_send("", "mine").unwrap_err().into_payload(), "mine");
}

/// While a configured connect has had no outcome a call waits in stage `Finding`, under its own ceiling.
#[test]
fn a_call_waits_for_a_member_under_its_own_ceiling() {
    let _dog = watch();
    // Takes connections and says nothing: no outcome, for as long as the handshake may last.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let to = format!("tcp://{}", silent.local_addr().unwrap());
    let client = small("client").connect(to).handshakes(256, LONG).start().unwrap();
    let channel = client.client().channel("echo");
    let error = channel.request("", "mine").timeout(SHORT).wait().unwrap_err();
    assert_eq!((error.kind(), error.error().detail()), (ErrorKind::DeadlineExceeded, Detail::NotFoundYet));
    let figures = error.error().figures();
    assert_eq!(figures.stage, Some(Stage::Finding));
    assert!(figures.waited.unwrap() >= SHORT, "{figures:?}");
    assert_eq!(error.unsent_payload().unwrap(), "mine");
    let error = channel.send("", "mine").timeout(SHORT).wait().unwrap_err();
    assert_eq!(error.error().detail(), Detail::NotFoundYet);
    assert_eq!(error.into_payload(), "mine");
    assert_eq!(channel.try_send("", "mine").unwrap_err().kind(), ErrorKind::Unavailable);
    until_status(&client, |s| s.waiting == 0 && s.waiting_bytes == 0);
}

/// A call made before the link is up waits for it: `ready()` is never needed.
#[test]
fn a_call_made_before_the_link_is_up_waits_for_it() {
    let _dog = watch();
    let (tell, heard) = channel();
    let server = server("server")
        .channel("echo", serving(echo, move |m, _| tell.send(m.into_payload()).unwrap()))
        .start()
        .unwrap();
    let client = small("client").connect(address(&server)).start().unwrap();
    let channel = client.client().channel("echo");
    let request = channel.request("", "first").timeout(LONG).submit();
    let send = channel.send("", "second").timeout(LONG).submit();
    assert_eq!(request.wait().unwrap(), "first");
    send.wait().unwrap();
    assert_eq!(heard.recv().unwrap(), "second");
}

/// What may never be sent is refused at the start, with its payload: too large for this host, too large for
/// the peer, a method too long.
#[test]
fn what_breaks_a_rule_is_rejected_with_its_payload() {
    let _dog = watch();
    let server = server("server").max_message_size(ByteSize::kib(1)).channel("echo", asked(echo)).start().unwrap();
    let client = connected(small("client").connect(address(&server)).max_message_size(ByteSize::kib(2)));
    let echo = client.client().channel("echo");
    for (len, fits) in [(1024, true), (1025, false), (4096, false)] {
        let payload = vec![7; len];
        let end = echo.request("", payload.clone()).wait();
        assert_eq!(end.is_ok(), fits, "{len}");
        let Err(error) = end else { continue };
        assert_eq!((error.kind(), error.error().detail()), (ErrorKind::Rejected, Detail::MessageTooLarge));
        let figures = error.error().figures();
        assert_eq!((figures.requested, figures.limit), (Some(len as u64), Some(1024)));
        assert_eq!(error.unsent_payload().unwrap(), payload);
        let error = echo.try_send("", payload.clone()).unwrap_err();
        assert_eq!(error.error().detail(), Detail::MessageTooLarge);
        assert_eq!(error.into_payload(), payload);
    }
    let long = "m".repeat(256);
    let error = echo.request(&long, "mine").wait().unwrap_err();
    assert_eq!((error.kind(), error.error().detail()), (ErrorKind::Rejected, Detail::MethodTooLong));
    assert_eq!(error.unsent_payload().unwrap(), "mine");
    assert_eq!(echo.try_send(&long, "mine").unwrap_err().into_payload(), "mine");
    assert_eq!(echo.send(&long, "mine").wait().unwrap_err().into_payload(), "mine");
}

/// Every wait has an end: zero and more than `i32::MAX` ms are refused when the operation starts.
#[test]
fn a_timeout_that_is_none_is_refused() {
    let _dog = watch();
    let server = server("server").channel("echo", asked(echo)).start().unwrap();
    let client = client_of(&server);
    let echo = client.client().channel("echo");
    for timeout in [Duration::ZERO, Duration::MAX, Duration::from_millis(1 << 31)] {
        let error = echo.request("", "mine").timeout(timeout).wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOperation, "{timeout:?}");
        assert_eq!(error.unsent_payload().unwrap(), "mine");
        let error = echo.send("", "mine").timeout(timeout).submit().wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOperation, "{timeout:?}");
        assert_eq!(error.into_payload(), "mine");
    }
    echo.request("", "x").timeout(Duration::from_millis((1 << 31) - 1)).wait().unwrap();
    assert_eq!(server.status().received, 1);
}

/// A thread of the runtime may not block: it would wait for itself.
#[test]
fn waiting_on_a_shard_is_an_error() {
    let _dog = watch();
    let (keep, _held) = kept();
    let server = server("server").channel("echo", asked(echo)).channel("keep", keep).start().unwrap();
    let inner = Arc::new(client_of(&server));
    // Nothing greets there: what is addressed by its name waits to be found.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let lost = Arc::new(small("lost").connect(format!("tcp://{}", nobody.local_addr().unwrap())).start().unwrap());
    let outer = crate::support::server("outer")
        .channel(
            "block",
            asked(move |request, cx| {
                let refused =
                    |e: &afflux::Error| (e.kind(), e.detail()) == (ErrorKind::InvalidOperation, Detail::WaitOnShard);
                let channel = inner.client().channel("echo");
                let waited = channel.request("", "mine").wait().unwrap_err();
                let sent = channel.send("", "mine").wait().unwrap_err();
                assert!(refused(waited.error()) && refused(sent.error()));
                assert_eq!(waited.unsent_payload().unwrap(), "mine");
                assert_eq!(sent.into_payload(), "mine");

                // What was started is cancelled: it comes back if it never left.
                let gone = inner.client().channel("keep").request("", "other").submit().wait().unwrap_err();
                assert!(refused(gone.error()) && gone.unsent_payload().is_none());
                let nowhere = lost.client().channel("nowhere");
                let asked = nowhere.request("", "asked").submit().wait().unwrap_err();
                assert!(refused(asked.error()));
                assert_eq!(asked.unsent_payload().unwrap(), "asked");
                let sent = nowhere.send("", "sent").submit().wait().unwrap_err();
                assert!(refused(sent.error()));
                assert_eq!(sent.into_payload(), "sent");
                assert_eq!(lost.status().waiting, 0);

                // What had ended has that end.
                let long = nowhere.send(&"m".repeat(300), "long").submit().wait().unwrap_err();
                assert_eq!(long.error().detail(), Detail::MethodTooLong);
                assert_eq!(long.into_payload(), "long");
                channel.send("", "heard").submit().wait().unwrap();
                request.reply(cx, "refused");
            }),
        )
        .start()
        .unwrap();
    let client = client_of(&outer);
    assert_eq!(client.client().channel("block").request("", "").wait().unwrap(), "refused");
}

/// A started request that is dropped is given up; its reply counts as late. Neither stops the handler.
#[test]
fn a_dropped_request_is_cancelled_and_its_reply_is_late() {
    let _dog = watch();
    let (keep, held) = kept();
    let server = server("server").channel("keep", keep).start().unwrap();
    let client = client_of(&server);
    let keep = client.client().channel("keep");

    let dropped = keep.request("", "1").timeout(LONG).submit();
    let first = held.recv().unwrap();
    drop(dropped);
    until_status(&client, |s| s.requests == 0);
    first.0.reply("nobody waits");
    until_status(&client, |s| s.late_replies == 1);

    let cancelled = keep.request("", "2").timeout(LONG).submit();
    let second = held.recv().unwrap();
    assert_eq!(cancelled.cancel(), None, "it was sent");
    second.0.reply("nobody waits");
    until_status(&client, |s| s.late_replies == 2);

    let error = keep.request("", "3").timeout(SHORT).wait().unwrap_err();
    assert_eq!((error.kind(), error.error().detail()), (ErrorKind::DeadlineExceeded, Detail::NoReply));
    assert_eq!(error.unsent_payload(), None, "it was sent");
    held.recv().unwrap().0.reply("nobody waits");
    until_status(&client, |s| s.late_replies == 3 && s.no_reply == 1);

    keep.request("", "4").timeout(LONG).detach();
    held.recv().unwrap().0.reply("nobody listens");
    until_status(&client, |s| s.requests == 0 && s.replies == 1);
    assert_eq!(client.status().late_replies, 3, "a detached request has not ended before its reply");

    let mut polled = Box::pin(async { keep.request("", "5").timeout(LONG).await });
    let waker = std::task::Waker::noop();
    assert!(polled.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_pending());
    let fifth = held.recv().unwrap();
    drop(polled);
    fifth.0.reply("nobody waits");
    until_status(&client, |s| s.late_replies == 4 && s.requests == 0);
}

/// What no handler takes is answered with `NotFound` if it asks, and counted.
#[test]
fn what_nobody_handles_is_answered_and_counted() {
    struct Default;
    impl Handler for Default {}
    let _dog = watch();
    let server = server("server").channel("default", |_| Default).start().unwrap();
    let client = client_of(&server);
    let channel = client.client().channel("default");
    assert_eq!(channel.request("", "x").wait().unwrap_err().kind(), ErrorKind::NotFound);
    channel.send("", "x").wait().unwrap();
    until_status(&server, |s| s.no_handler == 2);
    let node = client.client().node("server");
    assert_eq!(node.request("", "x").wait().unwrap_err().kind(), ErrorKind::NotFound);
    node.send("", "x").wait().unwrap();
    until_status(&server, |s| s.no_handler == 4 && s.permits.in_use == 0 && s.owned_bytes == 0);
}

/// Expired requests run by default; with `skip_expired_requests` they are answered before their handler starts.
#[test]
fn an_expired_request_runs_unless_told_otherwise() {
    let _dog = watch();
    for skip in [false, true] {
        let door = Door::shut();
        let (at_door, runs) = (door.clone(), Arc::new(AtomicUsize::new(0)));
        let count = runs.clone();
        let builder = server("server").channel(
            "slow",
            asked(move |request, cx| {
                count.fetch_add(1, Ordering::SeqCst);
                if request.method() == "block" {
                    at_door.pass();
                }
                request.reply(cx, "");
            }),
        );
        let server: Host = if skip { builder.skip_expired_requests() } else { builder }.start().unwrap();
        let client = client_of(&server);
        let _key = door.key();
        let channel = client.client().channel("slow");
        let block = channel.request("block", "").timeout(LONG).submit();
        until(|| door.came() == 1);
        let error = channel.request("", "").timeout(SHORT).wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
        // The server's idea of the client's clock is as good as its first message was quick: it is given
        // two seconds, in the form of a request that has them.
        channel.request("", "").timeout(Duration::from_secs(2)).wait().unwrap_err();
        door.open();
        block.wait().unwrap();
        until_status(&client, |s| s.late_replies == 2);
        let skipped = server.status().expired_in_queue;
        assert_eq!(skipped > 0, skip, "{skipped} were skipped");
        until_status(&server, |s| s.delivered + s.expired_in_queue == 3 && s.permits.in_use == 0);
        assert_eq!(runs.load(Ordering::SeqCst) as u64, 3 - skipped);
        until_status(&server, |s| s.owned_bytes == 0);
    }
}
