//! What the process occupies, as far as the system says.

/// Resident bytes now; 0 where the system does not say.
pub fn resident() -> u64 {
    field("VmRSS:")
}

/// The most resident bytes so far; 0 where the system does not say.
pub fn peak() -> u64 {
    field("VmHWM:")
}

fn field(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
