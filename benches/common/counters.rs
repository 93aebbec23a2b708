//! Counts that a tool takes of a whole process tree, and their cost per operation: the slope between a
//! short and a long run, so that the start, the warm-up and the end do not count.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// System calls that are counted by name too, where the tool can.
pub const NAMED: [&str; 11] = [
    "epoll_wait",
    "epoll_ctl",
    "read",
    "readv",
    "recvfrom",
    "write",
    "writev",
    "sendto",
    "sendmsg",
    "futex",
    "sched_yield",
];

/// What counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tool {
    /// System calls, by the kernel's tracepoints: costs next to nothing.
    Perf,
    /// System calls, by stopping at each: slow, so threads meet differently.
    Strace,
    /// Instructions outside the kernel, in a simulation of one processor.
    Callgrind,
}

/// The best tool for system calls that works here.
pub fn system_calls() -> Option<Tool> {
    [Tool::Perf, Tool::Strace].into_iter().find(|tool| tool.works())
}

impl Tool {
    /// Whether it is there and allowed.
    pub fn works(self) -> bool {
        self.count(Path::new("/bin/true"), &[]).is_ok_and(|(counts, _)| counts.get("all").is_some_and(|n| *n > 0))
    }

    /// Runs a program to its end. The counts of it and its children, by name and as `all`, and what
    /// the program printed.
    pub fn count(self, program: &Path, args: &[String]) -> Result<(BTreeMap<String, u64>, String), String> {
        let dir = scratch();
        let file = dir.join("counts");
        let mut command = match self {
            Tool::Perf => {
                let events = NAMED.map(|name| format!("syscalls:sys_enter_{name}")).join(",");
                let mut c = Command::new("perf");
                c.args(["stat", "-x", ",", "-e", "raw_syscalls:sys_enter", "-e", &events, "-o"]).arg(&file).arg("--");
                c
            }
            Tool::Strace => {
                let mut c = Command::new("strace");
                c.args(["-f", "-c", "-o"]).arg(&file).arg("--");
                c
            }
            Tool::Callgrind => {
                let mut c = Command::new("valgrind");
                c.args(["-q", "--tool=callgrind", "--trace-children=yes", "--fair-sched=yes"]);
                c.arg(format!("--callgrind-out-file={}.%p", file.display()));
                c
            }
        };
        command.arg(program).args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let end = command.output().map_err(|e| format!("{self:?}: {e}"));
        let counts = end.and_then(|end| {
            let said = String::from_utf8_lossy(&end.stdout).into_owned();
            if !end.status.success() {
                return Err(format!("{self:?}: {}: {}", end.status, String::from_utf8_lossy(&end.stderr).trim()));
            }
            Ok((self.parse(&dir)?, said))
        });
        let _ = fs::remove_dir_all(&dir);
        counts
    }

    fn parse(self, dir: &Path) -> Result<BTreeMap<String, u64>, String> {
        let mut counts = BTreeMap::new();
        for entry in fs::read_dir(dir).map_err(|e| e.to_string())?.flatten() {
            let text = fs::read_to_string(entry.path()).map_err(|e| e.to_string())?;
            if self == Tool::Callgrind {
                parts(&text).into_iter().for_each(|(part, n)| *counts.entry(part).or_insert(0) += n);
            }
            for line in text.lines() {
                let found = match self {
                    Tool::Perf => perf_line(line),
                    Tool::Strace => strace_line(line),
                    Tool::Callgrind => {
                        line.strip_prefix("totals: ").and_then(|n| Some(("all", n.trim().parse().ok()?)))
                    }
                };
                if let Some((name, n)) = found {
                    *counts.entry(name.to_string()).or_insert(0) += n;
                }
            }
        }
        Ok(counts)
    }
}

