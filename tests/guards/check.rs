//! The exact findings of `check` for a state that is broken in one place, and states without
//! findings.

mod vanished;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Cmd, Pipeline, RedisFuture, Value};
use seriatim::control::Control;

use crate::scene::Scene;
use crate::support::{Redis, control, jobs};

/// Returns the findings, sorted, without the namespace.
pub(super) async fn findings_of(scene: &Scene) -> Vec<String> {
    let found = scene.report_of_check().await.violations;
    let found = found.iter().map(|found| {
        let what = found.what.replace(scene.keys.prefix(), "");
        format!("{} {}: {what}", found.invariant, found.subject)
    });
    let mut found: Vec<_> = found.collect();
    found.sort();
    found
}

/// Returns a scene without keys.
pub(super) async fn scene() -> Scene {
    Scene::bare(Redis::start()).await
}

/// Makes a clean state, then runs these commands.
pub(super) async fn broken_by(scene: &Scene, commands: &str) {
    scene.again(&format!("clean\n{commands}")).await;
}

/// Runs the cases of a text. A line with `>` has the commands that break a clean state; such lines one
/// below the other are as many cases. Below are the findings of each of them, or `nothing`. A line
/// with `#` is a comment.
pub(super) async fn each(cases: &str) {
    each_in(&scene().await, cases).await;
}

/// Runs such cases in this scene.
pub(super) async fn each_in(scene: &Scene, cases: &str) {
    let lines = cases.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let (mut given, mut findings) = (Vec::new(), Vec::new());
    for line in lines.chain([">"]) {
        let Some(commands) = line.strip_prefix('>') else {
            findings.push(line);
            continue;
        };
        if !findings.is_empty() {
            findings.retain(|finding| *finding != "nothing");
            findings.sort_unstable();
            for commands in given.drain(..) {
                broken_by(scene, &str::replace(commands, "\\n", "\n")).await;
                assert_eq!(findings_of(scene).await, findings, "{commands}");
            }
            findings.clear();
        }
        given.push(commands);
    }
    assert_eq!(given, [""], "each case has findings");
}

#[tokio::test]
async fn what_is_wrong_with_an_object_is_told() {
    let cases = r"
        > LPUSH x:events {} {}
        I1 object x: has 2 events queued, but no marker, no worker that has it, and is not held
        > LPUSH x:events {}; SET x:last.event.id 5
        I1 object x: has 1 events queued behind id 5, but no marker, no worker that has it, and is not held
        > SET x:event.worker a.1; LPUSH event.worker:a.1:object x
        I10 object x: its owner is a.1, which has no event of it, and none is queued
        > SET x:event.worker a.1
        I2 object x: its owner is a.1, but event.worker:a.1:object lacks it
        > SET x:event.worker b.0
        I2 object x: its owner b.0 is no slot of a name in event.workers: no process adopts it; if it is dead, `seriatim repair --dead-owner` frees its object
        > SET x:event.worker a.3
        I2 object x: its owner a.3 is no slot of a name in event.workers: no process adopts it; if it is dead, `seriatim repair --dead-owner` frees its object
        > SET x:event.worker b.0; SET event.worker:b:lease '1 token'
        I2 object x: its owner b.0 is no slot of a name in event.workers, but a process with this name lives: its next renewal registers it again
        > SET x:event.worker held
        I2 object x: is held, but is neither in objects.held nor in objects.paused: `seriatim repair` puts it back
        > SET x:event.worker held; ZADD objects.held 1 x; ZADD objects.paused 0 x
        I2 object x: is held, but is in both objects.held and objects.paused
        > ZADD objects.held 1 x
        I2 object x: is in objects.held, but its owner is nobody
        > ZADD objects.paused 0 work:2
        I2 object work:2: is in objects.paused, but its owner is a.0
        > SET x:event.worker held; ZADD objects.paused 0 x
        I2 object x: is in objects.paused, but no rule is over it: nothing will wake it
        > SET x:last.event.id 1e3
        layout object x: x:last.event.id is not an id
        > SET x:last.event.id 17
        I5 object x: :last.event.id is 17, but next.event.id is 16: ids would be given twice
        > HSET bare:event.handled a b
        layout object bare: :event.handled tells what handlers have finished, but no event of the object is in hand
        > LPUSH work:2:event.errors x
        layout object work:2: :event.errors tells how an event has failed, but the object has none in hand that has
        > DEL work:1:events; SET work:1:events 1
        layout object work:1: work:1:events is a string, it should be a list
    ";
    each(cases).await;
}

