//! Options: what the user says, and whether it can be. Everything is judged before anything is bound or
//! written, and everything that is wrong is said at once. No wrong value is replaced by a default.

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use afflux::base::unit::grouped;
use clap::Parser;

use crate::drill::{self, Drill};
use crate::input::{self, Source};
use crate::sizes::Sizes;
use crate::store;

/// Relays lines through a service into a durable store, each exactly once.
#[derive(Parser)]
#[command(name = "relay")]
pub struct Args {
    /// Lines to send, from a file or, with -, from the standard input; may be given several times.
    /// Default: the project's own sources and its lock file
    #[arg(long, value_name = "FILE|-")]
    input: Vec<PathBuf>,
    /// Tell records apart by tenant: the N-th field of a line between white space, from 1
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    key: Option<String>,
    /// Read the whole input so many times; default 1, or for ever with --seconds
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    repeat: Option<String>,
    /// Links between load and service; default 4
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    connections: Option<String>,
    /// Directory of a store that is kept and gone on with; default: one in the output directory that begins
    /// empty in every run
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// Directory for the histograms (.hlog, .hgrm), the chart (.svg) and the ids that were answered
    #[arg(long, value_name = "DIR", default_value = "target/relay")]
    out: PathBuf,
    /// Write the counts to this file too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Shards of each host; default: by the processors
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    shards: Option<String>,
    /// Job limit of the service; default: by the processors
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    jobs: Option<String>,
    /// Stop after so long; the input starts again at its end
    #[arg(long, value_name = "S", allow_negative_numbers = true)]
    seconds: Option<String>,
    /// Open loop: offer X times the commits per second that a closed loop reaches in the first two seconds
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    overload: Option<String>,
    /// Closed loop: records outstanding at a time; default 256, if there is no --overload
    #[arg(long, value_name = "K", allow_negative_numbers = true)]
    outstanding: Option<String>,
    /// Time of a request until its answer; default 2 in an open loop, 30 in a closed one
    #[arg(long, value_name = "S", allow_negative_numbers = true)]
    timeout: Option<String>,
    /// Only serve, at this address (host:port), until Ctrl-C or --seconds
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Only make the load, for the service at this address
    #[arg(long, value_name = "ADDR")]
    connect: Option<String>,
    /// Compare the answers in the output directory OUT of a load with the store of --store, and end
    #[arg(long, value_name = "OUT")]
    verify: Option<PathBuf>,
    /// A fault to see what it does: hang=SECONDS@N or panic@N, in the N-th commit
    #[arg(long, value_name = "FAULT")]
    drill: Option<String>,
}

/// One value that cannot be.
#[derive(Debug)]
pub struct Fault {
    option: String,
    value: String,
    rule: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}: {}", self.option, self.value, self.rule)
    }
}

/// What this process is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Role {
    /// Load and service in one.
    Both,
    /// `--listen`
    Service,
    /// `--connect`, with the address
    Load(String),
    /// `--verify`, with the load's output directory
    Verify(PathBuf),
}

/// How the load goes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Pace {
    /// `--outstanding`
    Closed(u64),
    /// `--overload`
    Open(f64),
}

/// Options that can be.
pub struct Settings {
    /// Which part this process plays.
    pub role: Role,
    /// `--input`, opened; empty without a load
    pub sources: Vec<Source>,
    /// `--key`
    pub key: Option<usize>,
    /// How often the input is read; `None`: for ever.
    pub rounds: Option<u64>,
    /// `--seconds`
    pub seconds: Option<Duration>,
    /// How the load goes.
    pub pace: Pace,
    /// Numbers for the hosts.
    pub sizes: Sizes,
    /// `--store`
    pub store: PathBuf,
    /// Whether the store begins empty.
    pub fresh: bool,
    /// `--drill`
    pub drill: Drill,
    /// `--out`
    pub out: PathBuf,
    /// `--json`
    pub json: Option<PathBuf>,
}

/// The longest run: a year.
const SECONDS_MAX: f64 = 31_536_000.0;
/// The longest time of a request: an hour, the longest that the histograms tell apart.
const TIMEOUT_MAX: f64 = 3600.0;
/// The most that can be asked for in an open loop.
const OVERLOAD_MAX: f64 = 1000.0;

