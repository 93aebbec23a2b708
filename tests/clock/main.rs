//! Field cases whose outcome has a time, on a clock that is moved by hand: two or three whole hosts on one
//! thread, with their engines, lanes, marks and permits. A case is named by its number in the comment of
//! the test that asserts it.

mod calls;
mod lanes;
mod net;
mod replies;
mod rig;
mod timers;
mod turns;
mod waits;
