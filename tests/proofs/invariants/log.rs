//! Checks the event log. If it is on, it has one row for each finalized event, in the order of
//! finalizing.

use super::state::{Row, State, text};
use super::world::{World, number};

/// Checks the new rows, and returns an error for the first wrong one. All rows seen before must
/// still exist.
pub fn check(state: &State, world: &mut World) -> Result<(), String> {
    if !world.logs {
        let row = state
            .log
            .iter()
            .find(|row| row.status != "completed_with_errors");
        return row.map_or(Ok(()), |row| {
            Err(format!("the log is off, and has {row:?}"))
        });
    }
    let ids: Vec<u64> = state.log.iter().map(|row| row.entry.id).collect();
    if !ids.starts_with(&world.log) {
        return Err(format!("the log was {:?}, and is {ids:?}", world.log));
    }
    for row in &state.log[world.log.len()..] {
        check_row(row, state, world)?;
    }
    world.log = ids;
    Ok(())
}

fn check_row(row: &Row, state: &State, world: &mut World) -> Result<(), String> {
    let (entry, number) = (&row.entry, number(&row.entry.event));
    world.saw(number, entry.id)?;
    let place = world.place[&number];
    if world
        .pushed
        .get(&entry.object)
        .and_then(|pushed| pushed.get(place))
        != Some(&number)
    {
        return Err(format!(
            "an event of another object is logged for {}: {row:?}",
            text(&entry.object)
        ));
    }
    if !world.logged.insert(number) {
        return Err(format!("event {number} is logged twice: {row:?}"));
    }
    let before = &world.pushed[&entry.object][..place];
    if let Some(missing) = before.iter().find(|before| !world.logged.contains(before)) {
        return Err(format!(
            "event {missing} is not logged, and {number}, which follows it, is: {row:?}"
        ));
    }
    let prev = world.prev_of(&entry.object, place);
    if entry.prev != prev && !(entry.prev == 0 && world.forgotten.contains(&prev)) {
        return Err(format!("I5: prev should be {prev} in the row {row:?}"));
    }
    let buried = state.dead.iter().find(|dead| dead.id == entry.id);
    let fits = match (row.status.as_str(), buried) {
        ("completed", None) => entry.error.is_empty(),
        ("completed_with_errors" | "dead", Some(buried)) => {
            (buried.attempts, &buried.error) == (entry.attempts, &entry.error)
        }
        _ => false,
    };
    let attempts = world.attempts.get(&number).copied().unwrap_or_default();
    if !fits || entry.attempts != attempts {
        return Err(format!(
            "event {number} has failed {attempts} times, is buried as {buried:?}, and is logged as {row:?}"
        ));
    }
    Ok(())
}
