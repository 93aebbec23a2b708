//! A ZeroMQ subscriber or publisher of a few lines, in the form of ZMTP 3.0, that reads nothing unless it is told
//! to.

use std::io::{Read, Write};
use std::net::TcpStream;

use afflux::Host;

/// See the module.
pub struct Raw(TcpStream);

impl Raw {
    /// Connects and subscribes to `prefix`.
    pub fn subscribe(host: &Host, prefix: &str) -> Raw {
        let mut raw = Raw::dial_as(host, "SUB", None);
        raw.ask(prefix);
        raw
    }

    /// Connects as a socket of that type; with user and password if `plain` says so.
    pub fn dial_as(host: &Host, kind: &str, plain: Option<(&str, &str)>) -> Raw {
        let mut raw = Raw(TcpStream::connect(host.addresses()[0]).unwrap());
        let mut greeting = vec![0; 64];
        (greeting[0], greeting[9], greeting[10]) = (0xFF, 0x7F, 3);
        let mechanism = if plain.is_some() { "PLAIN" } else { "NULL" };
        greeting[12..12 + mechanism.len()].copy_from_slice(mechanism.as_bytes());
        raw.0.write_all(&greeting).unwrap();
        raw.0.read_exact(&mut greeting).unwrap();
        let name = |name: &str| [&[name.len() as u8], name.as_bytes()].concat();
        let properties = [name("Socket-Type"), vec![0, 0, 0], name(kind)].concat();
        match plain {
            None => raw.command(&[name("READY"), properties].concat()),
            Some((user, password)) => {
                raw.command(&[name("HELLO"), name(user), name(password)].concat());
                assert!(raw.frame().unwrap().1.starts_with(b"\x07WELCOME"));
                raw.command(&[name("INITIATE"), properties].concat());
            }
        }
        // Of a host that refuses it, the end.
        if let Ok((_, ready)) = raw.frame() {
            assert!(ready.starts_with(b"\x05READY"));
        }
        raw
    }

    fn command(&mut self, body: &[u8]) {
        self.0.write_all(&[&[4, body.len() as u8], body].concat()).unwrap();
    }

    /// Sends so many PINGs in one go, each with its number as context; how many PONGs come until the last one's.
    pub fn ping(&mut self, n: u32) -> u32 {
        let ping = |at: u32| [&[4, 11], &b"\x04PING\0\x64"[..], &at.to_be_bytes()].concat();
        let mut writing = self.0.try_clone().unwrap();
        let pings: Vec<u8> = (1..=n).flat_map(ping).collect();
        let writer = std::thread::spawn(move || writing.write_all(&pings).unwrap());
        let mut pongs = 0;
        loop {
            let (flags, body) = self.frame().unwrap();
            assert_eq!(flags, 4);
            let Some(context) = body.strip_prefix(b"\x04PONG") else { continue };
            pongs += u32::from(!context.is_empty());
            if *context == n.to_be_bytes() {
                writer.join().unwrap();
                return pongs;
            }
        }
    }

    /// Asks as a DEALER does: an id, nothing, the route, the payload.
    pub fn request(&mut self, route: &str, payload: &str) {
        let frame = |more: u8, body: &str| [&[more, body.len() as u8], body.as_bytes()].concat();
        self.0.write_all(&[frame(1, "id"), frame(1, ""), frame(1, route), frame(0, payload)].concat()).unwrap();
    }

    /// Sends so many lists of channels, each with another name.
    pub fn announce(&mut self, n: u32) {
        for at in 1..=n {
            let version = u64::from(at).to_be_bytes();
            self.command(&[&b"\x08CHANNELS"[..], &version, format!("channel-{at}=100").as_bytes()].concat());
        }
    }

    /// Sends a publication.
    pub fn publish(&mut self, topic: &str, payload: &str) {
        let frame = |more: u8, body: &str| [&[more, body.len() as u8], body.as_bytes()].concat();
        self.0.write_all(&[frame(1, topic), frame(0, payload)].concat()).unwrap();
    }

    /// The next subscription, as a message: 1 or 0 and the prefix.
    pub fn subscription(&mut self) -> Vec<u8> {
        loop {
            let (flags, body) = self.frame().unwrap();
            if flags & 4 == 0 {
                return body;
            }
        }
    }

    /// Subscribes to one more.
    pub fn ask(&mut self, prefix: &str) {
        let mut frame = vec![0, prefix.len() as u8 + 1, 1];
        frame.extend_from_slice(prefix.as_bytes());
        // It may have been disconnected.
        let _ = self.0.write_all(&frame);
    }

    /// The next frame with its flags.
    fn frame(&mut self) -> std::io::Result<(u8, Vec<u8>)> {
        let mut flags = [0];
        self.0.read_exact(&mut flags)?;
        let mut len = [0; 8];
        let from = if flags[0] & 2 == 0 { 7 } else { 0 };
        self.0.read_exact(&mut len[from..])?;
        let mut body = vec![0; u64::from_be_bytes(len) as usize];
        self.0.read_exact(&mut body)?;
        Ok((flags[0], body))
    }

    /// The payload of the next publication.
    fn next(&mut self) -> std::io::Result<Vec<u8>> {
        loop {
            let (flags, body) = self.frame()?;
            // The topic, or a heartbeat.
            if flags & 5 == 0 {
                return Ok(body);
            }
        }
    }

    /// The payloads of the next `n`.
    pub fn read(&mut self, n: usize) -> Vec<Vec<u8>> {
        (0..n).map(|_| self.next().unwrap()).collect()
    }

    /// How many more come before the publisher ends the connection.
    pub fn count_to_the_end(&mut self) -> u64 {
        let mut n = 0;
        while self.next().is_ok() {
            n += 1;
        }
        n
    }
}
