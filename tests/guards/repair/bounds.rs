//! How much one call of the repair moves and reads. It then leaves its other subjects, or the rest of a
//! long batch, to a further call.

use super::call;
use crate::check::{findings_of, scene};
use crate::scene::Scene;

const MIB: usize = 1 << 20;

/// Makes a name without a lease, and runs these commands.
async fn given(scene: &Scene, commands: &str) {
    let name = "HSET event.workers gone '1 token-of-gone 0'; SET next.event.id 2000";
    scene.again(&format!("{name}\n{commands}")).await;
}

/// Returns so many events of so many bytes, as words.
fn events(count: usize, bytes: usize) -> String {
    format!(" {}", "e".repeat(bytes)).repeat(count)
}

/// Breaks the subject so that a repair moves or reads so many entries of so many bytes.
async fn broken(scene: &Scene, how: &str, count: usize, bytes: usize) {
    let events = events(count, bytes);
    let commands = match how {
        "without ids" => format!("RPUSH x:events.held{events}"),
        "late" => format!(
            "RPUSH x:events.held{events}; SET x:events.held.id '1 2 3 4 stop'; delivered x {count}"
        ),
        "lost" => format!("RPUSH event.worker:gone.0:lost 1{events}"),
        "progress" => {
            let emits = format!("1 {bytes} x{}", "e".repeat(bytes)).repeat(count);
            let emits = format!("0 {count} {} {emits}", count * (1 + bytes));
            format!("HSET x:event.handled id 5 emit:h '{emits}'")
        }
        "schedule" => format!(
            "HSET x:events.scheduled k 1; RPUSH x:events{events}
             ZADD events.scheduled -2700000000000000 'x\nk'"
        ),
        "names" => format!("RPUSH event.worker:gone.0:object{events}"),
        _ => panic!("{how}"),
    };
    given(scene, &commands).await;
}

/// The numbers are those in the header of the script, with four commands per dead letter, two if its
/// object is not known, and three per emitted event.
#[tokio::test]
async fn a_call_ends_after_1000_entries_or_1_mib() {
    let scene = scene().await;
    // The bytes of the other texts of the progress.
    let kept = "id5emit:h0 1 1048500 1 1048500 x".len();
    for (how, subject, enough, enough_bytes) in [
        ("without ids", ("object", "x"), 1000, None),
        ("late", ("object", "x"), 250, Some(MIB)),
        ("lost", ("worker", "gone.0"), 500, Some(MIB)),
        ("progress", ("object", "x"), 334, Some(MIB - kept)),
        ("schedule", ("schedule", "x\nk"), 1000, Some(MIB)),
        ("names", ("worker", "gone.0"), 1000, None),
    ] {
        let by_count = [(enough, 1, true), (enough - 1, 1, false)];
        let by_bytes = enough_bytes.map(|bytes| [(1, bytes, true), (1, bytes - 1, false)]);
        for (count, bytes, is_enough) in by_count.into_iter().chain(by_bytes.into_iter().flatten())
        {
            broken(&scene, how, count, bytes).await;
            let results = call(&scene, &[subject, ("shared", "")]).await;
            let is_again = results.contains(&(1, "again".to_owned()));
            let what = format!("{how}: {count} entries of {bytes} bytes: {results:?}");
            assert_eq!(is_again, is_enough, "{what}");
        }
    }
}

/// A held batch that was overtaken, and a batch of an unknown object, become dead letters in steps.
/// Between two steps the numbers of the batch are those of the rest.
#[tokio::test]
async fn a_long_batch_becomes_dead_letters_in_steps() {
    let scene = scene().await;
    let sizes = [
        (1000, 1, 1000),
        (1001, 1, 1000),
        (3, MIB, 1),
        (3, MIB - 1, 2),
    ];
    let subjects = [("late", ("object", "x")), ("lost", ("worker", "gone.0"))];
    for ((how, subject), (count, bytes, moved)) in subjects
        .into_iter()
        .flat_map(|how| sizes.map(|size| (how, size)))
    {
        broken(&scene, how, count, bytes).await;
        let mut left = count;
        while left > 0 {
            let words = call(&scene, &[subject]).await;
            let words: Vec<_> = words.iter().map(|(_, word)| word.as_str()).collect();
            left -= left.min(moved);
            let what = format!("{how}: {count} events of {bytes} bytes, {left} left: {words:?}");
            assert!(words.contains(&"dead"), "{what}");
            assert_eq!(words.contains(&"again"), left > 0, "{what}");
            let next = 1 + count - left;
            let (rest, expected) = match how {
                "late" => (scene.held_id("x").await, format!("{next} 2 0 0 repair")),
                _ => {
                    let lost = scene.list(&scene.keys.worker_lost("gone.0")).await;
                    (lost.last().cloned(), next.to_string())
                }
            };
            assert_eq!(rest, (left > 0).then_some(expected), "{what}");
        }
        let dead = scene.dead().await;
        assert_eq!(dead.len(), count);
        for (at, letter) in dead.iter().enumerate() {
            let id = letter.iter().find(|(field, _)| field == "id");
            let id = id.map(|(_, id)| String::from_utf8_lossy(id).into_owned());
            assert_eq!(id, Some((1 + at).to_string()), "{how}");
        }
        assert_eq!(findings_of(&scene).await, [""; 0]);
    }
}

