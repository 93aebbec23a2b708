//! What this process may use: processors, their quota, and memory. Looked at once, at start, and
//! then passed on as a value, so that every decision made from it can be tested without the machine.
//!
//! Nothing here fails: what cannot be found out is `None`, and whoever needs it decides what that means.

use std::thread::available_parallelism;

/// What was found out about the machine.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Machine {
    /// Processors that the calling thread may run on, ascending; empty if that is not known.
    pub cpus: Vec<usize>,
    /// Logical processors, as the standard library counts them.
    pub processors: Option<usize>,
    /// Processor time that the control group may use.
    pub quota: Option<Quota>,
    /// The control group's memory limit, bytes.
    pub memory_hard: Option<u64>,
    /// The machine's memory, bytes.
    pub memory_physical: Option<u64>,
}

/// So much processor time in each period.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quota {
    /// Microseconds of processor time.
    pub micros: u64,
    /// Microseconds of a period; not 0.
    pub period: u64,
}

impl Quota {
    /// Whole processors, rounded down: a loop that is stopped in the middle of its turn is late for
    /// everybody. At least one.
    pub fn processors(self) -> usize {
        let whole = match cfg!(afflux_mutation = "quota_rounds_up") {
            true => self.micros.div_ceil(self.period),
            false => self.micros / self.period,
        };
        usize::try_from(whole).unwrap_or(usize::MAX).max(1)
    }
}

impl Machine {
    /// Looks around. The affinity is that of the calling thread.
    pub fn detect() -> Machine {
        let mut cpus: Vec<usize> = core_affinity::get_core_ids().unwrap_or_default().iter().map(|c| c.id).collect();
        cpus.sort_unstable();
        let limits = Limits::find(&|path| std::fs::read_to_string(path).ok());
        Machine {
            cpus,
            processors: available_parallelism().ok().map(usize::from),
            quota: limits.quota,
            memory_hard: limits.memory,
            memory_physical: std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| total_memory(&text)),
        }
    }

    /// The smallest of what is known: affinity, quota, logical processors and `executors`, the number of
    /// loops if the user stated one. Nothing known: 1.
    pub fn effective_processors(&self, executors: Option<usize>) -> usize {
        let affinity = (!self.cpus.is_empty()).then_some(self.cpus.len());
        let quota = self.quota.map(Quota::processors);
        [affinity, quota, self.processors, executors].into_iter().flatten().filter(|n| *n > 0).min().unwrap_or(1)
    }
}

/// What the control groups of this process allow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Limits {
    quota: Option<Quota>,
    memory: Option<u64>,
}

impl Limits {
    /// Looks at the group of this process and all groups above it; the tightest limit counts. `read`
    /// gives the text of a file, if there is one.
    fn find(read: &dyn Fn(&str) -> Option<String>) -> Limits {
        let mut limits = Limits::default();
        for line in read("/proc/self/cgroup").unwrap_or_default().lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
            let has = |name| controllers.split(',').any(|c| c == name);
            for group in lineage(path) {
                if controllers.is_empty() {
                    let file = |name| read(&format!("/sys/fs/cgroup{group}/{name}"));
                    limits.tighten(
                        file("cpu.max").and_then(|text| quota_v2(&text)),
                        file("memory.max").and_then(|text| memory_limit(&text)),
                    );
                } else if has("cpu") {
                    let file = |name| read(&format!("/sys/fs/cgroup/cpu{group}/{name}"));
                    let quota = file("cpu.cfs_quota_us").zip(file("cpu.cfs_period_us"));
                    limits.tighten(quota.and_then(|(quota, period)| quota_v1(&quota, &period)), None);
                } else if has("memory") {
                    let file = read(&format!("/sys/fs/cgroup/memory{group}/memory.limit_in_bytes"));
                    limits.tighten(None, file.and_then(|text| memory_limit(&text)));
                }
            }
        }
        limits
    }

    fn tighten(&mut self, quota: Option<Quota>, memory: Option<u64>) {
        let share = |q: &Quota| (u128::from(q.micros) << 32) / u128::from(q.period);
        self.quota = self.quota.into_iter().chain(quota).min_by_key(share);
        self.memory = self.memory.into_iter().chain(memory).min();
    }
}

/// A group and those above it, the root as "". Inside a namespace the path may lead out of it; the
/// root is then the group itself.
fn lineage(path: &str) -> impl Iterator<Item = &str> {
    let path = path.trim_end_matches('/');
    let inside = if path.split('/').any(|part| part == "..") { "" } else { path };
    std::iter::successors(Some(inside), |group| group.rfind('/').map(|at| &group[..at]))
}

/// `cpu.max`: quota and period, or `max`.
fn quota_v2(text: &str) -> Option<Quota> {
    let (quota, period) = text.trim().split_once(' ').unwrap_or((text.trim(), "100000"));
    quota_v1(quota, period)
}

