//! Object names of every kind on the whole path: claimed, held, as dead letters, after a death and
//! a takeover, and drained.

use std::time::Duration;

use rstest::rstest;
use seriatim::wire::Bounds;

use super::puppet::WIDE;
use super::rig::Rig;

const NAMES: &[&[u8]] = &[
    b" ",
    b"a b",
    b"a:b:",
    b":",
    b":events",
    b"a}b{c",
    b"%",
    b"%d %s %1",
    b"\xff\xfe",
    b"a\0b\r\n",
    "é:日本".as_bytes(),
    b"held",
    b"inf",
    b"-1",
    b"0",
    b"event.worker",
    b"event.worker:p.0",
    b"event.worker:p.0:object",
    b"event.worker:p:lease",
    b"objects.with.events",
    b"objects.held",
    b"next.event.id",
    &[b'x'; 512],
];

#[rstest]
#[tokio::test]
async fn names_of_every_kind_go_the_whole_path(#[values(false, true)] namespace: bool) {
    let mut rig = if namespace {
        Rig::start().await
    } else {
        Rig::without_namespace().await
    };
    let braced: &[&[u8]] = if namespace {
        &[b"{", b"{x}", b"{n:0}:a"]
    } else {
        &[]
    };
    let names: Vec<&[u8]> = [NAMES, braced].concat();
    let mut p = rig.process("p", names.len()).await;
    for name in &names {
        rig.emit(name, 2, 0).await;
        rig.emit(name, 1, 0).await;
    }
    let bounds = Bounds { batch: 2, ..WIDE };
    rig.advance(&mut p, bounds).await;
    rig.sound().await;
    for slot in 0..names.len() {
        match slot % 3 {
            0 => p.hold(slot, Some(Duration::ZERO)),
            1 => p.hold(slot, None),
            _ => p.reject(slot),
        }
    }
    rig.advance(&mut p, bounds).await;
    let state = rig.sound().await;
    assert_eq!(
        (state.dead.len(), state.due.len()),
        (names.len() / 3, (names.len() + 1) / 3)
    );
    assert!(
        state
            .dead
            .iter()
            .all(|dead| dead.error == "bad" && dead.attempts == 0),
        "{:?}",
        state.dead
    );
    rig.expire("p").await;
    let mut q = rig.process("q", 3).await;
    rig.adopt().await;
    let state = rig.sound().await;
    assert_eq!(state.due.len(), names.len());
    for name in state.due.keys() {
        rig.release(name).await;
    }
    rig.drain(&mut q).await;
    assert_eq!(rig.sound().await.objects.len(), names.len());
}
