-- budget: the work that the call may still do. `arguments.open` sets each field anew.
return {
  -- The objects that the call may still claim.
  claims_left = 0,
  -- The bytes of events that the reply may still get. At 0 the reply counts as full: no slot gets a
  -- further event.
  bytes_left = 0,
  -- The events that the call may still take. At 0 the reply counts as full.
  events_left = 0,
  -- The objects that the call may still pass over because they cannot be claimed. At 0 the call
  -- claims no more.
  drops_left = 0,
}
