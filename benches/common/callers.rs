//! Who calls, and how all of them wait: the rows of the benches of requests.

use std::time::Duration;

use afflux::IdlePolicy;

use super::hosts::{self, SPIN};
use super::load::{self, Caller};
use super::raw::{self, Raw, Std};
use super::{Args, Sample, Server, on_shard, tasks, timed};

/// How either end waits for work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Idle {
    Park,
    SpinThenPark,
    Spin,
}

impl Idle {
    pub const ALL: [Idle; 3] = [Idle::Park, Idle::SpinThenPark, Idle::Spin];

    /// As it is written with `{:?}`.
    pub fn named(name: &str) -> Idle {
        Idle::ALL
            .into_iter()
            .find(|idle| format!("{idle:?}") == name)
            .unwrap_or_else(|| panic!("no idle policy {name:?}"))
    }

    fn name(self) -> &'static str {
        match self {
            Idle::Park => "park",
            Idle::SpinThenPark => "spin 50 us",
            Idle::Spin => "spin",
        }
    }

    fn time(self) -> Duration {
        match self {
            Idle::Park => Duration::ZERO,
            Idle::SpinThenPark => SPIN,
            Idle::Spin => Duration::MAX,
        }
    }

    pub fn policy(self) -> IdlePolicy {
        match self {
            Idle::Park => IdlePolicy::Park,
            Idle::SpinThenPark => IdlePolicy::SpinThenPark(SPIN),
            Idle::Spin => IdlePolicy::Spin,
        }
    }
}

/// Who calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// Bare sockets.
    Raw,
    /// A thread that waits.
    Thread,
    /// Tasks that await, on an executor of the bench.
    Async,
    /// A handler, by continuations.
    Shard,
}

impl By {
    pub const ALL: [By; 4] = [By::Raw, By::Thread, By::Async, By::Shard];
}

/// A row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Row {
    /// Bare sockets whose calls block.
    Std,
    By(By, Idle),
}

impl Row {
    pub fn name(self) -> String {
        let (who, idle) = match self {
            Row::Std => return "raw std".into(),
            Row::By(by, idle) => (by, idle.name()),
        };
        match who {
            By::Raw => format!("raw mio, {idle}"),
            By::Thread => format!("afflux thread, {idle}"),
            By::Async => format!("afflux async, {idle}"),
            By::Shard => format!("afflux shard, {idle}"),
        }
    }

    /// The row that it is compared with.
    pub fn ceiling(self) -> String {
        match self {
            Row::By(By::Raw, Idle::Park) => String::new(),
            Row::Std | Row::By(By::Raw, _) => Row::By(By::Raw, Idle::Park).name(),
            Row::By(_, idle) => Row::By(By::Raw, idle).name(),
        }
    }
}

/// The rows of all that are wanted.
pub fn plan(idles: &[Idle], who: &[By]) -> Vec<Row> {
    let mut rows = vec![Row::Std];
    rows.extend(idles.iter().flat_map(|idle| who.iter().map(|by| Row::By(*by, *idle))));
    rows
}

/// In the serving process.
pub fn serve(what: &str) -> ! {
    let mut words = what.split(' ');
    let (who, idle, size) = (words.next(), words.next(), words.next().and_then(|n| n.parse().ok()));
    let idle = Idle::named(idle.expect("written by measure"));
    let size = size.expect("written by measure");
    match who {
        Some("std") => raw::serve_std(size),
        Some("raw") => raw::serve(size, idle.time()),
        _ => hosts::serve_by(hosts::roomy(hosts::builder("server", idle.policy())).listen("tcp://127.0.0.1:0")),
    }
}

/// A window of a row: one request at a time, or so many outstanding.
pub fn measure(args: &Args, row: Row, size: usize, outstanding: Option<usize>) -> Sample {
    let (kind, idle) = match row {
        Row::Std => ("std", Idle::Park),
        Row::By(By::Raw, idle) => ("raw", idle),
        Row::By(_, idle) => ("afflux", idle),
    };
    let server = Server::spawn(args, &format!("{kind} {idle:?} {size}"));
    let connect = || hosts::connect_by(&server, hosts::roomy(hosts::builder("client", idle.policy())));
    let by_caller = |caller: &mut dyn Caller| match outstanding {
        None => timed(args, &server, || caller.ask()),
        Some(n) => load::pipeline(args, &server, n, caller),
    };
    match row {
        Row::Std => by_caller(&mut Std::connect(&server, size)),
        Row::By(By::Raw, _) => by_caller(&mut Raw::connect(&server, size, idle.time())),
        Row::By(By::Thread, _) => by_caller(&mut hosts::Asker::new(&connect(), size)),
        Row::By(By::Async, _) => tasks::measure(args, &server, &connect(), size, outstanding.unwrap_or(1)),
        Row::By(By::Shard, _) => on_shard::measure(args, &server, size, outstanding.unwrap_or(1), idle.policy()),
    }
}
