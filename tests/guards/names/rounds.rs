//! Rounds of `adopt`: looks at departed names.

use super::{AGES, DAY, LOOK, NOTHING, ROUND, given, strays, sweep};

/// Each half of a round takes at most 128 names, and ends after 3,072 keys. A name costs 24 keys,
/// and one for each slot. A name that is forgotten costs two keys for each slot.
#[tokio::test]
async fn a_half_of_a_round_looks_at_3072_keys() {
    let scene = given("").await;
    for (slots, is_over, half) in [
        (0, false, 128),
        (0, true, 128),
        (72, false, 32),
        (36, true, 32),
        (71, false, 33),
        (59, false, 38),
    ] {
        let (at, count) = (if is_over { "NOW-86405s" } else { "NOW-2s" }, 2 * half + 10);
        let name = |n| {
            let workers = format!("HSET event.workers {n} '{slots} t {at}'");
            format!("{workers}; ZADD event.workers.departed {n} {n}; ")
        };
        let names: String = (1..=count).map(name).collect();
        scene
            .again(&(names + "HSET seriatim.meta names.indexed NOW"))
            .await;
        assert_eq!(sweep(&scene, LOOK, DAY).await, NOTHING);
        let departed = scene.keys.event_workers_departed();
        let words = ["ZRANGE", &departed, "0", "1000", "BYSCORE"];
        let due: Vec<u64> = scene.run(&words).await;
        let left: Vec<u64> = (half + 1..=count - half).collect();
        assert_eq!(due, left, "{slots} {is_over}");
        assert_eq!(
            format!("seriatim.meta = {}\n", scene.at("seriatim.meta").await),
            ROUND
        );
        let registered: u64 = scene.run(&["HLEN", &scene.keys.event_workers()]).await;
        let departed: u64 = scene.run(&["ZCARD", &departed]).await;
        let expected = if is_over { 10 } else { count };
        assert_eq!(
            (registered, departed),
            (expected, expected),
            "{slots} {is_over}"
        );
    }
}

/// After 256 objects and names a round ends, too.
#[tokio::test]
async fn a_round_ends_after_256_objects_and_names() {
    // The pass finds a name with an invalid registration, which has no last sign of life.
    let names = "
        HSET event.workers 0 x 1 '1 t NOW-2s' 2 '1 t NOW-2s' 3 '256 t NOW-2s' 4 '1 t NOW-2s'
        ZADD event.workers.departed 1 1 2 2 3 3 4 4
    ";
    let stray = |slot| format!("LPUSH event.worker:3.{slot}:object a:1; ");
    let scene = given(&(names.to_owned() + &(0..256).map(stray).collect::<String>())).await;
    assert_eq!(sweep(&scene, LOOK, AGES).await, strays(256, &["3"]));
    let gone: String = (0..256)
        .map(|n| format!("event.worker:3.{n}: object = nil\n"))
        .collect();
    let changes = format!(
        "
        event.workers = {{0: x, 1: 1 t NOW-2s, 2: 1 t NOW-2s, 3: 256 t NOW, 4: 1 t NOW-2s}}
        event.workers.departed = <0: 0, 1: 1, 2: 2, 4: NOW+8s>
        event.workers.watched = <3: NOW>
        objects.with.events = [{}]
        ",
        ["a:1"; 256].join(", ")
    );
    scene.changed(&(changes + ROUND + &gone)).await;
}

/// A round begins when it is due. If its time is no number, or is farther ahead than a round, it
/// begins at once.
#[tokio::test]
async fn a_round_begins_at_its_time() {
    let scene = given("").await;
    for (next, is_round) in [
        ("NOW", true),
        ("x", true),
        ("NOW+60m", true),
        ("NOW+1001ms", true),
        ("NOW+1s", false),
    ] {
        let names = "HSET event.workers 1 '1 t NOW'; ZADD event.workers.departed 1 1";
        let meta = format!("HSET seriatim.meta names.next {next} names.indexed NOW");
        scene.again(&format!("{names}; {meta}")).await;
        assert_eq!(sweep(&scene, LOOK, AGES).await, NOTHING, "{next}");
        let (departed, next) = match is_round {
            true => ("event.workers.departed = <1: NOW+1s>\n", "NOW+1s"),
            false => ("", next),
        };
        let meta = format!("clock: NOW, names.indexed: NOW, names.next: {next}");
        let changes = format!("{departed}seriatim.meta = {{{meta}}}");
        scene.changed(&changes).await;
    }
}

