//! ZeroMQ's socket types: which may talk to each other, and what an accepting side answers with.

use std::fmt;

/// A socket type, as it stands in READY.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub enum SocketType {
    Req,
    Rep,
    Dealer,
    Router,
    Pub,
    Sub,
    Xpub,
    Xsub,
    Push,
    Pull,
    Pair,
}

impl SocketType {
    const ALL: [(SocketType, &'static str); 11] = [
        (SocketType::Req, "REQ"),
        (SocketType::Rep, "REP"),
        (SocketType::Dealer, "DEALER"),
        (SocketType::Router, "ROUTER"),
        (SocketType::Pub, "PUB"),
        (SocketType::Sub, "SUB"),
        (SocketType::Xpub, "XPUB"),
        (SocketType::Xsub, "XSUB"),
        (SocketType::Push, "PUSH"),
        (SocketType::Pull, "PULL"),
        (SocketType::Pair, "PAIR"),
    ];

    /// The name of the wire.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// From the name of the wire; `None` for a draft type or nonsense.
    pub fn parse(name: &[u8]) -> Option<SocketType> {
        Self::ALL.iter().find(|(_, n)| n.as_bytes() == name).map(|(socket, _)| *socket)
    }

    /// Whether the two may talk to each other. Symmetric.
    pub fn may_talk_to(self, other: SocketType) -> bool {
        use SocketType::*;
        let partners: &[SocketType] = match self {
            Req => &[Rep, Router],
            Rep => &[Req, Dealer],
            Dealer => &[Rep, Dealer, Router],
            Router => &[Req, Dealer, Router],
            Pub | Xpub => &[Sub, Xsub],
            Sub | Xsub => &[Pub, Xpub],
            Push => &[Pull],
            Pull => &[Push],
            Pair => &[Pair],
        };
        partners.contains(&other)
    }

    /// What an accepting side is towards a peer of this type, so that one port serves all who ask,
    /// push, publish or subscribe. `None`: such a peer expects of us what an accepting side does
    /// not do (answering REP, ROUTER, PULL, PAIR).
    pub fn mirror(self) -> Option<SocketType> {
        use SocketType::*;
        match self {
            Req | Dealer => Some(Router),
            Sub | Xsub => Some(Xpub),
            Push => Some(Pull),
            Pub | Xpub => Some(Xsub),
            Rep | Router | Pull | Pair => None,
        }
    }
}

impl fmt::Display for SocketType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_stand_in_order() {
        for (i, (socket, name)) in SocketType::ALL.into_iter().enumerate() {
            assert_eq!(socket as usize, i);
            assert_eq!(SocketType::parse(name.as_bytes()), Some(socket));
            assert_eq!(socket.to_string(), name);
        }
        assert_eq!(SocketType::parse(b"dealer"), None);
        assert_eq!(SocketType::parse(b"RADIO"), None);
    }

    #[test]
    fn pairs_are_symmetric_and_mirrors_legal() {
        let all = || SocketType::ALL.into_iter().map(|(socket, _)| socket);
        let mut legal = 0;
        for a in all() {
            for b in all() {
                assert_eq!(a.may_talk_to(b), b.may_talk_to(a), "{a} {b}");
                legal += usize::from(a.may_talk_to(b));
            }
            if let Some(m) = a.mirror() {
                assert!(a.may_talk_to(m), "{a} {m}");
            }
        }
        // Nine unordered pairs of two different types, counted twice, and three of a type with itself.
        assert_eq!(legal, 2 * 9 + 3);
        assert!(!SocketType::Req.may_talk_to(SocketType::Dealer));
    }
}
