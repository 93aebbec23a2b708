//! Wakers for futures that a shard polls: from any thread, into the shard's list of woken tasks.

use std::sync::Arc;
use std::task::{Wake, Waker};

use super::tray::Tray;
use super::wake::WakeCell;
use super::word::Latch;

/// Tasks of one shard that were woken and not polled since. Each is in it at most once, so there
/// are never more than there are started places.
#[derive(Debug)]
pub struct TaskList {
    woken: Tray<TaskKey>,
    shard: Arc<WakeCell>,
}

/// Which task: the seat of its handler and its started place, with the use count of that place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TaskKey {
    /// The seat.
    pub seat: u16,
    /// The started place.
    pub place: u32,
    /// How often that place was used before.
    pub generation: u32,
}

impl TaskList {
    /// The list of the shard that `shard` wakes.
    pub fn new(shard: Arc<WakeCell>) -> Arc<Self> {
        Arc::new(TaskList { woken: Tray::default(), shard })
    }

    /// Whether nothing was woken.
    pub fn is_empty(&self) -> bool {
        self.woken.is_empty()
    }

    /// Exchanges the list for an empty one.
    #[inline]
    pub fn swap(&self, empty: &mut Vec<TaskKey>) {
        self.woken.swap(empty);
    }
}

/// One task's part of its waker.
#[derive(Debug)]
pub struct TaskWaker {
    list: Arc<TaskList>,
    key: TaskKey,
    woken: Latch,
}

impl TaskWaker {
    /// A waker for the task `key`.
    pub fn new(list: Arc<TaskList>, key: TaskKey) -> Arc<Self> {
        Arc::new(TaskWaker { list, key, woken: Latch::new() })
    }

    /// To be called right before the task is polled: from now on a wake counts again.
    pub fn rearm(&self) {
        self.woken.lower();
    }

    /// As std's type.
    pub fn waker(self: &Arc<Self>) -> Waker {
        Waker::from(self.clone())
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.woken.raise() {
            self.list.woken.leave(self.key);
            self.list.shard.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_listed_once_until_it_is_polled() {
        let list = TaskList::new(Arc::new(WakeCell::new(|| {})));
        let key = TaskKey { seat: 1, place: 2, generation: 3 };
        let task = TaskWaker::new(list.clone(), key);
        let waker = task.waker();
        waker.wake_by_ref();
        waker.wake_by_ref();
        let mut woken = Vec::new();
        list.swap(&mut woken);
        assert_eq!(woken, [key]);
        waker.wake_by_ref();
        assert!(list.is_empty(), "still marked as woken");
        task.rearm();
        waker.wake_by_ref();
        assert!(!list.is_empty());
    }
}
