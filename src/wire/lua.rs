//! Assembles the text of each script from the files in `lua/` (lua/README.md).

use std::collections::BTreeSet;
use std::sync::LazyLock;

use redis::Cmd;

#[cfg(feature = "worker")]
use super::library::Library;
use crate::failpoints;
use crate::keys;

/// The first line of a script that also runs at `maxmemory`, so that the backlog drains and
/// operators can act.
const ALLOW_OOM: &str = "#!lua flags=allow-oom\n";
/// The first line of a script that needs memory. At `maxmemory` Redis refuses to run any part of
/// the script.
const DENY_OOM: &str = "#!lua\n";
/// The first line of a script that only reads. Redis runs such a script at `maxmemory` and on
/// replicas, too.
const NO_WRITES: &str = "#!lua flags=no-writes\n";

/// Returns the text of a file in `lua/`.
macro_rules! lua {
    ($file:expr) => {
        failpoints::lua($file, include_str!(concat!("../../lua/", $file))).into_owned()
    };
}

/// A file of a layer. The other files of a script see it by its name.
struct File {
    /// The path in `lua/`, without `.lua`.
    path: &'static str,
    /// When a script makes the table of the file.
    made: Made,
    /// A function that returns the text of the file.
    text: fn() -> String,
}

/// The time at which a script makes the table of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Made {
    /// Before the script's file runs. Other files see it as `NAME`.
    Usual,
    /// At its first use. Other files see it as `rare.NAME`. In a library it lives on.
    Rare,
    /// At its first use in each call, because it keeps what the call has read or done.
    Passing,
}

impl File {
    fn is_rare(&self) -> bool {
        self.made != Made::Usual
    }

    /// Returns the name by which other files see this one.
    fn name(&self) -> &'static str {
        self.path.rsplit('/').next().unwrap_or(self.path)
    }
}

/// A script, as the manifest lists it.
struct Source {
    /// The users of the script: `emitter`, `worker`, `operator`, `repair`, or `other`.
    group: &'static str,
    /// The name of the script's file, without `.lua`.
    file: &'static str,
    /// A function that returns the text of the script's file.
    text: fn() -> String,
}

/// Generates the list of the layers' files, the list of scripts, and the scripts.
macro_rules! manifest {
    (
        order { $($kind:ident $($path:literal)+;)* }
        $($group:ident { $($name:ident: $flags:ident $file:literal;)* })*
    ) => {
        /// The files of the layers. A file uses only files that stand before it.
        const ORDER: &[File] = &[$($(File {
            path: $path,
            made: manifest!(@made $kind),
            text: || lua!(concat!($path, ".lua")),
        },)+)*];

        /// All scripts.
        const SCRIPTS: &[Source] = &[$($(Source {
            group: stringify!($group),
            file: $file,
            text: || lua!(concat!($file, ".lua")),
        },)*)*];

        $($(manifest!(@script $name $flags $file);)*)*
    };
    (@script $name:ident LIBRARY $file:literal) => {
        #[cfg(feature = "worker")]
        pub(crate) static $name: LazyLock<Library> = LazyLock::new(|| {
            let body = body(source($file));
            Library::new($file, "allow-oom", &body, &with_keys_inline(&body))
        });
    };
    (@script $name:ident $flags:ident $file:literal) => {
        pub(crate) static $name: LazyLock<Script> = LazyLock::new(|| {
            Script::of_text(assemble($flags, source($file)))
        });
    };
    (@made usual) => { Made::Usual };
    (@made rare) => { Made::Rare };
    (@made passing) => { Made::Passing };
}