#[tokio::test]
async fn what_is_wrong_with_a_held_batch_is_told() {
    let cases = r"
        > LPUSH work:2:events.held {}; SET work:2:events.held.id '16 0 0 0 stop'
        I4 object work:2: has 1 events in a held batch, but its owner is a.0
        > LPUSH x:events.held {}; SET x:events.held.id '16 0 0 0 stop'
        I4 object x: has 1 events in a held batch, but its owner is nobody
        > SET work:7:events.held.id '12 0 0 0 stop'
        I4 object work:7: :events.held.id names a held batch that begins with id 12, but there is none
        > DEL work:6:events.held.id
        > SET work:6:events.held.id '0 0 0 0 stop'
        I4 object work:6: has 1 events in a held batch, but :events.held.id names no id for them
        > SET work:6:events.held.id '16 stop'
        layout object work:6: work:6:events.held.id is not four numbers and a reason
        > SET work:5:last.event.id 15
        I5 object work:5: its held batch begins with id 15, but id 15 of the object is delivered already
        > LPUSH work:6:events.held {}
        I5 object work:6: its held batch has ids up to 17, but next.event.id is 16: ids would be given twice
    ";
    each(cases).await;
}

#[tokio::test]
async fn what_is_wrong_with_a_worker_is_told() {
    let cases = r"
        > LPUSH event.worker:a.1:event {} {}; SET event.worker:a.1:event.id 3
        I3 worker a.1: has a batch of 2 events, but owns no object in event.worker:a.1:object
        > SET x:event.worker a.0; LPUSH event.worker:a.0:object x
        I3 worker a.0: owns 2 objects at once, x and work:2 among them
        > SET event.worker:a.1:event.id '12 1'
        I4 worker a.1: :event.id names a batch that begins with id 12, but there is none
        # Without a batch there are no ids that the counter could be behind.
        > SET event.worker:a.1:event.id '19 1'
        I4 worker a.1: :event.id names a batch that begins with id 19, but there is none
        # Without a batch, the tag does not say which object the slot has in hand.
        > SET x:event.worker a.1; LPUSH event.worker:a.1:object x; SET event.worker:a.1:event.id '12 1\ny'
        I4 worker a.1: :event.id names a batch that begins with id 12, but there is none
        > DEL event.worker:a.0:event.id
        I4 worker a.0: has a batch of 2 events, but no :event.id that names its id
        > SET work:2:last.event.id 12
        I5 worker a.0: its batch begins with id 12, but id 12 of the object is delivered already
        > LPUSH event.worker:a.0:event {} {} {}; SET event.worker:a.0:event.id 13
        I5 worker a.0: its batch has ids up to 17, but next.event.id is 16: ids would be given twice
        > RPUSH event.worker:a.1:lost 12 {} {}
        I3 worker a.1: event.worker:a.1:lost has 2 events of an object that is not known, because a key was lost; perhaps that whose owner is a.1
        > SET event.worker:a.0:event.id twelve
        > SET event.worker:a.0:event.id '12 1 1 1 1'
        > SET event.worker:a.0:event.id '0 1'
        layout worker a.0: event.worker:a.0:event.id is not an id and up to three counts
    ";
    each(cases).await;
}

