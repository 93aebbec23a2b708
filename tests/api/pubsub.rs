//! Classic publish and subscribe over loopback: who gets what, what a subscriber that does not read costs
//! the others (nothing) and itself (counted), and that a reconnect forgets no subscription.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use afflux::{
    Amount, ByteSize, Context, Detail, DropReason, ErrorKind, Handler, Host, HostBuilder, Publication, Published,
    Publisher, PublisherOptions, PublisherStatus, SlowSubscriber, SubscriberStatus,
};

use crate::support::proxy::Proxy;
use crate::support::subscriber::Raw;
use crate::support::{address, block_on, client_of, connected, server, small, told, until, until_status, watch};

/// Passes on what comes.
struct Listener(Sender<(String, Vec<u8>)>);

impl Handler for Listener {
    fn publication(&mut self, publication: Publication, _: &mut Context<'_, Self>) {
        let topic = String::from_utf8(publication.topic().to_vec()).unwrap();
        // The test may be over.
        let _ = self.0.send((topic, publication.payload().to_vec()));
    }
}

type Heard = Receiver<(String, Vec<u8>)>;

fn subscriber(publishers: &[String], topics: &[&str]) -> (HostBuilder, Heard) {
    let (tell, heard) = channel();
    let mut builder = small("desk").subscriber("ticks", move |_| Listener(tell.clone()));
    for publisher in publishers {
        builder = builder.publisher_at(publisher);
    }
    (topics.iter().fold(builder, |builder, topic| builder.topic(topic)), heard)
}

fn publishing(options: PublisherOptions) -> Host {
    server("ticker").publisher(options).start().expect("valid options")
}

fn next(heard: &Heard) -> (String, String) {
    let (topic, payload) = heard.recv().unwrap();
    (topic, String::from_utf8(payload).unwrap())
}

fn subscriptions(host: &Host) -> u64 {
    host.status().publisher.unwrap().subscriptions
}

#[test]
fn a_subscriber_gets_what_it_asked_for_and_nothing_else() {
    let _dog = watch();
    let ticker = publishing(PublisherOptions::new());
    let publisher = ticker.publisher().unwrap();
    // Nobody there: a success.
    assert_eq!(publisher.publish("eur/usd", "0").wait().unwrap().queued, 0);
    let (builder, heard) = subscriber(&[address(&ticker)], &["eur/", "eur/usd", "log"]);
    let desk = connected(builder);
    until(|| subscriptions(&ticker) == 3);
    for (topic, payload) in [("eur/usd", "1"), ("usd/eur", "2"), ("eur/", "3"), ("eur", "4"), ("log", ""), ("", "5")] {
        let _ = publisher.publish(topic, payload).wait().unwrap();
    }
    let _ = publisher.publish("log.end", "x".repeat(100_000)).wait().unwrap();
    assert_eq!(next(&heard), ("eur/usd".into(), "1".into()));
    assert_eq!(next(&heard), ("eur/".into(), "3".into()));
    assert_eq!(next(&heard), ("log".into(), "".into()));
    assert_eq!(next(&heard), ("log.end".into(), "x".repeat(100_000)));

    let ticks = desk.subscriber("ticks").unwrap();
    assert!(ticks.subscribe("").unwrap() && !ticks.subscribe("").unwrap());
    until(|| subscriptions(&ticker) == 4);
    let _ = publisher.publish("anything", "6").wait().unwrap();
    assert_eq!(next(&heard), ("anything".into(), "6".into()));
    assert!(ticks.unsubscribe("").unwrap());
    until(|| subscriptions(&ticker) == 3);
    assert_eq!(publisher.publish("anything", "7").wait().unwrap().queued, 0);
    let status = ticker.status().publisher.unwrap();
    assert_eq!((status.published, status.matched, status.unmatched), (10, 5, 5));
    assert_eq!(status.dropped.total(), Amount::default());
}

/// Publishes a numbered KiB to "t".
fn publish(publisher: &Publisher, n: u64) -> Published {
    publisher.publish("t", payload(n)).wait().unwrap()
}

/// What a publication to "t" is charged with.
const CHARGE: u64 = 1024 + 1 + 96;

fn payload(n: u64) -> Vec<u8> {
    let mut payload = vec![0; 1024];
    payload[..8].copy_from_slice(&n.to_be_bytes());
    payload
}

fn number(payload: &[u8]) -> u64 {
    u64::from_be_bytes(payload[..8].try_into().unwrap())
}