manifest! {
    order {
        usual "values/ids";
        passing "values/time";
        rare "values/text" "values/names" "values/worker" "values/tag" "values/lease"
            "values/registry" "values/fence" "values/jump" "values/rights" "values/marks"
            "values/page" "values/schedules" "values/emits";
        passing "values/rules";
        rare "values/group" "values/shares" "values/cron" "values/suspects" "values/clock";
        usual "values/known_numbers" "values/namespaces" "advance/call" "advance/guard";
        rare "objects/hold" "objects/lost" "objects/slots" "objects/idle" "objects/ending";
        usual "objects/budget" "objects/writes";
        rare "objects/spending" "objects/counter" "objects/quarantine" "objects/strays"
            "objects/missing";
        passing "objects/room";
        rare "objects/errors" "objects/progress";
        passing "objects/log";
        rare "objects/again";
        passing "objects/keyed" "objects/pauses" "objects/known_shares" "objects/share_limits";
        rare "objects/events";
        usual "objects/batches" "objects/claims";
        rare "turns/stray_names";
        passing "turns/held" "turns/ages" "turns/sorting" "turns/groups";
        usual "turns/popped";
        rare "turns/markers" "turns/in_turn" "turns/sequence";
        rare "advance/results" "advance/going_on" "advance/failure";
        usual "advance/arguments" "advance/commit";
        rare "operator/actions" "check/indexes";
        rare "repair/mend" "repair/rebuild" "repair/unfinished" "repair/orphan" "repair/object";
    }
    emitter {
        EMIT: DENY_OOM "emit";
        CANCEL: ALLOW_OOM "cancel";
    }
    worker {
        ADVANCE: LIBRARY "advance";
        ATTACH: ALLOW_OOM "attach";
        RENEW: ALLOW_OOM "renew";
        DETACH: ALLOW_OOM "detach";
        ADOPT: ALLOW_OOM "adopt";
        PROMOTE: ALLOW_OOM "promote";
        MARK: ALLOW_OOM "mark";
        CRON: ALLOW_OOM "cron";
        CONNECT: ALLOW_OOM "connect";
        DOCTOR: NO_WRITES "doctor";
        HANDLED: ALLOW_OOM "handled";
        SENT: ALLOW_OOM "sent";
        HANDLED_EMITS: DENY_OOM "handled";
    }
    operator {
        DEAD: ALLOW_OOM "operator/dead";
        RELEASE: ALLOW_OOM "operator/release";
        RELEASE_MANY: ALLOW_OOM "operator/release_many";
        SKIP: ALLOW_OOM "operator/skip";
        RULE: ALLOW_OOM "operator/rule";
        LIMIT: ALLOW_OOM "operator/limit";
        SHARE: ALLOW_OOM "operator/share";
        IN_HAND: ALLOW_OOM "operator/in_hand";
        CRON_SET: ALLOW_OOM "operator/cron";
        CANCEL_SCHEDULE: ALLOW_OOM "operator/cancel";
        FORGET_ONE: ALLOW_OOM "operator/forget";
    }
    repair {
        REPAIR: ALLOW_OOM "operator/repair";
    }
    other {
        FORGET: ALLOW_OOM "forget";
        CHECK: NO_WRITES "check";
        INSPECT: NO_WRITES "inspect";
        TAKEN: NO_WRITES "taken";
        HELD: NO_WRITES "operator/held";
        PAUSED: NO_WRITES "operator/paused";
        SCHEDULED: NO_WRITES "operator/scheduled";
        CRONS: NO_WRITES "operator/crons";
        LOG: NO_WRITES "operator/log";
        OF_OBJECT: NO_WRITES "operator/of_object";
        STREAM: NO_WRITES "operator/stream";
        POSITION: DENY_OOM "projection/position";
    }
}

/// A script's text, with the functions that call it.
pub(crate) struct Script {
    pub(super) inner: redis::Script,
    text: String,
}

impl Script {
    pub(super) fn of_text(text: String) -> Self {
        Self {
            inner: redis::Script::new(&text),
            text,
        }
    }

    /// Begins a call of a producer. With `with_text`, the call has the text of the script, so it
    /// also works on a server that does not know the script. Without `with_text`, this is
    /// [`with_key`](Self::with_key).
    pub(crate) fn begin(&self, key: &str, with_text: bool) -> Cmd {
        if !with_text {
            return self.with_key(key);
        }
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(&self.text).arg(1).arg(key);
        cmd
    }

    pub(super) fn hash(&self) -> &str {
        self.inner.get_hash()
    }

    /// Begins a call that names the script by its hash. The one key tells a Redis cluster which
    /// node runs the call. The caller appends the arguments.
    pub(crate) fn with_key(&self, key: &str) -> Cmd {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(self.inner.get_hash()).arg(1).arg(key);
        cmd
    }
}