#[tokio::test]
async fn a_schedule_has_an_event_and_a_due_time() {
    let cases = r"
        > HSET x:events.scheduled whole {}; ZADD events.scheduled 1 'x\nwhole'
        nothing
        > HSET x:events.scheduled timeless {}
        I8 schedule x\ntimeless: has an event, but no due time in events.scheduled: it will never be queued; schedule or cancel it
        > HSET x:events.scheduled never {}; ZADD events.scheduled inf 'x\nnever'
        I8 schedule x\nnever: is due at inf, a time that never comes; schedule or cancel it
        > ZADD events.scheduled 1 'x\nempty' 2 odd
        I8 schedule odd: events.scheduled has an entry that is not an object and a key
        I8 schedule x\nempty: is due, but x:events.scheduled has no event for it: workers will remove it
        # Scores at the edges of the times at which an event can be due or have been queued.
        > HSET x:events.scheduled never {}; ZADD events.scheduled -9007199254740992 'x\nnever'; emit x {}
        I8 schedule x\nnever: is due at -9007199254740992, a time that never comes; schedule or cancel it
        > HSET x:events.scheduled never {}; ZADD events.scheduled -9007199254740991 'x\nnever'; emit x {}
        > HSET x:events.scheduled never {}; ZADD events.scheduled 9007199254740991 'x\nnever'; emit x {}
        nothing
        > HSET x:events.scheduled never {}; ZADD events.scheduled 9007199254740992 'x\nnever'; emit x {}
        I8 schedule x\nnever: is due at 9007199254740992, a time that never comes; schedule or cancel it
    ";
    each(cases).await;
}

#[tokio::test]
async fn a_cron_job_that_is_not_paused_has_a_next_tick() {
    let [good, paused] = ["1 0", "1 1"].map(|head| jobs::value(head, "x:1", "1"));
    let [good, paused] = [good, paused].map(|job| job.replace('\n', "\\n"));
    let cases = format!(
        "
        > HSET events.cron good '{good}' paused '{paused}'; ZADD events.cron.next inf good
        nothing
        > HSET events.cron good '{good}' paused '{paused}' odd odd; ZADD events.cron.next 7 paused 8 gone
        I9 cron job gone: has a next tick, but events.cron has no such job: workers will remove it
        I9 cron job good: has no next tick in events.cron.next: it will never fire; pause it and resume it
        I9 cron job paused: is paused, but has a next tick: workers will remove that
        layout cron job odd: events.cron has a value that is no cron job: set or remove it
        "
    );
    each(&cases).await;
}

