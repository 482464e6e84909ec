//! Puts the text of each script together out of the files in `lua/` (lua/README.md).

use std::sync::LazyLock;

use redis::aio::ConnectionLike;
use redis::{Cmd, ErrorKind, RedisError, ScriptInvocation, ServerErrorKind, Value};

use crate::failpoints::around;
use crate::keys;

/// Works at `maxmemory` too: the backlog must still drain, and an operator still decide.
const ALLOW_OOM: &str = "#!lua flags=allow-oom\n";
/// Needs memory: Redis refuses it at `maxmemory`, as a whole.
const DENY_OOM: &str = "#!lua\n";
/// Only reads: Redis runs it at `maxmemory` and on replicas too.
const NO_WRITES: &str = "#!lua flags=no-writes\n";

/// The text of a file in `lua/`.
#[cfg(not(feature = "failpoints"))]
macro_rules! lua {
    ($file:expr) => {
        include_str!(concat!("../../lua/", $file)).to_owned()
    };
}

/// The same, or what is put in its place.
#[cfg(feature = "failpoints")]
macro_rules! lua {
    ($file:expr) => {
        crate::failpoints::lua($file, include_str!(concat!("../../lua/", $file))).into_owned()
    };
}

/// Makes the table of all modules, and the scripts with their own.
macro_rules! manifest {
    (
        modules { $($dir:literal: $($module:ident)+;)* }
        scripts { $($name:ident: $flags:ident $file:literal [$($uses:ident)*] $(after $first:literal)?;)* }
    ) => {
        /// The text of a module.
        fn module(name: &str) -> String {
            match name {
                $($(stringify!($module) => lua!(concat!($dir, stringify!($module), ".lua")),)+)*
                other => unreachable!("the manifest lists no module {other}"),
            }
        }

        $(pub(crate) static $name: LazyLock<Script> =
            LazyLock::new(|| {
                let first: &[String] = &[$(lua!(concat!($first, ".lua")))?];
                Script::new($flags, &first.concat(), &[$(stringify!($uses)),*], &lua!(concat!($file, ".lua")))
            });)*

        /// Every module, as the directory it is in and its name.
        #[cfg(test)]
        const MODULES: &[(&str, &str)] = &[$($(($dir, stringify!($module)),)+)*];
        /// Every script, as its file and the modules it has.
        #[cfg(test)]
        const SCRIPTS: &[(&str, &[&str])] = &[$(($file, &[$(stringify!($uses)),*]),)*];
    };
}

manifest! {
    modules {
        "lib/": clock emits fence hold ids jump names page rights rules slots suspects tag text time;
        "advance/": again aside batch errors finish held log markers pauses popped results room;
        "operator/": actions;
    }
    scripts {
        ADVANCE: ALLOW_OOM "advance" [
            ids time markers batch again aside emits errors fence finish held hold jump log names pauses popped results room rules suspects tag text
        ] after "advance/usual";
        ATTACH: ALLOW_OOM "attach" [hold names slots suspects tag time];
        RENEW: ALLOW_OOM "renew" [fence hold names slots tag time];
        DETACH: ALLOW_OOM "detach" [fence hold names slots tag time];
        ADOPT: ALLOW_OOM "adopt" [clock hold names rules slots tag time];
        CONNECT: ALLOW_OOM "connect" [ids jump rights time];
        HANDLED: ALLOW_OOM "handled" [emits fence ids tag];
        HANDLED_EMITS: DENY_OOM "handled" [emits fence ids tag];
        FORGET: ALLOW_OOM "forget" [emits ids];
        CHECK: NO_WRITES "check" [ids names rules tag];
        INSPECT: NO_WRITES "inspect" [emits ids rules time];
        TAKEN: NO_WRITES "taken" [];
        POSITION: DENY_OOM "projection/position" [];
        DEAD: ALLOW_OOM "operator/dead" [actions names text];
        RELEASE: ALLOW_OOM "operator/release" [actions tag text];
        RELEASE_MANY: ALLOW_OOM "operator/release_many" [actions tag text time];
        SKIP: ALLOW_OOM "operator/skip" [actions emits ids tag text];
        RULE: ALLOW_OOM "operator/rule" [actions rules text time];
        HELD: NO_WRITES "operator/held" [time];
        PAUSED: NO_WRITES "operator/paused" [rules time];
        LOG: NO_WRITES "operator/log" [page];
        ENDED: NO_WRITES "operator/ended" [page];
    }
}

