//! The answers: results are taken in the order of their commits, on a thread of their own, so that the store's
//! thread is at the next commit meanwhile.

use std::sync::Arc;
use std::time::Instant as SystemInstant;

use afflux::reply_all;
use bytes::Bytes;
use crossbeam_channel::Receiver;

use crate::batcher::{Commit, Owed};
use crate::served::Flow;
use crate::sizes::PATIENCE;
use crate::store::Stored;
use crate::times::Time;

/// Codes of error answers.
pub mod code {
    /// The request is no record.
    pub const MALFORMED: u16 = 400;
    /// Another line is stored under this id.
    pub const CONFLICT: u16 = 409;
    /// The commit failed.
    pub const FAILED: u16 = 500;
    /// The stages behind the handler take no more.
    pub const FULL: u16 = 507;
}

/// Answers all of them with an error, and counts them.
pub fn fail(flow: &Flow, owed: Vec<Owed>, code: u16, why: &str) {
    let records = owed.iter().filter(|owed| owed.tenant.is_some()).count() as u64;
    flow.count(|n| n.failed += records);
    flow.tenants.ended(SystemInstant::now(), owed.iter().filter_map(|owed| Some((owed.tenant?, false))));
    owed.into_iter().for_each(|owed| owed.responder.fail(code, why));
}

/// A commit that is under way, and who waits for it.
pub struct Awaited {
    /// The commit.
    pub commit: Commit,
    /// The answers, in the order of its items.
    pub owed: Vec<Owed>,
}

/// Takes results in the order of the commits, and answers.
pub struct Answerer {
    /// From the batches.
    pub results: Receiver<Awaited>,
    /// What is counted.
    pub flow: Arc<Flow>,
}

impl Answerer {
    /// Ends when the batcher is gone and everything is answered.
    pub fn run(self) {
        for Awaited { commit, owed } in &self.results {
            match commit.wait(PATIENCE) {
                Ok((Ok(stored), times)) => {
                    self.flow.times.record(Time::BridgePermitWait, times.permit_wait);
                    self.flow.times.record(Time::BridgeQueueWait, times.queue_wait);
                    self.flow.times.record(Time::StoreCommit, times.service);
                    self.flow.times.record(Time::BridgeResultWait, times.result_wait);
                    self.answer(owed, &stored);
                }
                Ok((Err(why), _)) => self.failed(owed, &format!("the commit failed: {why}")),
                Err(e) => self.failed(owed, &format!("the commit has no result: {e}")),
            }
        }
    }

    fn failed(&self, owed: Vec<Owed>, why: &str) {
        self.flow.count(|n| n.failed_commits += 1);
        fail(&self.flow, owed, code::FAILED, why);
    }

    fn answer(&self, owed: Vec<Owed>, stored: &[Stored]) {
        self.flow.count(|n| {
            n.commits += 1;
            for stored in stored {
                match stored {
                    Stored::Now(_) => n.stored += 1,
                    Stored::Before(_) => n.recognised += 1,
                    Stored::Conflict => n.refused += 1,
                    Stored::Input(_) => {}
                }
            }
        });
        let ends = owed.iter().zip(stored);
        let ends = ends.filter_map(|(owed, end)| Some((owed.tenant?, *end != Stored::Conflict)));
        self.flow.tenants.ended(SystemInstant::now(), ends);
        // What goes to one peer leaves together.
        reply_all(owed.into_iter().zip(stored).filter_map(|(Owed { responder, .. }, stored)| match stored {
            Stored::Now(sequence) | Stored::Before(sequence) => {
                Some((responder, Bytes::copy_from_slice(&sequence.to_be_bytes())))
            }
            Stored::Input(number) => Some((responder, Bytes::copy_from_slice(&number.to_be_bytes()))),
            Stored::Conflict => {
                responder.fail(code::CONFLICT, "another line is stored under this id");
                None
            }
        }));
    }
}
