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

/// A script, as the manifest lists it.
struct Source {
    /// The users of the script: `emitter`, `worker`, `operator`, `repair`, or `other`.
    group: &'static str,
    /// The name of the script's file, without `.lua`.
    file: &'static str,
    /// The names of the modules that the script has.
    modules: &'static [&'static str],
    /// A function that returns the text of the script's file.
    text: fn() -> String,
}

/// Generates from the manifest the table of modules, the table of scripts, and the scripts.
macro_rules! manifest {
    (
        modules { $($dir:literal: $($module:ident)+;)* }
        $($group:ident { $($name:ident: $flags:ident $file:literal [$($uses:ident)*];)* })*
    ) => {
        /// Returns the text of a module.
        fn module(name: &str) -> String {
            match name {
                $($(stringify!($module) => lua!(concat!($dir, stringify!($module), ".lua")),)+)*
                other => unreachable!("the manifest lists no module {other}"),
            }
        }

        /// All scripts.
        const SCRIPTS: &[Source] = &[$($(Source {
            group: stringify!($group),
            file: $file,
            modules: &[$(stringify!($uses)),*],
            text: || lua!(concat!($file, ".lua")),
        },)*)*];

        $($(pub(crate) static $name: LazyLock<Script> = LazyLock::new(|| Script::new($flags, $file));)*)*

        /// All modules, as pairs of directory and name.
        #[cfg(test)]
        const MODULES: &[(&str, &str)] = &[$($(($dir, stringify!($module)),)+)*];
    };
}

manifest! {
    modules {
        "lib/": cancel clock cron emits fence group hold idle ids jump lease lost marks names page registry rights rules schedule share slots suspects tag text time worker;
        "advance/": again ages aside batch errors finish groups held keyed limits log markers missing pauses popped results room shares sorting state turns;
        "operator/": actions;
        "check/": indexes;
        "repair/": mend object orphan rebuild;
    }
    emitter {
        EMIT: DENY_OOM "emit" [schedule time];
        CANCEL: ALLOW_OOM "cancel" [cancel emits ids schedule tag time];
    }
    worker {
        ADVANCE: ALLOW_OOM "advance" [
            ids time markers batch again ages aside emits errors fence finish group groups held hold jump keyed lease limits log lost marks missing names pauses popped
            registry results room rules schedule share shares sorting state suspects tag text turns worker
        ];
        ATTACH: ALLOW_OOM "attach" [hold ids lease lost names registry share slots suspects tag time worker];
        RENEW: ALLOW_OOM "renew" [fence hold ids lease lost names registry share slots tag time worker];
        DETACH: ALLOW_OOM "detach" [fence hold ids lease lost names registry share slots tag time worker];
        ADOPT: ALLOW_OOM "adopt" [clock cron group hold ids lease lost marks names registry rules share slots tag time worker];
        PROMOTE: ALLOW_OOM "promote" [names schedule time];
        MARK: ALLOW_OOM "mark" [marks time];
        CRON: ALLOW_OOM "cron" [cron ids names time];
        CONNECT: ALLOW_OOM "connect" [ids jump rights time];
        DOCTOR: NO_WRITES "doctor" [rights];
        HANDLED: ALLOW_OOM "handled" [emits fence ids lease registry tag worker schedule time];
        SENT: ALLOW_OOM "sent" [fence ids jump lease registry time worker];
        HANDLED_EMITS: DENY_OOM "handled" [emits fence ids lease registry tag worker schedule time];
    }
    operator {
        DEAD: ALLOW_OOM "operator/dead" [actions ids names rights text];
        RELEASE: ALLOW_OOM "operator/release" [actions ids rights tag text];
        RELEASE_MANY: ALLOW_OOM "operator/release_many" [actions ids rights tag text time];
        SKIP: ALLOW_OOM "operator/skip" [actions emits ids rights tag text schedule time];
        RULE: ALLOW_OOM "operator/rule" [actions ids rights rules text time];
        LIMIT: ALLOW_OOM "operator/limit" [actions ids rights text time];
        SHARE: ALLOW_OOM "operator/share" [actions group ids rights share text time];
        IN_HAND: ALLOW_OOM "operator/in_hand" [names share worker];
        CRON_SET: ALLOW_OOM "operator/cron" [actions cron ids names rights text time];
        CANCEL_SCHEDULE: ALLOW_OOM "operator/cancel" [actions cancel emits ids rights schedule tag text time];
        FORGET_ONE: ALLOW_OOM "operator/forget" [actions emits idle ids rights schedule text time];
    }
    repair {
        REPAIR: ALLOW_OOM "operator/repair" [
            actions cron emits group hold ids jump marks mend names object orphan rebuild registry rights rules schedule share tag text time worker
        ];
    }
    other {
        FORGET: ALLOW_OOM "forget" [emits idle ids schedule time];
        CHECK: NO_WRITES "check" [cron group ids indexes lease marks names registry rules schedule share tag time worker];
        INSPECT: NO_WRITES "inspect" [emits group ids marks rules schedule share time worker];
        TAKEN: NO_WRITES "taken" [worker];
        HELD: NO_WRITES "operator/held" [ids time];
        PAUSED: NO_WRITES "operator/paused" [ids rules time];
        SCHEDULED: NO_WRITES "operator/scheduled" [ids names schedule time];
        CRONS: NO_WRITES "operator/crons" [ids schedule time];
        LOG: NO_WRITES "operator/log" [page text];
        OF_OBJECT: NO_WRITES "operator/of_object" [page text];
        STREAM: NO_WRITES "operator/stream" [];
        POSITION: DENY_OOM "projection/position" [lease];
    }
}

