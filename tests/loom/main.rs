//! Interleavings of `sync/`: at most three threads, two operations each.
//!
//! The same bodies run twice. Plainly, with the system's threads, many times over; and under loom,
//! which tries every interleaving (up to a number of preemptions) and every value that a relaxed
//! load may return:
//!
//! ```text
//! cargo test --test loom
//! RUSTFLAGS="--cfg afflux_loom" cargo test --release --test loom
//! ```
//!
//! `--cfg 'afflux_mutation="..."'` beside the latter plants a fault; the model of that protocol must
//! turn red. The faults are listed at the end of this file.

mod baton;
mod cell;
mod gate;
mod lead;
mod line;
mod mark;
mod page;
mod published;
mod race;
mod ring;
mod room;
mod wake;

#[cfg(afflux_loom)]
mod harness {
    pub use loom::sync::{Arc, Condvar, Mutex, atomic};
    pub use loom::thread;

    /// Runs `body` under every interleaving that has at most two preemptions, or
    /// `LOOM_MAX_PREEMPTIONS`.
    pub fn model(body: impl Fn() + Send + Sync + 'static) {
        model_within(2, body);
    }

    /// As [`model`], within fewer preemptions: for bodies with many steps.
    pub fn model_within(preemptions: usize, body: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound.get_or_insert(preemptions);
        builder.max_branches = builder.max_branches.max(20_000);
        builder.check(body);
    }
}

#[cfg(not(afflux_loom))]
mod harness {
    pub use std::sync::{Arc, Condvar, Mutex, atomic};
    pub use std::thread;

    /// Runs `body` often.
    pub fn model(body: impl Fn() + Send + Sync + 'static) {
        for _ in 0..500 {
            body();
        }
    }

    /// The same.
    pub fn model_within(_: usize, body: impl Fn() + Send + Sync + 'static) {
        model(body);
    }
}

use harness::{Arc, Condvar, Mutex, atomic, model, model_within, thread};

// Fault                       File                Turns red
// ring_relaxed_publish        sync/ring.rs        ring::*
// cell_ignores_generation     sync/cell.rs        cell::a_late_reply_against_the_next_use_of_the_place
// cell_double_terminal        sync/cell.rs        cell::reply_against_expiry
// cell_forgets_waker          sync/cell.rs        cell::the_end_against_first_poll_and_re_poll
// cell_reuse_linked           sync/cell.rs        cell::a_done_list_*, cell::an_inbox_against_pruning
// cell_bound_first            sync/cell.rs        cell::publishing_against_a_sweep
// cell_unfenced               cell/segment.rs     cell::publishing_against_a_sweep
// handed_over_unlinked        sync/cell.rs        cell::a_hand_over_against_an_end_that_is_taken
// cell_taken_unseen           cell/list.rs        cell::an_inbox_that_is_pruned_*
// cell_untagged               cell/list.rs        cell::a_place_is_one_callers
// gate_overtake               sync/gate.rs        gate::a_newcomer_does_not_overtake
// gate_lost_release           sync/gate.rs        gate::a_release_against_one_who_enqueues
// gate_unversioned            gate/word.rs        gate::shares_hold_while_permits_move
// mark_forgets_waiter         sync/mark.rs        mark::a_refused_sender_is_seen_by_the_release
// mark_keeps_version          sync/mark.rs        mark::nothing_is_admitted_above_a_new_limit
// baton_forgets_flag          sync/baton.rs       baton::*
// lazy_wake                   sync/wake.rs        wake::*
// tray_left_unseen            sync/tray.rs        wake::what_is_left_in_a_tray_is_seen
// page_settles_early          sync/page.rs        page::a_settled_page_has_the_new_peak
// published_early_version     sync/published.rs   published::*
// lead_left_unarmed           sync/lead.rs        lead::who_leaves_something_owed_has_it_watched
// lead_warm_while_owed        sync/lead.rs        lead::a_lane_is_not_warm_while_something_is_owed
// lead_unexpected             sync/lead.rs        lead::a_stuck_leader_holds_up_nobody
// lead_hushed_blindly         sync/lead.rs        lead::a_stuck_leader_holds_up_nobody
// room_enters_blindly         sync/room.rs        room::*
