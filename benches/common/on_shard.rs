//! Calls from inside a handler: it asks again in each continuation, for as long as it is told to.

use std::rc::Rc;
use std::time::{Duration, Instant};

use afflux::{Context, Handler, IdlePolicy, Request, Responder};
use bytes::Bytes;
use hdrhistogram::Histogram;

use super::{Args, Sample, Server, Usage, finish, histogram, hosts};

struct Asker {
    payload: Bytes,
    outstanding: usize,
    run: Option<Run>,
}

struct Run {
    responder: Responder,
    times: Histogram<u64>,
    /// Replies, those of the warm-up too.
    all: u64,
    outstanding: usize,
    warm_until: Instant,
    until: Instant,
}

impl Handler for Asker {
    fn request(&mut self, request: Request, cx: &mut Context<'_, Self>) {
        let order = std::str::from_utf8(request.payload()).expect("written by measure");
        let mut ms = order.split(' ').map(|n| Duration::from_millis(n.parse().expect("written by measure")));
        let (Some(warm), Some(window)) = (ms.next(), ms.next()) else { panic!("written by measure") };
        let warm_until = Instant::now() + warm;
        let (responder, _) = request.into_parts();
        let (outstanding, until) = (self.outstanding, warm_until + window);
        self.run = Some(Run { responder, times: histogram(), all: 0, outstanding, warm_until, until });
        let echo = Rc::new(cx.channel("echo"));
        (0..outstanding).for_each(|_| self.ask(echo.clone(), Instant::now(), cx));
    }
}

impl Asker {
    fn ask(&mut self, echo: Rc<afflux::LocalChannel>, sent: Instant, cx: &mut Context<'_, Self>) {
        let op = echo.request("", self.payload.clone()).own_deadline();
        op.then(cx, move |asker, reply, cx| {
            assert_eq!(reply.expect("an echo").len(), asker.payload.len());
            let run = asker.run.as_mut().expect("until the last reply has come");
            let now = Instant::now();
            run.all += 1;
            if now >= run.warm_until && now < run.until {
                run.times.saturating_record((now - sent).as_nanos() as u64);
            }
            if now < run.until {
                return asker.ask(echo, now, cx);
            }
            run.outstanding -= 1;
            if run.outstanding == 0
                && let Some(Run { responder, times, all, .. }) = asker.run.take()
            {
                let buckets =
                    times.iter_recorded().map(|v| format!(" {}:{}", v.value_iterated_to(), v.count_at_value()));
                responder.reply(cx, all.to_string() + &buckets.collect::<String>());
            }
        });
    }
}

/// A window of a handler's calls, `outstanding` at a time, on the shard of a host of its own.
pub fn measure(args: &Args, server: &Server, size: usize, outstanding: usize, idle: IdlePolicy) -> Sample {
    let payload = Bytes::from(vec![7; size]);
    let client = hosts::roomy(hosts::builder("client", idle))
        .listen("tcp://127.0.0.1:0")
        .connect(hosts::url(server))
        .channel("ask", move |_| Asker { payload: payload.clone(), outstanding, run: None })
        .start()
        .expect("the client starts");
    client.ready(Duration::from_secs(5)).expect("the server is there");
    let starter = hosts::builder("starter", IdlePolicy::Park)
        .connect(format!("tcp://{}", client.addresses()[0]))
        .start()
        .expect("the starter starts");
    starter.ready(Duration::from_secs(5)).expect("the client is there");
    let order = format!("{} {}", args.warm_up().as_millis(), args.window().as_millis());
    let before = (Usage::own(), server.usage());
    let ask = starter.client().channel("ask");
    let answer = ask.request("", order).timeout(Duration::from_secs(600)).wait().expect("the run ends");
    let mut words = std::str::from_utf8(&answer).expect("written above").split(' ');
    let number = |word: &str| word.parse::<u64>().expect("written above");
    let all = number(words.next().expect("written above"));
    let mut times = histogram();
    for (value, count) in words.map(|pair| pair.split_once(':').expect("written above")) {
        times.saturating_record_n(number(value), number(count));
    }
    let count = times.len();
    let mut sample = finish(all, args.window().as_secs_f64(), Some(times), before, server);
    // The processor time is of all, the rate of the window.
    sample.count = count;
    sample
}
