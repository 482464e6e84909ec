//! Rules that the Lua files keep, and the texts that the assembly makes.

use std::collections::BTreeMap;

use full_moon::ast;
use full_moon::node::Node;
use full_moon::tokenizer::TokenReference;
use full_moon::visitors::Visitor;

use super::*;

fn read(file: &str) -> String {
    let lua = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("lua");
    std::fs::read_to_string(lua.join(file)).expect("a file of the manifest")
}

/// Returns the text of every file: its path without `.lua`, whether it is a script, and the text.
fn files() -> Vec<(&'static str, bool, String)> {
    let layers = ORDER.iter().map(|file| (file.path, false));
    let scripts = SCRIPTS.iter().map(|source| (source.file, true));
    let files = layers.chain(scripts);
    files
        .map(|(path, is_script)| (path, is_script, read(&format!("{path}.lua"))))
        .collect()
}

/// Collects the names that a Lua text uses but does not declare.
#[derive(Default)]
struct Free {
    scopes: Vec<BTreeSet<String>>,
    /// Names that the next block declares: parameters, or variables of a loop.
    next: Vec<String>,
    names: BTreeSet<String>,
}

impl Free {
    fn of(text: &str) -> Self {
        let mut free = Self::default();
        free.visit_ast(&full_moon::parse(text).expect("Lua"));
        free
    }

    fn declare(&mut self, name: &TokenReference) {
        let name = name.token().to_string();
        self.scopes.last_mut().expect("a block").insert(name);
    }

    fn use_name(&mut self, name: &TokenReference) {
        let name = name.token().to_string();
        if !self.scopes.iter().any(|scope| scope.contains(&name)) {
            self.names.insert(name);
        }
    }
}

impl Visitor for Free {
    fn visit_block(&mut self, _: &ast::Block) {
        let names: BTreeSet<_> = self.next.drain(..).collect();
        self.scopes.push(names);
    }

    fn visit_block_end(&mut self, _: &ast::Block) {
        self.scopes.pop();
    }

    fn visit_local_assignment_end(&mut self, local: &ast::LocalAssignment) {
        local.names().iter().for_each(|name| self.declare(name));
    }

    fn visit_local_function(&mut self, local: &ast::LocalFunction) {
        self.declare(local.name());
    }

    fn visit_function_body(&mut self, body: &ast::FunctionBody) {
        self.next = body
            .parameters()
            .iter()
            .map(|parameter| parameter.to_string().trim().to_owned())
            .collect();
    }

    fn visit_generic_for(&mut self, each: &ast::GenericFor) {
        let names = each.names().iter();
        self.next = names.map(|name| name.token().to_string()).collect();
    }

    fn visit_numeric_for(&mut self, each: &ast::NumericFor) {
        self.next = vec![each.index_variable().token().to_string()];
    }

    fn visit_var(&mut self, var: &ast::Var) {
        if let ast::Var::Name(name) = var {
            self.use_name(name);
        }
    }

    fn visit_prefix(&mut self, prefix: &ast::Prefix) {
        if let ast::Prefix::Name(name) = prefix {
            self.use_name(name);
        }
    }
}

/// The names that every file may use.
const GIVEN: [&str; 20] = [
    "K",
    "P",
    "PRODUCER",
    "cjson",
    "error",
    "ipairs",
    "math",
    "next",
    "pairs",
    "pcall",
    "rare",
    "redis",
    "redis_call",
    "redis_try",
    "setmetatable",
    "string",
    "table",
    "tonumber",
    "type",
    "unpack",
];
/// The names that some files may use.
const GIVEN_SOME: [(&str, &[&str]); 7] = [
    ("ARGV", &["operator/actions", "repair/mend"]),
    ("passing", &["advance/arguments"]),
    ("rawset", &["values/namespaces"]),
    ("OBJECT_REMAINS", &["objects/idle"]),
    ("OBJECT_TYPES", &["check", "repair/object"]),
    ("SHARED_TYPES", &["check", "operator/repair"]),
    ("RIGHTS", &["values/rights"]),
];

