//! The table of what is proved (`tests/contract*.md`), held against the tree: each number and each case stands in it
//! once, the tests that it names exist, and the faults that it names are planted and select one of those tests.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The contract's numbers.
const NUMBERS: u16 = 55;

/// The cases from the field that apply here, by their section.
const CASES: [(&str, &[u16]); 9] = [
    ("A", &[1, 2, 3, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15, 16, 19, 20]),
    ("B", &[21, 23, 24, 25, 26, 28, 29, 31, 32, 33, 34, 35, 36, 37, 38, 39, 41, 42, 43]),
    ("C", &[44, 45, 46, 47, 48, 49, 52, 53, 54]),
    ("D", &[55, 56, 57, 58, 59, 60, 61, 62, 64, 65, 67, 68, 69, 70, 71]),
    ("E", &[72, 73, 74, 75, 77, 78, 79, 80, 81, 82, 83, 84]),
    ("F", &[85, 86, 89, 90, 91, 92, 93, 94]),
    ("K", &[135, 136, 137, 138, 139, 140]),
    // Subjects without numbers of their own.
    ("Sending", &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27]),
    ("Lanes", &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
];

/// In place of a fault.
const CANNOT: &str = "cannot occur: ";

/// One fault of `tests/mutations.sh`.
struct Fault<'a> {
    place: &'a str,
    filters: Vec<&'a str>,
}

impl Fault<'_> {
    /// Whether the run with this fault planted runs the test of that name.
    fn selects(&self, test: &str) -> bool {
        let Some((file, name)) = split(test) else { return false };
        let Some(path) = path_in(self.place, file) else { return false };
        let printed = format!("{path}::{name}");
        self.filters.iter().any(|filter| printed.contains(filter))
    }
}

/// `tests/a/b.rs::c::d` is the function `d` of that file.
fn split(test: &str) -> Option<(&str, &str)> {
    let end = test.find(".rs::")? + 3;
    Some((&test[..end], test[end..].rsplit("::").next()?))
}

/// The module that a file is in what is built for `place`; `None`: it is no part of that.
fn path_in(place: &str, file: &str) -> Option<String> {
    let stem = file.strip_suffix(".rs")?;
    if place == "lib" {
        let stem = stem.strip_prefix("src/")?.trim_end_matches("/mod");
        let inner = if stem.ends_with("/tests") { "" } else { "::tests" };
        return Some(stem.replace('/', "::") + inner);
    }
    let rest = stem.strip_prefix("tests/")?.strip_prefix(place)?;
    Some(rest.trim_start_matches('/').replace('/', "::"))
}

fn faults(script: &str) -> BTreeMap<&str, Fault<'_>> {
    let table = script.split("table='").nth(1).and_then(|rest| rest.split('\'').next()).unwrap_or("");
    let rows = table.lines().filter_map(|line| {
        let mut parts = line.split('|').map(str::trim);
        let (name, place, filters) = (parts.next()?, parts.next()?, parts.next()?);
        Some((name, Fault { place, filters: filters.split_whitespace().collect() }))
    });
    rows.collect()
}

/// What stands between backquotes.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// The function is there and a test: of the harness or of proptest.
fn is_test(source: &str, name: &str) -> bool {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let Some(at) = lines.iter().position(|line| line.starts_with(&format!("fn {name}("))) else { return false };
    let above = lines[..at].iter().rev().take_while(|line| line.starts_with("#[") || line.starts_with("//"));
    above.into_iter().any(|line| *line == "#[test]")
}

/// Everything that is wrong with the tables. `source` is the text of a file of the tree.
fn findings(tables: &[(String, String)], script: &str, source: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let faults = faults(script);
    let mut found = Vec::new();
    let mut seen: BTreeMap<(String, u16), u32> = BTreeMap::new();
    for (file, text) in tables {
        let mut section = String::new();
        for (line, row) in text.lines().enumerate() {
            let mut say = |what: String| found.push(format!("{file}:{}: {what}", line + 1));
            if let Some(title) = row.strip_prefix("### ").or(row.strip_prefix("## ")) {
                section = if title == "The contract's numbers" { "contract" } else { title.split('.').next().unwrap() }
                    .to_owned();
                continue;
            }
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            let &[number, what, tests, planted] = &cells[..] else {
                if row.starts_with('|') {
                    say(format!("{} columns, not 4", cells.len()));
                }
                continue;
            };
            if number == "number" || number.starts_with('-') {
                continue;
            }
            let Ok(number) = number.parse::<u16>() else {
                say(format!("{number} is no number"));
                continue;
            };
            *seen.entry((section.clone(), number)).or_default() += 1;
            let (tests, names) = (quoted(tests), quoted(planted));
            let reason = planted.split(CANNOT).nth(1);
            if what.is_empty() || (tests.is_empty() && reason.is_none()) {
                say(format!("{number} says nothing"));
            }
            if names.is_empty() && reason.is_none_or(|reason| reason.len() < 20) {
                say(format!("{number} has neither a fault nor a reason"));
            }
            for test in &tests {
                let there = split(test).is_some_and(|(file, name)| source(file).is_some_and(|s| is_test(&s, name)));
                if !there {
                    say(format!("{number}: there is no test {test}"));
                }
            }
            // A reason may quote code.
            for name in if reason.is_some() { &[] } else { &names[..] } {
                match faults.get(name) {
                    None => say(format!("{number}: there is no fault {name}")),
                    Some(fault) if tests.iter().any(|test| fault.selects(test)) => {}
                    Some(_) => say(format!("{number}: {name} selects none of its tests")),
                }
            }
        }
    }
    let numbers: Vec<u16> = (1..=NUMBERS).collect();
    let sections = CASES.iter().map(|(name, cases)| (*name, *cases)).chain([("contract", &numbers[..])]);
    for (name, cases) in sections {
        for case in cases {
            match seen.remove(&(name.to_owned(), *case)) {
                Some(1) => {}
                Some(n) => found.push(format!("{name} {case} stands {n} times")),
                None => found.push(format!("{name} {case} is missing")),
            }
        }
    }
    found.extend(seen.keys().map(|(section, number)| format!("{section} {number} is unknown")));
    found
}

