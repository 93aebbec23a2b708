//! A ZeroMQ subscriber of a few lines, in the form of ZMTP 3.0, that reads nothing unless it is told to.

use std::io::{Read, Write};
use std::net::TcpStream;

use afflux::Host;

/// See the module.
pub struct Raw(TcpStream);

impl Raw {
    /// Connects and subscribes to `prefix`.
    pub fn subscribe(host: &Host, prefix: &str) -> Raw {
        let mut stream = TcpStream::connect(host.addresses()[0]).unwrap();
        let mut hello = vec![0; 64];
        (hello[0], hello[9], hello[10], hello[11]) = (0xFF, 0x7F, 3, 1);
        hello[12..16].copy_from_slice(b"NULL");
        stream.write_all(&hello).unwrap();
        stream.read_exact(&mut [0; 64]).unwrap();
        let ready = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB";
        stream.write_all(ready).unwrap();
        let mut head = [0; 2];
        stream.read_exact(&mut head).unwrap();
        stream.read_exact(&mut vec![0; head[1].into()]).unwrap();
        let mut raw = Raw(stream);
        raw.ask(prefix);
        raw
    }

    /// Subscribes to one more.
    pub fn ask(&mut self, prefix: &str) {
        let mut frame = vec![0, prefix.len() as u8 + 1, 1];
        frame.extend_from_slice(prefix.as_bytes());
        // It may have been disconnected.
        let _ = self.0.write_all(&frame);
    }

    /// The payload of the next publication.
    fn next(&mut self) -> std::io::Result<Vec<u8>> {
        loop {
            let mut flags = [0];
            self.0.read_exact(&mut flags)?;
            let mut len = [0; 8];
            let from = if flags[0] & 2 == 0 { 7 } else { 0 };
            self.0.read_exact(&mut len[from..])?;
            let mut body = vec![0; u64::from_be_bytes(len) as usize];
            self.0.read_exact(&mut body)?;
            // The topic, or a heartbeat.
            if flags[0] & 5 == 0 {
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