impl Settings {
    /// All faults, if there is one.
    pub fn check(args: &Args) -> Result<Settings, Vec<Fault>> {
        let mut faults = Faults(Vec::new());
        let role = faults.role(args);
        let key = faults.number("--key", &args.key, 1, 65_535);
        let repeat = faults.number("--repeat", &args.repeat, 1, u32::MAX.into());
        let outstanding = faults.number("--outstanding", &args.outstanding, 1, 65_536);
        let overload = faults.positive("--overload", &args.overload, OVERLOAD_MAX);
        let seconds = faults.positive("--seconds", &args.seconds, SECONDS_MAX).map(Duration::from_secs_f64);
        let timeout = faults.positive("--timeout", &args.timeout, TIMEOUT_MAX).map(Duration::from_secs_f64);
        let drill = args.drill.as_ref().and_then(|text| {
            let drill = Drill::parse(text);
            if drill.is_none() {
                faults.say("--drill", text, drill::RULE);
            }
            drill
        });
        let pace = match overload {
            Some(x) => Pace::Open(x),
            None => Pace::Closed(outstanding.unwrap_or(256)),
        };
        // The hosts' own rules judge these. What is no number breaks them as 0 does.
        let number = |text: &Option<String>| text.as_ref().map(|text| text.parse().unwrap_or(0));
        let sizes = Sizes {
            shards: number(&args.shards),
            jobs: number(&args.jobs),
            connections: number(&args.connections),
            outstanding: if let Pace::Closed(n) = pace { Some(n) } else { None },
            timeout: timeout.unwrap_or(Duration::from_secs(if overload.is_some() { 2 } else { 30 })),
            listen: args.listen.as_deref().map_or("tcp://127.0.0.1:0".into(), endpoint),
        };
        faults.hosts(args, &sizes, &role);
        let loads = matches!(role, Role::Both | Role::Load(_));
        let sources = if loads { faults.sources(&args.input) } else { Vec::new() };
        let fresh = args.store.is_none();
        let store = args.store.clone().unwrap_or_else(|| args.out.join("store"));
        if let Some(dir) = &args.store
            && matches!(role, Role::Both | Role::Service)
        {
            faults.directory("--store", dir);
            faults.database(&dir.join(store::FILE), dir);
        }
        if !matches!(role, Role::Verify(_)) {
            faults.directory("--out", &args.out);
            faults.json(args.json.as_deref());
        }
        if !faults.0.is_empty() {
            return Err(faults.0);
        }
        let rounds = repeat.or(if seconds.is_some() || overload.is_some() { None } else { Some(1) });
        let key = key.map(|n| n as usize);
        Ok(Settings {
            role,
            sources,
            key,
            rounds,
            seconds,
            pace,
            sizes,
            store,
            fresh,
            drill: drill.unwrap_or_default(),
            out: args.out.clone(),
            json: args.json.clone(),
        })
    }
}

/// An address as the hosts want it.
fn endpoint(text: &str) -> String {
    if text.contains("://") { text.to_owned() } else { format!("tcp://{text}") }
}

struct Faults(Vec<Fault>);

impl Faults {
    fn say(&mut self, option: &str, value: impl fmt::Display, rule: impl Into<String>) {
        self.0.push(Fault { option: option.into(), value: value.to_string(), rule: rule.into() });
    }

    fn number(&mut self, option: &str, text: &Option<String>, low: u64, high: u64) -> Option<u64> {
        let text = text.as_ref()?;
        let number = text.parse().ok().filter(|n| (low..=high).contains(n));
        if number.is_none() {
            self.say(option, text, format!("must be {}..={}", grouped(low), grouped(high)));
        }
        number
    }

    fn positive(&mut self, option: &str, text: &Option<String>, most: f64) -> Option<f64> {
        let text = text.as_ref()?;
        let number = text.parse().ok().filter(|s: &f64| *s > 0.0 && *s <= most);
        if number.is_none() {
            self.say(option, text, format!("must be a number above 0 and at most {most}"));
        }
        number
    }

    /// Which part this process plays; options of another part are a misunderstanding.
    fn role(&mut self, args: &Args) -> Role {
        let load: [(&str, bool); 6] = [
            ("--input", !args.input.is_empty()),
            ("--repeat", args.repeat.is_some()),
            ("--connections", args.connections.is_some()),
            ("--overload", args.overload.is_some()),
            ("--outstanding", args.outstanding.is_some()),
            ("--timeout", args.timeout.is_some()),
        ];
        let service = [("--jobs", args.jobs.is_some()), ("--drill", args.drill.is_some())];
        let store = [("--store", args.store.is_some())];
        let mut strange = |whose: &str, options: &[(&str, bool)]| {
            for (option, _) in options.iter().filter(|(_, given)| *given) {
                self.say(option, "(given)", format!("must not be given with {whose}, to which it means nothing"));
            }
        };
        let role = match (&args.verify, &args.listen, &args.connect) {
            (Some(out), ..) => {
                strange("--verify", &load);
                strange("--verify", &service);
                strange("--verify", &[("--listen", args.listen.is_some()), ("--connect", args.connect.is_some())]);
                Role::Verify(out.clone())
            }
            (None, Some(_), _) => {
                strange("--listen", &load);
                strange("--listen", &[("--connect", args.connect.is_some())]);
                Role::Service
            }
            (None, None, Some(address)) => {
                strange("--connect", &service);
                strange("--connect", &store);
                Role::Load(endpoint(address))
            }
            (None, None, None) => Role::Both,
        };
        if args.overload.is_some() && args.outstanding.is_some() {
            self.say("--outstanding", "(given)", "must not be given with --overload: a loop is open or closed");
        }
        if matches!(role, Role::Verify(_)) && args.store.is_none() {
            self.say("--store", "(not given)", "must be given with --verify");
        }
        role
    }