/// The first lines of every script. `P` is the prefix of all keys.
const HEAD: &str = "local P, redis_call, redis_try = ARGV[1], redis.call, redis.pcall\n";
/// The commands with which a worker process waits. `BLMOVE` waits for a marker. `BZPOPMIN` waits
/// for a wake, which tells that a schedule is due sooner than the process expects. No script calls
/// these commands, so they are listed here.
const POPS: [&str; 2] = ["BLMOVE", "BZPOPMIN"];

/// Returns the script of this file.
fn source(file: &str) -> &'static Source {
    let source = SCRIPTS.iter().find(|source| source.file == file);
    source.unwrap_or_else(|| unreachable!("the manifest lists no script {file}"))
}

/// Adds the Redis commands that a Lua text passes to `redis_call` and `redis_try`.
fn add_commands(commands: &mut BTreeSet<String>, text: &str) {
    let calls = ["redis_call('", "redis_try('"]
        .into_iter()
        .flat_map(|call| text.split(call).skip(1));
    commands.extend(calls.map(|rest| rest.split('\'').next().unwrap_or_default().to_owned()));
}

/// Returns the Redis commands that the users of the scripts in this group need, separated by
/// spaces.
fn rights(group: &str) -> String {
    let mut commands = BTreeSet::new();
    for source in SCRIPTS.iter().filter(|source| source.group == group) {
        let text = (source.text)();
        add_commands(&mut commands, &text);
        for file in files_of(&text) {
            add_commands(&mut commands, &(file.text)());
        }
    }
    if group == "worker" {
        commands.extend(POPS.map(str::to_owned));
    }
    commands.into_iter().collect::<Vec<_>>().join(" ")
}

/// Returns the names in a Lua text, without comments: each name alone; `NAME.` if it is used as a
/// table or called; and `TABLE.NAME` for the tables `K` and `rare`. A word in a string counts as a
/// name, too.
fn names_in(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.');
    let mut names = BTreeSet::new();
    for line in text.lines() {
        let code = line.split("--").next().unwrap_or(line);
        for piece in code.split_inclusive(|c| !is_part(c)) {
            let word = piece.trim_end_matches(|c| !is_part(c));
            let mut parts = word.split('.');
            let (name, field) = (parts.next().unwrap_or_default(), parts.next());
            if field.is_some() || piece.ends_with('(') {
                names.insert(format!("{name}."));
            }
            if let Some(field) = field.filter(|_| matches!(name, "K" | "rare")) {
                names.insert(format!("{name}.{field}"));
            }
            names.insert(name.to_owned());
        }
    }
    names
}

/// Returns the files that a script with this text needs, in their order.
fn files_of(text: &str) -> Vec<&'static File> {
    let mut needed = vec![false; ORDER.len()];
    let mut new = vec![text.to_owned()];
    while let Some(text) = new.pop() {
        let names = names_in(&text);
        for (file, is_needed) in ORDER.iter().zip(&mut needed) {
            let is_used = if file.is_rare() {
                names.contains(&format!("rare.{}", file.name()))
            } else {
                names.contains(&format!("{}.", file.name()))
            };
            if is_used && !*is_needed {
                *is_needed = true;
                new.push((file.text)());
            }
        }
    }
    let files = ORDER.iter().zip(needed);
    files
        .filter_map(|(file, is_needed)| is_needed.then_some(file))
        .collect()
}

/// Returns the declarations of the generated values that these texts use: the table `K` of keys,
/// the lists of keys, and `RIGHTS`, the commands that the script's users need.
fn generated(group: &str, texts: &[String]) -> String {
    let names: BTreeSet<_> = texts.iter().flat_map(|text| names_in(text)).collect();
    let mut made = String::new();
    let keys = keys::for_lua().filter(|(name, _)| names.contains(&format!("K.{name}")));
    let keys: Vec<_> = keys
        .map(|(name, spelling)| format!("{name} = '{spelling}'"))
        .collect();
    if !keys.is_empty() {
        made += &format!("local K = {{ {} }}\n", keys.join(", "));
    }
    for (name, table) in keys::lists_for_lua() {
        if names.contains(name) {
            made += &format!("local {name} = {table}\n");
        }
    }
    if names.contains("RIGHTS") {
        made += &format!("local RIGHTS = '{}'\n", rights(group));
    }
    made
}

/// The script that is the function of a library. Its table `passing` has the names of the passing
/// files that a call has made, so that the next call makes them anew.
const FUNCTION: &str = "advance";

