//! `Destinations`: the addresses that one handle has used, each with the handle's place in the rotation over it.
//!
//! A shard's handle lives as long as its host and answers to whoever calls, so the table is a cache: above
//! its size ([`Places::destinations`](crate::plan::Places)) a new address takes the place of one that nobody
//! holds, that looks for no target and that was not used of late. If there is none the table grows, by what the
//! program itself holds at that moment.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::ops::{Index, IndexMut};
use std::sync::Arc;

use super::shared::{HostShared, TAG_FINDING, TAG_REQUEST};
use crate::base::id::CellId;
use crate::pattern::route::{Address, Named, Rotation};
use crate::sync::cell::CellState;

/// As long as this is there, a handle's number for an address stands for no other.
#[derive(Clone, Debug, Default)]
pub struct Held(Arc<()>);

impl Held {
    fn elsewhere(&self) -> bool {
        // Nobody makes another out of the last one but under the handle's lock, where this is asked.
        Arc::strong_count(&self.0) > 1
    }
}

/// One address that the handle has used.
pub struct Destination {
    /// It.
    pub address: Address,
    /// Whose turn it is.
    pub rotation: Rotation,
    /// Its operations for which nobody is known yet. Until they have found their target, later ones
    /// go after them, whatever the routes say meanwhile. Bounded by the waiting room.
    pub finding: Vec<CellId>,
    held: Held,
    used: bool,
}

impl Destination {
    /// Whether an earlier operation of this handle has not found its target yet.
    pub fn is_finding(&mut self, shared: &HostShared) -> bool {
        if self.finding.is_empty() {
            return false;
        }
        self.finding.retain(|id| {
            let tag = shared.cells.tag(*id).map(|tag| tag & !TAG_REQUEST);
            tag == Some(TAG_FINDING) && shared.cells.state(*id) == Some(CellState::Waiting)
        });
        !self.finding.is_empty()
    }
}

/// See the module.
pub struct Destinations {
    all: Vec<Destination>,
    at: HashMap<Address, usize>,
    /// Where the search for a place went last.
    hand: usize,
    max: usize,
}

impl Destinations {
    /// None yet, and `max` of them at most unless more are held.
    pub fn new(max: usize) -> Self {
        Destinations { all: Vec::new(), at: HashMap::new(), hand: 0, max }
    }

    /// The number of an address, and what keeps it.
    pub fn slot(&mut self, named: Named<'_>, shared: &HostShared) -> (usize, Held) {
        if let Some(&at) = self.at.get(&named as &dyn Names) {
            let known = &mut self.all[at];
            known.used = true;
            return (at, known.held.clone());
        }
        let (address, held) = (Address::from(named), Held::default());
        let new = Destination {
            address: address.clone(),
            rotation: Rotation::default(),
            finding: Vec::new(),
            held: held.clone(),
            used: true,
        };
        let at = match self.unused(shared) {
            Some(at) => {
                self.at.remove(&self.all[at].address);
                self.all[at] = new;
                at
            }
            None => {
                self.all.push(new);
                self.all.len() - 1
            }
        };
        self.at.insert(address, at);
        (at, held)
    }

    /// A place to be used again, once there are as many as there should be. Whatever was used since the hand
    /// came by is passed over once.
    fn unused(&mut self, shared: &HostShared) -> Option<usize> {
        let len = self.all.len();
        if len < self.max {
            return None;
        }
        for _ in 0..2 * len {
            let at = self.hand % len;
            self.hand = at + 1;
            let destination = &mut self.all[at];
            if destination.held.elsewhere() || destination.is_finding(shared) {
                continue;
            }
            if !std::mem::take(&mut destination.used) {
                return Some(at);
            }
        }
        None
    }

    /// The routes have changed.
    pub fn forget_routes(&mut self) {
        self.all.iter_mut().for_each(|destination| destination.rotation.forget());
    }
}

impl Index<usize> for Destinations {
    type Output = Destination;

    #[inline]
    fn index(&self, slot: usize) -> &Destination {
        &self.all[slot]
    }
}

impl IndexMut<usize> for Destinations {
    #[inline]
    fn index_mut(&mut self, slot: usize) -> &mut Destination {
        &mut self.all[slot]
    }
}

