//! Where the marks of ordinary queues come from: a manual value, or a share of the budget that is
//! computed anew whenever a queue comes or goes (`policy::budget`).

use super::profile::HwmProfile;
use crate::base::unit::ByteSize;

/// The mark of a queue, as a user states it. Three meanings that a number alone would confuse.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Hwm {
    /// A share of the budget; changes when peers come and go.
    #[default]
    Auto,
    /// No bound on this queue. Promise 2 (memory is bounded) then does not hold; the ledger says so.
    Unlimited,
    /// Exactly so many charged bytes; not zero.
    Bytes(ByteSize),
}

impl Hwm {
    /// From a flag or a file, where 0 is the usual spelling of "unlimited".
    pub fn from_number(bytes: u64) -> Hwm {
        if bytes == 0 { Hwm::Unlimited } else { Hwm::Bytes(ByteSize::bytes(bytes)) }
    }
}

/// Which statement about memory the budget follows, strongest first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LimitSource {
    /// `hwm_budget`: used exactly, no percentage, no cap.
    Budget,
    /// `memory_limit`.
    Option,
    /// A hint of the embedding program, lowered to the hard limit.
    Hint,
    /// The control group's limit.
    Hard,
    /// The machine's memory.
    Physical,
    /// Nothing is known: the profile's cap.
    Unknown,
}

/// What the marks are computed from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HwmPlan {
    /// Percentage, cap and bounds of a queue. Default `Balanced`.
    pub profile: HwmProfile,
    /// Where `limit` comes from.
    pub source: LimitSource,
    /// The limit that won, bytes; of [`LimitSource::Budget`] the budget itself.
    pub limit: u64,
    /// As stated for send queues. Default `Auto`.
    pub send: Hwm,
    /// As stated for receive queues. Default `Auto`.
    pub receive: Hwm,
    /// Budget for the links known at start, bytes: what `max_owned_bytes` defaults to.
    pub budget: u64,
}

impl Default for HwmPlan {
    fn default() -> Self {
        let profile = HwmProfile::default();
        HwmPlan {
            profile,
            source: LimitSource::Unknown,
            limit: 0,
            send: Hwm::Auto,
            receive: Hwm::Auto,
            budget: profile.cap(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_in_a_file_means_unlimited() {
        assert_eq!(Hwm::from_number(0), Hwm::Unlimited);
        assert_eq!(Hwm::from_number(7), Hwm::Bytes(ByteSize::bytes(7)));
    }
}