#[tokio::test]
async fn what_is_wrong_with_a_name_or_a_rule_is_told() {
    let cases = r"
        > SET event.worker:a:lease 'another h 1 1'
        I6 name a: its lease is held by token another, but the last to attach was token-of-a
        > HSET event.workers b 'many token 0'
        > HSET event.workers b '0 token 0'
        > HSET event.workers b '65537 token 0'
        > HSET event.workers b '1 token'
        layout name b: its value in event.workers is not slots, token and time
        > HSET seriatim.meta names.indexed 1; ZADD event.workers.watched 1 a
        layout name gone: it is in neither event.workers.watched nor event.workers.departed: nobody looks at it
        > HSET seriatim.meta names.indexed 1; ZADD event.workers.watched 1 a 1 gone; ZADD event.workers.departed 1 gone
        layout name gone: it is in event.workers.watched and in event.workers.departed
        > HSET event.rules 'pause *' '1 0 0 3 ada'
        layout shared key: event.rules has a field pause * that is no rule
        > HSET event.rules 'other *' '1 0 0 3 0 ada'
        layout shared key: event.rules has a field other * that is no rule
        > ZADD objects.in.hand 0 work:2: 0 work:4:; HSET event.shares a:* '0 - - - - 1700 3 ada'; SET event.shares.summary '1 1 1700'
        > ZADD objects.in.hand 0 work:2: 0 work:4:; HSET event.shares a:* '101 - - - - 1700 3 ada'; SET event.shares.summary '1 1 1700'
        > ZADD objects.in.hand 0 work:2: 0 work:4:; HSET event.shares a:* '5 urgent - - - 1700 3 ada'; SET event.shares.summary '1 1 1700'
        > ZADD objects.in.hand 0 work:2: 0 work:4:; HSET event.shares a:* '5 high - - - 1700 4 ada'; SET event.shares.summary '1 1 1700'
        > ZADD objects.in.hand 0 work:2: 0 work:4:; HSET event.shares a:* '5 high - - 1700 3 ada'
        layout shared key: event.shares has a field a:* that is no share: delete that field, and set the share again
        > ZADD objects.in.hand 0 work:2: 0 work:4:; HSET event.shares a:b:c:d:e:f:g:h:i:* '5 - - - - 1700 3 ada'
        layout shared key: event.shares has a field a:b:c:d:e:f:g:h:i:* that is no share: delete that field, and set the share again
        > ZADD objects.in.hand 0 work:2: 0 work:4:; HSET event.shares :* '5 - - - - 1700 3 ada'
        layout shared key: event.shares has a field :* that is no share: delete that field, and set the share again
        > ZADD objects.in.hand 0 work:2: 0 work:4:; HSET event.shares a:b:* '5 - - - - 1700 3 ada'; SET event.shares.summary '1 1 1700'
        layout shared key: event.shares.summary is 1 1 1700, it should begin with 1 2: set any share
        > ZADD objects.in.hand 0 work:2: 0 work:4:; HSET event.shares * '- - 5 - - 1700 3 ada'; SET event.shares.summary '1 0 1700'
        layout shared key: event.shares.summary is 1 0 1700, it should begin with 2 0: set any share
        > ZADD objects.in.hand 0 work:5:
        layout object work:5: is in objects.in.hand, but no slot owns it, so limits count it for ever: `seriatim repair` removes it
        > ZADD objects.in.hand 0 work:4:; HSET event.shares a:* '5 - - - - 1700 3 ada'; SET event.shares.summary '1 1 1700'
        layout object work:2: is in hand, but is not in objects.in.hand, by which limits count: set any share again
        > ZADD objects.in.hand 0 work:2: 0 work:4:; HSET event.shares a:* '5 - - - - 1700 3 ada'
        layout shared key: event.shares.summary is absent, it should begin with 1 1: set any share
        > SET event.shares.summary '1 1 7'
        layout shared key: event.shares.summary is 1 1 7, it should begin with 0 0: set any share
        > HSET event.rules 'pause *' '1 5 0 3 0 ada'
        layout shared key: event.rules says that rules are to be looked at next at never, it should be 5
        > HDEL event.rules next
        layout shared key: event.rules says that rules are to be looked at next at no time, it should be never
        > SET event.shares x; SET event.shares.summary '1 1 1700'
        layout shared key: event.shares is a string, it should be a hash
        > HSET seriatim.meta names.cursor x
        layout shared key: seriatim.meta has a field names.cursor that is not as workers write it: delete that field
        > HSET seriatim.meta schema one
        layout shared key: seriatim.meta has a field schema that is not as workers write it: delete that field
        > HSET seriatim.meta clock.step '5 rules x'
        layout shared key: seriatim.meta has a field clock.step that is not as workers write it: delete that field
        > HSET seriatim.meta cursors.secret 00ff
        layout shared key: seriatim.meta has a field cursors.secret that is not as workers write it: delete that field
        > HSET seriatim.meta cursors.secret 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
        nothing
        > HSET seriatim.meta groups.lost 5
        layout shared key: seriatim.meta has a field groups.lost that is not as workers write it: delete that field
        > HSET seriatim.meta clock nan
        layout shared key: seriatim.meta has a field clock that is not as workers write it: delete that field
        > ZADD event.marks 1 wrong
        layout shared key: event.marks has a member wrong that is no mark: remove that member
    ";
    each(cases).await;
}

