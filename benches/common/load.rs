//! What is asked of every system under test, in the same words: send so many, take what came back.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Args, Sample, Server, Usage, finish, histogram};

/// Whoever sends requests and takes their answers, which come in order.
pub trait Caller {
    /// Sends `n` requests.
    fn send(&mut self, n: usize);

    /// Waits for at least one answer and takes it, with those that are there already if the system
    /// gives them together. At most `n` are outstanding.
    fn receive(&mut self, n: usize) -> usize;

    /// One round trip.
    fn ask(&mut self) {
        self.send(1);
        assert_eq!(self.receive(1), 1);
    }
}

/// Whoever sends one-way messages.
pub trait Sender {
    /// Sends `n` messages; they may still be on their way when it returns.
    fn send(&mut self, n: usize);

    /// Gives away what is still held back to be sent together.
    fn flush(&mut self) {}
}

/// The sending times of what is outstanding, around a caller.
pub struct Pipeline<'a> {
    caller: &'a mut dyn Caller,
    sent: VecDeque<Instant>,
}

impl<'a> Pipeline<'a> {
    /// Fills it: from now on `outstanding` requests are always on their way.
    pub fn fill(caller: &'a mut dyn Caller, outstanding: usize) -> Self {
        let mut pipeline = Pipeline { caller, sent: VecDeque::with_capacity(outstanding) };
        pipeline.send(outstanding, Instant::now());
        pipeline
    }

    fn send(&mut self, n: usize, now: Instant) {
        self.caller.send(n);
        self.sent.extend(std::iter::repeat_n(now, n));
    }

    fn receive(&mut self, mut each: impl FnMut(Duration)) -> (usize, Instant) {
        let n = self.caller.receive(self.sent.len());
        let now = Instant::now();
        self.sent.drain(..n).for_each(|at| each(now - at));
        (n, now)
    }

    /// Takes what has come back, each with the time it took, and sends as many again.
    pub fn turn(&mut self, each: impl FnMut(Duration)) -> (usize, Instant) {
        let (n, now) = self.receive(each);
        self.send(n, now);
        (n, now)
    }

    /// Takes what is still outstanding.
    pub fn drain(mut self) {
        while !self.sent.is_empty() {
            self.receive(|_| {});
        }
    }
}

/// A window of requests with so many outstanding.
pub fn pipeline(args: &Args, server: &Server, outstanding: usize, caller: &mut dyn Caller) -> Sample {
    let mut pipeline = Pipeline::fill(caller, outstanding);
    let warm = Instant::now();
    while pipeline.turn(|_| {}).1 - warm < args.warm_up() {}
    let mut times = histogram();
    let before = (Usage::own(), server.usage());
    let begin = Instant::now();
    let mut last = begin;
    while last - begin < args.window() {
        last = pipeline.turn(|time| times.saturating_record(time.as_nanos() as u64)).1;
    }
    let sample = finish(times.len(), (last - begin).as_secs_f64(), Some(times), before, server);
    pipeline.drain();
    sample
}

/// A window of one-way messages; over when the server has counted the last. The server reports its
/// `received`.
pub fn oneway(args: &Args, server: &mut Server, size: usize, sender: &mut dyn Sender) -> Sample {
    let step = (16 << 10) / size.max(64);
    let step = step.max(1);
    let mut total = 0;
    let warm = Instant::now();
    while warm.elapsed() < args.warm_up() {
        sender.send(step);
        total += step as u64;
    }
    sender.flush();
    await_received(server, total);
    let before = (Usage::own(), server.usage());
    let begin = Instant::now();
    let mut sent = 0;
    while begin.elapsed() < args.window() {
        sender.send(step);
        sent += step as u64;
    }
    sender.flush();
    await_received(server, total + sent);
    finish(sent, begin.elapsed().as_secs_f64(), None, before, server)
}

/// So many requests and no more, for who counts what they take; `None`: one at a time.
pub fn ask_exactly(caller: &mut dyn Caller, outstanding: Option<usize>, ops: u64) {
    let Some(outstanding) = outstanding else {
        return (0..ops).for_each(|_| caller.ask());
    };
    let mut pipeline = Pipeline::fill(caller, outstanding);
    let mut done = 0;
    while done + (outstanding as u64) < ops {
        done += pipeline.turn(|_| {}).0 as u64;
    }
    pipeline.drain();
}

/// So many messages and no more, until the server has received them.
pub fn tell_exactly(server: &mut Server, sender: &mut dyn Sender, ops: u64) {
    sender.send(ops as usize);
    sender.flush();
    await_received(server, ops);
}

/// Waits until the server has received so many.
pub fn await_received(server: &mut Server, total: u64) {
    let begin = Instant::now();
    loop {
        let received = server.report()["received"].as_u64();
        assert!(received <= Some(total), "{received:?} received of {total}");
        if received == Some(total) {
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "only {received:?} of {total} were received");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// A number of a server's report.
pub fn number(report: &Value, name: &str) -> u64 {
    report[name].as_u64().unwrap_or_else(|| panic!("the server reports {name}: {report}"))
}
