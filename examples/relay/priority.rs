//! Who gives way to whom, where the load and the service share the processors.

/// How much less the load gets of a processor that somebody else wants too.
const NICE: i32 = 10;

/// The calling thread takes what others leave. A load that is refused most of what it asks would otherwise take from
/// the service what it measures; with a machine of its own it could not. What cannot be offered in time then is late,
/// and is said so.
pub fn give_way() {
    // On other systems a priority is the process's, and on none is it worth a failure.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::nice(NICE);
}