    /// What the hosts would say at their start, in the words of this program's options.
    fn hosts(&mut self, args: &Args, sizes: &Sizes, role: &Role) {
        let hosts = match role {
            Role::Both => vec![sizes.service(), sizes.dialled("tcp://127.0.0.1:1")],
            Role::Service => vec![sizes.service()],
            Role::Load(address) => vec![sizes.dialled(address)],
            Role::Verify(_) => Vec::new(),
        };
        for host in hosts {
            let Err(e) = host.check() else { continue };
            if e.violations().is_empty() {
                self.say("hosts", "these options", e.to_string());
            }
            for violation in e.violations() {
                let (option, text) = match violation.option {
                    "max_jobs" => ("--jobs", &args.jobs),
                    "links" => ("--connections", &args.connections),
                    "shards" => ("--shards", &args.shards),
                    "listen" => ("--listen", &args.listen),
                    "connect" => ("--connect", &args.connect),
                    "request_timeout" => ("--timeout", &args.timeout),
                    other => (other, &None),
                };
                let value = text.as_ref().unwrap_or(&violation.value);
                // Both hosts have the same shards.
                if !self.0.iter().any(|fault| fault.option == option && fault.value == *value) {
                    self.say(option, value, format!("must be {}", violation.rule));
                }
            }
        }
    }

    fn sources(&mut self, named: &[PathBuf]) -> Vec<Source> {
        let project;
        let names = if named.is_empty() {
            project = input::project();
            &project
        } else {
            named
        };
        if names.is_empty() {
            self.say("--input", "(not given)", "must be given where the project's own sources are not found");
        }
        let mut sources: Vec<Source> = Vec::new();
        for name in names {
            match Source::open(name) {
                Ok(source) if sources.iter().any(|other| other.is_same(&source)) => {
                    self.say("--input", name.display(), "must be given once; --repeat reads it again");
                }
                Ok(source) => sources.push(source),
                Err(rule) => self.say("--input", name.display(), rule),
            }
        }
        sources
    }

    /// A directory that can be written to, or made where one can be written to.
    fn directory(&mut self, option: &str, dir: &Path) {
        if let Err(rule) = writable(dir) {
            self.say(option, dir.display(), format!("must be a directory that can be written to; {rule}"));
        }
    }

    fn database(&mut self, file: &Path, dir: &Path) {
        if !file.exists() {
            return;
        }
        let read_only = file.metadata().is_ok_and(|about| about.permissions().readonly());
        if read_only {
            self.say("--store", dir.display(), format!("must be writable; {} is read-only", file.display()));
        } else if let Err(e) = File::options().read(true).write(true).open(file) {
            self.say("--store", dir.display(), format!("must be writable; {}: {e}", file.display()));
        }
    }

    fn json(&mut self, file: Option<&Path>) {
        let Some(file) = file else { return };
        let there = if file.exists() {
            File::options().write(true).open(file).map(drop).map_err(|e| e.to_string())
        } else {
            match file.parent() {
                Some(dir) if !dir.as_os_str().is_empty() && !dir.exists() => Err(format!("no {}", dir.display())),
                Some(dir) => writable(dir),
                None => Err("it has no name".into()),
            }
        };
        if let Err(rule) = there {
            self.say("--json", file.display(), format!("must be a file that can be written; {rule}"));
        }
    }
}

/// Tries it, and leaves nothing behind.
fn writable(dir: &Path) -> Result<(), String> {
    let there = dir.ancestors().find(|dir| dir.as_os_str().is_empty() || dir.exists());
    let there = there.filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let shown = there.display();
    let about = there.metadata().map_err(|e| format!("{shown}: {e}"))?;
    if !about.is_dir() {
        return Err(format!("{shown} is no directory"));
    }
    // A privileged user could write there all the same; that is not what was meant.
    if about.permissions().readonly() {
        return Err(format!("{shown} is read-only"));
    }
    let probe = there.join(format!(".relay-probe.{}", std::process::id()));
    File::options().write(true).create_new(true).open(&probe).map_err(|e| format!("{shown}: {e}"))?;
    std::fs::remove_file(&probe).map_err(|e| format!("{}: {e}", probe.display()))
}