/// A script's text, with the means to call it.
pub(crate) struct Script {
    inner: redis::Script,
}

impl Script {
    fn new(flags: &str, first: &str, modules: &[&str], body: &str) -> Self {
        Self { inner: redis::Script::new(&assemble(flags, first, modules, body)) }
    }

    /// Begins a call with the one key that tells Redis where the call belongs; arguments follow.
    pub(crate) fn with_key(&self, key: &str) -> Cmd {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(self.inner.get_hash()).arg(1).arg(key);
        cmd
    }

    /// Begins a call that loads the script where the server does not know it.
    pub(crate) fn invoke(&self) -> ScriptInvocation<'_> {
        self.inner.prepare_invoke()
    }

    /// Calls the script; loads it first where the server does not know it.
    ///
    /// Dropping the future does not take back a call that was sent.
    pub(crate) async fn call(&self, conn: &mut impl ConnectionLike, cmd: &Cmd) -> Result<Value, RedisError> {
        match conn.req_packed_command(cmd).await.and_then(Value::extract_error) {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                around!("load", self.inner.load_async(conn)).await?;
                conn.req_packed_command(cmd).await.and_then(Value::extract_error)
            }
            reply => reply,
        }
    }
}

/// What every script begins with: the prefix of all keys, the two ways to call Redis; the state of
/// the call, which only advance has, and the modules.
const HEAD: &str = "local P, call, try = ARGV[1], redis.call, redis.pcall\nlocal C, M\n";

