//! READY: who is there. Properties are `len8 name, len32 value`; names are sent in canonical case
//! and matched in any.
//!
//! A connection is native if the types are DEALER and ROUTER and the peer names a version and a
//! lane; then every property of ours must be there and well-formed. Otherwise it is a stock
//! ZeroMQ peer. Properties that nobody knows are kept if they begin with `X-` (they are the
//! application's metadata) and ignored otherwise.

use std::sync::Arc;

use bytes::Bytes;

use crate::base::id::LinkId;
use crate::base::record::Lane;

use super::channels::{ChannelList, decimal, is_name, parse_list, write_list};
use super::error::WireError;
use super::socket::SocketType;
use super::{VERSION, VERSION_MIN};

/// The most properties in one READY.
pub const PROPERTIES_MAX: usize = 64;

/// The longest identity.
pub const IDENTITY_MAX: usize = 255;

/// An application's own properties in one READY, names and values together.
pub const METADATA_MAX: usize = 2048;

/// An application's own properties, in order; each name begins with `X-`.
pub type Metadata = Arc<[(Box<str>, Bytes)]>;

/// What this node says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Its name.
    pub node: Arc<str>,
    /// Random, new with every start of the host.
    pub instance: u128,
    /// The largest payload that it takes.
    pub max_message: u64,
    /// Its link clock, now.
    pub clock_ms: u32,
    /// What it serves to nodes. A channel's position is its number on the link.
    pub channels: ChannelList,
    /// What it serves to clients; positions are numbers on their links.
    pub servers: ChannelList,
    /// The application's own properties.
    pub metadata: Metadata,
}

/// What the dialling side of a native link is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Role {
    /// A node like any other: both sides may start.
    #[default]
    Node,
    /// Only the dialling side starts; it serves nothing.
    Client,
}

/// Which connection of which pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Names the pair; the same on both lanes, new for every attempt.
    pub link: LinkId,
    /// Which of several links to the same node.
    pub slot: u16,
    /// Which of the pair's two connections.
    pub lane: Lane,
    /// What the dialling side is. The accepting side says it after it, as it does all of this.
    pub role: Role,
}

/// What a peer says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerHello {
    /// Its socket type.
    pub socket_type: SocketType,
    /// What we are towards it.
    pub our_type: SocketType,
    /// Minor revision of ZMTP that is spoken: 0 or 1.
    pub minor: u8,
    /// A label that the peer chose, perhaps empty. Never a key: nothing keeps two peers from
    /// choosing the same.
    pub identity: Bytes,
    /// `None`: a stock ZeroMQ peer.
    pub native: Option<NativeHello>,
    /// Its `X-` properties that are not ours.
    pub metadata: Metadata,
}

/// What a native peer says of itself besides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NativeHello {
    /// The version that both speak.
    pub version: u16,
    /// Its name.
    pub node: Arc<str>,
    /// Random, new with every start of its host.
    pub instance: u128,
    /// Which connection this is.
    pub place: Place,
    /// The largest payload that it takes.
    pub max_message: u64,
    /// Its link clock when it wrote this.
    pub clock_ms: u32,
    /// What it serves; empty on the completion lane.
    pub channels: ChannelList,
}

/// The properties with a meaning here.
#[derive(Clone, Copy)]
enum Known {
    SocketType,
    Identity,
    Version,
    Min,
    Node,
    Instance,
    Link,
    Slot,
    Lane,
    MaxMessage,
    Clock,
    Channels,
    Role,
}

const NAMES: [&str; 13] = [
    "Socket-Type",
    "Identity",
    "X-Afflux-Version",
    "X-Afflux-Min",
    "X-Afflux-Node",
    "X-Afflux-Instance",
    "X-Afflux-Link",
    "X-Afflux-Slot",
    "X-Afflux-Lane",
    "X-Afflux-Max-Message",
    "X-Afflux-Clock",
    "X-Afflux-Channels",
    "X-Afflux-Role",
];

const OUR_PREFIX: &[u8] = b"X-Afflux-";

/// The value of `X-Afflux-Role`; a node says nothing.
const CLIENT: &[u8] = b"client";

