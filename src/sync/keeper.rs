//! Which threads keep a buffer between one call and the next: what a thread reads into while it leads a lane, and
//! the chunk that it wrote from. Threads are the user's, and there may be any number of them; of those in the
//! process so many are keepers, each from when it is first asked about until it ends.
//!
//! Full: the others keep nothing. They do not lead, and make a chunk for what they write.

use std::sync::OnceLock;

use super::room::{ROOM_BYTES_MAX, Room};
use crate::plan::KEEPERS_MAX;

fn room() -> &'static Room {
    static ROOM: OnceLock<Room> = OnceLock::new();
    ROOM.get_or_init(|| Room::new(KEEPERS_MAX, ROOM_BYTES_MAX))
}

struct Keeper(bool);

impl Drop for Keeper {
    fn drop(&mut self) {
        if self.0 {
            room().leave(0);
        }
    }
}

thread_local! {
    static KEEPER: Keeper = Keeper(room().enter(0).is_ok() || cfg!(afflux_mutation = "all_are_keepers"));
}

/// Whether the calling thread is one. A thread that is ending is none.
#[inline]
pub fn is_keeper() -> bool {
    KEEPER.try_with(|keeper| keeper.0).unwrap_or(false)
}