/// Instructions of one process by the part of the code that they belong to: `client: sync/cell`. What the standard library
/// is inlined into, it counts to.
fn parts(profile: &str) -> BTreeMap<String, u64> {
    let client = profile.lines().any(|line| line.starts_with("cmd:") && line.contains("--row"));
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    let mut files: BTreeMap<&str, &str> = BTreeMap::new();
    let (mut function, mut here, mut is_call) = ("", "", false);
    for line in profile.lines() {
        if let Some((key @ ("fl" | "fi" | "fe" | "cfi" | "cfl"), file)) = line.split_once('=') {
            let (id, name) = file.split_once(' ').unwrap_or((file, ""));
            if !name.is_empty() {
                files.insert(id, name);
            }
            let file = files.get(id).copied().unwrap_or_default();
            match key {
                "fl" => (function, here) = (file, file),
                "fi" | "fe" => here = file,
                _ => {}
            }
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) {
            // The line below a call has what was called, which has lines of its own.
            let n = line.split(' ').nth(1).and_then(|n| n.parse::<u64>().ok()).filter(|_| !is_call);
            let part = part_of(here).or_else(|| part_of(function)).unwrap_or("standard library");
            *counts.entry(part).or_insert(0) += n.unwrap_or(0);
            is_call = false;
        }
    }
    let side = if client { "client" } else { "server" };
    counts.into_iter().map(|(part, n)| (format!("{side}: {part}"), n)).collect()
}

/// Which part of the code a source file is; `None`: the standard library.
fn part_of(file: &str) -> Option<&str> {
    if let Some(own) = file.strip_prefix(concat!(env!("CARGO_MANIFEST_DIR"), "/src/")) {
        let own = own.strip_suffix(".rs").unwrap_or(own);
        // A room and the files in it are one part.
        return Some(own.match_indices('/').nth(1).map_or(own, |(at, _)| &own[..at]));
    }
    if let Some((_, package)) = file.split_once("/registry/src/") {
        let package = package.split('/').nth(1).unwrap_or(package);
        return Some(package.rsplit_once('-').map_or(package, |(name, _version)| name));
    }
    match file {
        _ if file.contains("/benches/") => Some("the bench itself"),
        _ if file.contains("malloc/") => Some("allocator"),
        _ if file.contains("/mem") && file.contains("multiarch") => Some("memcpy, memset"),
        _ if file.contains("/rustc/") || file.contains("/library/") || file.is_empty() => None,
        _ => Some("C library, system calls"),
    }
}

/// `19542,,syscalls:sys_enter_futex,...`; a name that this kernel does not have has no number.
fn perf_line(line: &str) -> Option<(&str, u64)> {
    let mut fields = line.split(',');
    let n = fields.next()?.parse().ok()?;
    let event = fields.nth(1)?;
    Some((if event == "raw_syscalls:sys_enter" { "all" } else { event.strip_prefix("syscalls:sys_enter_")? }, n))
}

/// `% time  seconds  usecs/call  calls  [errors]  name`; the last row is the sum.
fn strace_line(line: &str) -> Option<(&str, u64)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let name = *fields.last()?;
    Some((if name == "total" { "all" } else { name }, fields.get(3)?.parse().ok()?))
}

fn scratch() -> PathBuf {
    let dir = std::env::temp_dir().join(format!("afflux-counts-{}", std::process::id()));
    fs::create_dir_all(&dir).expect("a directory for temporary files");
    dir
}

/// Counts per operation between a run of `short` and one of `long` operations, and what the long one
/// printed last, as JSON.
pub fn slope(tool: Tool, row: &str, (short, long): (u64, u64)) -> Result<(BTreeMap<String, f64>, Value), String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let run = |ops: u64| {
        let args = ["--bench", "--row", row, "--ops", &ops.to_string()].map(str::to_owned);
        tool.count(&program, &args)
    };
    let (less, (more, said)) = (run(short)?.0, run(long)?);
    let per_op = |(name, n): (&String, &u64)| {
        let before = less.get(name).copied().unwrap_or(0);
        (name.clone(), (*n as f64 - before as f64) / (long - short) as f64)
    };
    let said = said.lines().last().and_then(|line| serde_json::from_str(line).ok()).unwrap_or(Value::Null);
    Ok((more.iter().map(per_op).collect(), said))
}