/// The publisher's counts at a quiet moment: a shard that has written counts it a little later.
fn settled(host: &Host) -> PublisherStatus {
    let now = || host.status().publisher.unwrap();
    let mut status = now();
    until(|| {
        status = now();
        let of = |s: &SubscriberStatus| s.written.records + s.queued.records + s.dropped.total().records;
        status.matched == status.subscribers.iter().map(of).sum::<u64>()
    });
    status
}

#[test]
fn a_stuck_subscriber_costs_the_others_nothing_and_every_drop_is_counted() {
    let _dog = watch();
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = told.clone();
    let options = PublisherOptions::new().hwm(ByteSize::kib(64)).on_drop(move |d| tell.lock().unwrap().push(d.clone()));
    let ticker = publishing(options);
    let publisher = ticker.publisher().unwrap();
    let (builder, heard) = subscriber(&[address(&ticker)], &["t"]);
    let _desk = connected(builder);
    let mut stuck = Raw::subscribe(&ticker, "t");
    until(|| subscriptions(&ticker) == 2);
    // One at a time: the one that reads has taken each before the next.
    let mut published = 0;
    let drops = |host: &Host| host.status().publisher.unwrap().dropped;
    while drops(&ticker).newest.records < 100 {
        publish(&publisher, published);
        assert_eq!(number(&heard.recv().unwrap().1), published);
        published += 1;
    }
    until_status(&ticker, |s| s.publisher.as_ref().unwrap().subscribers.iter().any(|s| s.written.records == published));
    let status = settled(&ticker);
    let subscribers = &status.subscribers;
    let (fast, slow) = if subscribers[0].dropped.total().records == 0 {
        (&subscribers[0], &subscribers[1])
    } else {
        (&subscribers[1], &subscribers[0])
    };
    assert_eq!((fast.dropped.total().records, slow.dropped.total()), (0, slow.dropped.newest));
    assert_eq!(slow.dropped.newest, Amount { records: 100, bytes: 100 * CHARGE });
    assert_eq!(slow.queued.bytes, slow.queued.records * CHARGE);
    assert!(slow.queued.bytes <= 64 << 10 && slow.queued.bytes + CHARGE > 64 << 10, "{slow:?}");
    assert_eq!(slow.written.records + slow.queued.records + 100, published);
    let callback: Amount = told.lock().unwrap().iter().fold(Amount::default(), |sum, d| {
        assert_eq!(d.reason, DropReason::Newest);
        Amount { records: sum.records + d.records, bytes: sum.bytes + d.bytes }
    });
    assert_eq!(callback, slow.dropped.newest);

    // What was not dropped comes in order, and then there is room again. The first drop is at a full queue; the kernel
    // may have taken some of it before the last.
    let kept = published - 100;
    let mut got = stuck.read(kept as usize);
    until(|| {
        publish(&publisher, published);
        got.extend(stuck.read(1));
        number(&got[got.len() - 1]) == published
    });
    assert!(got[..kept as usize].is_sorted_by(|a, b| number(a) < number(b)));
    assert!((0..(64 << 10) / CHARGE).all(|n| number(&got[n as usize]) == n), "before the first drop there is no gap");
}

#[test]
fn the_newest_are_kept_where_the_oldest_are_dropped() {
    let _dog = watch();
    let options = PublisherOptions::new().hwm(ByteSize::kib(64)).slow_subscriber(SlowSubscriber::DropOldest);
    let ticker = publishing(options);
    let publisher = ticker.publisher().unwrap();
    let mut stuck = Raw::subscribe(&ticker, "t");
    until(|| subscriptions(&ticker) == 1);
    let mut published = 0;
    let of = |host: &Host| host.status().publisher.unwrap().subscribers[0].clone();
    while of(&ticker).dropped.oldest.records < 200 {
        assert_eq!(publish(&publisher, published).queued, 1);
        published += 1;
    }
    let status = settled(&ticker).subscribers.remove(0);
    assert_eq!(status.dropped.oldest, Amount { records: 200, bytes: 200 * CHARGE });
    assert_eq!(status.dropped.total(), status.dropped.oldest);
    assert!(status.queued.bytes <= 64 << 10, "{status:?}");
    assert_eq!(status.written.records + status.queued.records + 200, published);
    let got = stuck.read((published - 200) as usize);
    let numbers: Vec<u64> = got.iter().map(|p| number(p)).collect();
    assert!(numbers.is_sorted_by(|a, b| a < b), "in order, each once");
    // What lies in the queue is the newest, without a gap: three quarters of the mark at least.
    let newest = 48 * 1024 / CHARGE - 1;
    assert!((published - newest..published).eq(numbers[numbers.len() - newest as usize..].iter().copied()));
}

