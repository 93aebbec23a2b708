//! A byte proxy between two hosts. It forwards bytes and understands none of them, but for the lane that
//! a dialling side writes in its READY in clear text; so it can cut or freeze one connection of a pair.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread;

use afflux::{Host, Lane};

/// One forwarded connection.
pub struct Wire {
    lane: OnceLock<Lane>,
    frozen: Mutex<bool>,
    thawed: Condvar,
    near: TcpStream,
    far: TcpStream,
    /// A host closed it. Stays false for what the proxy cut itself.
    closed: AtomicBool,
    cut: AtomicBool,
    /// Bytes forwarded to the dialling host.
    back: AtomicU64,
}

impl Wire {
    fn is_over(&self) -> bool {
        self.closed.load(Ordering::SeqCst) || self.cut.load(Ordering::SeqCst)
    }

    fn set_frozen(&self, frozen: bool) {
        *self.frozen.lock().unwrap() = frozen;
        self.thawed.notify_all();
    }

    fn end(&self) {
        for half in [&self.near, &self.far] {
            // It may be over already.
            let _ = half.shutdown(Shutdown::Both);
        }
        self.set_frozen(false);
    }

    /// Forwards one direction until either end closes.
    fn pump(&self, mut from: &TcpStream, mut to: &TcpStream, forth: bool) {
        let mut block = vec![0; 16 << 10];
        let mut head = Vec::new();
        loop {
            let n = match from.read(&mut block) {
                Ok(n) if n > 0 => n,
                _ => break,
            };
            if forth && self.lane.get().is_none() {
                head.extend_from_slice(&block[..n]);
                if let Some(lane) = lane_in(&head) {
                    let _ = self.lane.set(lane);
                }
            }
            let mut frozen = self.frozen.lock().unwrap();
            while *frozen {
                frozen = self.thawed.wait(frozen).unwrap();
            }
            drop(frozen);
            if to.write_all(&block[..n]).is_err() {
                break;
            }
            if !forth {
                self.back.fetch_add(n as u64, Ordering::SeqCst);
            }
        }
        if !self.cut.load(Ordering::SeqCst) {
            self.closed.store(true, Ordering::SeqCst);
        }
        self.end();
    }
}

/// The lane that a READY names.
fn lane_in(bytes: &[u8]) -> Option<Lane> {
    const NAME: &[u8] = b"X-Afflux-Lane";
    let at = bytes.windows(NAME.len()).position(|w| w == NAME)?;
    let value = bytes.get(at + NAME.len() + 4..)?;
    match value.first()? {
        b'a' => Some(Lane::Application),
        b'c' => Some(Lane::Completion),
        other => panic!("no such lane: {other}"),
    }
}

struct Shared {
    to: Mutex<Option<SocketAddr>>,
    wires: Mutex<Vec<Arc<Wire>>>,
    over: AtomicBool,
}

/// See the module. Dropped, it closes everything.
pub struct Proxy {
    shared: Arc<Shared>,
    at: SocketAddr,
}

impl Proxy {
    /// In front of `host`.
    pub fn before(host: &Host) -> Proxy {
        let proxy = Proxy::to_nobody();
        proxy.lead_to(host);
        proxy
    }

    /// Closes every connection until it is led to a host.
    pub fn to_nobody() -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let shared =
            Arc::new(Shared { to: Mutex::new(None), wires: Mutex::new(Vec::new()), over: AtomicBool::new(false) });
        let own = shared.clone();
        thread::spawn(move || {
            for near in listener.incoming() {
                if own.over.load(Ordering::SeqCst) {
                    return;
                }
                let to = *own.to.lock().unwrap();
                if let (Ok(near), Some(to)) = (near, to) {
                    own.forward(near, to);
                }
            }
        });
        Proxy { shared, at }
    }

    pub fn lead_to(&self, host: &Host) {
        *self.shared.to.lock().unwrap() = Some(host.addresses()[0]);
    }

    /// New connections are closed from now on.
    pub fn lead_to_nobody(&self) {
        *self.shared.to.lock().unwrap() = None;
    }

    pub fn address(&self) -> String {
        format!("tcp://{}", self.at)
    }

    /// The live connection of that lane; the pair must be up.
    fn live(&self, lane: Lane) -> Arc<Wire> {
        let wires = self.shared.wires.lock().unwrap();
        let mut of_lane = wires.iter().filter(|w| w.lane.get() == Some(&lane) && !w.is_over());
        let wire = of_lane.next().expect("a live connection of that lane").clone();
        assert!(of_lane.next().is_none(), "one live connection of each lane");
        wire
    }

    /// Ends it without a word to either side's program.
    pub fn cut(&self, lane: Lane) {
        let wire = self.live(lane);
        wire.cut.store(true, Ordering::SeqCst);
        wire.end();
    }

    /// Forwards nothing on it, in either direction, until `thaw`.
    pub fn freeze(&self, lane: Lane) {
        self.live(lane).set_frozen(true);
    }

    pub fn thaw(&self, lane: Lane) {
        self.live(lane).set_frozen(false);
    }

    /// How many connections of that lane a host has closed.
    pub fn closed(&self, lane: Lane) -> usize {
        let wires = self.shared.wires.lock().unwrap();
        wires.iter().filter(|w| w.lane.get() == Some(&lane) && w.closed.load(Ordering::SeqCst)).count()
    }

    /// Bytes that have come back to the dialling host on that lane's live connection.
    pub fn bytes_back(&self, lane: Lane) -> u64 {
        self.live(lane).back.load(Ordering::SeqCst)
    }
}

impl Shared {
    fn forward(&self, near: TcpStream, to: SocketAddr) {
        let Ok(far) = TcpStream::connect(to) else { return };
        near.set_nodelay(true).unwrap();
        far.set_nodelay(true).unwrap();
        let wire = Arc::new(Wire {
            lane: OnceLock::new(),
            frozen: Mutex::new(false),
            thawed: Condvar::new(),
            near,
            far,
            closed: AtomicBool::new(false),
            cut: AtomicBool::new(false),
            back: AtomicU64::new(0),
        });
        self.wires.lock().unwrap().push(wire.clone());
        let back = wire.clone();
        thread::spawn(move || wire.pump(&wire.near, &wire.far, true));
        thread::spawn(move || back.pump(&back.far, &back.near, false));
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        // Lets the accepting thread look.
        let _ = TcpStream::connect(self.at);
        for wire in self.shared.wires.lock().unwrap().iter() {
            wire.cut.store(true, Ordering::SeqCst);
            wire.end();
        }
    }
}