impl Known {
    fn name(self) -> &'static str {
        NAMES[self as usize]
    }
}

/// Appends the properties of a READY (or INITIATE). `place`: as a native peer, there.
pub(crate) fn write_properties(our_type: SocketType, hello: &Hello, place: Option<Place>, out: &mut Vec<u8>) {
    property(Known::SocketType, our_type.name().as_bytes(), out);
    for (name, value) in hello.metadata.iter() {
        named(name, value, out);
    }
    let Some(place) = place else { return };
    property(Known::Version, VERSION.to_string().as_bytes(), out);
    property(Known::Min, VERSION_MIN.to_string().as_bytes(), out);
    property(Known::Node, hello.node.as_bytes(), out);
    property(Known::Instance, format!("{:032x}", hello.instance).as_bytes(), out);
    property(Known::Link, format!("{:?}", place.link).as_bytes(), out);
    property(Known::Slot, place.slot.to_string().as_bytes(), out);
    property(Known::Lane, place.lane.to_string().as_bytes(), out);
    property(Known::MaxMessage, hello.max_message.to_string().as_bytes(), out);
    property(Known::Clock, hello.clock_ms.to_string().as_bytes(), out);
    if place.role == Role::Client {
        property(Known::Role, CLIENT, out);
    }
    if place.lane == Lane::Application {
        let served: &[_] = match (place.role, our_type) {
            (Role::Node, _) => &hello.channels,
            (Role::Client, SocketType::Router) => &hello.servers,
            (Role::Client, _) => &[],
        };
        let mut list = Vec::new();
        write_list(served, &mut list);
        property(Known::Channels, &list, out);
    }
}

fn property(known: Known, value: &[u8], out: &mut Vec<u8>) {
    named(known.name(), value, out);
}

fn named(name: &str, value: &[u8], out: &mut Vec<u8>) {
    out.push(name.len() as u8);
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(&(value.len() as u32).to_be_bytes());
    out.extend_from_slice(value);
}

/// Who we are while a READY is read.
#[derive(Clone, Copy)]
pub(crate) enum Reader {
    /// Accepting: our type follows from the peer's.
    Accepting,
    /// Dialling as this type; `Some`: in this place of a native pair.
    Dialling(SocketType, Option<Place>),
}

/// Reads the properties of a peer's READY (or INITIATE).
pub(crate) fn parse_properties(data: &[u8], reader: Reader, minor: u8) -> Result<PeerHello, WireError> {
    let mut known: [Option<&[u8]>; NAMES.len()] = [None; NAMES.len()];
    let mut metadata = Vec::new();
    let mut rest = data;
    let (mut count, mut kept) = (0, 0);
    while let Some((&name_len, tail)) = rest.split_first() {
        let (name, value, tail) = split_property(name_len, tail).ok_or(WireError::Property("list"))?;
        rest = tail;
        count += 1;
        if count > PROPERTIES_MAX {
            return Err(WireError::Property("count"));
        }
        if let Some(i) = NAMES.iter().position(|n| n.as_bytes().eq_ignore_ascii_case(name)) {
            if known[i].replace(value).is_some() {
                return Err(WireError::Property(NAMES[i]));
            }
        } else if starts_with(name, b"X-") && !starts_with(name, OUR_PREFIX) {
            kept += name.len() + value.len();
            if kept > METADATA_MAX {
                return Err(WireError::Property("X- (more than 2 KiB of them)"));
            }
            let name = std::str::from_utf8(name).map_err(|_| WireError::Property("name"))?;
            metadata.push((name.into(), Bytes::copy_from_slice(value)));
        }
    }
    let get = |k: Known| known[k as usize];
    let socket_type = get(Known::SocketType).and_then(SocketType::parse);
    let socket_type = socket_type.ok_or(WireError::Property(Known::SocketType.name()))?;
    let ours = match reader {
        Reader::Accepting => socket_type.mirror(),
        Reader::Dialling(ours, _) => Some(ours),
    };
    let our_type = ours.filter(|ours| ours.may_talk_to(socket_type));
    let our_type = our_type.ok_or(WireError::SocketPair { ours, theirs: socket_type })?;
    let identity = get(Known::Identity).unwrap_or_default();
    if identity.len() > IDENTITY_MAX || identity.first() == Some(&0) {
        return Err(WireError::Property(Known::Identity.name()));
    }
    let native = match (get(Known::Version), get(Known::Lane)) {
        (Some(version), Some(lane)) if may_be_native(reader, socket_type) => {
            Some(parse_native(version, lane, get, reader)?)
        }
        _ => None,
    };
    Ok(PeerHello {
        socket_type,
        our_type,
        minor,
        identity: Bytes::copy_from_slice(identity),
        native,
        metadata: metadata.into(),
    })
}