/// Tests that a file uses only files before it. Then no two files use each other. A script uses
/// any file, and its keys and arguments.
#[test]
fn a_file_uses_only_files_before_it() {
    let mut wrong = Vec::new();
    for (path, is_script, text) in files() {
        let place = ORDER.iter().position(|file| file.path == path);
        let before = &ORDER[..place.unwrap_or(ORDER.len())];
        let (free, names) = (Free::of(&text).names, names_in(&text));
        for name in &free {
            let is_given = GIVEN.contains(&name.as_str())
                || is_script && path != FUNCTION && ["KEYS", "ARGV"].contains(&name.as_str())
                || GIVEN_SOME
                    .iter()
                    .any(|(given, files)| given == name && files.contains(&path))
                || before
                    .iter()
                    .any(|file| !file.is_rare() && file.name() == name);
            if !is_given {
                wrong.push(format!("{path}.lua uses {name}"));
            }
        }
        let rare = names.iter().filter_map(|name| name.strip_prefix("rare."));
        for name in rare.filter(|name| !name.is_empty()) {
            if !before
                .iter()
                .any(|file| file.is_rare() && file.name() == name)
            {
                wrong.push(format!("{path}.lua uses rare.{name}"));
            }
        }
        for file in ORDER.iter().filter(|file| !file.is_rare()) {
            let is_found = ['.', '(']
                .iter()
                .any(|end| names.contains(&*format!("{}{end}", file.name())));
            if is_found != free.contains(file.name()) {
                wrong.push(format!(
                    "{path}.lua: the assembly is wrong about {}",
                    file.name()
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "no file before gives this: {wrong:#?}");
}

/// Tests that only a passing file uses a rare file when it is made. In a library any other file
/// would keep a passing file of an earlier call.
#[test]
fn only_passing_files_keep_rare_files() {
    let files = ORDER.iter().filter(|file| file.made != Made::Passing);
    for file in files.filter(|file| !file.path.starts_with("repair/")) {
        let text = read(&format!("{}.lua", file.path));
        for line in text.lines().filter(|line| line.starts_with("local ")) {
            let is_kept = line.contains("rare.") && !line.starts_with("local function");
            assert!(!is_kept, "{}.lua: {line}", file.path);
        }
    }
}

/// Tests that a file begins with its name, and with its way if it is a passing one.
#[test]
fn a_file_begins_with_its_name() {
    for file in ORDER {
        let text = read(&format!("{}.lua", file.path));
        let way = if file.made == Made::Passing {
            " (passing)"
        } else {
            ""
        };
        let begin = format!("-- {}{way}: ", file.name());
        assert!(text.starts_with(&begin), "{}.lua: not {begin:?}", file.path);
    }
}

/// Tests that no field of a record that lives on becomes nil. In Lua, a field that comes and goes
/// makes the whole table be built again.
#[test]
fn no_field_of_a_record_becomes_nil() {
    for (path, _, text) in files() {
        for line in text.lines().map(str::trim_start) {
            let is_record = ["call.", "this.", "slot.", "budget."]
                .iter()
                .any(|record| line.starts_with(record));
            assert!(!is_record || !line.contains(" = nil"), "{path}.lua: {line}");
        }
    }
}

/// The fields of a record and the files that its comments name as their writers.
type Writers = BTreeMap<String, BTreeSet<String>>;

/// Reads the comments of a record: "Writers: a, b." in a comment counts for the fields below it.
fn declared_writers(text: &str) -> Writers {
    let (mut declared, mut comment, mut is_new) = (Writers::new(), String::new(), true);
    for line in text.lines().filter(|line| line.starts_with("  ")) {
        let line = line.trim();
        if let Some(words) = line.strip_prefix("--") {
            if is_new {
                comment.clear();
            }
            comment += words;
            is_new = false;
            continue;
        }
        is_new = true;
        let named = comment.split("Writers:").nth(1).unwrap_or_default();
        let named = named.split('.').next().unwrap_or_default();
        let named = named.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let named: BTreeSet<_> = named
            .filter(|word| !word.is_empty())
            .map(str::to_owned)
            .collect();
        for field in line
            .split(" = ")
            .filter_map(|part| part.rsplit([' ', ',']).next())
        {
            if field.starts_with(|c: char| c.is_ascii_lowercase()) {
                declared.insert(field.to_owned(), named.clone());
            }
        }
    }
    declared
}

/// Collects the fields of the records `call` and `budget` that a file writes.
#[derive(Default)]
struct Written {
    /// Other names of the records in this file.
    aliases: BTreeMap<String, String>,
    fields: BTreeSet<(String, String)>,
}

impl Visitor for Written {
    fn visit_local_assignment(&mut self, local: &ast::LocalAssignment) {
        for (name, value) in local.names().iter().zip(local.expressions()) {
            let value = value.to_string().trim().to_owned();
            let of = value.split_once('.').map_or(&*value, |(record, _)| record);
            if matches!(of, "call" | "budget") && !value.contains('[') {
                self.aliases.insert(name.token().to_string(), value);
            }
        }
    }

    fn visit_assignment(&mut self, assignment: &ast::Assignment) {
        for variable in assignment.variables() {
            // A comment may stand before the variable.
            let text = variable.to_string();
            let text = text.trim().lines().last().unwrap_or_default().trim();
            let end = text.find(['.', '[']).unwrap_or(text.len());
            let (root, rest) = text.split_at(end);
            if rest.is_empty() {
                // The variable itself gets another value.
                continue;
            }
            let root = self.aliases.get(root).map_or(root, String::as_str);
            let text = format!("{root}{rest}");
            let mut words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            if let (Some(record @ ("call" | "budget")), Some(field)) = (words.next(), words.next())
            {
                self.fields.insert((record.to_owned(), field.to_owned()));
            }
        }
    }
}

/// Tests that the comments of the records `call` and `budget` name exactly the files that write
/// each field, beside `arguments`, which sets all of them. "Writers: any file …" allows each file.
#[test]
fn the_fields_of_a_call_have_the_writers_that_they_name() {
    let mut written = BTreeMap::<_, Writers>::new();
    for (path, _, text) in files() {
        let mut of_file = Written::default();
        of_file.visit_ast(&full_moon::parse(&text).expect("Lua"));
        let file = path.rsplit('/').next().unwrap_or_default();
        for (record, field) in of_file.fields.into_iter().filter(|_| file != "arguments") {
            let fields = written.entry(record).or_default();
            fields.entry(field).or_default().insert(file.to_owned());
        }
    }
    for (record, path) in [
        ("call", "advance/call.lua"),
        ("budget", "objects/budget.lua"),
    ] {
        let declared = declared_writers(&read(path));
        let written = written.remove(record).unwrap_or_default();
        assert!(declared.len() > 3 && written.len() > 3, "{declared:?}");
        for field in written.keys() {
            assert!(declared.contains_key(field), "{path} has no {field}");
        }
        let differs = declared.iter().filter(|(field, named)| {
            !named.contains("any") && written.get(*field).unwrap_or(&BTreeSet::new()) != *named
        });
        let differs: Vec<_> = differs
            .map(|(field, named)| (field, named, written.get(field)))
            .collect();
        assert!(differs.is_empty(), "{path}: named, and found: {differs:?}");
    }
}

#[test]
fn every_name_of_a_file_is_its_own() {
    let names: BTreeSet<_> = ORDER.iter().map(File::name).collect();
    assert_eq!(names.len(), ORDER.len(), "{names:?}");
}

#[test]
fn every_file_is_used() {
    let mut unused: BTreeSet<_> = ORDER.iter().map(|file| file.path).collect();
    for source in SCRIPTS {
        for (file, _) in files_of((source.text)()) {
            unused.remove(file.path);
        }
    }
    assert!(unused.is_empty(), "{unused:?}");
}

/// Tests that a file gives what other files use of it.
#[test]
fn what_is_used_is_there() {
    let files = files();
    for (path, _, text) in &files {
        for file in ORDER {
            let call = if file.is_rare() {
                format!("rare.{}.", file.name())
            } else {
                format!("{}.", file.name())
            };
            let given = read(&format!("{}.lua", file.path));
            let Some((_, returned)) = given.rsplit_once("\nreturn {") else {
                continue;
            };
            let code = text
                .lines()
                .filter(|line| !line.trim_start().starts_with("--"));
            for (line, at) in
                code.flat_map(|line| line.match_indices(&call).map(move |(at, _)| (line, at)))
            {
                let is_part =
                    line[..at].ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | '.'));
                let field: String = line[at + call.len()..]
                    .chars()
                    .take_while(|c| c.is_alphanumeric() || *c == '_')
                    .collect();
                assert!(
                    is_part || returned.contains(&format!(" {field} = ")),
                    "{path}.lua uses {call}{field}"
                );
            }
        }
    }
}

/// Tests that the header of each script has these sections, each once and in this order.
#[test]
fn every_script_has_a_whole_header() {
    for source in SCRIPTS {
        let text = read(&format!("{}.lua", source.file));
        let sections = ["Purpose", "Keys", "Arguments", "Replies", "Keeps", "Cost"];
        let header = text.lines().map_while(|line| line.strip_prefix("--"));
        let words = header.filter_map(|line| line.strip_prefix(' ')?.split(' ').next());
        let found: Vec<_> = words.filter(|word| sections.contains(word)).collect();
        assert_eq!(found, sections, "{}.lua", source.file);
    }
}

/// Tests that a text without its lines of comments is the same code: no such line is a part of a
/// text in brackets.
#[test]
fn only_comments_are_left_out_of_a_text() {
    let tokens = |text: &str| {
        let code = full_moon::parse(text).expect("Lua");
        let tokens = code.nodes().tokens().map(|token| token.token().to_string());
        tokens.collect::<Vec<_>>()
    };
    for (path, _, text) in files() {
        let code = without_comments(&text);
        assert!(code.len() < text.len(), "{path}.lua has no comment");
        assert_eq!(tokens(&code), tokens(&text), "{path}.lua");
    }
}

/// Tests that words in strings, names of fields and parts of other names stay.
#[test]
fn values_stand_in_place_of_constants() {
    let text = "local SOME, OTHER = 1, call.other\n\
                local MAX, KEY = 20, K.events\n\
                local list = { MAX = MAX, call.MAX, MAX_2, 'MAX', '' .. KEY }\n\
                if list[MAX] == K.event_worker and SOME == KEY then\n\
                \x20 MAX = MAX + 1\n\
                end\n";
    let inline = "local SOME, OTHER = 1, call.other\n\
                  local list = { MAX = 20, call.MAX, MAX_2, 'MAX', '' .. ':events' }\n\
                  if list[20] == ':event.worker' and SOME == ':events' then\n\
                  \x20 MAX = 20 + 1\n\
                  end\n";
    assert_eq!(with_constants_inline(text), inline);
}

/// Collects the names that a Lua text declares or assigns to.
#[derive(Default)]
struct Given(Vec<String>);

impl Given {
    fn add(&mut self, name: &impl ToString) {
        self.0.push(name.to_string().trim().to_owned());
    }
}

impl Visitor for Given {
    fn visit_local_assignment(&mut self, local: &ast::LocalAssignment) {
        local.names().iter().for_each(|name| self.add(name));
    }

    fn visit_assignment(&mut self, assignment: &ast::Assignment) {
        let variables = assignment.variables().iter();
        variables.for_each(|variable| self.add(variable));
    }

    fn visit_function_body(&mut self, body: &ast::FunctionBody) {
        let parameters = body.parameters().iter();
        parameters.for_each(|parameter| self.add(parameter));
    }

    fn visit_generic_for(&mut self, each: &ast::GenericFor) {
        each.names().iter().for_each(|name| self.add(name));
    }
}

/// Tests that a file gives each constant a value once, because its value stands in all places.
#[test]
fn a_constant_has_one_value() {
    let [(_, keys), _] = keys::tables_for_lua();
    let keys = keys.into_iter();
    let values = keys
        .map(|(name, key)| (format!("K.{name}"), key.to_owned()))
        .collect();
    for (path, _, text) in files() {
        let mut given = Given::default();
        given.visit_ast(&full_moon::parse(&text).expect("Lua"));
        let lines = text.lines();
        let constants = lines
            .filter_map(|line| constants_of(line, &values))
            .flatten();
        for (name, _) in constants {
            let times = given.0.iter().filter(|other| **other == name).count();
            assert_eq!(times, 1, "{path}.lua: {name}");
        }
    }
}

/// Tests that a body still declares every name that it uses, but those of Lua and Redis.
#[test]
fn a_body_declares_what_it_uses() {
    let free = Free::of(&body(source(FUNCTION))).names;
    let given = GIVEN.iter().chain(&["rawset"]);
    let given: BTreeSet<_> = given.map(|name| (*name).to_owned()).collect();
    let given = given.into_iter().filter(|name| name != "K");
    let unknown: Vec<_> = free.difference(&given.collect()).cloned().collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

/// Tests that each name `K.NAME` or `PRODUCER.NAME` in a Lua file is the name of a key.
#[test]
fn every_key_that_is_used_is_there() {
    for (table, keys) in keys::tables_for_lua() {
        let keys: BTreeSet<_> = keys.into_iter().map(|(name, _)| name).collect();
        let start = format!("{table}.");
        for (path, _, text) in files() {
            for name in names_in(&text)
                .iter()
                .filter_map(|name| name.strip_prefix(&start).filter(|name| !name.is_empty()))
            {
                assert!(keys.contains(name), "{path}.lua: {table}.{name}");
            }
        }
    }
}

/// Tests that scripts pass the names of Redis commands as literals. Only literals get into the
/// list of rights that a script checks.
#[test]
fn every_command_of_a_script_that_asks_for_rights_is_a_literal() {
    let asking = SCRIPTS.iter().filter(|source| source.group != "other");
    let mut paths = BTreeSet::new();
    for source in asking {
        paths.insert(source.file);
        paths.extend(files_of((source.text)()).iter().map(|(file, _)| file.path));
    }
    for path in paths {
        let text = read(&format!("{path}.lua"));
        for call in ["redis_call(", "redis_try("] {
            for (at, _) in text.match_indices(call) {
                let rest = &text[at + call.len()..];
                assert!(
                    rest.starts_with('\''),
                    "{path}.lua: {call}{}",
                    rest.lines().next().unwrap_or_default()
                );
            }
        }
    }
}

/// Tests that the rights that a script checks first cover all its commands. A command without a
/// right would fail in the middle of the script.
#[test]
fn rights_are_asked_for_every_command_of_a_script_that_writes() {
    let arguments = read("values/rights.lua");
    let tables = arguments
        .match_indices(" = {")
        .map(|(at, _)| &arguments[..at]);
    let known: BTreeSet<_> = tables
        .filter_map(|before| before.rsplit([' ', '\n']).next())
        .collect();
    let mut needed = BTreeSet::new();
    for source in SCRIPTS.iter().filter(|source| source.group != "other") {
        let mut called = BTreeSet::new();
        add_commands(&mut called, &assemble(ALLOW_OOM, source));
        let rights = rights(source.group);
        for command in called {
            assert!(
                rights.split(' ').any(|right| right == command),
                "{}.lua: {command}",
                source.file
            );
        }
        needed.extend(rights.split(' ').map(str::to_owned));
    }
    for command in &needed {
        assert!(
            known.contains(command.as_str()),
            "values/rights.lua has no arguments for {command}"
        );
    }
    let unused: Vec<_> = known
        .into_iter()
        .filter(|name| !needed.contains(*name))
        .collect();
    assert_eq!(
        unused,
        ["ARGUMENTS"],
        "commands in values/rights.lua that no script calls"
    );
    assert!(needed.len() > 35, "{needed:?}");
    let has_rights = |source: &&Source| {
        let files = files_of((source.text)());
        files.iter().any(|(file, _)| file.path == "values/rights")
    };
    let asking: Vec<_> = SCRIPTS
        .iter()
        .filter(has_rights)
        .map(|source| source.group)
        .collect();
    // These scripts check rights: the first script of a connection, the doctor, and each script
    // of operators that writes.
    assert_eq!(
        asking,
        [
            "worker", "worker", "operator", "operator", "operator", "operator", "operator",
            "operator", "operator", "operator", "operator", "operator", "repair"
        ]
    );
}

/// The commands in the category `+@read` of Redis that scripts use.
const READS: &str = "EXISTS GET HEXISTS HGET HGETALL HKEYS HLEN HMGET HSCAN HSTRLEN LINDEX LLEN LPOS LRANGE \
    MGET PTTL STRLEN TYPE XINFO XLEN XRANGE XREVRANGE ZCARD ZCOUNT ZLEXCOUNT ZMSCORE ZRANGE ZRANK ZSCORE";

/// Returns the commands that a user may run, by the lines of docs/protocol.md, "Permissions".
fn permitted(user: &str) -> BTreeSet<String> {
    let begin = format!("    ACL SETUSER {user} ");
    let lines = include_str!("../../../docs/protocol.md").lines();
    let words = lines
        .filter_map(|line| line.strip_prefix(&begin))
        .flat_map(|rules| rules.split([' ', '(', ')']));
    let rights = words.filter_map(|word| word.strip_prefix('+'));
    rights
        .flat_map(|right| match right {
            "@read" => READS.split_whitespace().collect(),
            command => vec![command],
        })
        .map(str::to_uppercase)
        .collect()
}

/// Story: the user for `repair --yes` in docs/protocol.md had no right to LSET, so each repair was
/// refused. The test of these lines knew neither this user nor the files of repairs.
#[test]
fn each_documented_user_may_run_every_command_of_its_scripts() {
    let mut missing = BTreeSet::new();
    let mut users = BTreeSet::new();
    for source in SCRIPTS {
        let user = match (source.group, source.file) {
            ("worker" | "operator", _) => source.group,
            ("repair", _) => "repairer",
            (_, "emit") => "scripted",
            (_, "cancel") => "canceller",
            (_, "forget") => "operator",
            (_, "projection/position") => "projection",
            _ => "viewer",
        };
        users.insert(user);
        let mut commands = BTreeSet::new();
        if ["worker", "operator", "repair"].contains(&source.group) {
            // Such a script asks for the rights of its whole group before it writes.
            commands.extend(rights(source.group).split(' ').map(str::to_owned));
        } else {
            add_commands(&mut commands, &assemble(ALLOW_OOM, source));
        }
        if user == "viewer" {
            // Redis refuses writes in such a script, and its files write only for other scripts.
            commands.retain(|command| READS.split_whitespace().any(|read| read == command));
        }
        if source.group == "emitter" {
            // Producers use only the part of `schedules` that does not scan.
            commands.remove("HSCAN");
        }
        let permitted = permitted(user);
        assert!(permitted.len() > 5, "{user}: {permitted:?}");
        for command in commands.difference(&permitted) {
            missing.insert(format!("{user}: {command}, for {}.lua", source.file));
        }
    }
    assert!(missing.is_empty(), "docs/protocol.md: {missing:#?}");
    assert_eq!(users.len(), 7, "{users:?}");
}

/// Tests that lua/README.md lists all files of the layers in their order.
#[test]
fn the_readme_lists_the_files_in_their_order() {
    let readme = read("README.md");
    let mut at = 0;
    for file in ORDER {
        let found = readme[at..].find(&format!(
            "`{}`",
            file.path.rsplit('/').next().unwrap_or_default()
        ));
        assert!(
            found.is_some(),
            "lua/README.md: {} is missing, or not in its place",
            file.path
        );
        at += found.unwrap_or_default();
    }
}
