-- call: what a call of advance knows, and what it has done.
--
-- The record lives as long as the library. `arguments.open` sets every field anew, so nothing is
-- left of an earlier call, even if that call has failed in the middle. Of `slots`, `owner_keys`,
-- `entry_slots` and `queues` only the number of items is set anew. No field is ever nil: in Lua, a
-- field that comes and goes makes the table be built again. A list has space for as many items as it
-- has `nil`: as many as a small call needs, because a script makes all lists anew.
-- Beside `arguments`, only the files that the comment of a field names write the field; a test
-- compares them.
return {
  -- The arguments. Texts: the name; its token; the highest id that the caller has seen; the room
  -- for suspects; the rows that the log keeps, and for how many ms (only with the log on).
  name = '', token = '', highest = '0', suspects = '', log_keep = false, log_keep_ms = false,
  -- The bounds (values/bounds.lua); the number of slots that may claim; whether the event log is
  -- on.
  bounds = false, claims_wanted = 0, logs = false,
  -- The source of the next claim: `held` or `markers`. Writers: sequence, in_turn.
  from = '',
  -- The shared keys that every call reads.
  keys = false,

  -- The slots with results, and their number. The keys of the owners of their objects, by the place of
  -- the slot: to join these texts again would cost 0.3 percent of the instructions of an event.
  slots = { nil }, slots_n = 0, owner_keys = { nil },
  -- Texts in Redis; false: absent, or of a wrong type. The lease of the name; the counter. After these
  -- `TAGS_AFTER` texts the tag of each slot, and the owner of its object if it has a result.
  texts = false, TAGS_AFTER = 2,
  -- Numbers of slots: false, or a list of those with the word `look`; false, or a table of those
  -- with the word `handled`. Whether a slot has a result other than `done`, or handler progress.
  -- Writers: results.
  looks = false, handled = false, has_results = false,

  -- What Redis has, as `advance` has read it. `shares`: event.shares.summary or false; `limited`:
  -- whether a share has a limit; `has_groups`: whether objects have groups; `soonest`: the held
  -- object with the lowest score, and its score, or false; `is_due`: whether a held object may be due;
  -- `has_held`: whether an object is held. Writers: advance.
  shares = false, limited = false, has_groups = false, soonest = false, is_due = false, has_held = false,
  -- The time of the next wake of a rule's objects, as text; false: no rule. Writers: advance,
  -- pauses.
  rules_next = false,
  -- The last id that was given. Writers: advance, counter, going_on.
  counter = 0,
  -- That of before the call. Writers: advance.
  counter_before = false,
  -- The markers; while the groups take turns, the names that are grouped. Writers: advance,
  -- markers, groups, sorting, progress, strays, stray_names.
  markers_left = 0,
  -- The names that are grouped. Writers: advance, sorting, groups.
  waiting = 0,

  -- The error that ends the call; false: none. Writers: guard, popped, advance.
  failed = false,
  -- Whether this call has done anything; whether objects.held may have changed in a way that the
  -- call has to look at again. Writers: any file that does so.
  progress = false, held_changed = false,
  -- The reply: `BATCHES_AFTER` fields, then the batches. One list costs less than one in another. false
  -- once the call has returned it. Writers: batches, again, advance.
  reply = false, BATCHES_AFTER = 5,
  -- The slots of these batches (false: the batch has its ids already), and their number. Writers:
  -- batches, again.
  entry_slots = { nil }, entries_n = 0,
  -- The events that the call may still put back, and their bytes. Writers: events.
  back_left = 0, back_bytes_left = 0,
  -- The queues from which slots have taken first events, and their number. Writers: claims.
  queues = { nil }, queues_n = 0,
  -- With shares, the objects that the call has claimed; else false. Writers: advance,
  -- claims, held.
  took = false,
  -- Objects that the call has claimed, except those of markers that it cannot meet again.
  -- Writers: held, markers, stray_names.
  claimed = {},
  -- Objects that the call does not claim any more. Writers: quarantine, keyed.
  excluded = {},
  -- For the reply: false, or objects that wait for an operator, each followed by the reason, and
  -- their number of texts. Writers: quarantine.
  quarantined = false, quarantined_n = 0,

  -- The markers that the call may still look at. Writers: markers.
  markers_max = 0,
  -- The markers at the tail that are used, but not trimmed yet. Writers: markers, in_turn.
  markers_used = 0,
  -- Whether the groups take turns in this call. The names that a call can claim now; false if the
  -- groups took no turns. With limits, the counter of all objects if it allows no claim. Writers:
  -- groups.
  grouped = false, ready = false, full_by = false,
  -- Whether markers or due held objects are left that are not grouped. Writers: groups, sorting.
  unsorted = false,
}
