//! The house rules, executed: which floor may import which, what is allowed in which room, and what is
//! allowed nowhere. A finding names file, line and rule. The rules themselves are tested below: each is
//! shown a line that breaks it.

use std::fs;
use std::path::{Path, PathBuf};

#[path = "tidy/contract.rs"]
mod contract;

/// Floors from the bottom; a file imports lower ones. Those of one level do not know each other, except
/// that `plan` stands on `base`.
const FLOORS: [(&str, u8); 11] = [
    ("base", 0),
    ("plan", 1),
    ("sync", 2),
    ("wire", 3),
    ("policy", 3),
    ("meter", 3),
    ("flow", 4),
    ("pattern", 5),
    ("engine", 6),
    ("runtime", 7),
    ("host", 8),
];

/// Holds the manual: text that is compiled, on no floor.
const MANUAL: &str = "manual";

/// What is allowed in some rooms only: what it is called in messages, how it is recognised, and where.
const ROOMS: [(Sign, &[&str]); 22] = [
    (Sign::Word("unsafe"), &["sync"]),
    (Sign::Prefix("Atomic"), &["sync"]),
    (Sign::Path(&["sync", "atomic"]), &["sync"]),
    (Sign::Word("UnsafeCell"), &["sync"]),
    (Sign::Word("Mutex"), &["sync"]),
    (Sign::Word("RwLock"), &["sync"]),
    (Sign::Word("Condvar"), &["sync"]),
    (Sign::Crate("crossbeam_utils"), &["sync"]),
    (Sign::Crate("mio"), &["runtime"]),
    (Sign::Crate("socket2"), &["runtime"]),
    (Sign::Crate("rustls"), &["runtime"]),
    (Sign::Crate("core_affinity"), &["runtime"]),
    (Sign::Word("TcpStream"), &["runtime"]),
    (Sign::Word("TcpListener"), &["runtime"]),
    (Sign::Path(&["thread", "spawn"]), &["runtime"]),
    (Sign::Path(&["thread", "Builder"]), &["runtime"]),
    (Sign::Path(&["Instant", "now"]), &["runtime"]),
    (Sign::Word("SystemTime"), &["runtime"]),
    (Sign::Crate("crossbeam_channel"), &["engine", "runtime", "host"]),
    (Sign::Crate("hdrhistogram"), &["meter", "host"]),
    (Sign::Crate("log"), &["runtime", "host"]),
    (Sign::Crate("bytes"), &["base", "wire", "flow", "pattern", "engine", "runtime", "host"]),
];

/// What is allowed nowhere in the product's code.
const NOWHERE: [Sign; 7] = [
    Sign::Macro("todo"),
    Sign::Macro("unimplemented"),
    Sign::Macro("dbg"),
    Sign::Call("unbounded"),
    Sign::Word("dead_code"),
    Sign::Path(&["thread", "sleep"]),
    Sign::Path(&["static", "mut"]),
];

/// What no line says, comments included: notes to oneself and paths of somebody's machine.
const UNSAID: [&str; 6] = ["TODO", "FIXME", "XXX", "/home/", "/root/", "/work/"];

/// Executors do not come in through the back door either.
const EXECUTORS: [&str; 8] =
    ["tokio", "async-std", "smol", "async-executor", "futures-executor", "glommio", "monoio", "embassy-executor"];

