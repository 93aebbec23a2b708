//! Which planted fault is on in this process, in a build that has them all. It is asked for at every place of a
//! fault, so it is looked up once. Neither loom's: it is the same in every interleaving.

use std::sync::OnceLock;

static PLANTED: OnceLock<String> = OnceLock::new();

/// Whether the fault of this name is on. `AFFLUX_MUTATION` unset or empty: none is.
pub fn is_planted(name: &str) -> bool {
    PLANTED.get_or_init(|| std::env::var("AFFLUX_MUTATION").unwrap_or_default()) == name
}