#[test]
fn several_publishers_and_one_that_comes_back() {
    let _dog = watch();
    let (a, b) = (publishing(PublisherOptions::new()), publishing(PublisherOptions::new()));
    let proxy = Proxy::before(&a);
    let (builder, heard) = subscriber(&[proxy.address(), address(&b)], &["eur/", "log"]);
    let desk = connected(builder.reconnect(Duration::from_millis(5), Duration::from_millis(50)));
    until(|| subscriptions(&a) == 2 && subscriptions(&b) == 2);
    for (host, payload) in [(&a, "from a"), (&b, "from b")] {
        assert_eq!(host.publisher().unwrap().publish("eur/usd", payload).wait().unwrap().queued, 1);
        assert_eq!(next(&heard), ("eur/usd".into(), payload.into()));
    }
    // Away: what is wanted changes, and the next one there is told all of it.
    let ticks = desk.subscriber("ticks").unwrap();
    proxy.lead_to_nobody();
    drop(a);
    until_status(&desk, |s| s.links.iter().any(|l| !l.up));
    assert!(ticks.unsubscribe("log").unwrap() && ticks.subscribe("usd/").unwrap() && ticks.subscribe("x").unwrap());
    until(|| subscriptions(&b) == 3);
    let c = publishing(PublisherOptions::new());
    proxy.lead_to(&c);
    until(|| subscriptions(&c) == 3);
    let publisher = c.publisher().unwrap();
    assert_eq!(publisher.publish("log", "not wanted").wait().unwrap().queued, 0);
    assert_eq!(publisher.publish("usd/eur", "from c").wait().unwrap().queued, 1);
    assert_eq!(next(&heard), ("usd/eur".into(), "from c".into()));
    assert_eq!(b.publisher().unwrap().publish("eur/", "still b").wait().unwrap().queued, 1);
    assert_eq!(next(&heard), ("eur/".into(), "still b".into()));
    assert_eq!(ticks.subscriptions().len(), 3);
    assert_eq!(desk.subscriber("tocks").unwrap_err().kind(), ErrorKind::NotConfigured);
    assert_eq!(desk.publisher().unwrap_err().kind(), ErrorKind::NotConfigured);
}

#[test]
fn a_waiting_publication_is_for_all_or_for_nobody_and_ends_at_the_publishers_ceiling() {
    let _dog = watch();
    let ceiling = Duration::from_millis(50);
    let options = PublisherOptions::new()
        .hwm(ByteSize::kib(64))
        .slow_subscriber(SlowSubscriber::Wait)
        .timeout(ceiling)
        .on_drop(|d| panic!("{d:?}"));
    // Another path's ceiling would be seen.
    let ticker = server("ticker").publisher(options).send_timeout(Duration::from_secs(80)).start().unwrap();
    let publisher = ticker.publisher().unwrap();
    assert_eq!(publish(&publisher, 0), Published::default(), "nobody there");
    let (builder, heard) = subscriber(&[address(&ticker)], &["t"]);
    let _desk = connected(builder);
    let mut stuck = Raw::subscribe(&ticker, "t");
    until(|| subscriptions(&ticker) == 2);
    let mut published = 0;
    let error = loop {
        match publisher.publish("t", payload(published)).wait() {
            Ok(to) => {
                assert_eq!((to.queued, to.dropped), (2, 0));
                assert_eq!(number(&heard.recv().unwrap().1), published);
                published += 1;
            }
            Err(error) => break error,
        }
    };
    assert_eq!((error.kind(), error.error().detail()), (ErrorKind::DeadlineExceeded, Detail::NoRoom));
    assert!(error.error().figures().waited.unwrap() >= ceiling);
    assert!(error.error().figures().used.unwrap() + CHARGE > error.error().figures().limit.unwrap());
    assert_eq!(error.into_payload(), payload(published));
    // A per-call value shortens, and a future ends too.
    assert!(block_on(publisher.publish("t", payload(published)).timeout(Duration::from_millis(1))).is_err());
    // Nothing of it went to the one that reads.
    let status = ticker.status();
    assert_eq!(status.waiting, 0);
    let status = status.publisher.unwrap();
    assert_eq!((status.published, status.matched), (published + 1, 2 * published));
    let [fast, slow] = &status.subscribers[..] else { panic!("{status:?}") };
    assert_eq!((fast.queued, slow.queued.records > 0), (Amount::default(), true), "what was reserved is given back");
    assert_eq!(status.dropped.total(), Amount::default());

    // It goes on when there is room, in order.
    let (going, last) = (publisher.clone(), published + 500);
    let rest = std::thread::spawn(move || {
        for n in published..last {
            // A failure gives everything back: again.
            until(|| going.publish("t", payload(n)).wait().is_ok());
        }
    });
    let got = stuck.read(last as usize);
    rest.join().unwrap();
    assert!(got.iter().enumerate().all(|(n, payload)| number(payload) == n as u64));
    for n in published..last {
        assert_eq!(number(&heard.recv().unwrap().1), n);
    }
    // Whoever waits for one that goes away is let go.
    until(|| publisher.publish("t", payload(0)).wait().is_err());
    let waits = std::thread::spawn(move || {
        until(|| publisher.publish("t", payload(0)).wait().is_ok());
    });
    drop(stuck);
    waits.join().unwrap();
}

