//! A thread of a host that is interrupted while it holds a baton: somebody who has begun to write and was
//! not let to go on. Until it is, everybody else finds the baton taken, leaves his work and asks. It is a
//! thread indeed, because a baton is held by one; the world stands still while it runs.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use afflux::Lane;
use afflux::engine::lanes;
use afflux::engine::shared::HostShared;
use afflux::flow::target::Target;

pub struct Interrupted {
    /// Whose thread it is.
    pub node: usize,
    go: Sender<()>,
    thread: JoinHandle<()>,
}

impl Interrupted {
    /// `None`: somebody has that baton.
    pub fn begin(node: usize, shared: Arc<HostShared>, target: Arc<Target>, lane: Lane) -> Option<Interrupted> {
        let ((go, gone), (tell, told)) = (channel(), channel());
        let thread = std::thread::spawn(move || match lane {
            Lane::Application => {
                let held = target.application.try_take();
                tell.send(held.is_some()).unwrap();
                if let Some(held) = held {
                    let _ = gone.recv();
                    lanes::let_go(&shared, &target, held);
                }
            }
            Lane::Completion => {
                let held = target.completion.come_by();
                tell.send(held.is_some()).unwrap();
                if let Some(held) = held {
                    let _ = gone.recv();
                    // Now it does what it had begun.
                    drop(held);
                    lanes::drive_completion(&shared, &target);
                }
            }
        });
        if told.recv() == Ok(true) {
            return Some(Interrupted { node, go, thread });
        }
        thread.join().unwrap();
        None
    }

    /// It goes on, to its end.
    pub fn end(self) {
        self.go.send(()).unwrap();
        self.thread.join().unwrap();
    }
}