/// `cpu.cfs_quota_us` and `cpu.cfs_period_us`; -1 is no limit.
fn quota_v1(quota: &str, period: &str) -> Option<Quota> {
    let number = |text: &str| text.trim().parse::<u64>().ok().filter(|n| *n > 0);
    Some(Quota { micros: number(quota)?, period: number(period)? })
}

/// `memory.max` or `memory.limit_in_bytes`: `max`, or a number near the end of the range, is no limit.
fn memory_limit(text: &str) -> Option<u64> {
    text.trim().parse::<u64>().ok().filter(|n| (1..1 << 60).contains(n))
}

/// `MemTotal` of `/proc/meminfo`, in bytes.
fn total_memory(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(text: &str) -> Option<Quota> {
        quota_v2(text)
    }

    fn machine(quota: Option<Quota>, processors: usize) -> Machine {
        Machine { quota, processors: Some(processors), ..Machine::default() }
    }

    /// A machine's files, as a test states them.
    fn find(files: &[(&str, &str)]) -> Limits {
        Limits::find(&|path| files.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).to_owned()))
    }

    #[test]
    fn the_smallest_known_number_of_processors_counts() {
        assert_eq!(machine(quota("250000 100000\n"), 16).effective_processors(Some(8)), 2);
        assert_eq!(machine(quota("50000 100000"), 16).effective_processors(Some(8)), 1);
        assert_eq!(machine(quota_v1("600000", "100000"), 16).effective_processors(Some(4)), 4);
        assert_eq!(machine(quota("max 100000"), 16).effective_processors(None), 16);
        assert_eq!(Machine::default().effective_processors(None), 1);
        let pinned = Machine { cpus: vec![2, 5], ..machine(None, 16) };
        assert_eq!(pinned.effective_processors(None), 2);
    }

    #[test]
    fn quotas_that_are_no_limit_or_no_number_are_not_known() {
        for text in ["max 100000", "max", "", "-1 100000", "0 100000", "100000 0", "1e5 100000"] {
            assert_eq!(quota(text), None, "{text:?}");
        }
        assert_eq!(quota("250000"), Some(Quota { micros: 250_000, period: 100_000 }));
        assert_eq!(quota_v1("-1\n", "100000\n"), None);
    }

    #[test]
    fn the_tightest_group_above_us_counts() {
        let limits = find(&[
            ("/proc/self/cgroup", "0::/kube/pod7/main\n"),
            ("/sys/fs/cgroup/kube/pod7/main/cpu.max", "max 100000\n"),
            ("/sys/fs/cgroup/kube/pod7/main/memory.max", "1073741824\n"),
            ("/sys/fs/cgroup/kube/pod7/cpu.max", "150000 50000\n"),
            ("/sys/fs/cgroup/kube/cpu.max", "400000 100000\n"),
            ("/sys/fs/cgroup/kube/memory.max", "536870912\n"),
            ("/sys/fs/cgroup/memory.max", "max\n"),
        ]);
        assert_eq!(limits, Limits { quota: Some(Quota { micros: 150_000, period: 50_000 }), memory: Some(512 << 20) });
    }

    #[test]
    fn the_first_version_has_a_tree_per_controller() {
        let limits = find(&[
            ("/proc/self/cgroup", "12:cpu,cpuacct:/docker/abc\n7:memory:/docker/abc\n1:name=systemd:/x\n"),
            ("/sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us", "600000\n"),
            ("/sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us", "100000\n"),
            ("/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n"),
        ]);
        assert_eq!(limits, Limits { quota: Some(Quota { micros: 600_000, period: 100_000 }), memory: Some(2 << 30) });
    }

    #[test]
    fn a_namespace_shows_its_own_group_as_the_root() {
        for path in ["0::/\n", "0::/../../other\n"] {
            let limits = find(&[("/proc/self/cgroup", path), ("/sys/fs/cgroup/memory.max", "4096\n")]);
            assert_eq!(limits.memory, Some(4096), "{path}");
        }
        assert_eq!(find(&[]), Limits::default());
        assert_eq!(find(&[("/proc/self/cgroup", "rubbish\n\n::\n")]), Limits::default());
    }

    #[test]
    fn memory_of_the_machine_is_in_kib() {
        let text = "MemTotal:       16306548 kB\nMemFree:         1234 kB\n";
        assert_eq!(total_memory(text), Some(16_306_548 * 1024));
        assert_eq!(total_memory("MemFree: 1 kB"), None);
        assert_eq!(total_memory("MemTotal: many kB"), None);
    }

    #[test]
    fn this_machine_has_at_least_one_processor() {
        let machine = Machine::detect();
        assert!(machine.effective_processors(None) >= 1);
        assert!(machine.cpus.is_sorted());
    }
}