#[test]
fn what_is_said_to_be_proved_is_in_the_tree() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &str| fs::read_to_string(root.join(file)).ok();
    let names = fs::read_dir(root.join("tests")).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap());
    let tables: Vec<_> = names
        .filter(|name| name.starts_with("contract") && name.ends_with(".md"))
        .map(|name| format!("tests/{name}"))
        .map(|file| (file.clone(), read(&file).unwrap()))
        .collect();
    assert!(!tables.is_empty(), "no table");
    let found = findings(&tables, &read("tests/mutations.sh").unwrap(), read);
    assert!(found.is_empty(), "{} finding(s):\n{}", found.len(), found.join("\n"));
}

mod rules {
    use super::*;

    const SCRIPT: &str = "table='\nlate | lib | flow::origin\nslow | api | gate::one gate::two\n'\nother | api | x\n";
    const SOURCE: &str = "/// It holds.\n#[test]\n#[ignore]\nfn holds() {}\n\nfn helps() {}\n";

    /// The findings about a table in which one row is as given and all others are in order.
    fn about(row: &str) -> Vec<String> {
        let mut text =
            format!("## The contract's numbers\n\n| number | what | tests | faults |\n|---|---|---|---|\n{row}\n");
        let rest = |number: u16| format!("| {number} | x | `src/flow/origin.rs::holds` | `late` |\n");
        text.extend((2..=NUMBERS).map(rest));
        text += "\n## Field cases\n";
        for (name, cases) in CASES {
            text += &format!("\n### {name}. Title\n");
            text.extend(cases.iter().copied().map(rest));
        }
        let source =
            |file: &str| ["src/flow/origin.rs", "tests/api/gate.rs"].contains(&file).then(|| SOURCE.to_owned());
        findings(&[("t.md".to_owned(), text)], SCRIPT, source)
    }

    #[test]
    fn a_row_in_order_is_none() {
        let none: [&str; 0] = [];
        assert_eq!(about("| 1 | x | `src/flow/origin.rs::holds` | `late` |"), none);
        assert_eq!(about("| 1 | x | `src/flow/origin.rs::holds`, `tests/api/gate.rs::holds` | `late` |"), none);
        assert_eq!(about("| 1 | x | | cannot occur: nobody could do it, `late` or not |"), none);
    }

    #[test]
    fn each_number_stands_once() {
        assert_eq!(about(""), ["contract 1 is missing"]);
        let twice = "| 1 | x | `src/flow/origin.rs::holds` | `late` |\n".repeat(2);
        assert_eq!(about(&twice), ["contract 1 stands 2 times"]);
        let unknown = twice.replacen("| 1 |", "| 56 |", 1);
        assert_eq!(about(&unknown), ["contract 56 is unknown"]);
        assert_eq!(about("| 1 | x | `late` |")[..1], ["t.md:5: 3 columns, not 4"]);
        assert_eq!(about("| one | x | y | z |")[..1], ["t.md:5: one is no number"]);
    }

    #[test]
    fn tests_exist_and_are_tests() {
        let missing = |test: &str| vec![format!("t.md:5: 1: there is no test {test}")];
        for test in ["src/flow/origin.rs::breaks", "src/flow/origin.rs::helps", "src/none.rs::holds", "holds"] {
            assert_eq!(about(&format!("| 1 | x | `src/flow/origin.rs::holds` `{test}` | `late` |")), missing(test));
        }
        assert_eq!(about("| 1 | x | | |")[0], "t.md:5: 1 says nothing");
    }

    #[test]
    fn faults_are_planted_and_select_a_test() {
        let of = |tests: &str, faults: &str| about(&format!("| 1 | x | {tests} | {faults} |"));
        let lib = "`src/flow/origin.rs::holds`";
        assert_eq!(of(lib, ""), ["t.md:5: 1 has neither a fault nor a reason"]);
        assert_eq!(of(lib, "cannot occur: no"), ["t.md:5: 1 has neither a fault nor a reason"]);
        assert_eq!(of(lib, "`other`"), ["t.md:5: 1: there is no fault other"]);
        assert_eq!(of(lib, "`slow`"), ["t.md:5: 1: slow selects none of its tests"]);
        assert_eq!(of("`tests/api/gate.rs::holds`", "`slow`"), ["t.md:5: 1: slow selects none of its tests"]);
    }
}
