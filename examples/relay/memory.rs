//! What the process occupies, as far as the system says.

use crate::allocator;

/// Memory at one moment, in bytes.
#[derive(Clone, Copy, Default, Debug)]
pub struct Memory {
    /// Resident; 0 where the system does not say.
    pub resident: u64,
    /// Asked of the allocator and not given back.
    pub allocated: u64,
}

impl Memory {
    /// As it is.
    pub fn now() -> Memory {
        Memory { resident: field("VmRSS:"), allocated: allocator::live() }
    }

    /// At rest: what the allocator only keeps goes back first.
    pub fn at_rest() -> Memory {
        allocator::trim();
        Memory::now()
    }

    /// The most of both since the process began.
    pub fn peak() -> Memory {
        Memory { resident: field("VmHWM:"), allocated: allocator::peak() }
    }
}

fn field(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
