//! Tenants: how many records of each were served and wait, and the longest time that one had something
//! waiting and nothing of it was served.
//!
//! At most [`TENANTS_MAX`] are told apart; all others are one, `(others)`, and so nobody's names can fill the
//! memory.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant as SystemInstant};

use afflux::policy::Instant;
use afflux::policy::fairness::NoProgress;

use crate::record::{TENANT_MAX, tenant};

/// Tenants that are told apart.
pub const TENANTS_MAX: usize = 1024;
/// What one takes, with its name twice (in the table and in the list) and the table's own places.
pub const TENANT_BYTES: u64 = 2 * TENANT_MAX as u64 + 256;

/// One tenant's small number, which goes along with its record.
pub type TenantId = u32;

const OTHERS: TenantId = TENANTS_MAX as TenantId;

/// What is seen of one tenant.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Its name, as text.
    pub name: String,
    /// Records served.
    pub served: u64,
    /// Records that wait.
    pub waiting: u64,
    /// The longest time in which it waited and was not served.
    pub no_progress: Duration,
}

#[derive(Default)]
struct Tenant {
    name: Vec<u8>,
    served: u64,
    waiting: u64,
    progress: NoProgress,
}

/// All tenants of one side. Without a key there is nothing to tell apart, and nothing is kept.
pub struct Tenants {
    key: Option<usize>,
    begin: SystemInstant,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    ids: HashMap<Vec<u8>, TenantId>,
    tenants: Vec<Tenant>,
    others: Tenant,
}

impl Table {
    fn at(&mut self, id: TenantId) -> &mut Tenant {
        self.tenants.get_mut(id as usize).unwrap_or(&mut self.others)
    }
}

impl Tenants {
    /// Nobody yet; `key` is the field that names the tenant.
    pub fn new(key: Option<usize>) -> Tenants {
        Tenants { key, begin: SystemInstant::now(), table: Mutex::default() }
    }

    /// A record of this payload has come, at `at`, and waits.
    pub fn came(&self, payload: &[u8], at: SystemInstant) -> TenantId {
        let Some(field) = self.key else { return OTHERS };
        let name = tenant(payload, field);
        let now = self.since(at);
        let mut table = self.table();
        let id = match table.ids.get(&*name) {
            Some(id) => *id,
            None if table.tenants.len() < TENANTS_MAX => {
                let id = table.tenants.len() as TenantId;
                table.tenants.push(Tenant { name: name.to_vec(), ..Tenant::default() });
                table.ids.insert(name.into_owned(), id);
                id
            }
            None => OTHERS,
        };
        let tenant = table.at(id);
        tenant.waiting += 1;
        tenant.progress.ready(now);
        id
    }

    /// Records of this tenant have ended, at `at` and in the order of `ended`: served or not.
    pub fn ended(&self, at: SystemInstant, ended: impl IntoIterator<Item = (TenantId, bool)>) {
        if self.key.is_none() {
            return;
        }
        let now = self.since(at);
        let mut table = self.table();
        for (id, served) in ended {
            let tenant = table.at(id);
            tenant.waiting = tenant.waiting.saturating_sub(1);
            tenant.served += u64::from(served);
            if served {
                tenant.progress.served(now, tenant.waiting > 0);
            } else if tenant.waiting == 0 {
                tenant.progress.not_ready(now);
            }
        }
    }

    /// All of them, those with the most served records first.
    pub fn seen(&self) -> Vec<Seen> {
        let now = self.since(SystemInstant::now());
        let table = self.table();
        let others = Some(&table.others).filter(|others| others.served + others.waiting > 0);
        let mut seen: Vec<Seen> = table
            .tenants
            .iter()
            .chain(others)
            .map(|t| Seen {
                name: if t.name.is_empty() { "(none)".into() } else { String::from_utf8_lossy(&t.name).into_owned() },
                served: t.served,
                waiting: t.waiting,
                no_progress: t.progress.longest(now),
            })
            .collect();
        if let (Some(_), Some(last)) = (others, seen.last_mut()) {
            last.name = "(others)".into();
        }
        seen.sort_by(|a, b| b.served.cmp(&a.served).then_with(|| a.name.cmp(&b.name)));
        seen
    }

    /// Bytes of their names and places.
    pub fn bytes(&self) -> u64 {
        self.table().tenants.len() as u64 * TENANT_BYTES
    }

    fn since(&self, at: SystemInstant) -> Instant {
        Instant(at.saturating_duration_since(self.begin).as_nanos() as u64)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
