//! The workloads for tarpc: bincode over TCP, either side on a runtime of one thread.

use std::net::TcpListener;

use futures::StreamExt;
use tarpc::server::Channel;
use tarpc::tokio_serde::formats::Bincode;
use tarpc::{client, context, serde_transport, server};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio_util::codec::{Framed, LengthDelimitedCodec};

use crate::common::load::Caller;
use crate::common::{Server, serve_until_released};

/// More than are ever outstanding.
const ROOM: usize = 4096;

#[tarpc::service]
trait Echo {
    async fn call(body: Vec<u8>) -> Vec<u8>;
}

#[derive(Clone)]
struct Same;

impl Echo for Same {
    async fn call(self, _: context::Context, body: Vec<u8>) -> Vec<u8> {
        body
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// A stream of frames with a length each.
fn framed(stream: std::net::TcpStream) -> Framed<TcpStream, LengthDelimitedCodec> {
    stream.set_nodelay(true).expect("a TCP option");
    stream.set_nonblocking(true).expect("a socket option");
    Framed::new(TcpStream::from_std(stream).expect("a runtime"), LengthDelimitedCodec::new())
}

pub fn serve() -> ! {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let port = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("one client");
        runtime().block_on(async {
            let channel = server::BaseChannel::with_defaults(serde_transport::new(framed(stream), Bincode::default()));
            channel.execute(Same.serve()).for_each(|call| async { drop(tokio::spawn(call)) }).await;
        });
    });
    serve_until_released(port)
}

/// A client whose calls are tasks of its runtime.
pub struct Calls {
    runtime: Runtime,
    client: EchoClient,
    calls: JoinSet<usize>,
    body: Vec<u8>,
}

impl Calls {
    pub fn connect(server: &Server, size: usize) -> Calls {
        let runtime = runtime();
        let stream = std::net::TcpStream::connect(("127.0.0.1", server.port)).expect("the server listens");
        let client = {
            let _inside = runtime.enter();
            let mut config = client::Config::default();
            config.max_in_flight_requests = ROOM;
            config.pending_request_buffer = ROOM;
            EchoClient::new(config, serde_transport::new(framed(stream), Bincode::default())).spawn()
        };
        Calls { runtime, client, calls: JoinSet::new(), body: vec![7; size] }
    }
}

impl Caller for Calls {
    fn send(&mut self, n: usize) {
        let _inside = self.runtime.enter();
        for _ in 0..n {
            let (client, body) = (self.client.clone(), self.body.clone());
            self.calls.spawn(async move { client.call(context::current(), body).await.expect("an echo").len() });
        }
    }

    fn receive(&mut self, _: usize) -> usize {
        let (calls, size) = (&mut self.calls, self.body.len());
        self.runtime.block_on(async {
            let mut next = calls.join_next().await;
            let mut n = 0;
            while let Some(length) = next {
                assert_eq!(length.expect("no call panics"), size);
                n += 1;
                next = calls.try_join_next();
            }
            n
        })
    }
}
