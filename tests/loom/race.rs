//! Threads that race, in every order of starting.
//!
//! Loom reverses two accesses that conflict, but it remembers only the last access of each atomic: a
//! thread that loads a word and then swaps it hides the load of another thread before. So a model may
//! miss interleavings that begin with the one who merely looks. Played once from every order, each
//! thread is once the first to look and once the first to change.

use super::{Arc, model, thread};

type Role<S, R> = Box<dyn FnOnce(&S) -> R + Send>;

/// Runs `body` with the number of every order that two threads can start in.
pub fn both_orders(body: impl Fn(usize) + Copy + Send + Sync + 'static) {
    (0..2).for_each(|order| model(move || body(order)));
}

/// Runs `body` with the number of every order that three threads can start in.
pub fn six_orders(body: impl Fn(usize) + Copy + Send + Sync + 'static) {
    (0..6).for_each(|order| model(move || body(order)));
}

/// Two threads with something between them. Each is over when it returns.
pub fn race2<S: Send + Sync + 'static, A: Send + 'static, B: Send + 'static>(
    order: usize,
    shared: &Arc<S>,
    a: impl FnOnce(&S) -> A + Send + 'static,
    b: impl FnOnce(&S) -> B + Send + 'static,
) -> (A, B) {
    let (a, b, _) = start(&[[0, 1], [1, 0]][order], shared, Box::new(a), Box::new(b), Box::new(|_: &S| ()));
    (a.unwrap(), b.unwrap())
}

/// Three threads with something between them. Each is over when it returns.
pub fn race3<S: Send + Sync + 'static, A: Send + 'static, B: Send + 'static, C: Send + 'static>(
    order: usize,
    shared: &Arc<S>,
    a: impl FnOnce(&S) -> A + Send + 'static,
    b: impl FnOnce(&S) -> B + Send + 'static,
    c: impl FnOnce(&S) -> C + Send + 'static,
) -> (A, B, C) {
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    let (a, b, c) = start(&orders[order], shared, Box::new(a), Box::new(b), Box::new(c));
    (a.unwrap(), b.unwrap(), c.unwrap())
}

/// Starts the roles that `order` names, in that order, and waits for them in that order.
fn start<S: Send + Sync + 'static, A: Send + 'static, B: Send + 'static, C: Send + 'static>(
    order: &[usize],
    shared: &Arc<S>,
    a: Role<S, A>,
    b: Role<S, B>,
    c: Role<S, C>,
) -> (Option<A>, Option<B>, Option<C>) {
    fn spawn<S: Send + Sync + 'static, R: Send + 'static>(
        shared: &Arc<S>,
        role: &mut Option<Role<S, R>>,
    ) -> Option<thread::JoinHandle<R>> {
        let (shared, role) = (shared.clone(), role.take().unwrap());
        Some(thread::spawn(move || role(&shared)))
    }
    let mut roles = (Some(a), Some(b), Some(c));
    let mut handles = (None, None, None);
    for role in order {
        match role {
            0 => handles.0 = spawn(shared, &mut roles.0),
            1 => handles.1 = spawn(shared, &mut roles.1),
            _ => handles.2 = spawn(shared, &mut roles.2),
        }
    }
    let mut results = (None, None, None);
    for role in order {
        match role {
            0 => results.0 = handles.0.take().map(|handle| handle.join().unwrap()),
            1 => results.1 = handles.1.take().map(|handle| handle.join().unwrap()),
            _ => results.2 = handles.2.take().map(|handle| handle.join().unwrap()),
        }
    }
    results
}