#[test]
fn a_stalled_subscriber_is_disconnected_and_its_queue_counted() {
    let _dog = watch();
    let stall = Duration::from_millis(100);
    let options = PublisherOptions::new().hwm(ByteSize::kib(64)).slow_subscriber(SlowSubscriber::Disconnect(stall));
    let ticker = publishing(options);
    let publisher = ticker.publisher().unwrap();
    let (builder, heard) = subscriber(&[address(&ticker)], &["t"]);
    let _desk = connected(builder);
    let mut stuck = Raw::subscribe(&ticker, "t");
    until(|| subscriptions(&ticker) == 2);
    let mut published = 0;
    until(|| {
        publish(&publisher, published);
        assert_eq!(number(&heard.recv().unwrap().1), published);
        published += 1;
        subscriptions(&ticker) == 1
    });
    until_status(&ticker, |s| s.publisher.as_ref().unwrap().dropped.disconnected.records > 0);
    until_status(&ticker, |s| {
        s.publisher
            .as_ref()
            .unwrap()
            .subscribers
            .iter()
            .all(|s| (s.queued.records, s.written.records) == (0, published))
    });
    let status = ticker.status().publisher.unwrap();
    assert!(status.dropped.newest.records > 0);
    let read = stuck.count_to_the_end();
    let [fast] = &status.subscribers[..] else { panic!("{status:?}") };
    assert_eq!((status.published, fast.written.records, fast.dropped.total().records), (published, published, 0));
    // Of the stuck one's: what it finds in its kernel, and what was dropped. One was begun and not ended.
    let of_stuck = status.matched - published;
    assert_eq!(of_stuck, read + status.dropped.total().records);
}

#[test]
fn a_shutdown_lingers_for_who_reads_and_counts_what_is_left() {
    let _dog = watch();
    let drops = Arc::new(Mutex::new(Vec::new()));
    for (reads, linger) in [(true, Duration::from_secs(80)), (false, Duration::from_millis(1))] {
        let tell = drops.clone();
        let options = PublisherOptions::new()
            .hwm(ByteSize::mib(16))
            .linger(linger)
            .on_drop(move |d| tell.lock().unwrap().push((d.reason, d.records)));
        let ticker = publishing(options);
        let publisher = ticker.publisher().unwrap();
        let mut raw = Raw::subscribe(&ticker, "t");
        until(|| subscriptions(&ticker) == 1);
        let mut published = 0;
        // One that does not read: until more than all kernel buffers hold was published.
        let enough = |status: afflux::PublisherStatus| match reads {
            true => status.subscribers[0].queued.bytes > 1 << 20,
            false => status.dropped.newest.records > 0,
        };
        while !enough(ticker.status().publisher.unwrap()) {
            publish(&publisher, published);
            published += 1;
        }
        if reads {
            let reader = std::thread::spawn(move || raw.read(published as usize).len());
            ticker.shutdown(Duration::from_secs(80));
            assert_eq!(reader.join().unwrap() as u64, published);
            assert!(drops.lock().unwrap().is_empty());
        } else {
            ticker.shutdown(Duration::from_secs(80));
            let told = drops.lock().unwrap().clone();
            let newest = |(reason, _): &&(DropReason, u64)| *reason == DropReason::Newest;
            let at_the_end: Vec<_> = told.iter().skip_while(newest).collect();
            assert!(matches!(at_the_end[..], [(DropReason::Shutdown, n)] if *n > 900), "{at_the_end:?}");
        }
        assert_eq!(publisher.publish("t", "late").wait().unwrap_err().kind(), ErrorKind::ShuttingDown);
    }
}

