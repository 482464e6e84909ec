//! Assembles the text of each script from the files in `lua/` (lua/README.md).

use std::collections::BTreeSet;
use std::sync::LazyLock;

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
        usual "values/bounds" "values/namespaces" "advance/call" "advance/guard";
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
mod tests;
