//! The findings of `check` for damage that the tests in `check` leave out: keys of wrong types, values
//! that nothing reads, and damage at an object, a worker or a name that has other damage, too.

use seriatim::keys::Keys;

use super::check::{each, each_in};
use crate::scene::Scene;

#[tokio::test]
async fn damage_to_one_key_is_told_alone() {
    let cases = r"
        > LPUSH x:events {}; ZADD event.groups 0 other
        I1 object x: has 1 events queued, but no marker, no worker that has it, and is not held
        > DEL event.rules; SET event.rules x
        layout shared key: event.rules is a string, it should be a hash
        > DEL event.rules
        I2 object work:9: is in objects.paused, but no rule is over it: nothing will wake it
        > SET work:7:events.held.id '1 0 0 0 stop'
        I4 object work:7: :events.held.id names a held batch that begins with id 1, but there is none
        # Without a held batch, no id of the batch can be compared with other ids.
        > SET work:7:events.held.id '12 0 0 0 stop'; SET work:7:last.event.id 12
        I4 object work:7: :events.held.id names a held batch that begins with id 12, but there is none
        > SET work:7:events.held.id '19 0 0 0 stop'
        I4 object work:7: :events.held.id names a held batch that begins with id 19, but there is none
        > SET x:events 1
        layout object x: x:events is a string, it should be a list
        > SET x:event.worker odd
        I2 object x: its owner odd is no slot of a name in event.workers: no process adopts it; if it is dead, `seriatim repair --dead-owner` frees its object
        > LPUSH work:7:event.errors x
        layout object work:7: :event.errors tells how an event has failed, but the object has none in hand that has
        > LPUSH x:event.errors x
        layout object x: :event.errors tells how an event has failed, but the object has none in hand that has
        > ZADD event.marks 1 odd
        layout shared key: event.marks has a member odd that is no mark: remove that member
        > SET events.emitted x; ZADD events.emitted.ends 1 k
        layout shared key: events.emitted is a string, it should be a hash
        > HSET events.emitted k v; SET events.emitted.ends x
        layout shared key: events.emitted.ends is a string, it should be a zset
        > SET event.groups x; LPUSH event.group:g:waiting x
        > SET event.groups x; SET event.groups.waiting 2
        layout shared key: event.groups is a string, it should be a zset
        > SET event.limits x
        layout shared key: event.limits is a string, it should be a hash
        > SET event.marks x
        layout shared key: event.marks is a string, it should be a zset
        > SET event.shares x; SET event.shares.summary '1 1 7'
        layout shared key: event.shares is a string, it should be a hash
        > ZADD objects.in.hand 0 work:2: 0 work:4:; LPUSH event.shares.summary x; HSET event.shares odd x
        layout shared key: event.shares.summary is a list, it should be a string
        > LPUSH event.worker:gone:lease x
        layout name gone: event.worker:gone:lease is a list, it should be a string
        > HSET seriatim.meta names.indexed 1; SET event.workers.watched x
        layout shared key: event.workers.watched is a string, it should be a zset
        > HSET seriatim.meta names.indexed 1; SET event.workers.departed x
        layout shared key: event.workers.departed is a string, it should be a zset
        > SET events.cron x
        layout shared key: events.cron is a string, it should be a hash
        > SET events.cron.next x
        layout shared key: events.cron.next is a string, it should be a zset
        > SET seriatim.meta x
        layout shared key: seriatim.meta is a string, it should be a hash
        # Numbers are told with all digits.
        > SET x:last.event.id 9007199254740991
        I5 object x: :last.event.id is 9007199254740991, but next.event.id is 16: ids would be given twice
        > empty; SET x:last.event.id 5
        I5 object x: :last.event.id is 5, but next.event.id is 0: ids would be given twice
        > SET work:5:events.held.id '1 1 3 0 retry'; SET work:5:last.event.id 1
        I5 object work:5: its held batch begins with id 1, but id 1 of the object is delivered already
        # The id 0 names no batch, so it is not compared with other ids.
        > SET work:6:events.held.id '0 0 0 0 stop'; SET work:6:last.event.id 5
        I4 object work:6: has 1 events in a held batch, but :events.held.id names no id for them
        > LPUSH g:1:events {}; ZADD event.groups 0 g
        I1 object g:1: has 1 events queued, but no marker, no worker that has it, and is not held
        > SET x:event.worker a.0
        I2 object x: its owner is a.0, but event.worker:a.0:object lacks it
        > DEL event.worker:gone.0:event.id
        I4 worker gone.0: has a batch of 1 events, but no :event.id that names its id
        > SET work:4:last.event.id 14
        I5 worker gone.0: its batch begins with id 14, but id 14 of the object is delivered already
        > DEL event.rules work:9:event.worker objects.paused; HSET event.rules next 5
        layout shared key: event.rules says that rules are to be looked at next at 5, it should be no time
        > ZADD objects.in.hand 0 work:2: 0 work:4:; HSET event.shares a:* 'x - - - - 1700 3 ada'; SET event.shares.summary '1 1 1700'
        layout shared key: event.shares has a field a:* that is no share: delete that field, and set the share again
        > ZADD objects.in.hand 0 work:2: 0 work:4:; HSET event.shares a:* '5 - - - - 1700 3 ada'; SET event.shares.summary '1 1'
        layout shared key: event.shares.summary is 1 1, it should begin with 1 1: set any share
        > HSET x:events.scheduled k {}; ZADD events.scheduled -1000000000007000 'x\nk'
        I8 schedule x\nk: is queued, but x:events is empty: it will never be claimed; schedule or cancel it
        > SET event.group:g:waiting x
        layout group g: event.group:g:waiting is a string, it should be a list
    ";
    each(cases).await;
}