/// An address as a key, whether it owns its names or not.
trait Names {
    fn named(&self) -> Named<'_>;
}

impl Names for Address {
    fn named(&self) -> Named<'_> {
        Address::named(self)
    }
}

impl Names for Named<'_> {
    fn named(&self) -> Named<'_> {
        *self
    }
}

impl<'a> Borrow<dyn Names + 'a> for Address {
    fn borrow(&self) -> &(dyn Names + 'a) {
        self
    }
}

impl Hash for dyn Names + '_ {
    fn hash<S: Hasher>(&self, state: &mut S) {
        self.named().hash(state);
    }
}

impl PartialEq for dyn Names + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.named() == other.named()
    }
}

impl Eq for dyn Names + '_ {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::ErrorKind;
    use crate::base::record::{Kind, Method};
    use crate::engine::handle::{Begun, Handle, Order, Waiter};
    use crate::engine::rig;
    use crate::engine::shared::Class;
    use crate::plan::HostPlan;

    fn host() -> Arc<HostShared> {
        rig::host(HostPlan::defaults("here", 1)).0
    }

    #[test]
    fn an_address_has_one_number_under_all_its_forms() {
        let (shared, mut table) = (host(), Destinations::new(8));
        let both = Address::Member("news".into(), "a".into());
        let of = [Named::Channel("a"), Named::Node("a"), Named::Channel("b"), both.named()];
        let numbers: Vec<usize> = of.iter().map(|named| table.slot(*named, &shared).0).collect();
        assert_eq!(numbers, [0, 1, 2, 3]);
        for (named, number) in of.iter().zip(numbers) {
            assert_eq!(table.slot(*named, &shared).0, number);
            assert_eq!(table[number].address, Address::from(*named));
        }
    }

    #[test]
    fn who_comes_and_goes_leaves_no_trace() {
        let (shared, mut table) = (host(), Destinations::new(8));
        let (kept, held) = table.slot(Named::Channel("kept"), &shared);
        for n in 0..1000 {
            let name = format!("peer-{n}");
            let (at, _) = table.slot(Named::Node(&name), &shared);
            assert_eq!(table[at].address.name(), &Arc::from(name));
        }
        assert_eq!((table.all.len(), table.at.len()), (8, 8));
        assert_eq!(table.slot(Named::Channel("kept"), &shared).0, kept);
        assert_eq!(&**table[kept].address.name(), "kept");
        drop(held);
        // More than fit are held: there is a place for each, and it is used again afterwards.
        let names: Vec<String> = (0..20).map(|n| format!("held-{n}")).collect();
        let all: Vec<(usize, Held)> = names.iter().map(|name| table.slot(Named::Node(name), &shared)).collect();
        for (name, (at, _)) in names.iter().zip(&all) {
            assert_eq!(&**table[*at].address.name(), name);
        }
        let len = table.all.len();
        drop(all);
        for n in 0..100 {
            table.slot(Named::Node(&format!("later-{n}")), &shared);
        }
        assert_eq!(table.all.len(), len);
    }

    /// An address whose operations look for their target keeps their order, held or not.
    #[test]
    fn an_operation_that_looks_for_its_target_keeps_its_address() {
        let shared = host();
        let handle = Handle::new(shared.clone(), Class::Caller);
        let slot = handle.slot(Named::Channel("unknown")).0;
        let order = Order {
            kind: Kind::Message,
            slot,
            method: Method::new(""),
            payload: bytes::Bytes::new(),
            timeout: std::time::Duration::from_secs(1),
            inherited: None,
            depth: 0,
        };
        let Begun::Cell { id, .. } = handle.begin(order, Waiter::Nobody) else { panic!("it waits") };
        let many = 3 * shared.plan.places().destinations;
        for n in 0..many {
            handle.slot(Named::Node(&format!("peer-{n}")));
        }
        assert_eq!(handle.slot(Named::Channel("unknown")).0, slot);
        shared.end_all(ErrorKind::ShuttingDown);
        assert!(!shared.cells.is_live(id));
        let numbers = (0..many).map(|n| handle.slot(Named::Node(&format!("other-{n}"))).0);
        assert!(numbers.collect::<Vec<_>>().contains(&slot), "it has ended, and its place is used again");
    }
}