/// A script: its head, what comes before the modules, a table of the modules, each of which is made
/// when it is first used, then its body.
///
/// Lua makes all functions and tables of a script anew in each call, so that a call pays for what
/// it makes. That is why the names of the keys, in the files fields of a table `K`, stand in the
/// script as texts.
fn assemble(flags: &str, first: &str, modules: &[&str], body: &str) -> String {
    let mut made = String::new();
    if !modules.is_empty() {
        made += "M = setmetatable({}, { __index = function(made, name)\nlocal module\n";
        for (n, name) in modules.iter().enumerate() {
            let word = if n == 0 { "if" } else { "elseif" };
            made += &format!("{word} name == '{name}' then\nmodule = (function()\n{}end)()\n", module(name));
        }
        made += "end\nrawset(made, name, module)\nreturn module\nend })\n";
    }
    let text = [flags, HEAD, first, &made, body].concat();
    let mut keys: Vec<_> = keys::for_lua().collect();
    // The longer ones first: some begin as others do.
    keys.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
    keys.iter().fold(text, |text, (name, spelling)| text.replace(&format!("K.{name}"), &format!("'{spelling}'")))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    fn read(file: &str) -> String {
        let lua = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("lua");
        std::fs::read_to_string(lua.join(file)).expect("a file of the manifest")
    }

    /// Every file of the manifest with its text: the modules by their names, the scripts by their
    /// files.
    fn files() -> BTreeMap<String, String> {
        let modules = MODULES.iter().map(|(dir, name)| ((*name).to_owned(), read(&format!("{dir}{name}.lua"))));
        let scripts = SCRIPTS.iter().map(|(file, _)| *file).chain(["advance/usual"]).map(|file| format!("{file}.lua"));
        let scripts = scripts.map(|file| (file.clone(), read(&file)));
        modules.chain(scripts).collect()
    }

    /// What the text takes from modules, as `module.name`.
    fn used(text: &str) -> BTreeSet<String> {
        let code = text.lines().filter(|line| !line.trim_start().starts_with("--"));
        code.flat_map(|line| line.match_indices("M.").map(move |(at, _)| (line, at)))
            .filter(|(line, at)| !line[..*at].ends_with(|before: char| before.is_alphanumeric() || before == '_'))
            .map(|(line, at)| line[at + 2..].chars().take_while(|c| c.is_alphanumeric() || matches!(c, '_' | '.')).collect())
            .collect()
    }

    /// What its lines `-- Uses:` list.
    fn listed(text: &str) -> BTreeSet<String> {
        let lines = text.lines().filter_map(|line| line.strip_prefix("-- Uses: "));
        lines.flat_map(str::split_whitespace).map(str::to_owned).collect()
    }

    #[test]
    fn every_file_lists_what_it_uses() {
        for (file, text) in files() {
            assert_eq!(listed(&text), used(&text), "{file}: its lines `-- Uses:`, and what it uses");
        }
    }

    #[test]
    fn what_is_used_is_there() {
        let files = files();
        for (file, text) in &files {
            for name in used(text) {
                let (module, field) = name.split_once('.').expect("a field of a module");
                let returned = files[module].rsplit_once("\nreturn {").expect("a module returns a table").1;
                assert!(returned.contains(&format!(" {field} = ")), "{file} uses {name}");
            }
        }
    }

    /// The modules that a script has are those it uses, and those that they use.
    #[test]
    fn every_script_has_the_modules_it_needs() {
        let files = files();
        for (script, modules) in SCRIPTS {
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
            assert_eq!(has, needed, "{script}: the modules it has, and those it needs");
        }
    }

    /// A name that no file makes would be a global one, which Redis refuses only when the script
    /// comes there.
    #[test]
    fn every_key_that_is_used_is_there() {
        let keys: BTreeSet<_> = keys::for_lua().map(|(name, _)| name).collect();
        for (file, text) in files() {
            for (at, _) in text.match_indices("K.") {
                let name: String = text[at + 2..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                let before = text[..at].chars().next_back();
                let is_key = !before.is_some_and(|before| before.is_alphanumeric() || before == '_');
                assert!(!is_key || keys.contains(name.as_str()), "{file}: K.{name}");
            }
        }
    }

    /// The commands that a text calls, by `call` and `try`.
    fn commands(text: &str) -> BTreeSet<String> {
        let calls = ["call('", "try('"].into_iter().flat_map(|call| text.split(call).skip(1));
        calls.map(|rest| rest.split('\'').next().unwrap_or_default().to_owned()).collect()
    }

    /// A command that a script uses and that nobody has asked for could fail in the middle of the
    /// script.
    #[test]
    fn rights_are_asked_for_every_command_of_a_script_that_writes() {
        let files = files();
        let mut asked = 0;
        for (script, modules) in SCRIPTS {
            let by_operator = modules.contains(&"actions");
            if !by_operator && (script.contains('/') || ["check", "inspect", "taken", "forget"].contains(script)) {
                continue;
            }
            let rights = &files[if by_operator { "actions" } else { "rights" }];
            let first = (*script == "advance").then(|| &files["advance/usual.lua"]);
            let texts = modules.iter().map(|module| &files[*module]).chain([&files[&format!("{script}.lua")]]).chain(first);
            for command in texts.flat_map(|text| commands(text)) {
                assert!(rights.contains(&format!("{{ '{command}'")), "{script}.lua: {command}");
                asked += 1;
            }
        }
        assert!(asked > 150, "{asked} commands were found");
    }

    /// The first comment of a file, without its name.
    fn purpose(text: &str) -> &str {
        let line = text.lines().next().and_then(|line| line.split_once(": ")).map_or("", |(_, purpose)| purpose);
        line.trim_end_matches('.')
    }

    /// The tables in lua/README.md are made from the manifest and the first lines of the files.
    #[test]
    fn the_tables_of_the_readme_are_those_of_the_manifest() {
        let files = files();
        let mut tables = String::from("| script | what it does | its modules |\n|---|---|---|\n");
        let mut seen = BTreeSet::new();
        for (script, modules) in SCRIPTS.iter().filter(|(script, _)| seen.insert(*script)) {
            let mut modules = modules.to_vec();
            modules.sort_unstable();
            tables += &format!("| `{script}.lua` | {} | {} |\n", purpose(&files[&format!("{script}.lua")]), modules.join(", "));
        }
        tables += "\n| module | what it is for | it gives |\n|---|---|---|\n";
        for (dir, name) in MODULES {
            let gives: BTreeSet<_> =
                files.values().flat_map(|text| used(text)).filter(|used| used.starts_with(&format!("{name}."))).collect();
            let gives: Vec<_> =
                gives.iter().map(|used| format!("`{}`", used.split('.').next_back().unwrap_or_default())).collect();
            tables += &format!("| `{dir}{name}.lua` | {} | {} |\n", purpose(&files[*name]), gives.join(", "));
        }
        let readme = read("README.md");
        assert!(readme.contains(&tables), "the tables of lua/README.md should be:\n{tables}");
    }
}
