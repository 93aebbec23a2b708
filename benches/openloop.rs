//! Latency and goodput at 10 to 300 % of the capacity, and the time until all is well after a burst, between two
//! processes on loopback TCP. Requests start when they are meant to, not when the last has ended, and are
//! counted from then. `--svg FILE` draws it; `benches/peers` does the same beside libzmq.

mod common;
#[path = "common/curves.rs"]
mod curves;
#[path = "common/openloop.rs"]
mod openloop;

use std::time::Duration;

use afflux::IdlePolicy;
use clap::Parser;
use common::{Args, Server, hosts, serving};
use openloop::{Calls, System};

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
    if let Some(us) = serving(args) {
        openloop::serve(Duration::from_micros(us.parse().expect("written below")));
    }
    let spawn = || Server::spawn(args, &service.as_micros().to_string());
    let capacity = || {
        let server = spawn();
        let host = hosts::connect(&server, IdlePolicy::Park);
        openloop::capacity(args, &server, &mut hosts::Asker::new(&host, openloop::SIZE))
    };
    let run = |load: &openloop::Load| {
        let server = spawn();
        let host = hosts::connect(&server, IdlePolicy::Park);
        openloop::drive(&mut Calls::new(&host, load.deadline), load)
    };
    openloop::bench(args, &options.open, &[System { name: "afflux", idle: "park", capacity: &capacity, run: &run }]);
}
