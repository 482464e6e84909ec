//! How often each kind of step is chosen.

use proptest::prelude::*;
use proptest_state_machine::ReferenceStateMachine;

use super::advance::choice;
use super::reference::{Broken, NAMES};
use super::rules::{KINDS, SELECTORS};
use super::schedules::{Mode, SCHEDULE_KEYS};
use super::shares::{CLASSES, LIMITS, PREFIXES, WEIGHTS};
use super::world::{
    AttachStep, Bounds, EmitPlan, OBJECTS, Part, REQUESTS, ROOMS, Step, Token, World,
};

/// The state machine for proptest. Any step can be made in any state.
pub struct Machine;

impl ReferenceStateMachine for Machine {
    type State = World;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<World> {
        Just(World::begin()).boxed()
    }

    fn transitions(_: &World) -> BoxedStrategy<Step> {
        step().boxed()
    }

    fn apply(mut world: World, step: &Step) -> World {
        world.apply(step);
        world
    }
}

/// Chooses a worker name, mostly the first one, so that one process makes progress.
fn name() -> impl Strategy<Value = usize> {
    prop_oneof![5 => Just(0), 2 => Just(1), 1 => 0..NAMES.len()]
}

fn object() -> impl Strategy<Value = usize> {
    prop_oneof![3 => 0..2usize, 2 => 0..OBJECTS.len()]
}

fn token() -> impl Strategy<Value = Token> {
    prop_oneof![20 => Just(Token::Mine), 2 => Just(Token::Last), 1 => Just(Token::Older), 1 => Just(Token::Others)]
}

fn events() -> impl Strategy<Value = Vec<u16>> {
    prop::collection::vec(
        prop_oneof![6 => Just(1u16), 2 => 10..60u16, 1 => Just(300u16)],
        1..6,
    )
}

fn emits() -> impl Strategy<Value = EmitPlan> {
    prop_oneof![2 => Just(Vec::new()), 3 => prop::collection::vec((object(), prop_oneof![Just(1u16), 10..60u16]), 1..5)]
}

fn room() -> impl Strategy<Value = usize> {
    prop_oneof![1 => Just(0), 2 => 0..ROOMS.len()]
}

fn bounds() -> impl Strategy<Value = Bounds> {
    let batch = prop_oneof![2 => Just(1000usize), 2 => 1..5usize];
    let batch_bytes = prop_oneof![4 => Just(1usize << 20), 1 => Just(1), 1 => Just(40)];
    let reply_bytes = prop_oneof![6 => Just(1usize << 24), 1 => Just(1), 1 => Just(60)];
    let claims = prop_oneof![6 => Just(1024usize), 1 => Just(0), 2 => 1..3usize];
    let markers = prop_oneof![4 => Just(4096usize), 2 => 1..4usize];
    let highest = prop_oneof![8 => Just(0u8), 4 => Just(1), 1 => Just(2)];
    let (forget, log, has_groups) = (any::<bool>(), any::<bool>(), prop::bool::weighted(0.6));
    (
        batch,
        batch_bytes,
        reply_bytes,
        claims,
        markers,
        highest,
        (forget, log, has_groups),
        room(),
    )
        .prop_map(
            |(
                batch,
                batch_bytes,
                reply_bytes,
                claims,
                markers,
                highest,
                (forget, log, has_groups),
                room,
            )| Bounds {
                has_groups,
                batch,
                batch_bytes,
                reply_bytes,
                claims,
                markers,
                highest,
                forget,
                log,
                room,
            },
        )
}

fn advance() -> impl Strategy<Value = Step> {
    (name(), token(), bounds(), [choice(), choice(), choice()])
        .prop_map(|(name, token, bounds, choices)| Step::Advance(name, token, bounds, choices))
}

fn attach() -> impl Strategy<Value = Step> {
    let displace = prop_oneof![4 => Just(None), 2 => Just(Some(true)), 1 => Just(Some(false))];
    let crashes_max = prop_oneof![1 => Just(0u32), 2 => Just(2u32), 3 => Just(5)];
    (
        name(),
        1..4usize,
        prop::bool::weighted(0.2),
        displace,
        any::<bool>(),
        any::<bool>(),
        crashes_max,
        room(),
    )
        .prop_map(
            |(name, slots, again, displace, before, long, crashes_max, room)| {
                Step::Attach(AttachStep {
                    name,
                    slots,
                    again,
                    displace,
                    before,
                    long,
                    crashes_max,
                    room,
                })
            },
        )
}

/// Chooses an action of an operator.
fn operator() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (prop::bool::weighted(0.7), prop::collection::vec(any::<u8>(), 1..4)).prop_map(|(retry, at)| Step::Settle(retry, at)),
        5 => object().prop_map(Step::SetFree),
        2 => object().prop_map(Step::ForgetAs),
        4 => (object(), 0..SCHEDULE_KEYS.len()).prop_map(|(object, key)| Step::CancelAs(object, key)),
        6 => (object(), prop::option::of(any::<bool>())).prop_map(|(object, right)| Step::Skip(object, right)),
    ]
}

/// Chooses an action on rules.
fn rule() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..KINDS.len(), prop_oneof![1 => Just(0), 4 => 0..SELECTORS.len()], prop::bool::weighted(0.3))
            .prop_map(|(kind, selector, ends)| Step::SetRule(kind, selector, ends)),
        5 => any::<u8>().prop_map(Step::LiftRule),
    ]
}

