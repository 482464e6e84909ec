-- budget: the work that the call may still do. `arguments` sets each field anew. Beside it, only
-- the files that the comment of a field names write the field; a test compares them.
return {
  -- The objects that the call may still claim. `claims` and `held` count them; the others set a bound,
  -- or 0. Writers: claims, held, spending, pauses, popped, groups, sorting.
  claims_left = 0,
  -- The bytes of events that the reply may still get. At 0 the reply counts as full: no slot gets a
  -- further event. Writers: batches, again, events, spending.
  bytes_left = 0,
  -- The events that the call may still take. At 0 the reply counts as full. Writers: batches,
  -- spending.
  events_left = 0,
  -- The objects that the call may still pass over because they cannot be claimed. At 0 the call
  -- claims no more. Writers: spending.
  drops_left = 0,
}