fn may_be_native(reader: Reader, theirs: SocketType) -> bool {
    match reader {
        Reader::Accepting => theirs == SocketType::Dealer,
        Reader::Dialling(_, place) => theirs == SocketType::Router && place.is_some(),
    }
}

fn parse_native<'a>(
    version: &[u8],
    lane: &[u8],
    get: impl Fn(Known) -> Option<&'a [u8]>,
    reader: Reader,
) -> Result<NativeHello, WireError> {
    // Versions first: what else a stranger says may have another form.
    let max: u16 = read(Known::Version, Some(version), decimal)?;
    let min: u16 = read(Known::Min, get(Known::Min), decimal)?;
    let version = max.min(VERSION);
    if version < min || version < VERSION_MIN {
        return Err(WireError::Version { min, max });
    }
    let lane = read(Known::Lane, Some(lane), |v| match v {
        b"application" => Some(Lane::Application),
        b"completion" => Some(Lane::Completion),
        _ => None,
    })?;
    let place = Place {
        link: LinkId(read(Known::Link, get(Known::Link), hex)?),
        slot: read(Known::Slot, get(Known::Slot), decimal)?,
        lane,
        role: match get(Known::Role) {
            None => Role::Node,
            Some(value) if value == CLIENT => Role::Client,
            Some(_) => return Err(WireError::Property(Known::Role.name())),
        },
    };
    if let Reader::Dialling(_, Some(ours)) = reader {
        for (same, known) in [
            (place.link == ours.link, Known::Link),
            (place.slot == ours.slot, Known::Slot),
            (place.lane == ours.lane, Known::Lane),
            (place.role == ours.role, Known::Role),
        ] {
            if !same {
                return Err(WireError::Property(known.name()));
            }
        }
    }
    Ok(NativeHello {
        version,
        node: read(Known::Node, get(Known::Node), |v| {
            std::str::from_utf8(v).ok().filter(|name| is_name(name)).map(Arc::from)
        })?,
        instance: read(Known::Instance, get(Known::Instance), hex)?,
        place,
        max_message: read(Known::MaxMessage, get(Known::MaxMessage), decimal)?,
        clock_ms: read(Known::Clock, get(Known::Clock), decimal)?,
        channels: match lane {
            Lane::Application => read(Known::Channels, get(Known::Channels), parse_list)?,
            Lane::Completion => ChannelList::new(),
        },
    })
}

fn read<T>(known: Known, value: Option<&[u8]>, parse: impl Fn(&[u8]) -> Option<T>) -> Result<T, WireError> {
    value.and_then(parse).ok_or(WireError::Property(known.name()))
}

/// 128 bits as exactly 32 hexadecimal digits.
fn hex(value: &[u8]) -> Option<u128> {
    let text = std::str::from_utf8(value).ok()?;
    let digits = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
    digits.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

fn starts_with(name: &[u8], prefix: &[u8]) -> bool {
    name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

/// Name, value and what follows, behind the length of the name.
fn split_property(name_len: u8, bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (name, bytes) = bytes.split_at_checked(name_len as usize)?;
    let (value_len, bytes) = bytes.split_first_chunk()?;
    let (value, bytes) = bytes.split_at_checked(usize::try_from(u32::from_be_bytes(*value_len)).ok()?)?;
    (!name.is_empty() && name.iter().all(u8::is_ascii_graphic)).then_some((name, value, bytes))
}