/// A held batch without ids goes back to the queue in steps, also beside a batch in hand. Its events keep
/// their order, and come before those that were queued.
#[tokio::test]
async fn a_long_held_batch_without_ids_is_queued_in_steps() {
    let scene = scene().await;
    for (count, in_hand, calls) in [
        (1000, "", 1),
        (1001, "", 2),
        (1000, "own gone.0 x 7 0", 1),
        (1001, "own gone.0 x 7 0", 2),
    ] {
        let batch: Vec<String> = (1..=count).map(|n| n.to_string()).collect();
        let held = format!("LPUSH x:events.held {}", batch.join(" "));
        given(&scene, &format!("{held}; LPUSH x:events behind; {in_hand}")).await;
        for at in 1..=calls {
            let results = call(&scene, &[("object", "x")]).await;
            let is_again = results.contains(&(0, "again".to_owned()));
            assert_eq!(is_again, at < calls, "{count}: {results:?}");
        }
        let expected = [batch, vec!["behind".to_owned()]].concat();
        assert_eq!(scene.list(&scene.keys.events("x")).await, expected);
        assert_eq!(findings_of(&scene).await, [""; 0], "{count}");
    }
}

/// Of a long queue, only the oldest 1,000 entries, up to about 1 MiB, are searched for the reference to
/// a schedule. If it is not among them, it may be behind them.
#[tokio::test]
async fn a_reference_is_searched_among_the_oldest_entries() {
    let scene = scene().await;
    for (before, bytes, with_reference, behind, expected) in [
        (1, MIB - 1, true, 0, "nothing"),
        (1, MIB, true, 0, "nothing"),
        (999, 1, true, 0, "nothing"),
        (1000, 1, true, 0, "nothing"),
        // The reference is lost, so the event is due now.
        (1, MIB, false, 0, "schedule"),
        (1, MIB, false, 1, "nothing"),
        (1, MIB - 1, false, 1, "schedule"),
        (999, 1, false, 1, "schedule"),
        (1000, 1, false, 0, "schedule"),
        (1000, 1, false, 1, "nothing"),
    ] {
        let mut commands = "HSET x:events.scheduled k 1\n".to_owned();
        commands += "ZADD events.scheduled -2700000000000000 'x\nk'\n";
        // The oldest entry is at the tail.
        if behind > 0 {
            commands += &format!("RPUSH x:events{}\n", events(1, behind));
        }
        if with_reference {
            commands += "RPUSH x:events '\0queued 1700000000000000 k'\n";
        }
        if before > 0 {
            commands += &format!("RPUSH x:events{}\n", events(before, bytes));
        }
        given(&scene, &commands).await;
        let results = call(&scene, &[("schedule", "x\nk")]).await;
        let word = results.first().map_or("nothing", |(_, word)| word.as_str());
        let what = format!("{before} entries of {bytes} bytes, {behind} bytes behind");
        assert_eq!(word, expected, "{what}");
    }
}

/// Workers make at most 2,049 groups. The names of more groups are not counted.
#[tokio::test]
async fn more_groups_than_workers_make_are_left() {
    let scene = scene().await;
    for (count, expected) in [(2049, None), (2050, Some((0, "left".to_owned())))] {
        let groups: String = (0..count).map(|n| format!(" 1 {n}")).collect();
        given(&scene, &format!("ZADD event.groups{groups}")).await;
        let results = call(&scene, &[("shared", "")]).await;
        assert_eq!(results, Vec::from_iter(expected), "{count}");
    }
}
