//! Panics of a program's own code: caught where it is called and where its values are dropped, for a
//! last word may panic too.

use std::any::Any;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `f`; if it panics, the text of the panic. `f` must leave nothing of the runtime's half done.
pub fn caught<R>(f: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|panic| {
        let text = text(&*panic);
        // What it carries is the program's as well. A value that panics twice is left where it is.
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
            mem::forget(again);
        }
        text
    })
}

/// Drops a value of the program's; if that panics, the text of the panic.
pub fn dropped<T>(value: T) -> Result<(), String> {
    caught(|| drop(value))
}

fn text(panic: &(dyn Any + Send)) -> String {
    let said = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    said.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without words".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            std::panic::panic_any(Bomb);
        }
    }

    #[test]
    fn whatever_panics_its_text_comes_back() {
        assert_eq!(caught(|| 7), Ok(7));
        assert_eq!(caught(|| panic!("plain")), Err::<(), _>("plain".into()));
        assert_eq!(caught(|| panic!("number {}", 7)), Err::<(), _>("number 7".into()));
        assert_eq!(dropped(vec![1]), Ok(()));
    }

    #[test]
    fn what_panics_whenever_it_is_dropped_ends_here() {
        assert_eq!(dropped(Bomb), Err("a panic without words".into()));
        assert_eq!(caught(|| std::panic::panic_any(Bomb)), Err::<(), _>("a panic without words".into()));
    }
}
