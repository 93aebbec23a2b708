//! The ceilings: bare sockets that know how long a message is.

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use serde_json::json;

use super::load::{Caller, Sender};
use super::{Server, serve_and_report, serve_until_released};

/// What one read or write carries at most.
pub const BATCH: usize = 64 << 10;

const STREAM: Token = Token(0);

/// One connection that blocks in its poller, after looking for bytes for `spin`.
pub struct Raw {
    stream: TcpStream,
    poll: Poll,
    events: Events,
    spin: Duration,
    size: usize,
    /// Bytes that came and were not told of: a message that has not come whole, and what was read so that a
    /// write could go on.
    held: usize,
    block: Vec<u8>,
}

impl Raw {
    fn new(stream: std::net::TcpStream, size: usize, spin: Duration) -> Raw {
        stream.set_nodelay(true).expect("a TCP option");
        stream.set_nonblocking(true).expect("a socket option");
        let mut stream = TcpStream::from_std(stream);
        let poll = Poll::new().expect("a poller");
        let interest = Interest::READABLE | Interest::WRITABLE;
        poll.registry().register(&mut stream, STREAM, interest).expect("registers");
        Raw { stream, poll, events: Events::with_capacity(8), spin, size, held: 0, block: vec![7; BATCH.max(size)] }
    }

    /// Connects to a [`serve`].
    pub fn connect(server: &Server, size: usize, spin: Duration) -> Raw {
        Raw::new(std::net::TcpStream::connect(("127.0.0.1", server.port)).expect("the server listens"), size, spin)
    }

    fn wait(&mut self, since: &mut Option<Instant>) {
        let spinning = !self.spin.is_zero() && since.get_or_insert_with(Instant::now).elapsed() < self.spin;
        if let Err(e) = self.poll.poll(&mut self.events, spinning.then_some(Duration::ZERO)) {
            assert_eq!(e.kind(), io::ErrorKind::Interrupted);
        }
    }

    /// Reads once, what is there, and waits for it; 0 at the end of the stream.
    fn read(&mut self, most: usize) -> usize {
        let mut since = None;
        loop {
            match self.stream.read(&mut self.block[..most]) {
                Ok(n) => return n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.wait(&mut since),
                Err(e) => panic!("raw read: {e}"),
            }
        }
    }

    fn write(&mut self, mut bytes: usize) {
        let mut since = None;
        while bytes > 0 {
            match self.stream.write(&self.block[..bytes.min(self.block.len())]) {
                Ok(n) => bytes -= n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.wait(&mut since),
                Err(e) => panic!("raw write: {e}"),
            }
        }
    }
}

impl Caller for Raw {
    /// Reads where it cannot write: with more on its way than the sockets hold, both ends would wait to write.
    fn send(&mut self, n: usize) {
        let (mut bytes, mut since) = (n * self.size, None);
        while bytes > 0 {
            match self.stream.write(&self.block[..bytes.min(self.block.len())]) {
                Ok(n) => bytes -= n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => match self.stream.read(&mut self.block) {
                    Ok(n) => self.held += n,
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.wait(&mut since),
                    Err(e) => panic!("raw read: {e}"),
                },
                Err(e) => panic!("raw write: {e}"),
            }
        }
    }

    fn receive(&mut self, n: usize) -> usize {
        while self.held < self.size {
            let most = (n * self.size - self.held).min(self.block.len());
            let got = self.read(most);
            assert_ne!(got, 0, "the server answers");
            self.held += got;
        }
        let whole = self.held / self.size;
        self.held %= self.size;
        whole
    }
}

/// Answers whole messages of `size` with as many bytes.
pub fn serve(size: usize, spin: Duration) -> ! {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let port = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("one client");
        let mut raw = Raw::new(stream, size, spin);
        loop {
            match raw.read(raw.block.len()) {
                0 => return,
                got => {
                    let have = raw.held + got;
                    raw.held = have % size;
                    raw.write(have - raw.held);
                }
            }
        }
    });
    serve_until_released(port)
}

/// One connection whose calls block, with nothing around it.
pub struct Std {
    stream: std::net::TcpStream,
    size: usize,
    held: usize,
    block: Vec<u8>,
}

impl Std {
    /// The most bytes that may be on their way: more than the sockets hold, and both ends would wait to write.
    pub const MOST: usize = 256 << 10;

    fn new(stream: std::net::TcpStream, size: usize) -> Std {
        stream.set_nodelay(true).expect("a TCP option");
        Std { stream, size, held: 0, block: vec![7; BATCH.max(size)] }
    }

    /// Connects to a [`serve_std`].
    pub fn connect(server: &Server, size: usize) -> Std {
        Std::new(std::net::TcpStream::connect(("127.0.0.1", server.port)).expect("the server listens"), size)
    }

    fn write(&mut self, mut bytes: usize) {
        while bytes > 0 {
            let some = bytes.min(self.block.len());
            self.stream.write_all(&self.block[..some]).expect("the other end reads");
            bytes -= some;
        }
    }
}

impl Caller for Std {
    fn send(&mut self, n: usize) {
        self.write(n * self.size);
    }

    fn receive(&mut self, n: usize) -> usize {
        while self.held < self.size {
            let most = (n * self.size - self.held).min(self.block.len());
            let got = self.stream.read(&mut self.block[..most]).expect("connected");
            assert_ne!(got, 0, "the server answers");
            self.held += got;
        }
        let whole = self.held / self.size;
        self.held %= self.size;
        whole
    }
}

/// As [`serve`], with calls that block.
pub fn serve_std(size: usize) -> ! {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let port = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        let mut end = Std::new(listener.accept().expect("one client").0, size);
        while let Ok(got) = end.stream.read(&mut end.block)
            && got > 0
        {
            let have = end.held + got;
            end.held = have % size;
            end.write(have - end.held);
        }
    });
    serve_until_released(port)
}

/// One-way messages, as many in a write as fit [`BATCH`].
pub struct Stream {
    stream: std::net::TcpStream,
    size: usize,
    held: usize,
    block: Vec<u8>,
}

impl Stream {
    /// Connects to a [`count`].
    pub fn connect(server: &Server, size: usize) -> Stream {
        let stream = std::net::TcpStream::connect(("127.0.0.1", server.port)).expect("the server listens");
        Stream { stream, size, held: 0, block: vec![7; (BATCH / size).max(1) * size] }
    }
}

impl Sender for Stream {
    fn send(&mut self, n: usize) {
        self.held += n * self.size;
        while self.held >= self.block.len() {
            self.stream.write_all(&self.block).expect("the server reads");
            self.held -= self.block.len();
        }
    }

    fn flush(&mut self) {
        self.stream.write_all(&self.block[..self.held]).expect("the server reads");
        self.held = 0;
    }
}

/// Counts messages of `size`.
pub fn count(size: usize) -> ! {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let port = listener.local_addr().expect("bound").port();
    let received = Arc::new(AtomicU64::new(0));
    let total = received.clone();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("one client");
        let (mut block, mut bytes) = (vec![0; BATCH], 0u64);
        while let Ok(n) = stream.read(&mut block)
            && n > 0
        {
            bytes += n as u64;
            total.store(bytes, Ordering::Relaxed);
        }
    });
    serve_and_report(port, move |_| json!({"received": received.load(Ordering::Relaxed) / size as u64}))
}
