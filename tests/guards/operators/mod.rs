//! The scripts of operators: each test gives keys, makes one call, and compares the reply and all
//! changes.

mod cron;
mod dead;
mod emits;
mod held;
mod in_hand;
mod refusals;
mod rule;
mod scheduled;
mod share;
mod skip;

use std::fmt::Debug;

use seriatim::wire::ScriptError;
use seriatim::wire::operator::By;

use crate::scene::Scene;
use crate::support::Redis;

const BY: By<'static> = By {
    who: "ada",
    why: "a test",
};

/// Returns a scene without a process, with these keys.
async fn given(commands: &str) -> Scene {
    let scene = Scene::bare(Redis::start()).await;
    scene.add(commands).await;
    scene
}

/// Returns the row of an action. `rest`: the object, and the fields behind it.
fn row(action: &str, rest: &str) -> String {
    format!("NOW action {action} who ada why a test object {rest}")
}

/// Returns the change of a call that writes one row.
fn acted(action: &str, rest: &str) -> String {
    format!("operator.actions = {{{}}}\n", row(action, rest))
}

/// Returns the words of a reply.
fn joined(words: &[impl Debug]) -> String {
    let words: Vec<_> = words.iter().map(|word| format!("{word:?}")).collect();
    words.join(" ")
}

/// Returns `KEY is a TYPE` for a refusal, with `@` for the prefix of the key.
fn wrong_type<T: Debug>(scene: &Scene, refused: Result<T, ScriptError>) -> String {
    match refused {
        Err(ScriptError::WrongType { key, found }) => {
            format!("{} is a {found}", key.replace(scene.keys.prefix(), "@"))
        }
        other => panic!("{other:?}"),
    }
}
