//! Case 061. The ends of what a duration can be, for every option that is one and for the calls' own: a plan with
//! whole milliseconds, at least one, or a violation that names the option. Negative ones cannot be spelled.

use std::time::Duration;

use afflux::host::options::HostBuilder;
use afflux::host::pubsub::PublisherOptions;
use afflux::host::resolve::resolve;
use afflux::plan::HostPlan;
use afflux::runtime::machine::Machine;
use afflux::{Context, Frame, Host, Session, SlowSubscriber};

struct Silent;

impl Session for Silent {
    fn frame(&mut self, _: Frame, _: &mut Context<'_, Self>) {}
}

type Set = fn(HostBuilder, Duration) -> HostBuilder;
type Get = fn(&HostPlan) -> Duration;

const LONG: Duration = Duration::from_millis(i32::MAX as u64);

/// Every option that is a duration, how it is set, and what becomes of it.
const OPTIONS: [(&str, Set, Get); 11] = [
    ("send_timeout", |b, d| b.send_timeout(d), |p| p.send_timeout),
    ("request_timeout", |b, d| b.request_timeout(d), |p| p.request_timeout),
    ("handshakes", |b, d| b.handshakes(256, d), |p| p.handshake_timeout),
    ("heartbeat", |b, d| b.heartbeat(d, LONG), |p| p.heartbeat),
    ("heartbeat", |b, d| b.heartbeat(Duration::from_nanos(1), d), |p| p.dead_after),
    ("reconnect", |b, d| b.reconnect(d, LONG), |p| p.reconnect_min),
    ("reconnect", |b, d| b.reconnect(Duration::from_nanos(1), d), |p| p.reconnect_max),
    ("assembly_timeout", |b, d| b.assembly_timeout(d), |p| p.assembly_timeout),
    (
        "stream_send_timeout",
        |b, d| b.stream("tcp://127.0.0.1:0", |_| Silent).stream_send_timeout(d),
        |p| p.streams[0].send_timeout,
    ),
    ("stream_idle", |b, d| b.stream("tcp://127.0.0.1:0", |_| Silent).stream_idle(d), |p| p.streams[0].idle.unwrap()),
    (
        "publisher",
        |b, d| b.publisher(PublisherOptions::new().slow_subscriber(SlowSubscriber::Wait).timeout(d)),
        |p| p.publisher.unwrap().timeout,
    ),
];

#[test]
fn every_option_takes_or_names_the_ends_of_time() {
    let ends = [
        (Duration::ZERO, None),
        (Duration::from_nanos(1), Some(1)),
        (Duration::from_millis(1), Some(1)),
        (Duration::from_nanos(1_000_001), Some(2)),
        (LONG, Some(i32::MAX as u64)),
        (Duration::from_millis(u64::from(u32::MAX)), None),
        (Duration::MAX, None),
    ];
    for (option, set, get) in OPTIONS {
        for (given, expected) in ends {
            let builder = set(Host::builder("n"), given);
            match (resolve(builder.options(), &Machine::default()), expected) {
                (Ok(plan), Some(ms)) => assert_eq!(get(&plan), Duration::from_millis(ms), "{option} = {given:?}"),
                // Two of them have to be in an order.
                (Err(error), _) => {
                    assert!(error.violations().iter().any(|v| v.option.starts_with(option)), "{option}: {error}");
                    assert!(!error.violations()[0].rule.is_empty());
                }
                (Ok(_), None) => panic!("{option} = {given:?} was taken"),
            }
        }
    }
}
