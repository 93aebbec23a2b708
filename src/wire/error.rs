//! What can be wrong with a peer's bytes: what it was, whose fault it is, and what the peer is
//! told before the connection ends.

use std::fmt;

use crate::base::record::Kind;

use super::socket::SocketType;

/// Why a connection cannot go on. Every variant ends the connection; what a peer may get wrong
/// without losing it is an item of the decoder, not an error.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WireError {
    /// The first bytes are not a greeting.
    #[error("not a ZMTP greeting")]
    NotZmtp,
    /// The peer speaks an older revision of the protocol.
    #[error("the peer speaks ZMTP {0}, at least 3 is needed")]
    Revision(u8),
    /// The mechanisms differ.
    #[error("the peer's mechanism is {theirs}, ours is {ours}")]
    Mechanism {
        /// What we are configured for.
        ours: &'static str,
        /// What the peer announced.
        theirs: MechanismName,
    },
    /// The dialling side, too, wants to be the server of the mechanism.
    #[error("both ends of the connection want to be the mechanism's server")]
    MechanismSide,
    /// The user name or the password is not ours.
    #[error("wrong user name or password")]
    Credentials,
    /// The two socket types may not talk to each other.
    #[error("a {theirs} peer cannot talk to {}", Ours(*.ours))]
    SocketPair {
        /// Our type; `None`: the accepting side has no type that fits.
        ours: Option<SocketType>,
        /// The peer's.
        theirs: SocketType,
    },
    /// No version of the native protocol is spoken by both.
    #[error(
        "the peer speaks versions {min} to {max} of the native protocol, ours are {} to {}",
        super::VERSION_MIN,
        super::VERSION
    )]
    Version {
        /// The peer's lowest.
        min: u16,
        /// The peer's highest.
        max: u16,
    },
    /// A property of READY that is missing, doubled or not of its form.
    #[error("the READY property {0} is missing, doubled or malformed")]
    Property(&'static str),
    /// The peer ended the handshake with an ERROR of its own.
    #[error("refused by the peer: {0}")]
    Refused(Box<str>),
    /// We ended the handshake; see [`super::greeting::Handshake::refuse`].
    #[error("refused: {0}")]
    Declined(Box<str>),
    /// Another command, or a message, where the handshake has its fixed order.
    #[error("out of order in the handshake")]
    HandshakeOrder,
    /// Flag bits that have no meaning, or not in this combination.
    #[error("frame flags {0:#04x}")]
    Flags(u8),
    /// A frame, command or message above its limit. Nothing was allocated for it.
    #[error("{what} of {size} bytes, at most {max} are taken")]
    TooLarge {
        /// What it is.
        what: &'static str,
        /// Its announced size; of a message of several frames the sum so far.
        size: u64,
        /// The limit.
        max: u64,
    },
    /// A message of too many frames.
    #[error("a message of more than {} frames", crate::base::unit::FRAMES_MAX)]
    TooManyFrames,
    /// A native record in more than one frame.
    #[error("a native record of several frames")]
    NativeMore,
    /// A native header that is cut short or has a field that cannot be.
    #[error("native header: {0}")]
    Header(&'static str),
    /// A record that does not belong on the lane on which it came.
    #[error("a {0:?} record on the completion lane")]
    WrongLane(Kind),
    /// A command that is cut short or has a field that cannot be.
    #[error("malformed {0} command")]
    Command(&'static str),
}

/// Whose fault a [`WireError`] is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The peer's bytes are not the protocol's. Trying again may find another peer.
    Peer,
    /// Both speak the protocol, but are set up so that they do not fit. Trying again soon is of no
    /// use: a person has to look.
    Setup,
    /// One side would not have the other.
    Refusal,
}

impl WireError {
    /// Whose fault it is.
    pub fn fault(&self) -> Fault {
        match self {
            WireError::Mechanism { .. }
            | WireError::MechanismSide
            | WireError::Credentials
            | WireError::SocketPair { .. }
            | WireError::Revision(_)
            | WireError::Version { .. } => Fault::Setup,
            WireError::Refused(_) | WireError::Declined(_) => Fault::Refusal,
            _ => Fault::Peer,
        }
    }

    /// The reason for an ERROR command; `None`: the connection is closed without a word.
    ///
    /// To a libzmq peer an ERROR is final (it never connects again), and a plain close means "later,
    /// perhaps". So only what cannot change by itself is told.
    pub fn tell(&self) -> Option<&str> {
        match self {
            // The status that libzmq's own authentication uses.
            WireError::Credentials => Some("400"),
            WireError::Version { .. } => Some("version"),
            WireError::Declined(reason) => Some(reason),
            _ => None,
        }
    }

    /// Whether a dialling side does better to wait long before it tries again.
    pub fn is_lasting(&self) -> bool {
        self.fault() != Fault::Peer
    }
}

/// A mechanism's name as a peer spelled it: at most 20 bytes, padded with zeros.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MechanismName(pub [u8; 20]);

impl fmt::Display for MechanismName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.0.iter().position(|b| *b == 0).unwrap_or(self.0.len());
        write!(f, "{}", self.0[..end].escape_ascii())
    }
}

impl fmt::Debug for MechanismName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

struct Ours(Option<SocketType>);

impl fmt::Display for Ours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(ours) => write!(f, "our {ours}"),
            None => f.write_str("an accepting node"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_no_burden_on_the_result_of_a_decode() {
        assert!(size_of::<WireError>() < size_of::<super::super::decode::Step>() / 2);
    }

    #[test]
    fn only_what_lasts_is_told() {
        let version = WireError::Version { min: 4, max: 5 };
        assert_eq!((version.tell(), version.is_lasting()), (Some("version"), true));
        assert_eq!((WireError::Credentials.tell(), WireError::Credentials.is_lasting()), (Some("400"), true));
        let pair = WireError::SocketPair { ours: None, theirs: SocketType::Rep };
        assert_eq!((pair.tell(), pair.is_lasting()), (None, true));
        assert_eq!((WireError::NotZmtp.tell(), WireError::NotZmtp.is_lasting()), (None, false));
        assert_eq!(WireError::Refused("400".into()).tell(), None, "an ERROR is not answered with an ERROR");
        assert_eq!(WireError::Declined("AlreadyExists".into()).tell(), Some("AlreadyExists"));
    }

    #[test]
    fn sentences_name_both_sides() {
        let mut name = [0; 20];
        name[..5].copy_from_slice(b"CURVE");
        let e = WireError::Mechanism { ours: "NULL", theirs: MechanismName(name) };
        assert_eq!(e.to_string(), "the peer's mechanism is CURVE, ours is NULL");
        let e = WireError::SocketPair { ours: None, theirs: SocketType::Rep };
        assert_eq!(e.to_string(), "a REP peer cannot talk to an accepting node");
        let e = WireError::Version { min: 4, max: 5 };
        assert_eq!(e.to_string(), "the peer speaks versions 4 to 5 of the native protocol, ours are 1 to 1");
    }
}