/// Returns the declarations of a script: the generated values, then the files that the script
/// needs, in their order. Each file is a function that is called at once, and returns the table of
/// what it gives. The rare files are made at their first use, because Lua makes all functions and
/// tables of a script anew in each call, which takes time.
fn declarations(source: &Source) -> String {
    let script = (source.text)();
    let files = files_of(&script);
    let mut texts: Vec<_> = files.iter().map(|file| (file.text)()).collect();
    texts.push(script);
    let mut made = generated(source.group, &texts);
    let (mut usual, mut rare) = (String::new(), String::new());
    for (file, text) in files.iter().zip(&texts) {
        let name = file.name();
        if file.is_rare() {
            let word = if rare.is_empty() { "if" } else { "elseif" };
            rare += &format!("{word} name == '{name}' then\nfile = (function()\n{text}end)()\n");
            if file.made == Made::Passing && source.file == FUNCTION {
                rare += "passing[name] = true\n";
            }
        } else {
            usual += &format!("local {name} = (function()\n{text}end)()\n");
        }
    }
    if rare.is_empty() {
        return made + &usual;
    }
    made += if source.file == FUNCTION {
        "local rare, passing = nil, {}\n"
    } else {
        "local rare\n"
    };
    made += &usual;
    made += "rare = setmetatable({}, { __index = function(made, name)\nlocal file\n";
    made += &rare;
    made + "end\nrawset(made, name, file)\nreturn file\nend })\n"
}

/// Returns the text of a script: the head, the declarations, and the script's file.
fn assemble(flags: &str, source: &Source) -> String {
    [flags, HEAD, &declarations(source), &(source.text)()].concat()
}

/// Returns the text of a script for a library: the body of a function that returns the script as
/// `function(keys, argv)`. The script's file returns such a function. What the files declare lives on
/// from call to call in a library. So no file of such a script uses `P` when it is made, and `keys`
/// and `argv` take the place of `KEYS` and `ARGV`.
#[cfg(feature = "worker")]
fn body(source: &Source) -> String {
    let (declared, text) = (declarations(source), (source.text)());
    format!(
        "local P, redis_call, redis_try = '', redis.call, redis.pcall\n{declared}\
         local run = (function()\n{text}end)()\n\
         return function(keys, argv)\nP = argv[1]\nreturn run(keys, argv)\nend\n"
    )
}

/// Returns the body with the texts of keys in place of the table `K`. A script would make this table
/// anew in each call, which takes 3 % of the instructions of a small call.
#[cfg(feature = "worker")]
fn with_keys_inline(body: &str) -> String {
    let lines = body.lines().filter(|line| !line.starts_with("local K = "));
    let text: String = lines.flat_map(|line| [line, "\n"]).collect();
    let mut keys: Vec<_> = keys::for_lua().collect();
    // Longer names are replaced first, because some names begin with a shorter name.
    keys.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
    keys.iter().fold(text, |text, (name, spelling)| {
        text.replace(&format!("K.{name}"), &format!("'{spelling}'"))
    })
}

#[cfg(test)]
mod tests {
    use full_moon::ast;
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
    const GIVEN: [&str; 19] = [
        "K",
        "P",
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
        ("rawset", &["values/namespaces", "values/known_numbers"]),
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
                let is_found = names.contains(&format!("{}.", file.name()));
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
                let is_record = ["call.", "slot.", "budget."]
                    .iter()
                    .any(|record| line.starts_with(record));
                assert!(!is_record || !line.contains(" = nil"), "{path}.lua: {line}");
            }
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
            for file in files_of(&(source.text)()) {
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
                    let is_part = line[..at]
                        .ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | '.'));
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

    /// Tests that each name `K.NAME` in a Lua file is the name of a key.
    #[test]
    fn every_key_that_is_used_is_there() {
        let keys: BTreeSet<_> = keys::for_lua().map(|(name, _)| name).collect();
        for (path, _, text) in files() {
            for name in names_in(&text)
                .iter()
                .filter_map(|name| name.strip_prefix("K.").filter(|name| !name.is_empty()))
            {
                assert!(keys.contains(name), "{path}.lua: K.{name}");
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
            paths.extend(files_of(&(source.text)()).iter().map(|file| file.path));
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
            let files = files_of(&(source.text)());
            files.iter().any(|file| file.path == "values/rights")
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
}
