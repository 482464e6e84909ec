//! Assembles the text of each script from the files in `lua/` (lua/README.md).

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{LazyLock, OnceLock};

use redis::Cmd;

#[cfg(feature = "worker")]
use super::worker::Library;
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
        failpoints::lua($file, include_str!(concat!("../../lua/", $file)))
    };
}

/// A file of a layer. The other files of a script see it by its name.
struct File {
    /// The path in `lua/`, without `.lua`.
    path: &'static str,
    /// When a script makes the table of the file.
    made: Made,
    /// A function that returns the text of the file.
    text: fn() -> &'static str,
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
    text: fn() -> &'static str,
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
            Library::new($file, "allow-oom", body(source($file)))
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
            "values/page" "values/schedules" "values/awaited" "values/emits";
        passing "values/rules";
        rare "values/group" "values/shares" "values/cron" "values/suspects" "values/clock";
        usual "values/bounds" "values/namespaces" "advance/call" "advance/guard";
        rare "objects/ends" "objects/hold" "objects/lost" "objects/slots" "objects/idle"
            "objects/ending";
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

    pub(super) fn text(&self) -> &str {
        &self.text
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
    let (mut commands, mut needed) = (BTreeSet::new(), BTreeSet::new());
    for source in SCRIPTS.iter().filter(|source| source.group == group) {
        let script = Known::of((source.text)());
        add_commands(&mut commands, script.text);
        script.add_files(&mut needed);
    }
    for place in needed {
        add_commands(&mut commands, known(place).text);
    }
    if group == "worker" {
        commands.extend(POPS.map(str::to_owned));
    }
    commands.into_iter().collect::<Vec<_>>().join(" ")
}

/// A text of the manifest, and what the assembly has to know of it.
struct Known {
    text: &'static str,
    names: HashSet<&'static str>,
    /// The places in [`ORDER`] of the files that the text itself uses.
    uses: Vec<usize>,
}

/// The files of [`ORDER`] that a script of this process uses. Each is read once: a worker assembles
/// several scripts before its first call, and its first event waits for them.
static FILES: [OnceLock<Known>; ORDER.len()] = [const { OnceLock::new() }; ORDER.len()];

/// Returns the file at this place of [`ORDER`].
fn known(place: usize) -> &'static Known {
    FILES[place].get_or_init(|| Known::of((ORDER[place].text)()))
}

/// The places of the files in [`ORDER`], by their names.
static PLACES: LazyLock<HashMap<&str, usize>> =
    LazyLock::new(|| ORDER.iter().map(File::name).zip(0..).collect());

impl Known {
    fn of(text: &'static str) -> Self {
        let names = names_in(text);
        let place = |name: &&str| {
            let (file, is_rare) = match name.strip_prefix("rare.") {
                Some(file) => (file, true),
                None => (name.strip_suffix(['.', '('])?, false),
            };
            let place = *PLACES.get(file)?;
            (ORDER[place].is_rare() == is_rare).then_some(place)
        };
        let uses = names.iter().filter_map(place).collect();
        Self { text, names, uses }
    }

    /// Adds the places of the files that the text uses, and of those that these files use.
    fn add_files(&self, needed: &mut BTreeSet<usize>) {
        for &place in &self.uses {
            if needed.insert(place) {
                known(place).add_files(needed);
            }
        }
    }
}

/// Returns the names in the code of a text. Of `name.field` this is also `name.`, of `name(` also
/// `name(`, and of `K.field` and `rare.field` also the whole name. A word in a string counts, too.
fn names_in(text: &str) -> HashSet<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.');
    let mut names = HashSet::new();
    for line in text.lines() {
        let code = line.split("--").next().unwrap_or(line);
        for piece in code.split_inclusive(|c| !is_part(c)) {
            let word = piece.trim_end_matches(|c| !is_part(c));
            let Some((name, fields)) = word.split_once('.') else {
                names.extend([word]);
                names.extend(piece.ends_with('(').then_some(piece));
                continue;
            };
            let field = fields.split('.').next().unwrap_or_default();
            names.extend([name, &word[..=name.len()]]);
            if matches!(name, "K" | "PRODUCER" | "rare") {
                names.insert(&word[..=name.len() + field.len()]);
            }
        }
    }
    names
}

/// Returns the files that a text and these files use, in their order.
fn files_of(text: &'static str) -> Vec<(&'static File, &'static Known)> {
    let mut needed = BTreeSet::new();
    Known::of(text).add_files(&mut needed);
    let files = needed.into_iter();
    files.map(|place| (&ORDER[place], known(place))).collect()
}

