//! A record: one line of the input, and the id under which it is stored exactly once.

use std::borrow::Cow;
use std::fmt;
use std::hash::{DefaultHasher, Hasher};
use std::str::FromStr;

use bytes::Bytes;

/// Length of an id where it is stored.
pub const ID_LEN: usize = 20;

/// Which line of which input in which round. Travels as the request's method, so that the payload
/// is the line and nothing else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordId {
    /// The store's number of the input.
    pub input: u32,
    /// From 0.
    pub line: u64,
    /// From 0.
    pub round: u64,
}

impl RecordId {
    /// As the store's key: in the order in which records come, so that a batch goes to a few pages that lie
    /// together, however large the store has become.
    pub fn to_bytes(self) -> [u8; ID_LEN] {
        let mut bytes = [0; ID_LEN];
        bytes[..4].copy_from_slice(&self.input.to_be_bytes());
        bytes[4..12].copy_from_slice(&self.round.to_be_bytes());
        bytes[12..].copy_from_slice(&self.line.to_be_bytes());
        bytes
    }
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.input, self.line, self.round)
    }
}

impl FromStr for RecordId {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const RULE: &str = "the method of a record is input/line/round, three numbers";
        let mut parts = text.split('/');
        let mut next = || parts.next().and_then(|part| part.parse::<u64>().ok()).ok_or(RULE);
        let (input, line, round) = (next()?, next()?, next()?);
        let input = u32::try_from(input).map_err(|_| RULE)?;
        if parts.next().is_some() { Err(RULE) } else { Ok(RecordId { input, line, round }) }
    }
}

/// One record on its way.
#[derive(Clone, Debug)]
pub struct Record {
    /// Which one.
    pub id: RecordId,
    /// The line without its newline.
    pub payload: Bytes,
}

/// What tells one payload from another in the audit.
pub fn fingerprint(payload: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(payload);
    hasher.finish()
}

/// Longest tenant that is kept as it is.
pub const TENANT_MAX: usize = 128;

/// The tenant of a record: its `field`-th field between white space, from 1; empty if it has fewer. A
/// very long one is cut, with the fingerprint of the whole in place of its end.
pub fn tenant(payload: &[u8], field: usize) -> Cow<'_, [u8]> {
    let mut fields = payload.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
    let whole = fields.nth(field - 1).unwrap_or_default();
    if whole.len() <= TENANT_MAX {
        return whole.into();
    }
    let mut cut = whole[..TENANT_MAX - 17].to_vec();
    cut.extend_from_slice(format!("~{:016x}", fingerprint(whole)).as_bytes());
    cut.into()
}
