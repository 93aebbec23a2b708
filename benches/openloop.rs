//! Latency and goodput at 10 to 300 % of the capacity, and the time until all is well after a burst, between two
//! processes on loopback TCP. Requests start when they are meant to, not when the last has ended, and are
//! counted from then. `--svg FILE` draws it; `benches/peers` does the same beside libzmq.

mod common;
#[path = "common/curves.rs"]
mod curves;
#[path = "common/openloop.rs"]
mod openloop;

use std::time::Duration;

use clap::Parser;
use common::{Args, serving};
use openloop::System;

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    args: Args,
    #[command(flatten)]
    open: openloop::Options,
}

fn main() {
    let mut options = Options::parse();
    options.args.prepare();
    let (args, service) = (&options.args, Duration::from_micros(options.open.service_us));
    if let Some(what) = serving(args) {
        openloop::serve(openloop::served(&what).expect("written by openloop").0);
    }
    let capacity = || openloop::afflux_capacity(args, service);
    let run = |load: &openloop::Load| openloop::afflux(args, service, false, load);
    let few = |load: &openloop::Load| openloop::afflux(args, service, true, load);
    let system = |name, run| System { name, idle: "park", capacity: &capacity, run };
    let systems = [system("afflux", &run as &dyn Fn(&_) -> _), system(openloop::FEW, &few)];
    openloop::bench(args, &options.open, &systems);
}
