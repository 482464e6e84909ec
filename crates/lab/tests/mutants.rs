//! Tests the changes that `scripts/mutants` makes, the marks with which it sees what a test runs, and
//! that its lists of equivalent mutants and of guards of the slots fit the present sources.

#[allow(dead_code, unreachable_pub)]
#[path = "../benches/mutants/equivalent.rs"]
mod equivalent;
#[allow(dead_code, unreachable_pub)]
#[path = "../benches/mutants/generate.rs"]
mod generate;
#[allow(dead_code, unreachable_pub)]
#[path = "../benches/mutants/spots.rs"]
mod spots;

use std::path::Path;

use self::generate::{Mutant, Sources, mutants_of};
use self::spots::Spots;

/// The folder of the whole workspace.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Returns the mutants of a Lua source, each as a description and the changed source.
fn done_to(source: &str) -> Vec<(String, String)> {
    let mutants = mutants_of("lua/a.lua", source).expect("it is Lua");
    mutants
        .iter()
        .map(|mutant| (mutant.what.clone(), mutant.applied(source)))
        .collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected
        .iter()
        .map(|(what, then)| ((*what).to_owned(), (*then).to_owned()))
        .collect()
}

#[test]
fn statements_are_removed() {
    assert_eq!(done_to("f(x)"), pairs(&[("remove the call", "do end")]));
    assert_eq!(
        done_to("x = y"),
        pairs(&[("remove the assignment", "do end")])
    );
    assert_eq!(done_to("for _, x in pairs(y) do break end"), {
        pairs(&[
            ("remove the loop", "do end"),
            ("remove the break", "for _, x in pairs(y) do do end end"),
        ])
    });
    assert_eq!(
        done_to("local x = f(y)"),
        pairs(&[("nil for the value", "local x = nil")])
    );
    assert_eq!(done_to("local x = a.b"), []);
}

#[test]
fn a_return_gives_nothing() {
    let source = "local function f() if x then return end return g() end return f";
    assert_eq!(
        done_to(source),
        pairs(&[
            (
                "remove the if",
                "local function f() do end return g() end return f"
            ),
            (
                "negate the condition",
                "local function f() if not (x) then return end return g() end return f"
            ),
            (
                "remove the return",
                "local function f() if x then do end end return g() end return f"
            ),
            (
                "return nothing",
                "local function f() if x then return end return end return f"
            ),
        ])
    );
}

#[test]
fn operators_and_constants_are_shifted() {
    assert_eq!(
        done_to("return { x <= 1, a == b, true and y + z }"),
        pairs(&[
            ("<= to <", "return { x < 1, a == b, true and y + z }"),
            ("1 to 2", "return { x <= 2, a == b, true and y + z }"),
            ("== to ~=", "return { x <= 1, a ~= b, true and y + z }"),
            (
                "true to false",
                "return { x <= 1, a == b, false and y + z }"
            ),
            ("and to or", "return { x <= 1, a == b, true or y + z }"),
            ("+ to -", "return { x <= 1, a == b, true and y - z }"),
        ])
    );
}

/// If the whole condition is one comparison, it is negated only once.
#[test]
fn a_condition_is_negated() {
    let done = done_to("while a == b -- why\ndo f() end");
    let whats: Vec<&str> = done.iter().map(|(what, _)| what.as_str()).collect();
    assert_eq!(
        whats,
        ["remove the loop", "negate the condition", "remove the call"]
    );
    assert_eq!(done[1].1, "while not (a == b) -- why\ndo f() end");
}

#[test]
fn what_is_the_same_twice_is_numbered() {
    let mutants = mutants_of("lua/a.lua", "-- €\nreturn { 1, 1 }").expect("it is Lua");
    let keys: Vec<_> = mutants.iter().map(Mutant::key).collect();
    assert_eq!(
        keys,
        [
            ("lua/a.lua", "return { 1, 1 }", "1 to 2"),
            ("lua/a.lua", "return { 1, 1 }", "1 to 2, no. 2")
        ]
    );
    assert_eq!(mutants[0].line, 2);
}