/// Story: the list of a group was lost, and with it the names of held objects that were due. While
/// other names were grouped, no call claimed these objects: they waited for ever, `check` found
/// nothing, and a repair did nothing. Now a round notices that names are lost, and makes them due.
#[tokio::test]
async fn a_round_makes_held_objects_due_whose_list_is_lost() {
    let lost_by = |names: u32| {
        let what = "held objects whose names were grouped are due again";
        let what = format!("mended: the list of a group has lost {names} names; {what}");
        vec![("event.groups.waiting".to_owned(), what)]
    };
    let groups = "
        ZADD event.groups 1 a 2 b; LPUSH event.group:b:waiting '\0t1700' b:1 b:2
        HSET event.groups.times b '1700 1700 1' a '1700 1700 1'
        ZADD objects.held -5 a:1 -7 b:1 0 e:1 9 c:1 inf d:1; SET event.groups.waiting
    ";
    let scene = given("").await;
    for (waiting, is_lost) in [(1, false), (2, false), (3, true)] {
        scene.again(&format!("{} {waiting}", groups.trim())).await;
        let lost = sweep(&scene, LOOK, AGES).await.lost;
        let mended = "
            event.groups.waiting = 2
            objects.held = <e:1: 0, a:1: 5, b:1: 7, c:1: 9, d:1: inf>
        ";
        let (expected, changes) = if is_lost {
            (lost_by(1), mended)
        } else {
            (vec![], "")
        };
        assert_eq!(lost, expected, "{waiting}");
        scene.changed(&format!("{changes}{ROUND}")).await;
    }
    // No list has a name. The next call that claims deletes the keys of groups.
    scene
        .again("ZADD event.groups 1 a; ZADD objects.held -5 a:1; SET event.groups.waiting 3")
        .await;
    assert_eq!(sweep(&scene, LOOK, AGES).await.lost, lost_by(2));
    let changes = "event.groups.waiting = 1\nobjects.held = <a:1: 5>\n";
    scene.changed(&format!("{changes}{ROUND}")).await;
}

/// A round makes 1,000 objects due. Objects whose names are grouped meanwhile are younger, so the
/// rounds come to an end.
#[tokio::test]
async fn many_held_objects_are_made_due_in_rounds() {
    let held =
        |range: std::ops::Range<u32>| range.map(|n| format!(" -{n} a:{n}")).collect::<String>();
    for (count, rounds) in [(999, 1), (1000, 2), (2500, 3)] {
        let scene = given("").await;
        let held = held(1..count + 1);
        scene
            .add(&format!(
                "ZADD event.groups 1 b; LPUSH event.group:b:waiting b:1; SET event.groups.waiting 9;
                 ZADD objects.held{held} -99999999999999 new"
            ))
            .await;
        for round in 1..=rounds {
            scene.add("HDEL seriatim.meta names.next").await;
            let lost = sweep(&scene, LOOK, AGES).await.lost;
            assert_eq!(lost.len(), usize::from(round == 1));
            let meta = scene.at("seriatim.meta").await;
            assert_eq!(meta.contains("groups.lost"), round < rounds, "{meta}");
            let due = scene.keys.objects_held();
            let due: u32 = scene.run(&["ZCOUNT", &due, "0", "inf"]).await;
            assert_eq!(due, count.min(1000 * round));
        }
    }
}

/// A round counts the names that are grouped, if their number is lost: without it, no worker
/// takes them. A list of a wrong type has no names. The round tells if the summary of the shares is
/// lost, and does neither if the other key is there or its partner is absent.
#[tokio::test]
async fn a_round_puts_lost_numbers_of_groups_right() {
    const MENDED: (&str, &str) = (
        "event.groups.waiting",
        "mended: the number of names that are grouped was absent",
    );
    const LOST: (&str, &str) = (
        "event.shares.summary",
        "lost: it is absent, so no share is kept; set any share again",
    );
    let groups = "
        ZADD event.groups 1 a 2 b 3 none 4 wrong; SET event.group:wrong:waiting x
        LPUSH event.group:a:waiting a:1 a:2; LPUSH event.group:b:waiting b:1
    ";
    let waiting = "SET event.groups.waiting 3; ";
    let shares = "HSET event.shares a:* '5 - - - - 1700 3 ada'; ";
    let summary = "SET event.shares.summary '1 1 1700'; ";
    let scene = given("").await;
    for (keys, findings) in [
        (&[groups, shares][..], &[MENDED, LOST][..]),
        (&[groups, waiting, shares, summary], &[]),
        (&[], &[]),
        (&[groups, shares, summary], &[MENDED]),
        (&[groups, waiting, shares], &[LOST]),
    ] {
        scene.again(&keys.concat()).await;
        let lost = sweep(&scene, LOOK, AGES).await.lost;
        let findings: Vec<_> = findings
            .iter()
            .map(|(key, what)| ((*key).to_owned(), (*what).to_owned()))
            .collect();
        assert_eq!(lost, findings);
        let is_mended = findings.iter().any(|(key, _)| key == MENDED.0);
        let mended = if is_mended {
            "event.groups.waiting = 3\n"
        } else {
            ""
        };
        scene.changed(&(ROUND.to_owned() + mended)).await;
    }
}

/// The number of grouped names is lost. A round counts the names of up to 2,049 groups, which is as many as
/// workers make.
#[tokio::test]
async fn a_round_counts_the_names_of_2049_groups() {
    for (groups, counted) in [(2049, Some("2049")), (2050, None)] {
        let scene = given("").await;
        let names = |n| format!("names g{n} 0 g{n}:1; ");
        scene.add(&(0..groups).map(names).collect::<String>()).await;
        scene.add("DEL event.groups.waiting").await;
        sweep(&scene, LOOK, AGES).await;
        let found = scene.text(&scene.keys.event_groups_waiting()).await;
        assert_eq!(found.as_deref(), counted, "{groups} groups");
    }
}
