//! Tests the changes that `scripts/mutants` makes to the sources. Also tests that its two lists fit
//! the present sources: the equivalent mutants, and the guards of the slots.

#[allow(dead_code, unreachable_pub)]
#[path = "../benches/mutants/equivalent.rs"]
mod equivalent;
#[allow(dead_code, unreachable_pub)]
#[path = "../benches/mutants/generate.rs"]
mod generate;

use std::path::Path;

use self::generate::{Mutant, mutants_of};

/// Returns the mutants of a Lua source, each as a description and the changed source.
fn done_to(source: &str) -> Vec<(String, String)> {
    let mutants = mutants_of("lua/a.lua", source).expect("it is Lua");
    mutants.iter().map(|mutant| (mutant.what.clone(), mutant.applied(source))).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(what, then)| ((*what).to_owned(), (*then).to_owned())).collect()
}

#[test]
fn statements_are_removed() {
    assert_eq!(done_to("f(x)"), pairs(&[("remove the call", "do end")]));
    assert_eq!(done_to("x = y"), pairs(&[("remove the assignment", "do end")]));
    assert_eq!(done_to("for _, x in pairs(y) do break end"), {
        pairs(&[("remove the loop", "do end"), ("remove the break", "for _, x in pairs(y) do do end end")])
    });
    assert_eq!(done_to("local x = f(y)"), pairs(&[("nil for the value", "local x = nil")]));
    assert_eq!(done_to("local x = a.b"), []);
}

#[test]
fn a_return_gives_nothing() {
    let source = "local function f() if x then return end return g() end return f";
    assert_eq!(
        done_to(source),
        pairs(&[
            ("remove the if", "local function f() do end return g() end return f"),
            ("negate the condition", "local function f() if not (x) then return end return g() end return f"),
            ("remove the return", "local function f() if x then do end end return g() end return f"),
            ("return nothing", "local function f() if x then return end return end return f"),
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
            ("true to false", "return { x <= 1, a == b, false and y + z }"),
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
    assert_eq!(whats, ["remove the loop", "negate the condition", "remove the call"]);
    assert_eq!(done[1].1, "while not (a == b) -- why\ndo f() end");
}

#[test]
fn what_is_the_same_twice_is_numbered() {
    let mutants = mutants_of("lua/a.lua", "-- €\nreturn { 1, 1 }").expect("it is Lua");
    let keys: Vec<_> = mutants.iter().map(Mutant::key).collect();
    assert_eq!(keys, [("lua/a.lua", "return { 1, 1 }", "1 to 2"), ("lua/a.lua", "return { 1, 1 }", "1 to 2, no. 2")]);
    assert_eq!(mutants[0].line, 2);
}

#[test]
fn what_is_no_lua_is_refused() {
    assert!(mutants_of("lua/a.lua", "local x = ").is_err());
}

#[test]
fn the_list_of_equivalent_mutants_is_of_these_scripts() {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mutants = generate::all(&generate::sources(tree).expect("the scripts can be read")).expect("they are Lua");
    let list = std::fs::read_to_string(tree.join(equivalent::FILE)).expect("the list can be read");
    equivalent::equivalents(&list, &mutants).expect("each entry is of a mutant");
    let wrong = |list: &str| equivalent::equivalents(list, &mutants).expect_err("a wrong entry").to_string();
    assert!(wrong("lua/renew.lua: no such line\n    1 to 2\n    A reason.\n").contains("there is no such mutant"));
    let Mutant { file, text, what, .. } = &mutants[0];
    assert!(wrong(&format!("{file}: {text}\n    {what}\n")).contains("the reason is missing"));
    let right = format!("{file}: {text}\n    {what}\n    A reason.\n");
    assert_eq!(equivalent::equivalents(&right, &mutants).expect("a list").len(), 1);
}

/// Story: a guard was changed, and its entry in the list still had the old text. Only a full run of
/// the mutants noticed this.
#[test]
fn every_guard_of_the_slots_is_once_in_its_file() {
    let list = std::fs::read_to_string("tests/mutants/slots.txt").expect("the list");
    for guard in list.split("\n== ").skip(1) {
        let lines = |mark: &'static str| guard.lines().filter_map(move |line| line.strip_prefix(mark));
        let file = lines("@ ").next().expect("a file");
        let old = lines("- ").collect::<Vec<_>>().join("\n");
        let source = std::fs::read_to_string(file).expect("a file of the tree");
        assert_eq!(source.matches(&old).count(), 1, "{}", guard.lines().next().unwrap_or_default());
    }
}
