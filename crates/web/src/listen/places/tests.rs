use super::*;
use crate::listen::users::Right;

fn peer(n: u32) -> Peer {
    Peer::Ip(std::net::Ipv4Addr::from(n).into())
}

fn user(name: &str) -> User {
    User::with_rights(name, vec![Right::View, Right::Operate])
}

#[test]
fn strangers_give_way_and_users_do_not() {
    let places = Places::new(16, true);
    let known: Vec<_> = (0..10).map(|_| places.arrive(peer(1))).collect();
    for place in &known {
        place.door.admit(&user("ada")).expect("room");
    }
    let first = places.arrive(peer(2));
    let others: Vec<_> = (0..5).map(|_| places.arrive(peer(2))).collect();
    assert!(
        !first.evicted.is_cancelled() && places.gone() == 0,
        "all places are taken"
    );
    drop(others[0].door.begin());
    let more: Vec<_> = (0..5).map(|_| places.arrive(peer(2))).collect();
    assert!(first.evicted.is_cancelled() && others[1].evicted.is_cancelled());
    assert!(
        !others[0].evicted.is_cancelled(),
        "its request came after the others had begun"
    );
    assert!(known.iter().all(|place| !place.evicted.is_cancelled()) && places.gone() == 5);
    drop((known, first, others, more));
    assert!(places.lock().connections.is_empty() && places.lock().strangers.sizes.is_empty());
    assert!(places.lock().users.members.is_empty() && places.lock().idle.is_empty());
}

#[test]
fn an_address_with_many_strangers_loses_its_own_first() {
    let places = Places::new(64, true);
    let alone = places.arrive(peer(1));
    let many: Vec<_> = (0..200).map(|_| places.arrive(peer(2))).collect();
    assert!(
        !alone.evicted.is_cancelled()
            && many[0].evicted.is_cancelled()
            && !many[199].evicted.is_cancelled()
    );
    // Of many addresses with few connections each, the oldest of all gives way.
    let each: Vec<_> = (10..200).map(|n| places.arrive(peer(n))).collect();
    assert!(alone.evicted.is_cancelled() && !each[189].evicted.is_cancelled());
    let net = |last: u16| Peer::Ip(Ipv6Addr::new(0x2001, 0xdb8, 0, 1, last, 0, 0, last).into());
    assert_eq!(origin(net(1)), origin(net(2)));
}

#[test]
fn a_user_has_a_part_of_the_places() {
    let places = Places::new(64, true);
    let Limits {
        known,
        of_user,
        of_viewers,
        ..
    } = places.lock().limits;
    assert_eq!((known, of_user, of_viewers), (56, 42, 42));
    let held = |user: &User, count: usize| {
        let places: Vec<_> = (0..count).map(|_| places.arrive(peer(1))).collect();
        places
            .into_iter()
            .map(|place| (place.door.begin(), place.door.admit(user).is_ok(), place))
            .collect::<Vec<_>>()
    };
    let eve = held(&user("eve"), 50);
    assert_eq!(
        eve.iter()
            .filter(|(_, is_admitted, _)| *is_admitted)
            .count(),
        of_user
    );
    let ada = held(&user("ada"), 3);
    assert!(
        ada.iter().all(|(_, is_admitted, _)| *is_admitted),
        "the places of others are left"
    );
    // A connection without a request gives way to a further one of its user.
    let mut eve = eve.into_iter();
    let (under_way, _, idle) = eve.next().expect("one");
    drop(under_way);
    let next = places.arrive(peer(1));
    assert!(next.door.admit(&user("eve")).is_ok() && idle.evicted.is_cancelled());
    drop(eve);
}

