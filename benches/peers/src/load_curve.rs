//! Latency against load, of libzmq and of afflux: the same thread offers the same requests to a DEALER and to a
//! host, and a ROUTER and a host do the same work for each. Either as its own defaults or this package's other
//! workloads have it, and told to keep its queues short.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::common::{Args, Server};
use crate::libzmq::{Dealer, HIGH_WATER, Shape, connect, serve_worker};
use crate::openloop::{self, FEW, FEW_REQUESTS, Load, Run, SIZE, Service, System, work};

/// In the serving process: so much work, and for libzmq the mark of its sockets.
pub fn serve(service: Duration, mark: &str) -> ! {
    if mark.is_empty() {
        openloop::serve(service);
    }
    serve_worker(Shape::Bare, mark.parse().expect("written below"), move || work(service))
}

pub fn bench(args: &Args, options: &openloop::Options) {
    let service = Duration::from_micros(options.service_us);
    let router = |mark: i32| Server::spawn(args, &format!("{} {mark}", openloop::order(service)));
    let capacity = || {
        let server = router(HIGH_WATER);
        openloop::capacity(args, &server, &mut Dealer::connect(&server, SIZE, Shape::Bare))
    };
    let libzmq = |mark: i32, load: &Load| -> Run {
        let server = router(mark);
        openloop::drive(&mut Queue::connect(&server, mark), load)
    };
    let afflux_capacity = || openloop::afflux_capacity(args, service);
    let systems = [
        System {
            name: "afflux",
            idle: "park",
            capacity: &afflux_capacity,
            run: &|load| openloop::afflux(args, service, false, load),
        },
        System { name: "libzmq", idle: "blocks", capacity: &capacity, run: &|load| libzmq(HIGH_WATER, load) },
        System {
            name: FEW,
            idle: "park",
            capacity: &afflux_capacity,
            run: &|load| openloop::afflux(args, service, true, load),
        },
        System {
            name: "libzmq, HWM 512",
            idle: "blocks",
            capacity: &capacity,
            run: &|load| libzmq(FEW_REQUESTS as i32, load),
        },
    ];
    openloop::bench(args, options, &systems);
}

/// A DEALER that never waits to send. The number of a request is in its payload, because a ROUTER drops answers
/// when its queue is full.
struct Queue {
    socket: zmq::Socket,
    body: [u8; SIZE],
    frame: zmq::Message,
}

impl Queue {
    fn connect(server: &Server, mark: i32) -> Queue {
        Queue { socket: connect(server, zmq::DEALER, mark), body: [7; SIZE], frame: zmq::Message::new() }
    }
}

impl Service for Queue {
    fn start(&mut self, number: u64) -> Result<(), String> {
        self.body[..8].copy_from_slice(&number.to_le_bytes());
        self.socket.send(&self.body[..], zmq::DONTWAIT).map_err(|e| match e {
            zmq::Error::EAGAIN => "EAGAIN (at the mark)".into(),
            e => panic!("send: {e}"),
        })
    }

    fn take(&mut self, ended: &mut dyn FnMut(u64, Result<(), String>)) {
        while self.socket.recv(&mut self.frame, zmq::DONTWAIT).is_ok() {
            let number = self.frame[..8].try_into().map(u64::from_le_bytes).expect("as it was sent");
            ended(number, Ok(()));
        }
    }

    /// libzmq's own poll counts milliseconds, which is far too long between two requests.
    fn wait(&mut self, most: Duration) {
        // Its descriptor tells of changes only: what was there before must be looked for.
        if self.socket.get_events().expect("an option").contains(zmq::POLLIN) {
            return;
        }
        let fd = self.socket.get_fd().expect("an option");
        // SAFETY: the socket owns it and outlives this call.
        let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
        let most = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: i64::from(most.subsec_nanos()) };
        let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&most));
    }
}