#[test]
fn what_is_no_lua_is_refused() {
    assert!(mutants_of("lua/a.lua", "local x = ").is_err());
}

/// Each block has a mark, and so have the statements behind an inner block, which may have returned.
#[test]
fn each_spot_has_a_mark() {
    let source = "local function f(x)\n  if x then return g() end\n  h()\n  k()\nend\nreturn f";
    let sources = Sources::from([("lua/a.lua".to_owned(), source.to_owned())]);
    let spots = Spots::of(&sources).expect("it is Lua");
    let marked = spots.marked("lua/a.lua", source);
    let mark = |at| {
        format!(
            "if not ARGV['@{at}'] then ARGV['@{at}'] = true redis.log(redis.LOG_WARNING, '@{at}') end "
        )
    };
    assert_eq!(marked, {
        let (file, body, branch, behind) = (mark(0), mark(1), mark(3), mark(2));
        format!(
            "{file}local function f(x)\n  {body}if x then {branch}return g() end\n  {behind}h()\n  k()\nend\nreturn f"
        )
    });
    let mutants = mutants_of("lua/a.lua", source).expect("it is Lua");
    let around: Vec<_> = mutants
        .iter()
        .map(|mutant| (mutant.what.as_str(), spots.around(mutant)))
        .collect();
    let expected = [
        ("remove the if", Some(1)),
        ("negate the condition", Some(1)),
        ("return nothing", Some(3)),
        ("remove the call", Some(2)),
        ("remove the call", Some(2)),
    ];
    assert_eq!(around, expected);
    assert_eq!(
        Spots::in_log("7:M 24 Nov 2026 06:43:03.720 # @12"),
        Some(12)
    );
    assert_eq!(
        Spots::in_log("7:M 24 Nov 2026 06:43:03.720 # Server initialized"),
        None
    );
}

#[test]
fn the_list_of_equivalent_mutants_is_of_these_scripts() {
    let tree = Path::new(ROOT);
    let mutants = generate::all(&generate::sources(tree).expect("the scripts can be read"))
        .expect("they are Lua");
    let list = std::fs::read_to_string(tree.join(equivalent::FILE)).expect("the list can be read");
    equivalent::equivalents(&list, &mutants).expect("each entry is of a mutant");
    let wrong = |list: &str| {
        equivalent::equivalents(list, &mutants)
            .expect_err("a wrong entry")
            .to_string()
    };
    assert!(
        wrong("lua/renew.lua: no such line\n    1 to 2\n    A reason.\n")
            .contains("there is no such mutant")
    );
    let Mutant {
        file, text, what, ..
    } = &mutants[0];
    assert!(wrong(&format!("{file}: {text}\n    {what}\n")).contains("the reason is missing"));
    let right = format!("{file}: {text}\n    {what}\n    A reason.\n");
    assert_eq!(
        equivalent::equivalents(&right, &mutants)
            .expect("a list")
            .len(),
        1
    );
}

/// Story: a guard was changed, and its entry in the list still had the old text. Only a full run of
/// the mutants noticed this.
#[test]
fn every_guard_of_the_slots_is_once_in_its_file() {
    let list =
        std::fs::read_to_string(Path::new(ROOT).join("crates/lab/benches/mutants/slots.txt"))
            .expect("the list");
    for guard in list.split("\n== ").skip(1) {
        let lines = |mark: &'static str| {
            guard
                .lines()
                .filter_map(move |line| line.strip_prefix(mark))
        };
        let file = lines("@ ").next().expect("a file");
        let old = lines("- ").collect::<Vec<_>>().join("\n");
        let source =
            std::fs::read_to_string(Path::new(ROOT).join(file)).expect("a file of the tree");
        assert_eq!(
            source.matches(&old).count(),
            1,
            "{}",
            guard.lines().next().unwrap_or_default()
        );
    }
}
