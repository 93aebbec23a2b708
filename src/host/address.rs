//! Addresses as users write them: `tcp://host:port`. Loopback unless told otherwise.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::plan::Endpoint;

/// Where to listen: a number address, `localhost`, `*` for every interface, or nothing for loopback.
/// Port 0 lets the system choose. A name is refused: which of its addresses would be meant?
pub(crate) fn listen(text: &str) -> Result<SocketAddr, &'static str> {
    let (host, port) = split(text)?;
    let ip = match host {
        "" | "localhost" => Ipv4Addr::LOCALHOST.into(),
        "*" => Ipv4Addr::UNSPECIFIED.into(),
        _ => number(host).ok_or("listens on a number address, localhost, or * for every interface")?,
    };
    Ok(SocketAddr::new(ip, port))
}

/// Whom to dial: a number address, a host name, or nothing for loopback.
pub(crate) fn connect(text: &str) -> Result<Endpoint, &'static str> {
    let (host, port) = split(text)?;
    if port == 0 {
        return Err("port 0 cannot be dialled");
    }
    let ip = match host {
        "" | "localhost" => Some(Ipv4Addr::LOCALHOST.into()),
        _ => number(host),
    };
    match ip {
        Some(ip) if ip.is_unspecified() => Err("an address of every interface cannot be dialled"),
        Some(ip) => Ok(Endpoint::Addr(SocketAddr::new(ip, port))),
        None if is_host_name(host) => Ok(Endpoint::Name(host.into(), port)),
        None => Err("the host is a number address or a host name"),
    }
}

fn split(text: &str) -> Result<(&str, u16), &'static str> {
    let rest = text.strip_prefix("tcp://").ok_or("is written tcp://host:port")?;
    let (host, port) = rest.rsplit_once(':').ok_or("is written tcp://host:port; the port is missing")?;
    let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    match port.parse() {
        Ok(port) if digits => Ok((host, port)),
        _ => Err("the port is a number in 0..=65535"),
    }
}

/// Version 6 is written in brackets, because its address has colons of its own.
fn number(host: &str) -> Option<IpAddr> {
    match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(v6) => v6.parse().ok().map(IpAddr::V6),
        None => host.parse().ok().map(IpAddr::V4),
    }
}

fn is_host_name(host: &str) -> bool {
    let label = |l: &str| {
        (1..=63).contains(&l.len())
            && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            && !l.starts_with('-')
            && !l.ends_with('-')
    };
    // Digits and dots alone are a number address with a mistake in it.
    let numeric = host.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    !numeric && host.len() <= 253 && host.strip_suffix('.').unwrap_or(host).split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_unless_told_otherwise() {
        for (text, addr) in [
            ("tcp://:7101", "127.0.0.1:7101"),
            ("tcp://localhost:7101", "127.0.0.1:7101"),
            ("tcp://*:0", "0.0.0.0:0"),
            ("tcp://192.168.1.4:65535", "192.168.1.4:65535"),
            ("tcp://[::1]:80", "[::1]:80"),
            ("tcp://[::]:80", "[::]:80"),
        ] {
            assert_eq!(listen(text), Ok(addr.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn names_are_dialled_but_not_listened_on() {
        assert_eq!(connect("tcp://db-1.example.org:5000"), Ok(Endpoint::Name("db-1.example.org".into(), 5000)));
        assert_eq!(connect("tcp://:5000").map(|e| e.to_string()), Ok("tcp://127.0.0.1:5000".into()));
        assert_eq!(connect("tcp://[::1]:5000").map(|e| e.to_string()), Ok("tcp://[::1]:5000".into()));
        assert!(listen("tcp://db-1:5000").is_err());
    }

    #[test]
    fn everything_else_is_refused() {
        for text in [
            "",
            "tcp://",
            "tcp://host",
            "127.0.0.1:80",
            "udp://a:1",
            "tcp://a:",
            "tcp://a:65536",
            "tcp://a:-1",
            "tcp://a:+1",
            "tcp://a:1x",
            "tcp://::1:80",
            "tcp://[::1:80",
            "tcp://a b:80",
            "tcp://-a:80",
            "tcp://a..b:80",
            "tcp://1.2.3:80",
            "tcp://256.1.1.1:80",
            "tcp://a:0",
            "tcp://*:80",
            "tcp://0.0.0.0:80",
            "tcp://[::]:80",
            "tcp://a/b:80",
            "tcp://u@a:80",
        ] {
            assert!(connect(text).is_err(), "{text}");
        }
        for text in ["", "tcp://:", "tcp://*", "tcp://:99999", "tcp://1.2.3:80", "ipc://x:1"] {
            assert!(listen(text).is_err(), "{text}");
        }
    }
}