/// Each wrong member alone makes a limit invalid, also for Rust.
#[tokio::test]
async fn a_limit_with_a_wrong_member_is_told() {
    const NO_LIMIT: &str =
        "layout shared key: event.limits has a field * that is no limit: set or remove that limit";
    const LIMIT: &str =
        r#"{"queued_max":0,"markers_max":0,"set_ms":1700,"actor":"ada","reason":""}"#;
    let scene = scene().await;
    let control = control(&scene.conn().await, &scene.keys);
    for (right, wrong) in [
        ("", ""),
        (LIMIT, "5"),
        (LIMIT, "[]"),
        (LIMIT, "odd"),
        (r#""queued_max":0"#, r#""queued_max":"0""#),
        (r#""queued_max":0"#, r#""queued_max":-1"#),
        (r#""markers_max":0"#, r#""markers_max":0.5"#),
        (r#""set_ms":1700,"#, ""),
        (r#""ada""#, "7"),
        (r#""reason":"""#, r#""reason":null"#),
    ] {
        let value = LIMIT.replace(right, wrong);
        broken_by(&scene, &format!("HSET event.limits * '{value}'")).await;
        let expected: &[&str] = if right.is_empty() { &[] } else { &[NO_LIMIT] };
        assert_eq!(findings_of(&scene).await, expected, "{value}");
        let limits = control.limits().await.expect("read");
        assert_eq!(limits.is_empty(), !right.is_empty(), "{value}");
    }
}

/// The check of the shared keys alone also compares the numbers of names, and looks at the objects
/// that count as in hand.
#[tokio::test]
async fn what_is_wrong_with_the_lengths_of_shared_keys_is_told() {
    let names = "HSET seriatim.meta names.indexed 1; ZADD event.workers.watched 1 a";
    let all_names = format!("{names}; ZADD event.workers.departed 1 gone");
    let no_slot = "but no slot owns this object: `seriatim repair` removes it";
    let of_none = |object| format!("objects.in.hand has a member {object}:, {no_slot}");
    let scene = scene().await;
    let control = control(&scene.conn().await, &scene.keys);
    for (commands, expected) in [
        ("ZADD objects.in.hand 0 work:2:", ""),
        ("ZADD objects.in.hand 0 work:5:", &of_none("work:5")),
        ("ZADD objects.in.hand 0 x:", &of_none("x")),
        (&all_names, ""),
        (
            "DEL event.rules",
            "objects.paused has 1 objects, but there is no rule",
        ),
        (names, "event.workers has 2 names, but sweeps look at 1"),
    ] {
        broken_by(&scene, commands).await;
        let found = control.check_shared().await.expect("a reply");
        let found: Vec<_> = found.into_iter().map(|one| one.what).collect();
        assert_eq!(found.join(", "), expected, "{commands}");
    }
}

/// Neither an invalid owner, nor a worker whose list lacks the object, covers queued events.
#[tokio::test]
async fn what_nobody_has_is_told_with_what_is_queued() {
    let cases = "
        > LPUSH x:events {}; SET x:event.worker held
        I1 object x: has 1 events queued, but no marker, no worker that has it, and is not held
        I2 object x: is held, but is neither in objects.held nor in objects.paused: `seriatim repair` puts it back
        > LPUSH x:events {}; SET x:event.worker b.0
        I1 object x: has 1 events queued, but no marker, no worker that has it, and is not held
        I2 object x: its owner b.0 is no slot of a name in event.workers: no process adopts it; if it is dead, `seriatim repair --dead-owner` frees its object
        > LPUSH x:events {}; SET x:event.worker a.1
        I1 object x: has 1 events queued, but no marker, no worker that has it, and is not held
        I2 object x: its owner is a.1, but event.worker:a.1:object lacks it
    ";
    each(cases).await;
}

/// Values at the very edge of validity give no finding.
#[tokio::test]
async fn what_is_just_right_is_not_told() {
    let cases = r#"
        > SET x:last.event.id 16
        > SET x:last.event.id 9007199254740991; SET next.event.id 9007199254740991
        > LPUSH event.worker:a.0:event {} {} {}
        > SET event.worker:a.0:event.id '12 0 0 0'
        > LPUSH event.worker:a.0:object work:2
        > SET work:5:last.event.id 14
        > HSET work:2:event.handled a b
        > LPUSH work:2:event.errors x; SET event.worker:a.0:event.id '12 0 1'
        > LPUSH work:5:event.errors x
        > HSET event.workers b '65536 token 0'
        > HSET event.limits * {"queued_max":1,"markers_max":null,"set_ms":1700,"actor":"ada","reason":""} a:* {"queued_max":2,"set_ms":1700,"actor":"ada","reason":"x"}
        > ZADD objects.in.hand 0 work:2: 0 work:4:; HSET event.shares a:b:* '1 low - - - 1700 3 ada' a:* '100 - 3 2.5 1 1700 0 ' * '- - 7 - - 1700 0 '; SET event.shares.summary '2 2 1700'
        > HSET seriatim.meta names.indexed 1 names.cursor 7
        > HSET seriatim.meta schema 1 partitions 1 event.log on event.log.keep 5 names.next 1 clock 1 clock.step '5 rules 0' clock.ahead 1 clock.gained 1 groups.lost '(0 -5' other x
        # Without the times, a mark may be in the list.
        > ZADD event.marks 5 5; ZADD event.groups 3 g; LPUSH event.group:g:waiting x y; SET event.groups.waiting 1
        > ZADD event.marks 5 5; ZADD event.groups 3 g; LPUSH event.group:g:waiting x y; SET event.groups.waiting 2
        > HSET event.groups.times g '1 1 1'; ZADD event.groups 3 g; LPUSH event.group:g:waiting x y; SET event.groups.waiting 1
        > SET x:event.worker held; ZADD objects.paused 0 x; HSET event.rules 'block x' '1 0 0 3 0 ada'
        nothing
    "#;
    each(cases).await;
}

/// The check reads the first 1,000 names in the list of a slot. It also searches the last 1,000
/// names for an object that the slot owns.
#[tokio::test]
async fn an_object_behind_many_names_in_a_list_is_found() {
    const WITHOUT: &str =
        "I3 worker a.1: has a batch of 1 events, but owns no object in event.worker:a.1:object";
    let scene = scene().await;
    for (before, batch, expected) in [
        (999, "batch a.1 16 {}", &[][..]),
        (1000, "batch a.1 16 {}", &[WITHOUT]),
        (1500, "", &[]),
    ] {
        let names: String = (0..before).map(|n| format!(" stray:{n}")).collect();
        let object = "SET x:event.worker a.1; LPUSH x:events {}";
        let list = format!("RPUSH event.worker:a.1:object{names} x");
        broken_by(&scene, &format!("{object}; {list}; {batch}")).await;
        assert_eq!(findings_of(&scene).await, expected, "behind {before} names");
    }
}

#[tokio::test]
async fn what_is_wrong_with_the_lists_of_groups_is_told() {
    let cases = r"
        > LPUSH event.group:g:waiting x; ZADD event.groups 3 g
        layout shared key: event.groups.waiting is 0, but the lists of all groups have 1 names: set it to 1
        > SET event.groups.waiting 2; LPUSH event.group:g:waiting x; ZADD event.groups 3 g 3 empty
        layout shared key: event.groups.waiting is 2, but the lists of all groups have 1 names: set it to 1
        > SET event.groups.waiting 1; LPUSH event.group:g:waiting x; ZADD event.groups 1e300 g
        layout shared key: event.groups has 1 groups with a score that no group can have, so they have no turns: `seriatim repair` mends it
        > SET event.groups.waiting 2; LPUSH event.group:g:waiting x; LPUSH event.group:h:waiting y; ZADD event.groups 1e300 g -1099511627777 h
        layout shared key: event.groups has 2 groups with a score that no group can have, so they have no turns: `seriatim repair` mends it
        > SET event.groups.waiting 2; LPUSH event.group:g:waiting x; LPUSH event.group:h:waiting y; ZADD event.groups 2199023255552 g 3298534883327 h
        layout shared key: event.groups has 2 groups with a score that no group can have, so they have no turns: `seriatim repair` mends it
        > SET event.groups.waiting 2; LPUSH event.group:g:waiting x; LPUSH event.group:h:waiting y; ZADD event.groups 6597069766656 g 6597069766655 h
        layout shared key: event.groups has 1 groups with a score that no group can have, so they have no turns: `seriatim repair` mends it
        > SET event.groups.waiting 2; LPUSH event.group:g:waiting x; LPUSH event.group:h:waiting y; ZADD event.groups -1099511627776 g 2199023255551 h
        nothing
        > SET event.groups.waiting 2; LPUSH event.group:g:waiting x; LPUSH event.group:h:waiting y; ZADD event.groups 3298534883328 g 6597069766655 h
        nothing
        > SET event.groups.waiting many
        layout shared key: event.groups.waiting is many, but the lists of all groups have 0 names: set it to 0
        > LPUSH event.group:g:waiting x
        layout group g: has 1 names that are grouped, but is not in event.groups: no worker takes these names; add the group to event.groups with score 0
        > SET event.group:g:waiting x; ZADD event.groups 3 g
        layout group g: event.group:g:waiting is a string, it should be a list
        > HSET event.groups.times g '1 1 0'; ZADD event.marks 5 5; LPUSH event.group:g:waiting x; ZADD event.groups 3 g
        layout shared key: event.groups.waiting is 0, but the lists of all groups have 1 names: set it to 1
        > SET event.groups x; SET event.groups.waiting 2
        > SET event.groups x
        layout shared key: event.groups is a string, it should be a zset
        > LPUSH event.groups.waiting x
        layout shared key: event.groups.waiting is a list, it should be a string
        # While names are grouped, the name of a held object with a score below 0 is in a list.
        > ZADD objects.held -5 work:5; SET event.groups.waiting 1; LPUSH event.group:g:waiting x; ZADD event.groups 3 g
        I1 object work:5: is held and due, and its name was grouped, but no list of a group has it: it waits until no name is grouped
        > ZADD objects.held -5 work:5
        > ZADD objects.held -5 work:5; SET event.groups.waiting 1; LPUSH event.group:g:waiting work:5; ZADD event.groups 3 g
        > ZADD objects.held 0 work:5; SET event.groups.waiting 1; LPUSH event.group:g:waiting x; ZADD event.groups 3 g
        nothing
        # A list that is not in event.groups covers nothing.
        > LPUSH g:1:events {}; LPUSH event.group:g:waiting g:1
        I1 object g:1: has 1 events queued, but no marker, no worker that has it, and is not held
        layout group g: has 1 names that are grouped, but is not in event.groups: no worker takes these names; add the group to event.groups with score 0
    ";
    each(cases).await;
    let scene = scene().await;
    for (count, expected) in [
        (2049, ""),
        (
            2050,
            "layout shared key: event.groups has more than 2049 groups",
        ),
    ] {
        let groups: String = (0..count).map(|n| format!(" 0 g{n}")).collect();
        broken_by(&scene, &format!("ZADD event.groups{groups}")).await;
        assert_eq!(
            findings_of(&scene).await.concat(),
            expected,
            "{count} groups"
        );
    }
}

/// An object is covered by the list of each group to which it can belong, in the walk and in the
/// search. The search finds an object that the walk did not see, because a name moved meanwhile.
#[tokio::test]
async fn a_name_that_is_grouped_covers_its_object() {
    let scene = scene().await;
    for group in [
        "a",
        "a:b",
        "a:b:c:d:e:f:g:h",
        "a:b:c:d:e:f:g:h:i:j",
        "\0rest",
    ] {
        // A held object with a negative score is grouped, too.
        let commands = format!(
            "
            SET event.groups.waiting 4; LPUSH a:b:c:d:e:f:g:h:i:j:events {{}}
            ZADD event.groups 1 {group} 2 work; ZADD objects.held XX -5 work:5
            LPUSH event.group:work:waiting work:5
            LPUSH event.group:{group}:waiting x a:b:c:d:e:f:g:h:i:j y
            "
        );
        broken_by(&scene, &commands).await;
        // The walk sees the list; or the search sees it; or only the script does.
        for (blind, expected) in [
            (0, (2, 4, false)),
            (1, (0, 0, true)),
            (usize::MAX, (0, 0, true)),
        ] {
            let conn = scene.conn().await;
            let control = Control::new(Blind { conn, blind }).with_keys(scene.keys.clone());
            let report = control.check().await.expect("a report");
            assert!(report.is_clean(), "{group}: {report:#?}");
            let seen = report.looked_at;
            let found = (seen.groups, seen.grouped, seen.suspicions > 0);
            assert_eq!(found, expected, "{group}");
        }
    }
}

/// A connection that returns no groups, the first `blind` times.
#[derive(Clone)]
struct Blind {
    conn: MultiplexedConnection,
    blind: usize,
}

impl ConnectionLike for Blind {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        let words = cmd.args_iter().filter_map(|arg| {
            if let redis::Arg::Simple(word) = arg {
                Some(word)
            } else {
                None
            }
        });
        let words: Vec<&[u8]> = words.take(2).collect();
        if self.blind > 0 && words[0] == b"ZRANGE" && words[1].ends_with(b"event.groups") {
            self.blind -= 1;
            return Box::pin(async { Ok(Value::Array(Vec::new())) });
        }
        self.conn.req_packed_command(cmd)
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipe: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.conn.req_packed_commands(pipe, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.conn.get_db()
    }
}
