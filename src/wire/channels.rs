//! The list of channels that a node serves, as text: `orders=100,inventory=50`. A channel's
//! position is its number on the link, so the list only grows there: a channel that is no longer
//! served stays, with weight 0.
//!
//! At most 256 names of at most 64 bytes from `[A-Za-z0-9._-]`, none twice; weights 0 to 10,000.

use std::sync::Arc;

use crate::base::unit::NAME_LEN_MAX;

/// The most channels that one node announces on a link.
pub const CHANNELS_MAX: usize = 256;

/// The largest weight of a channel; 0 says that it is draining.
pub const WEIGHT_MAX: u32 = 10_000;

/// Channel names with their weights, in the order of their numbers on the link.
pub type ChannelList = Vec<(Arc<str>, u32)>;

/// Whether `name` may be the name of a channel or of a node.
pub fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= NAME_LEN_MAX
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

/// Appends the list. The names must be such that the peer takes them.
pub fn write_list(list: &[(Arc<str>, u32)], out: &mut Vec<u8>) {
    debug_assert!(list.len() <= CHANNELS_MAX && list.iter().all(|(name, w)| is_name(name) && *w <= WEIGHT_MAX));
    for (i, (name, weight)) in list.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        out.extend_from_slice(name.as_bytes());
        out.push(b'=');
        out.extend_from_slice(weight.to_string().as_bytes());
    }
}

/// Reads a list; `None` if it breaks any of the rules. The bytes read bound what is allocated.
pub fn parse_list(text: &[u8]) -> Option<ChannelList> {
    let text = std::str::from_utf8(text).ok()?;
    let mut list = ChannelList::new();
    if text.is_empty() {
        return Some(list);
    }
    for item in text.split(',') {
        let (name, weight) = item.split_once('=')?;
        let weight = decimal::<u32>(weight.as_bytes()).filter(|w| *w <= WEIGHT_MAX)?;
        if !is_name(name) || list.len() == CHANNELS_MAX || list.iter().any(|(n, _)| &**n == name) {
            return None;
        }
        list.push((name.into(), weight));
    }
    Some(list)
}

/// A decimal number without sign or blanks; `None` if it is not one or does not fit.
pub(crate) fn decimal<T: std::str::FromStr>(digits: &[u8]) -> Option<T> {
    let text = std::str::from_utf8(digits).ok()?;
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_round_trip() {
        for list in [vec![], vec![("orders".into(), 100)], vec![("orders".into(), 0), ("a.b_c-D9".into(), 10_000)]] {
            let mut text = Vec::new();
            write_list(&list, &mut text);
            assert_eq!(parse_list(&text), Some(list));
        }
    }

    #[test]
    fn what_breaks_a_rule_is_refused_as_a_whole() {
        let long = "n".repeat(65);
        let bad = [
            "orders",
            "orders=",
            "=5",
            "orders=+5",
            "orders= 5",
            "orders=-1",
            "orders=10001",
            "orders=99999999999",
            "a=1,",
            ",a=1",
            "a=1,,b=1",
            "a=1,a=2",
            "a b=1",
            "ä=1",
            "a=1=2",
            "a\0=1",
        ];
        for text in bad.into_iter().map(str::to_owned).chain([format!("{long}=1")]) {
            assert_eq!(parse_list(text.as_bytes()), None, "{text}");
        }
        assert_eq!(parse_list(b"a=\xff"), None);
        assert!(parse_list(format!("{}=1", &long[1..]).as_bytes()).is_some());
    }

    #[test]
    fn the_count_is_capped() {
        let text = |n: usize| (0..n).map(|i| format!("c{i}=1")).collect::<Vec<_>>().join(",");
        assert_eq!(parse_list(text(256).as_bytes()).map(|l| l.len()), Some(256));
        assert_eq!(parse_list(text(257).as_bytes()), None);
    }
}
