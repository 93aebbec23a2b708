//! One run, from the open store to the closed one: what is started in which order, and ended in the reverse.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use afflux::Host;
use afflux::policy::ledger::{self, Ledger, Reservation, WhenFull};

use crate::args::{Pace, Role, Settings};
use crate::audit::{ANSWERS, audit};
use crate::counts::Shared;
use crate::input::{self, Source};
use crate::load::{Load, SLOT_BYTES, Until, number};
use crate::memory::Memory;
use crate::priority::give_way;
use crate::report::{Ledgers, Report};
use crate::sample::Samples;
use crate::service::{CHANNEL, INPUT, Service, end_host};
use crate::sizes::{BYTES_OUTSTANDING, LINE_MAX, Sizes};
use crate::store::Store;
use crate::tenants::Tenants;
use crate::times::{Set, Times};
use crate::watch::{self, Sides, Watch};
use crate::{chart, interrupt};

/// How long the client may take to find the service.
const CONNECT: Duration = Duration::from_secs(10);
/// What is left to do after the load has ended, at most for so long: nothing is, unless something hangs.
const SHUTDOWN: Duration = Duration::from_secs(5);
/// How long the commits per second are measured before an open loop, and with how many records outstanding:
/// more than all places behind the permits, so that the store never waits for the load, and no more than the
/// queues before them take, so that nobody is refused.
const MEASURE: Duration = Duration::from_secs(2);
const MEASURED_WITH: usize = 2048;
/// How often a service that only serves looks whether it should stop.
const LOOK: Duration = Duration::from_millis(50);

/// The load's half: its host and what it shares.
struct Asking {
    host: Arc<Host>,
    shared: Arc<Shared>,
    ledger: Ledger,
    slots: usize,
}

/// Runs to the end; what does not hold then, in words.
pub fn run(mut settings: Settings) -> Result<Vec<String>, Box<dyn Error>> {
    let sources = std::mem::take(&mut settings.sources);
    let stop = Arc::new(AtomicBool::new(false));
    interrupt::listen(stop.clone())?;
    std::fs::create_dir_all(&settings.out)?;
    let times = Arc::new(Times::new());
    let Settings { role, key, sizes, store, fresh, drill, .. } = &settings;

    let mut stored = None;
    let service = match role {
        Role::Both | Role::Service => {
            let store = Store::open(store, *fresh, *key, *drill)?;
            stored = Some((store.path().to_owned(), store.last()));
            Some(Service::start(sizes, *key, store, times.clone())?)
        }
        Role::Load(_) | Role::Verify(_) => None,
    };
    let address = match (role, &service) {
        (Role::Load(address), _) => Some(address.clone()),
        (Role::Both, Some(service)) => Some(format!("tcp://{}", service.host.addresses()[0])),
        _ => None,
    };
    let own = if service.is_none() { *key } else { None };
    let asking = match address {
        Some(address) => Some(ask(sizes, &address, Shared::new(Tenants::new(own), times.clone()))?),
        None => None,
    };
    let mut ledgers = Ledgers::default();
    for (host, ledger) in [
        service.as_ref().map(|service| ("relay-service", service.ledger.clone())),
        asking.as_ref().map(|asking| ("relay-load", asking.ledger.clone())),
    ]
    .into_iter()
    .flatten()
    {
        ledgers.add(host, ledger);
    }
    eprintln!("{ledgers}");

    let sides = Sides {
        load: asking.as_ref().map(|asking| (asking.host.clone(), asking.shared.clone())),
        service: service.as_ref().map(|s| (s.host.clone(), s.flow.clone(), s.bridge.clone())),
        times,
    };
    let mut driven = Driven::default();
    let mut broken = Vec::new();
    let name = if asking.is_some() { "relay" } else { "relay-service" };
    let prefix = settings.out.join(name);
    let before = Memory::at_rest();
    let seen = match &asking {
        Some(asking) => {
            let (seen, interrupted) = drive(&settings, sources, asking, sides, &prefix, &stop, &mut driven)?;
            broken.extend(interrupted);
            seen
        }
        None => {
            if let Some(service) = &service {
                println!("serving at tcp://{}", service.host.addresses()[0]);
            }
            let watch = Watch::start(sides, &prefix, "service")?;
            let begin = Instant::now();
            while !stop.load(Ordering::Relaxed) && settings.seconds.is_none_or(|time| begin.elapsed() < time) {
                std::thread::sleep(LOOK);
            }
            driven.seconds = begin.elapsed().as_secs_f64();
            watch.end()?
        }
    };
    let memory = [if driven.before.resident > 0 { driven.before } else { before }, Memory::peak(), Memory::at_rest()];

    let mut report = Report {
        pace: driven.pace.clone(),
        rate: driven.rate,
        seconds: driven.seconds,
        counts: asking.as_ref().map(|asking| asking.shared.counts()),
        client: asking.as_ref().map(|asking| asking.host.status()),
        served: service.as_ref().map(|s| (s.host.status(), s.flow.served(), s.bridge.snapshot())),
        tenants: match (&service, &asking) {
            (Some(service), _) => service.flow.tenants.seen(),
            (None, Some(asking)) => asking.shared.tenants.seen(),
            (None, None) => Vec::new(),
        },
        audit: None,
        ledgers,
        memory,
        seen,
    };
    broken.extend(asking.and_then(|asking| end_host(asking.host, SHUTDOWN)));
    if let Some(service) = service {
        let flow = service.flow.clone();
        broken.extend(service.end(SHUTDOWN));
        // What callers had given up was still answered for.
        if let Some((_, served, _)) = &mut report.served {
            *served = flow.served();
        }
    }
    if let Some((path, before)) = &stored {
        let answers = settings.out.join(ANSWERS);
        match audit(path, *before, (*role == Role::Both).then_some(answers.as_path())) {
            Ok(audit) => report.audit = Some(audit),
            Err(e) => broken.push(format!("the store cannot be read again: {e}")),
        }
    }
    let svg = prefix.with_extension("svg");
    chart::draw(&svg, &report.title(), report.seen.samples.kept())?;
    print!("{report}");
    if let Some((path, _)) = &stored {
        println!("store {}", path.display());
    }
    let shown = prefix.display();
    println!("histograms {shown}.hlog and .hgrm, chart {}", svg.display());
    if let Some(json) = &settings.json {
        std::fs::write(json, report.json()).map_err(|e| format!("--json {}: {e}", json.display()))?;
    }
    broken.extend(report.broken());
    Ok(broken)
}