/// A shared key of a wrong type reads as an absent one, and gives one finding of its own.
#[tokio::test]
async fn damage_to_a_shared_key_is_told_with_its_effects() {
    let cases = r"
        > DEL objects.held; SET objects.held x
        I1 object work:5: has 1 events queued, but no marker, no worker that has it, and is not held
        I2 object work:5: is held, but is neither in objects.held nor in objects.paused: `seriatim repair` puts it back
        I2 object work:6: is held, but is neither in objects.held nor in objects.paused: `seriatim repair` puts it back
        I2 object work:7: is held, but is neither in objects.held nor in objects.paused: `seriatim repair` puts it back
        I2 object work:8: is held, but is neither in objects.held nor in objects.paused: `seriatim repair` puts it back
        layout shared key: objects.held is a string, it should be a zset
        > DEL objects.paused; SET objects.paused x
        I2 object work:9: is held, but is neither in objects.held nor in objects.paused: `seriatim repair` puts it back
        layout shared key: objects.paused is a string, it should be a zset
        > DEL event.workers; SET event.workers x
        I1 object work:2: has 1 events queued behind id 11, but no marker, no worker that has it, and is not held
        I1 object work:3: has 1 events queued, but no marker, no worker that has it, and is not held
        I2 object work:2: its owner a.0 is no slot of a name in event.workers: no process adopts it; if it is dead, `seriatim repair --dead-owner` frees its object
        I2 object work:4: its owner gone.0 is no slot of a name in event.workers: no process adopts it; if it is dead, `seriatim repair --dead-owner` frees its object
        layout shared key: event.workers is a string, it should be a hash
        > SET event.groups x; LPUSH x:events {}
        I1 object x: has 1 events queued, but no marker, no worker that has it, and is not held
        layout shared key: event.groups is a string, it should be a zset
        > empty; SET next.event.id 1e3
        layout shared key: next.event.id is not a whole number below 2^53
        > empty; SET next.event.id 9007199254740991
        > ZADD event.marks 1 met 5 5
        > HSET events.emitted k v; ZADD events.emitted.ends 1 k
        nothing
        > HSET events.emitted k v l w; ZADD events.emitted.ends 1 k
        layout shared key: events.emitted has 2 keys, but events.emitted.ends has 1
        # A list covers nothing unless its group is in event.groups.
        > LPUSH g:1:events {}; LPUSH event.group:g:waiting g:1; ZADD event.groups 0 other
        I1 object g:1: has 1 events queued, but no marker, no worker that has it, and is not held
        layout group g: has 1 names that are grouped, but is not in event.groups: no worker takes these names; add the group to event.groups with score 0
        # Marks in the list of a group are no names.
        > SET event.groups.waiting 1; LPUSH event.group:g:waiting a b; ZADD event.groups 0 g; HSET event.groups.times g '7 5 1'
        nothing
        > SET event.groups.waiting 2; LPUSH event.group:g:waiting a b; ZADD event.groups 0 g; SET event.groups.times x
        layout shared key: event.groups.times is a string, it should be a hash
    ";
    each(cases).await;
}

/// Without a namespace, a key of another program may end in `:events`. It is none of an object
/// unless the object has another key, or a set or a marker has its name.
#[tokio::test]
async fn a_key_of_another_program_is_told_apart() {
    let cases = r"
        > SET x:events 1
        nothing
        > SET x:events 1; SET x:last.event.id 1
        > SET x:events 1; ZADD objects.held 1 x; SET x:event.worker held
        > SET x:events 1; ZADD objects.paused 0 x; HSET event.rules 'pause x' '1 0 0 3 0 ada'; SET x:event.worker held
        > SET x:events 1; LPUSH objects.with.events x
        layout object x: x:events is a string, it should be a list
        # A list is one of an object.
        > LPUSH x:events {}
        I1 object x: has 1 events queued, but no marker, no worker that has it, and is not held
        # A schedule of another namespace.
        > ZADD events.scheduled 1 '{shop:0}work:1\nk'
        nothing
    ";
    each_in(&Scene::bare_under(Keys::default()).await, cases).await;
}