/// Tests that no connection is forgotten if it begins and ends requests while others look for one
/// that gives way.
#[test]
fn every_idle_connection_can_give_way() {
    let places = Places::new(64, true);
    let eve = user("eve");
    let begun = std::sync::Barrier::new(5);
    // Arrives, and begins and ends a request. All connections can be busy at this moment.
    let arrive = || {
        let place = places.arrive(peer(1));
        let under_way = place.door.begin();
        let _ = place.door.admit(&eve);
        drop(under_way);
        place
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut own: Vec<_> = (0..10).map(|_| arrive()).collect();
                begun.wait();
                for n in 0..20_000 {
                    let at = n % own.len();
                    match own[at].door.begin() {
                        Some(under_way) => {
                            std::thread::yield_now();
                            drop(under_way);
                        }
                        None => own[at] = arrive(),
                    }
                }
                // These stay, as connections of a client that sends no more requests.
                std::mem::forget(own);
            });
        }
        begun.wait();
        let mut kept = std::collections::VecDeque::new();
        for _ in 0..2_000 {
            kept.push_back(arrive());
            if kept.len() > 10 {
                kept.pop_front();
            }
        }
    });
    let mut table = places.lock();
    let left = table.users.size(&eve.name);
    let mut gone = 0;
    while let Some(id) = table.idle_of(&eve.name, false) {
        table.evict(id);
        gone += 1;
    }
    assert_eq!(gone, left, "connections");
    assert!(table.users.members.is_empty() && table.idle.is_empty());
}

#[test]
fn viewers_leave_places_to_others() {
    let places = Places::new(64, true);
    let mut held = Vec::new();
    for n in 0..80 {
        let place = places.arrive(peer(n));
        let viewer = User::with_rights(&format!("viewer{n}"), vec![Right::View]);
        held.push((place.door.begin(), place.door.admit(&viewer).is_ok(), place));
    }
    assert_eq!(
        held.iter()
            .filter(|(_, is_admitted, _)| *is_admitted)
            .count(),
        42
    );
    assert!(places.arrive(peer(1)).door.admit(&user("ada")).is_ok());
}

/// Tests that idle connections of one viewer give way to another viewer, but no busy ones, and none of
/// a user who may do more.
#[test]
fn idle_viewers_give_way_to_other_viewers() {
    let places = Places::new(64, true);
    let viewer = |name: &str| User::with_rights(name, vec![Right::View]);
    let arrive = |user: &User| {
        let place = places.arrive(peer(1));
        place.door.admit(user).map(|()| place)
    };
    let others: Vec<_> = (0..10)
        .map(|_| arrive(&user("ada")).expect("room"))
        .collect();
    let idle: Vec<_> = (0..42)
        .map(|_| arrive(&viewer("eve")).expect("room"))
        .collect();
    let bob = arrive(&viewer("bob")).expect("an idle connection of eve gives way");
    assert!(idle[0].evicted.is_cancelled() && !idle[1].evicted.is_cancelled());
    let _busy: Vec<_> = idle.iter().map(|place| place.door.begin()).collect();
    let _asked = bob.door.begin();
    assert!(arrive(&viewer("bob")).is_err());
    assert!(others.iter().all(|place| !place.evicted.is_cancelled()));
}

/// Tests that the user with the next most connections gives way if the one with the most is busy.
#[test]
fn another_user_gives_way_if_the_largest_is_busy() {
    let places = Places::new(64, true);
    let arrive = |name: &str| {
        let place = places.arrive(peer(1));
        place.door.admit(&user(name)).map(|()| place)
    };
    let eve: Vec<_> = (0..36).map(|_| arrive("eve").expect("room")).collect();
    let _busy: Vec<_> = eve.iter().map(|place| place.door.begin()).collect();
    let bob: Vec<_> = (0..20).map(|_| arrive("bob").expect("room")).collect();
    assert!(arrive("ada").is_ok() && bob[0].evicted.is_cancelled());
}

/// Tests that nothing is done for a stranger that gives way when its first request has begun.
#[test]
fn a_stranger_that_has_given_way_is_not_admitted() {
    let places = Places::new(16, true);
    let first = places.arrive(peer(1));
    let _under_way = first.door.begin();
    let others: Vec<_> = (2..18).map(|n| places.arrive(peer(n))).collect();
    assert!(first.evicted.is_cancelled() && others.len() == 16);
    assert!(first.door.admit(&user("ada")).is_err());
}

#[test]
fn one_user_alone_has_all_places_but_those_of_strangers() {
    for (all, known) in [
        (1, 1),
        (2, 1),
        (3, 2),
        (8, 7),
        (256, 224),
        (12_000, 10_500),
        (100_000, 87_500),
    ] {
        let limits = Limits::new(all, false);
        assert!(
            limits.known == known && limits.of_user == known && limits.all > known,
            "{limits:?}"
        );
    }
}