/// Chooses an action on shares. A share without a weight and a priority still makes a group.
fn share() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..PREFIXES.len(), 0..WEIGHTS.len(), 0..CLASSES.len(), 0..LIMITS.len(), 0..LIMITS.len())
            .prop_map(|(prefix, weight, class, in_flight, burst)| Step::SetShare(prefix, weight, class, in_flight, burst)),
        1 => Just(Step::CountInHand),
        1 => Just(Step::Look),
        2 => any::<u8>().prop_map(Step::RemoveShare),
    ]
}

/// Chooses a call of a script.
fn script() -> impl Strategy<Value = Step> {
    prop_oneof![
        24 => advance(),
        4 => attach(),
        2 => (name(), token(), any::<bool>(), 1..4usize).prop_map(|(name, token, long, slots)| Step::Renew(name, token, long, slots)),
        3 => (0..NAMES.len(), prop_oneof![Just(0u32), Just(2), Just(5)]).prop_map(|(own, crashes_max)| Step::Adopt(own, crashes_max)),
        1 => (name(), token()).prop_map(|(name, token)| Step::Detach(name, token)),
        6 => (name(), token(), 0..3usize, prop::option::weighted(0.8, (prop_oneof![2 => Just(0), 1 => any::<u8>()], 0..3u8, emits())), prop::bool::weighted(0.1))
            .prop_map(|(name, token, slot, finished, wrong)| Step::Finish(name, token, slot, finished, wrong)),
        5 => (name(), token(), 0..3usize, 0..REQUESTS.len(), prop::bool::weighted(0.4), prop::bool::weighted(0.1))
            .prop_map(|(name, token, slot, request, is_over, wrong)| Step::Sent(name, token, slot, request, is_over, wrong)),
        2 => prop::collection::vec(object(), 1..4).prop_map(Step::Forget),
        1 => (0..3u8, 0..3u8, 0..3u8, any::<bool>())
            .prop_map(|(id, highest, first, log)| Step::Connect(id, highest, first, log)),
        4 => operator(),
        4 => (object(), 0..SCHEDULE_KEYS.len()).prop_map(|(object, key)| Step::CancelTaken(object, key)),
        4 => rule(),
        6 => share(),
        6 => (prop_oneof![2 => Just(256usize), 1 => 1..4usize], prop_oneof![3 => Just(1usize << 20), 1 => 1..60usize])
            .prop_map(|(events, bytes)| Step::Promote(events, bytes)),
    ]
}

fn schedule() -> impl Strategy<Value = Step> {
    let mode = prop_oneof![3 => Just(Mode::Replace), 1 => Just(Mode::KeepTime), 1 => Just(Mode::KeepFirst)];
    let len = prop_oneof![4 => Just(1u16), 1 => 10..60u16];
    (
        object(),
        0..SCHEDULE_KEYS.len(),
        prop::bool::weighted(0.8),
        1..5u8,
        len,
        mode,
    )
        .prop_map(|(object, key, is_due, time, len, mode)| {
            Step::Schedule(object, key, is_due, time, len, mode)
        })
}

fn step() -> impl Strategy<Value = Step> {
    let part = prop_oneof![1 => Just(Part::Queue), 1 => Just(Part::Last), 1 => Just(Part::LastText), 1 => Just(Part::Held), 1 => Just(Part::HeldId), 1 => Just(Part::Errors), 3 => Just(Part::Owner)];
    let broken = prop_oneof![
        1 => Just(Broken::Markers),
        1 => Just(Broken::Held),
        1 => Just(Broken::Workers),
        1 => Just(Broken::Counter),
        2 => Just(Broken::CounterText),
        4 => Just(Broken::Dead),
        2 => Just(Broken::Log),
        1 => Just(Broken::Actions),
        1 => Just(Broken::Rules),
        1 => Just(Broken::Paused),
        1 => Just(Broken::Meta),
        2 => Just(Broken::Scheduled),
        1 => Just(Broken::Marks),
        2 => Just(Broken::Shares),
    ];
    prop_oneof![
        60 => script(),
        20 => prop::collection::vec((object(), events()), 1..3).prop_map(Step::Emit),
        2 => object().prop_map(|object| Step::Marker(Some(object))),
        2 => Just(Step::Marker(None)),
        4 => prop::bool::weighted(0.8).prop_map(Step::Mark),
        10 => schedule(),
        2 => (object(), 0..SCHEDULE_KEYS.len()).prop_map(|(object, key)| Step::Cancel(object, key)),
        8 => (name(), 0..3usize).prop_map(|(name, slot)| Step::Pop(name, slot)),
        4 => name().prop_map(Step::Expire),
        1 => (0..NAMES.len()).prop_map(Step::Day),
        1 => any::<bool>().prop_map(Step::Lose),
        2 => object().prop_map(Step::Release),
        2 => Just(Step::ReleaseAll),
        2 => object().prop_map(Step::Fade),
        1 => any::<u8>().prop_map(Step::EndRule),
        2 => (object(), part).prop_map(|(object, part)| Step::Wrong(object, part)),
        2 => object().prop_map(Step::Heal),
        4 => any::<u8>().prop_map(Step::Late),
        5 => (broken, script()).prop_map(|(broken, step)| Step::Broken(broken, Box::new(step))),
    ]
}