/// Field case 083: what was chosen holds however many subscribers there are.
#[test]
fn every_policy_holds_with_nobody_there_and_after_the_last_has_left() {
    let _dog = watch();
    let stall = SlowSubscriber::Disconnect(Duration::from_secs(60));
    for slow in [SlowSubscriber::DropNewest, SlowSubscriber::DropOldest, SlowSubscriber::Wait, stall] {
        let ticker = publishing(PublisherOptions::new().hwm(ByteSize::bytes(1)).slow_subscriber(slow));
        let publisher = ticker.publisher().unwrap();
        for round in 0..3 {
            assert_eq!(publish(&publisher, round), Published::default());
            let mut raw = Raw::subscribe(&ticker, "");
            until(|| subscriptions(&ticker) == 1);
            // Larger than the mark: an empty queue takes it under every policy.
            assert_eq!(publish(&publisher, round).queued, 1);
            assert_eq!(number(&raw.read(1)[0]), round);
            drop(raw);
            until_status(&ticker, |s| {
                let publisher = s.publisher.as_ref().unwrap();
                (publisher.subscriptions, publisher.subscribers.len()) == (0, 0)
            });
        }
        let status = ticker.status().publisher.unwrap();
        assert_eq!((status.published, status.matched, status.unmatched), (6, 3, 3));
        assert_eq!((status.subscribers.len(), status.dropped.total()), (0, Amount::default()));
    }
}

#[test]
fn whoever_subscribes_to_too_much_is_disconnected() {
    let _dog = watch();
    let ticker = publishing(PublisherOptions::new().subscription_table(ByteSize::kib(16)));
    let mut greedy = Raw::subscribe(&ticker, "0");
    for i in 1..=10 {
        greedy.ask(&i.to_string());
    }
    assert_eq!(greedy.count_to_the_end(), 0, "the eleventh is beyond a quarter of the table");
    until(|| subscriptions(&ticker) == 0);
    // Asked for twice is had once.
    let mut modest = Raw::subscribe(&ticker, "0");
    for i in 0..100 {
        modest.ask(&(i % 10).to_string());
    }
    modest.ask("1");
    until(|| subscriptions(&ticker) == 10);
    assert_eq!(ticker.publisher().unwrap().publish("9", payload(9)).wait().unwrap().queued, 1);
    assert_eq!(number(&modest.read(1)[0]), 9);
    let nobody = server("nobody").start().unwrap();
    let mut refused = Raw::subscribe(&nobody, "");
    assert_eq!(refused.count_to_the_end(), 0, "this host has no publisher");
}

#[test]
fn publishers_may_come_themselves() {
    let _dog = watch();
    let (tell, heard) = channel();
    let desk = server("desk")
        .plain("ticker", "secret")
        .subscriber("ticks", move |_| Listener(tell.clone()))
        .publishers_connect()
        .topic("eur/")
        .start()
        .unwrap();
    let mut publisher = Raw::dial_as(&desk, "PUB", Some(("ticker", "secret")));
    assert_eq!(publisher.subscription(), b"\x01eur/");
    publisher.publish("eur/usd", "1");
    assert_eq!(next(&heard), ("eur/usd".into(), "1".into()));
    desk.subscriber("ticks").unwrap().subscribe("log").unwrap();
    assert_eq!(publisher.subscription(), b"\x01log");
    let mut second = Raw::dial_as(&desk, "XPUB", Some(("ticker", "secret")));
    assert_eq!([second.subscription(), second.subscription()], [b"\x01eur/".to_vec(), b"\x01log".to_vec()]);
    second.publish("log", "2");
    assert_eq!(next(&heard), ("log".into(), "2".into()));
    drop((publisher, second));
    until_status(&desk, |s| s.links.is_empty());
}

#[test]
fn a_handler_publishes_what_it_was_told() {
    let _dog = watch();
    let told = told(|message, cx| {
        let _ = cx.publisher().unwrap().publish("told", message.into_payload()).wait().unwrap();
    });
    let desk = server("desk").publisher(PublisherOptions::new()).channel("tell", told).start().unwrap();
    let (builder, heard) = subscriber(&[address(&desk)], &["told"]);
    let _listener = connected(builder);
    until(|| subscriptions(&desk) == 1);
    let client = client_of(&desk);
    client.client().channel("tell").send("", "news").wait().unwrap();
    assert_eq!(next(&heard), ("told".into(), "news".into()));
}

#[test]
fn what_is_too_large_comes_back() {
    let _dog = watch();
    let ticker = server("ticker").publisher(PublisherOptions::new()).max_message_size(ByteSize::kib(1));
    let publisher = ticker.start().unwrap().publisher().unwrap();
    let error = publisher.publish("t", vec![0; 1024]).wait().unwrap_err();
    assert_eq!(error.into_payload().len(), 1024);
}
