//! `attach`, `renew`, `detach` and `adopt`: every key that a call changes, and the bounds of a call.
//! The clock stands still, so all times are exact.

mod pass;
mod random;
mod rounds;
mod slots;
mod takeover;
mod watched;

use std::time::Duration;

use seriatim::wire::{self, Adopted, Sweep};

use crate::scene::Scene;
use crate::stopped::NOW_US;

/// A time without an end for the tests: no name is forgotten.
const AGES: Duration = Duration::from_secs(100 * 365 * 86_400);
const DAY: Duration = Duration::from_secs(86_400);
/// Time between two looks at a watched name.
const LOOK: Duration = Duration::from_secs(60);

/// The reply of a sweep that takes nothing over. It says that a mark is due, because these tests
/// push none.
const NOTHING: Adopted = Adopted {
    more: false,
    moved: 0,
    is_ahead: false,
    mark: true,
    held: 0,
    strays: 0,
    lost: Vec::new(),
    names: Vec::new(),
};

/// The change of a sweep that looks at no departed name.
const SWEPT: &str = "seriatim.meta = {clock: NOW}\n";
/// The change of a sweep with a round, and with a whole pass.
const ROUND: &str = "seriatim.meta = {clock: NOW, names.indexed: NOW, names.next: NOW+1s}\n";

/// Returns a scene without a process, with these keys. Its clock stands still.
async fn given(commands: &str) -> Scene {
    let scene = Scene::stopped_at(NOW_US).await;
    scene.add(commands).await;
    scene
}

/// Sweeps as the process `own`.
async fn sweep(scene: &Scene, look: Duration, forget: Duration) -> Adopted {
    let sweep = Sweep {
        own: "own",
        crashes_max: 5,
        look,
        forget,
        since: None,
        notice: look,
    };
    let adopted = wire::adopt(&mut scene.conn().await, &scene.keys, &sweep).await;
    adopted.expect("a reply")
}

/// Returns the reply of a sweep that puts so many names back to the markers, which these worker
/// names had.
fn strays(strays: u64, names: &[&str]) -> Adopted {
    Adopted {
        strays,
        names: names.iter().map(|name| (*name).to_owned()).collect(),
        ..NOTHING
    }
}