/// How a thing is recognised among the tokens of a file.
#[derive(Clone, Copy, Debug)]
enum Sign {
    /// This identifier.
    Word(&'static str),
    /// An identifier that begins so and goes on with a capital or a digit.
    Prefix(&'static str),
    /// These identifiers, joined by `::` (or beside each other).
    Path(&'static [&'static str]),
    /// This crate: the identifier at the head of a path.
    Crate(&'static str),
    /// This identifier, called.
    Call(&'static str),
    /// This identifier with `!`.
    Macro(&'static str),
}

impl Sign {
    fn is_at(self, tokens: &[Token<'_>], i: usize) -> bool {
        let text = |k: usize| tokens.get(k).map_or("", |t| t.text);
        let before = if i == 0 { "" } else { text(i - 1) };
        match self {
            Sign::Word(word) => text(i) == word,
            Sign::Prefix(prefix) => text(i)
                .strip_prefix(prefix)
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase() || c.is_ascii_digit())),
            Sign::Path(path) => {
                let mut at = i;
                path.iter().enumerate().all(|(n, word)| {
                    if n > 0 && text(at) == "::" {
                        at += 1;
                    }
                    at += 1;
                    text(at - 1) == *word
                })
            }
            Sign::Crate(name) => {
                text(i) == name && before != "::" && before != "." && (text(i + 1) == "::" || before == "use")
            }
            Sign::Call(name) => text(i) == name && matches!(text(i + 1), "(" | "::"),
            Sign::Macro(name) => text(i) == name && text(i + 1) == "!",
        }
    }

    fn name(self) -> String {
        match self {
            Sign::Word(name) | Sign::Crate(name) => name.to_owned(),
            Sign::Prefix(name) => format!("{name}*"),
            Sign::Path(path) => path.join("::"),
            Sign::Call(name) => format!("{name}()"),
            Sign::Macro(name) => format!("{name}!"),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Token<'a> {
    text: &'a str,
    line: usize,
}

/// The code without comments and literals, which are replaced by blanks; lines stay where they are.
fn code_of(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let mut out = String::with_capacity(source.len());
    let mut i = 0;
    let blank = |c: char| if c == '\n' { '\n' } else { ' ' };
    while i < chars.len() {
        let end = match (chars[i], chars.get(i + 1)) {
            ('/', Some('/')) => (i..chars.len()).find(|k| chars[*k] == '\n').unwrap_or(chars.len()),
            ('/', Some('*')) => block_comment_end(&chars, i),
            ('"', _) => string_end(&chars, i),
            ('r', Some('"' | '#')) if !is_word(&chars, i) => raw_string_end(&chars, i).unwrap_or(i),
            ('\'', _) => char_end(&chars, i).unwrap_or(i),
            _ => i,
        };
        if end == i {
            out.push(chars[i]);
            i += 1;
        } else {
            out.extend(chars[i..end].iter().copied().map(blank));
            i = end;
        }
    }
    out
}

fn block_comment_end(chars: &[char], start: usize) -> usize {
    let (mut depth, mut i) = (0, start);
    while i < chars.len() {
        match (chars[i], chars.get(i + 1)) {
            ('/', Some('*')) => (depth, i) = (depth + 1, i + 2),
            ('*', Some('/')) => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            return i;
        }
    }
    i
}

fn string_end(chars: &[char], start: usize) -> usize {
    let mut i = start + 1;
    while i < chars.len() && chars[i] != '"' {
        i += if chars[i] == '\\' { 2 } else { 1 };
    }
    (i + 1).min(chars.len())
}

fn raw_string_end(chars: &[char], start: usize) -> Option<usize> {
    let hashes = chars[start + 1..].iter().take_while(|c| **c == '#').count();
    if chars.get(start + 1 + hashes) != Some(&'"') {
        return None;
    }
    let closes =
        |k: usize| chars[k] == '"' && chars[k + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes;
    (start + 2 + hashes..chars.len()).find(|k| closes(*k)).map(|k| k + 1 + hashes)
}

/// A character literal; `None` for a lifetime.
fn char_end(chars: &[char], start: usize) -> Option<usize> {
    match (chars.get(start + 1)?, chars.get(start + 2)?) {
        ('\\', _) => (start + 3..chars.len()).find(|k| chars[*k] == '\'').map(|k| k + 1),
        (_, '\'') => Some(start + 3),
        _ => None,
    }
}

/// The character belongs to an identifier that began before it.
fn is_word(chars: &[char], i: usize) -> bool {
    i > 0 && (chars[i - 1].is_alphanumeric() || chars[i - 1] == '_')
}

/// Identifiers, `::`, and every other character on its own.
fn tokens(code: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    for (n, line) in code.lines().enumerate() {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let len = if first.is_alphanumeric() || first == '_' {
                rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())
            } else if rest.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            found.push(Token { text: &rest[..len], line: n + 1 });
            rest = rest[len..].trim_start();
        }
    }
    found
}

/// Modules at the crate's root that the code names, with their lines: `crate::x`, `crate::{x, y::z}`, and
/// as many `super` as lead to the root.
fn imports<'a>(tokens: &[Token<'a>], depth: usize) -> Vec<Token<'a>> {
    let text = |k: usize| tokens.get(k).map_or("", |t| t.text);
    let tests = tests_begin(tokens);
    let mut found = Vec::new();
    let mut i = 0;
    while i < tokens.len() {
        let mut after = None;
        if text(i) == "crate" && text(i + 1) == "::" {
            after = Some(i + 2);
        } else if text(i) == "super" && (i == 0 || text(i - 1) != "::") {
            let supers = (0..).take_while(|n| text(i + 2 * n) == "super" && text(i + 2 * n + 1) == "::").count();
            if supers >= depth + usize::from(i >= tests) {
                after = Some(i + 2 * supers);
            }
        }
        match after {
            Some(start) if text(start) == "{" => {
                let (mut level, mut k) = (1, start + 1);
                while level > 0 && k < tokens.len() {
                    match text(k) {
                        "{" => level += 1,
                        "}" => level -= 1,
                        "," => {}
                        _ if level == 1 && matches!(text(k - 1), "{" | ",") => found.push(tokens[k]),
                        _ => {}
                    }
                    k += 1;
                }
            }
            Some(start) if start < tokens.len() => found.push(tokens[start]),
            _ => {}
        }
        i += 1;
    }
    found
}

/// Where the tests of a file begin: rooms are for the product, a test may start threads.
fn tests_begin(tokens: &[Token<'_>]) -> usize {
    let sign = ["cfg", "(", "test", ")"];
    let begins = |i: &usize| tokens[*i..].iter().map(|t| t.text).take(4).eq(sign);
    (0..tokens.len()).find(begins).unwrap_or(tokens.len())
}

fn level(floor: &str) -> Option<u8> {
    FLOORS.iter().find(|(name, _)| *name == floor).map(|(_, level)| *level)
}

/// Everything that is wrong with one file of `src`. `path` is relative to `src`.
fn findings(path: &Path, source: &str) -> Vec<String> {
    let code = code_of(source);
    let tokens = tokens(&code);
    let parts: Vec<&str> = path.iter().filter_map(|p| p.to_str()).collect();
    let floor = if parts.len() > 1 && parts[0] != MANUAL { parts[0] } else { "" };
    let depth = parts.len() - usize::from(parts.last() == Some(&"mod.rs"));
    let mut found = Vec::new();
    let mut say = |line: usize, what: String| found.push(format!("src/{}:{line}: {what}", path.display()));

    if tokens.is_empty() {
        say(1, "a file without code".into());
    }
    // `tests.rs` is the tests of the module it lies in.
    let tests_alone = parts.last() == Some(&"tests.rs");
    if !source.starts_with("//!") && !tests_alone {
        say(1, "does not say at its head what it owns (//!)".into());
    }
    for (n, line) in source.lines().enumerate() {
        for word in UNSAID.iter().filter(|word| line.contains(**word)) {
            say(n + 1, format!("says {word}"));
        }
    }
    if !floor.is_empty() {
        let Some(own) = level(floor) else {
            say(1, format!("{floor} is not a floor; floors are {:?}", FLOORS.map(|(name, _)| name)));
            return found;
        };
        for import in imports(&tokens, depth) {
            match level(import.text) {
                Some(other) if import.text != floor && other >= own => {
                    say(import.line, format!("{floor} imports {}, but floors import downward only", import.text));
                }
                _ => {}
            }
        }
    }
    let product = &tokens[..if tests_alone { 0 } else { tests_begin(&tokens) }];
    for (i, token) in product.iter().enumerate() {
        for (sign, rooms) in ROOMS {
            if sign.is_at(product, i) && !floor.is_empty() && !rooms.contains(&floor) {
                say(token.line, format!("{} in {floor}, but it is allowed only in {rooms:?}", sign.name()));
            }
        }
        for sign in NOWHERE {
            if sign.is_at(product, i) {
                say(token.line, format!("{} is allowed nowhere", sign.name()));
            }
        }
    }
    found
}

fn files(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

#[test]
fn the_house_is_tidy() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut all = Vec::new();
    files(&src, &mut all);
    all.sort();
    assert!(all.len() > 20, "{} does not look like the sources", src.display());
    let found: Vec<String> = all
        .iter()
        .flat_map(|path| findings(path.strip_prefix(&src).unwrap(), &fs::read_to_string(path).unwrap()))
        .collect();
    assert!(found.is_empty(), "{} finding(s):\n{}", found.len(), found.join("\n"));
}

#[test]
fn no_executor_comes_in_through_a_dependency() {
    let lock = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.lock")).unwrap();
    for name in EXECUTORS {
        assert!(!lock.contains(&format!("name = \"{name}\"\n")), "{name} is in Cargo.lock");
    }
}

mod rules {
    use super::*;

    fn of(path: &str, code: &str) -> Vec<String> {
        findings(Path::new(path), &format!("//! Owns nothing.\n{code}\n"))
    }

    #[track_caller]
    fn broken(path: &str, code: &str, finding: &str) {
        assert_eq!(of(path, code), [format!("src/{path}:2: {finding}")], "{code}");
    }

    #[track_caller]
    fn fine(path: &str, code: &str) {
        assert!(of(path, code).is_empty(), "{code}\n{:#?}", of(path, code));
    }

    #[test]
    fn floors_import_downward() {
        let upward = "flow imports engine, but floors import downward only";
        broken("flow/x.rs", "use crate::engine::Y;", upward);
        broken("flow/x.rs", "use crate::{base::id, engine::{a, b}};", upward);
        broken("flow/x.rs", "use super::super::engine::Y;", upward);
        broken("flow/mod.rs", "use super::engine::Y;", upward);
        broken("flow/deep/x.rs", "fn f() { super::super::super::engine::g() }", upward);
        broken("flow/x.rs", "#[cfg(test)] mod tests { use super::super::super::engine::Y; }", upward);
        broken("wire/x.rs", "use crate::meter::Y;", "wire imports meter, but floors import downward only");
        broken("base/x.rs", "use crate::plan::Y;", "base imports plan, but floors import downward only");
        assert!(of("attic/x.rs", "struct A;")[0].starts_with("src/attic/x.rs:1: attic is not a floor; floors are "));
        fine("flow/x.rs", "use crate::flow::y; use crate::{base, meter::engine}; use super::engine;");
        fine("plan/mod.rs", "use crate::base::unit;");
        fine("flow/x.rs", "// use crate::engine::Y;\nconst A: &str = \"crate::engine::Y\";");
        fine("lib.rs", "pub use crate::host::Host;");
        fine("manual/mod.rs", "pub mod options {}");
    }

    #[test]
    fn each_thing_has_its_room() {
        broken("flow/x.rs", "unsafe { f() }", "unsafe in flow, but it is allowed only in [\"sync\"]");
        broken("flow/x.rs", "a: AtomicU64", "Atomic* in flow, but it is allowed only in [\"sync\"]");
        broken("flow/x.rs", "use std::sync::atomic;", "sync::atomic in flow, but it is allowed only in [\"sync\"]");
        broken("host/x.rs", "a: std::sync::Mutex<u8>", "Mutex in host, but it is allowed only in [\"sync\"]");
        broken("flow/x.rs", "std::thread::spawn(f)", "thread::spawn in flow, but it is allowed only in [\"runtime\"]");
        broken("flow/x.rs", "let t = Instant::now();", "Instant::now in flow, but it is allowed only in [\"runtime\"]");
        broken("host/x.rs", "use mio::Poll;", "mio in host, but it is allowed only in [\"runtime\"]");
        broken("host/x.rs", "s: std::net::TcpStream", "TcpStream in host, but it is allowed only in [\"runtime\"]");
        broken("engine/x.rs", "log::warn!(a)", "log in engine, but it is allowed only in [\"runtime\", \"host\"]");
        broken(
            "flow/x.rs",
            "use hdrhistogram as h;",
            "hdrhistogram in flow, but it is allowed only in [\"meter\", \"host\"]",
        );
        fine("sync/x.rs", "unsafe { f() } use std::sync::atomic::AtomicU64;");
        fine(
            "host/x.rs",
            "use std::net::SocketAddr; let i = std::thread::current(); let log = a.log(); ByteSize::bytes(1);",
        );
        fine("flow/x.rs", "struct A; #[cfg(test)] mod tests { fn f() { std::thread::spawn(g); } }");
        fine("flow/x/tests.rs", "fn f() { std::thread::spawn(g); }");
        fine("flow/x.rs", "fn f<'a>(x: &'a str) -> char { '\"' } // unsafe\n/* Mutex /* RwLock */ dbg! */ fn g() {}");
        fine("flow/x.rs", "const R: &str = r#\"unsafe \" Mutex\"#; const C: char = '\\''; fn u() {}");
    }

    #[test]
    fn some_things_have_no_room() {
        broken("flow/x.rs", "fn f() { todo!() }", "todo! is allowed nowhere");
        broken("runtime/x.rs", "let c = crossbeam_channel::unbounded();", "unbounded() is allowed nowhere");
        broken("engine/x.rs", "use c::unbounded; let x = unbounded::<u8>();", "unbounded() is allowed nowhere");
        broken("sync/x.rs", "#[allow(dead_code)] fn f() {}", "dead_code is allowed nowhere");
        broken("sync/x.rs", "static mut A: u8 = 0;", "static::mut is allowed nowhere");
        broken("host/x.rs", "fn f() {} // TODO: later", "says TODO");
        broken("host/x.rs", "const A: &str = \"/home/me\";", "says /home/");
    }

    #[test]
    fn a_file_has_a_head_and_a_body() {
        assert_eq!(of("flow/x.rs", "// nothing"), ["src/flow/x.rs:1: a file without code"]);
        let headless = findings(Path::new("flow/x.rs"), "struct A;");
        assert_eq!(headless, ["src/flow/x.rs:1: does not say at its head what it owns (//!)"]);
    }

    #[test]
    fn a_finding_names_the_line() {
        let found = of("flow/x.rs", "/* two\nlines */\nconst A: &str = \"a\\\n b\";\nuse crate::host::B;");
        assert_eq!(found, ["src/flow/x.rs:6: flow imports host, but floors import downward only"]);
    }
}
