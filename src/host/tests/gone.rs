//! What ends without being asked to: a wait for the peers, and a host that has lost one of its threads.

use super::super::*;
use crate::engine::core::{ContinuationKey, Core};
use crate::engine::seat::Start;
use crate::engine::shared::Outcome;
use crate::plan::Pinning;
use crate::runtime::watchdog::watch;
use crate::sync::task::TaskKey;

/// A fault of the runtime itself: nothing catches what it panics with.
struct Broken;

impl Seat for Broken {
    fn start(&mut self, _: &mut Core, _: Start<'_>) {
        panic!("planted");
    }

    fn resume(&mut self, _: &mut Core, _: ContinuationKey, _: Outcome) {}

    fn poll(&mut self, _: &mut Core, _: TaskKey) {}
}

/// Longer than any test is allowed to take: what waits so long must be ended by something else.
const LONG: Duration = Duration::from_secs(600);

/// Without one of its threads a host is over, and nobody waits for it.
#[test]
fn a_thread_that_is_gone_takes_its_host_along() {
    let _watchdog = watch();
    let mut builder = Host::builder("broken").pinning(Pinning::Off).connect("tcp://127.0.0.1:9");
    builder.options.channels.push(("broken".into(), 100));
    builder.roles.channels.push(Arc::new(|_, _| Box::new(Broken)));
    let host = builder.start().unwrap();
    assert_eq!(host.status().failure, None);
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| host.ready(LONG).unwrap_err());
        let broken = host.client().channel("broken");
        let submitted = broken.request("", "x").timeout(LONG).submit();
        let asked = broken.request("", "x").timeout(LONG).wait().unwrap_err();
        let submitted = submitted.wait().unwrap_err();
        let watched = watching.join().unwrap();
        // Whoever comes when it is all over already is told so.
        assert!(matches!(asked.kind(), ErrorKind::Internal | ErrorKind::ShuttingDown), "{asked}");
        assert_eq!([submitted.kind(), watched.kind()], [ErrorKind::Internal; 2]);
        assert!(watched.to_string().contains("planted"), "{watched}");
        assert!(broken.send("", "later").wait().is_err());
    });
    assert!(host.status().failure.unwrap().contains("planted"));
    assert_eq!(host.join().unwrap_err().kind(), ErrorKind::Internal);
}

#[test]
fn whoever_waited_for_the_peers_leaves_nothing_behind() {
    let _watchdog = watch();
    let host = Host::builder("early").pinning(Pinning::Off).connect("tcp://127.0.0.1:9").start().unwrap();
    for _ in 0..3 {
        let error = host.ready(Duration::from_millis(1)).unwrap_err();
        assert_eq!(error.detail(), Detail::NotConnected);
    }
    assert!(host.shared().watchers.is_empty());
    let alone = Host::builder("alone").pinning(Pinning::Off).start().unwrap();
    alone.ready(Duration::from_millis(1)).unwrap();
    assert!(alone.shared().watchers.is_empty());
}