/// Starts the host that asks, with its ledger.
fn ask(sizes: &Sizes, address: &str, shared: Shared) -> Result<Asking, Box<dyn Error>> {
    let host = sizes.dialled(address).start()?;
    host.ready(CONNECT)?;
    let plan = host.plan();
    let slots = match sizes.outstanding {
        Some(n) => n as usize,
        None => plan.request_slots as usize + plan.room.ops as usize,
    };
    let mut ledger = Ledger::new();
    ledger.add(input::reservation(LINE_MAX));
    let end = "the request's end";
    ledger.add(Reservation::overhead("slots of the load", slots as u64, SLOT_BYTES, end, WhenFull::Wait));
    let typical = slots as u64 * plan.record_typical();
    ledger
        .add(Reservation::payload("outstanding records", 1, BYTES_OUTSTANDING, end, WhenFull::Wait).expecting(typical));
    ledger.add(Samples::reservation());
    let sets = Set::bytes();
    ledger.add(Reservation::overhead("histograms of the watch", 4, sets, "the end", WhenFull::Never));
    for row in ledger::of_links(plan, sizes.links() as u32).rows() {
        ledger.add(row.clone());
    }
    Ok(Asking { host: Arc::new(host), shared: Arc::new(shared), ledger, slots })
}

/// What the driving found out.
#[derive(Default)]
struct Driven {
    pace: String,
    /// Commits per second before an open loop.
    rate: Option<f64>,
    seconds: f64,
    /// Memory when the load itself began, everything warm.
    before: Memory,
}

/// Makes the load, watched; why it stopped early, if it did.
fn drive(
    settings: &Settings,
    sources: Vec<Source>,
    asking: &Asking,
    sides: Sides,
    prefix: &Path,
    stop: &AtomicBool,
    driven: &mut Driven,
) -> Result<(watch::Seen, Option<String>), Box<dyn Error>> {
    let channel = asking.host.client().channel(CHANNEL);
    let identities: Vec<&str> = sources.iter().map(Source::identity).collect();
    let inputs = number(&channel, INPUT, &identities, CONNECT)?;
    let longest = asking.host.plan().max_message as usize;
    let answers: PathBuf = settings.out.join(ANSWERS);
    // With an open loop alone: a closed one offers no more than it is answered.
    let gives_way = settings.role == Role::Both && matches!(settings.pace, Pace::Open(_));
    let feed = input::feed(sources, inputs, settings.rounds, longest, &settings.out, gives_way)?;
    let mut load = Load::new(channel, feed, asking.slots, asking.shared.clone(), &answers)?;
    let until = |time: Option<Duration>| Until { stop, end: time.map(|time| Instant::now() + time) };
    let (watch, end);
    match settings.pace {
        Pace::Closed(k) => {
            driven.pace = format!("closed loop, {k} outstanding");
            driven.before = Memory::at_rest();
            watch = Watch::start(sides, prefix, &driven.pace)?;
            let begin = Instant::now();
            let sent = load.closed(k as usize, &until(settings.seconds), false).map(drop);
            end = drained(&mut load, sent);
            driven.seconds = begin.elapsed().as_secs_f64();
        }
        Pace::Open(x) => {
            eprintln!("measuring the commits per second for {} s, in a closed loop", MEASURE.as_secs());
            let measured = load.closed(MEASURED_WITH, &until(Some(MEASURE)), true);
            load.drain()?;
            let rate = measured?;
            if rate < 1.0 {
                return Err("nothing was committed while the commits per second were measured".into());
            }
            driven.rate = Some(rate);
            driven.pace = format!("open loop, {x} x {rate:.0} commits/s = {:.0} requests/s offered", x * rate);
            driven.before = Memory::at_rest();
            watch = Watch::start(sides, prefix, &driven.pace)?;
            if gives_way {
                give_way();
            }
            let begin = Instant::now();
            let sent = load.open(x * rate, &until(settings.seconds));
            end = drained(&mut load, sent);
            driven.seconds = begin.elapsed().as_secs_f64();
        }
    }
    Ok((watch.end()?, end.err().map(|e| e.to_string())))
}

/// Waits for what is outstanding, however the sending ended.
fn drained(load: &mut Load, sent: Result<(), Box<dyn Error>>) -> Result<(), Box<dyn Error>> {
    let drained = load.drain();
    sent.and(drained)
}