/// The script `advance` as a library. Each call makes all of the script's values anew.
#[cfg(feature = "worker")]
pub(crate) static ADVANCE_LIBRARY: LazyLock<Library> = LazyLock::new(|| {
    let body = ADVANCE.text.strip_prefix(ALLOW_OOM).unwrap_or_default();
    Library::new(
        "advance",
        "allow-oom",
        &format!("return function(KEYS, ARGV)\n{body}\nend"),
    )
});

/// A script's text, with the functions that call it.
pub(crate) struct Script {
    pub(super) inner: redis::Script,
    text: String,
}

impl Script {
    fn new(flags: &str, file: &str) -> Self {
        let source = SCRIPTS.iter().find(|source| source.file == file);
        let source = source.unwrap_or_else(|| unreachable!("the manifest lists no script {file}"));
        Self::of_text(assemble(flags, source))
    }

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

/// The first lines of every script. `P` is the prefix of all keys; `call` and `try` call Redis. `C`
/// and `M` are only declared here. Later `C` becomes the state of the call (only in `advance`), and
/// `M` the table of modules (only in scripts with modules).
const HEAD: &str = "local P, call, try = ARGV[1], redis.call, redis.pcall\nlocal C, M\n";
/// The commands with which a worker process waits. `BLMOVE` waits for a marker. `BZPOPMIN` waits
/// for a wake, which tells that a schedule is due sooner than the process expects. No script calls
/// these commands, so they are listed here.
const POPS: [&str; 2] = ["BLMOVE", "BZPOPMIN"];

/// Adds the Redis commands that a Lua text passes to `call` and `try`.
fn add_commands(commands: &mut BTreeSet<String>, text: &str) {
    let calls = ["call('", "try('"]
        .into_iter()
        .flat_map(|call| text.split(call).skip(1));
    commands.extend(calls.map(|rest| rest.split('\'').next().unwrap_or_default().to_owned()));
}

/// Returns the Redis commands that the users of the scripts in this group need, separated by
/// spaces.
fn rights(group: &str) -> String {
    let mut commands = BTreeSet::new();
    for source in SCRIPTS.iter().filter(|source| source.group == group) {
        add_commands(&mut commands, &(source.text)());
        source
            .modules
            .iter()
            .for_each(|name| add_commands(&mut commands, &module(name)));
    }
    if group == "worker" {
        commands.extend(POPS.map(str::to_owned));
    }
    commands.into_iter().collect::<Vec<_>>().join(" ")
}

/// Returns the text of a script: the head, a table of the modules, and the script's file. A call of
/// the script makes a module when it first uses the module.
///
/// Lua makes all functions and tables of a script anew in each call, which takes time. To need
/// fewer tables, the assembly replaces names by texts: `K.events` by the text of the key, `RIGHTS`
/// by the commands that the script's users need, and the names of the lists of keys by these lists.
fn assemble(flags: &str, source: &Source) -> String {
    let mut made = String::new();
    if !source.modules.is_empty() {
        made += "M = setmetatable({}, { __index = function(made, name)\nlocal module\n";
        for (n, name) in source.modules.iter().enumerate() {
            let word = if n == 0 { "if" } else { "elseif" };
            made += &format!(
                "{word} name == '{name}' then\nmodule = (function()\n{}end)()\n",
                module(name)
            );
        }
        made += "end\nrawset(made, name, module)\nreturn module\nend })\n";
    }
    let mut text = [flags, HEAD, &made, &(source.text)()].concat();
    if source.modules.contains(&"rights") {
        text = text.replace("RIGHTS", &format!("'{}'", rights(source.group)));
    }
    for (name, table) in keys::lists_for_lua() {
        text = text.replace(name, &table);
    }
    let mut keys: Vec<_> = keys::for_lua().collect();
    // Longer names are replaced first, because some names begin with a shorter name.
    keys.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
    keys.iter().fold(text, |text, (name, spelling)| {
        text.replace(&format!("K.{name}"), &format!("'{spelling}'"))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn read(file: &str) -> String {
        let lua = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("lua");
        std::fs::read_to_string(lua.join(file)).expect("a file of the manifest")
    }

    /// Returns the text of every file of the manifest. The key of a module is its name, the key of
    /// a script is its file name.
    fn files() -> BTreeMap<String, String> {
        let modules = MODULES
            .iter()
            .map(|(dir, name)| ((*name).to_owned(), read(&format!("{dir}{name}.lua"))));
        let scripts = SCRIPTS
            .iter()
            .map(|source| source.file)
            .map(|file| format!("{file}.lua"));
        let scripts = scripts.map(|file| (file.clone(), read(&file)));
        modules.chain(scripts).collect()
    }

    /// Returns the fields of modules that the text uses, each as `module.name`.
    fn used(text: &str) -> BTreeSet<String> {
        let code = text
            .lines()
            .filter(|line| !line.trim_start().starts_with("--"));
        code.flat_map(|line| line.match_indices("M.").map(move |(at, _)| (line, at)))
            .filter(|(line, at)| {
                !line[..*at].ends_with(|before: char| before.is_alphanumeric() || before == '_')
            })
            .map(|(line, at)| {
                line[at + 2..]
                    .chars()
                    .take_while(|c| c.is_alphanumeric() || matches!(c, '_' | '.'))
                    .collect()
            })
            .collect()
    }

    /// Returns the fields that the `-- Uses:` lines of a Lua text list.
    fn listed(text: &str) -> BTreeSet<String> {
        let lines = text
            .lines()
            .filter_map(|line| line.strip_prefix("-- Uses: "));
        lines
            .flat_map(str::split_whitespace)
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn every_file_lists_what_it_uses() {
        for (file, text) in files() {
            assert_eq!(
                listed(&text),
                used(&text),
                "{file}: its lines `-- Uses:`, and what it uses"
            );
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

    #[test]
    fn what_is_used_is_there() {
        let files = files();
        for (file, text) in &files {
            for name in used(text) {
                let (module, field) = name.split_once('.').expect("a field of a module");
                let returned = files[module]
                    .rsplit_once("\nreturn {")
                    .expect("a module returns a table")
                    .1;
                assert!(
                    returned.contains(&format!(" {field} = ")),
                    "{file} uses {name}"
                );
            }
        }
    }

    /// Tests that the manifest lists for each script the modules that the script uses, and the
    /// modules that these modules use.
    #[test]
    fn every_script_has_the_modules_it_needs() {
        let files = files();
        for Source {
            file: script,
            modules,
            ..
        } in SCRIPTS
        {
            let (mut needed, mut new) = (BTreeSet::new(), vec![format!("{script}.lua")]);
            while let Some(file) = new.pop() {
                for name in used(&files[&file]) {
                    let module = name.split('.').next().unwrap_or_default().to_owned();
                    if needed.insert(module.clone()) {
                        new.push(module);
                    }
                }
            }
            let has: BTreeSet<_> = modules.iter().map(|module| (*module).to_owned()).collect();
            assert_eq!(
                has, needed,
                "{script}: the modules it has, and those it needs"
            );
        }
    }

    /// Tests that each name `K.NAME` in a Lua file is the name of a key. Any other name would stay
    /// in the script as a global, and Redis refuses a global only when the script reaches it.
    #[test]
    fn every_key_that_is_used_is_there() {
        let keys: BTreeSet<_> = keys::for_lua().map(|(name, _)| name).collect();
        for (file, text) in files() {
            for (at, _) in text.match_indices("K.") {
                let name: String = text[at + 2..]
                    .chars()
                    .take_while(|c| c.is_alphanumeric() || *c == '_')
                    .collect();
                let before = text[..at].chars().next_back();
                let is_key =
                    !before.is_some_and(|before| before.is_alphanumeric() || before == '_');
                assert!(!is_key || keys.contains(name.as_str()), "{file}: K.{name}");
            }
        }
    }

    /// Tests that scripts pass the names of Redis commands to `call` and `try` as literals. Only
    /// literals get into the list of rights that a script checks.
    #[test]
    fn every_command_of_a_script_that_asks_for_rights_is_a_literal() {
        let files = files();
        let asking = SCRIPTS.iter().filter(|source| source.group != "other");
        let own = asking.clone().map(|source| format!("{}.lua", source.file));
        let modules = asking
            .flat_map(|source| source.modules)
            .map(|module| (*module).to_owned());
        for file in own.chain(modules).collect::<BTreeSet<_>>() {
            for call in ["call(", "try("] {
                for (at, _) in files[&file].match_indices(call) {
                    let before = files[&file][..at].chars().next_back();
                    let is_call =
                        !before.is_some_and(|before| before.is_alphanumeric() || before == '_');
                    let rest = &files[&file][at + call.len()..];
                    assert!(
                        !is_call || rest.starts_with('\''),
                        "{file}: {call}{}",
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
        let arguments = read("lib/rights.lua");
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
                "lib/rights.lua has no arguments for {command}"
            );
        }
        let unused: Vec<_> = known
            .into_iter()
            .filter(|name| !needed.contains(*name))
            .collect();
        assert_eq!(
            unused,
            ["ARGUMENTS"],
            "commands in lib/rights.lua that no script calls"
        );
        assert!(needed.len() > 35, "{needed:?}");
        let asking: Vec<_> = SCRIPTS
            .iter()
            .filter(|source| source.modules.contains(&"rights"))
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

    /// Returns the first line of a file, without the file's name.
    fn purpose(text: &str) -> &str {
        let line = text
            .lines()
            .next()
            .and_then(|line| line.split_once(": "))
            .map_or("", |(_, purpose)| purpose);
        line.trim_end_matches('.')
    }

    /// Tests that the tables in lua/README.md match the manifest and the first lines of the files.
    #[test]
    fn the_tables_of_the_readme_are_those_of_the_manifest() {
        let files = files();
        let mut tables = String::from("| script | what it does | its modules |\n|---|---|---|\n");
        let mut seen = BTreeSet::new();
        for Source {
            file: script,
            modules,
            ..
        } in SCRIPTS.iter().filter(|source| seen.insert(source.file))
        {
            let mut modules = modules.to_vec();
            modules.sort_unstable();
            tables += &format!(
                "| `{script}.lua` | {} | {} |\n",
                purpose(&files[&format!("{script}.lua")]),
                modules.join(", ")
            );
        }
        tables += "\n| module | what it is for | it gives |\n|---|---|---|\n";
        for (dir, name) in MODULES {
            let gives: BTreeSet<_> = files
                .values()
                .flat_map(|text| used(text))
                .filter(|used| used.starts_with(&format!("{name}.")))
                .collect();
            let gives: Vec<_> = gives
                .iter()
                .map(|used| format!("`{}`", used.split('.').next_back().unwrap_or_default()))
                .collect();
            tables += &format!(
                "| `{dir}{name}.lua` | {} | {} |\n",
                purpose(&files[*name]),
                gives.join(", ")
            );
        }
        let readme = read("README.md");
        assert!(
            readme.contains(&tables),
            "the tables of lua/README.md should be:\n{tables}"
        );
    }
}