/// Returns the declarations of the generated values that the files and the script use: the tables of keys, the lists of keys, and `RIGHTS`, the commands that the script's users need.
fn generated(source: &Source, files: &[(&File, &Known)]) -> String {
    let script = names_in((source.text)());
    let is_used = |name: &str| {
        script.contains(name) || files.iter().any(|(_, known)| known.names.contains(name))
    };
    let mut made = String::new();
    for (table, keys) in keys::tables_for_lua() {
        if table == "K" && source.file == FUNCTION {
            continue;
        }
        let keys = keys.into_iter();
        let keys = keys.filter(|(name, _)| is_used(&format!("{table}.{name}")));
        let keys: Vec<_> = keys
            .map(|(name, spelling)| format!("{name} = '{spelling}'"))
            .collect();
        if !keys.is_empty() {
            made += &format!("local {table} = {{ {} }}\n", keys.join(", "));
        }
    }
    for (name, table) in keys::lists_for_lua() {
        if is_used(name) {
            made += &format!("local {name} = {table}\n");
        }
    }
    if is_used("RIGHTS") {
        made += &format!("local RIGHTS = '{}'\n", rights(source.group));
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
    let files = files_of((source.text)());
    let is_function = source.file == FUNCTION;
    let mut made = generated(source, &files);
    let (mut usual, mut rare) = (String::new(), String::new());
    for (file, Known { text, .. }) in files {
        let name = file.name();
        let text = if is_function {
            &*with_constants_inline(text)
        } else {
            text
        };
        if file.is_rare() {
            let word = if rare.is_empty() { "if" } else { "elseif" };
            rare += &format!("{word} name == '{name}' then\nfile = (function()\n{text}end)()\n");
            if file.made == Made::Passing && is_function {
                rare += "passing[name] = true\n";
            }
        } else {
            usual += &format!("local {name} = (function()\n{text}end)()\n");
        }
    }
    if rare.is_empty() {
        return made + &usual;
    }
    made += if is_function {
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
    let text = [flags, HEAD, &declarations(source), (source.text)()].concat();
    without_comments(&text)
}

/// Returns the text of a script for a library: the body of a function that returns the script as
/// `function(keys, argv)`. The script's file returns such a function. What the files declare lives on
/// from call to call in a library. So no file of such a script uses `P` when it is made, and `keys`
/// and `argv` take the place of `KEYS` and `ARGV`.
fn body(source: &Source) -> String {
    let (declared, text) = (declarations(source), with_constants_inline((source.text)()));
    without_comments(&format!(
        "local P, redis_call, redis_try = '', redis.call, redis.pcall\n{declared}\
         local run = (function()\n{text}end)()\n\
         return function(keys, argv)\nP = argv[1]\nreturn run(keys, argv)\nend\n"
    ))
}

/// Returns a text without its lines of comments, which are about a third of it. Redis reads a text
/// at its first call, and keeps it.
fn without_comments(text: &str) -> String {
    let lines = text.split_inclusive('\n');
    lines
        .filter(|line| !line.trim_start().starts_with("--"))
        .collect()
}

/// Returns a file's text with the values of its constants in place of their names: of the keys in `K`,
/// and of the names in capitals that a line declares as numbers or keys. To a function a constant is
/// a variable of an outer one. A script makes all such variables anew in each call.
fn with_constants_inline(text: &str) -> String {
    let [(_, keys), _] = keys::tables_for_lua();
    let keys = keys.into_iter();
    let mut values: HashMap<_, _> = keys
        .map(|(name, key)| (format!("K.{name}"), format!("'{key}'")))
        .collect();
    let mut inline = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        match constants_of(line, &values) {
            Some(constants) => values.extend(constants),
            None => add_inline(&mut inline, line, &values),
        }
    }
    inline
}

/// Returns the constants of a line that declares only constants, with their values.
fn constants_of(line: &str, values: &HashMap<String, String>) -> Option<Vec<(String, String)>> {
    let (names, given) = line.trim_end().strip_prefix("local ")?.split_once(" = ")?;
    let is_name = |name: &str| name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    let is_number = |value: &str| value.chars().all(|c| c.is_ascii_digit());
    let (names, given): (Vec<_>, Vec<_>) =
        (names.split(", ").collect(), given.split(", ").collect());
    if names.len() != given.len() || !names.iter().all(|name| is_name(name)) {
        return None;
    }
    let value = |(name, given): (&str, &str)| {
        let value = if is_number(given) {
            given
        } else {
            values.get(given)?
        };
        Some((name.to_owned(), value.to_owned()))
    };
    names.into_iter().zip(given).map(value).collect()
}

/// Adds a line with values in place of names. Words in strings and names of fields stay.
fn add_inline(inline: &mut String, line: &str, values: &HashMap<String, String>) {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.');
    for (n, piece) in line.split('\'').enumerate() {
        if n > 0 {
            inline.push('\'');
        }
        let mut rest = piece;
        while let Some(word) = rest.split_inclusive(|c| !is_part(c)).next() {
            rest = &rest[word.len()..];
            let name = word.trim_end_matches(|c| !is_part(c));
            match values.get(name) {
                Some(value) if n % 2 == 0 && !rest.starts_with("= ") => {
                    inline.extend([value, &word[name.len()..]]);
                }
                _ => inline.push_str(word),
            }
        }
    }
}

#[cfg(test)]
mod tests;
