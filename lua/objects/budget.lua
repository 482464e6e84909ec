-- budget: the work that the call may still do. At 0 bytes the reply counts as full.
return { claims_left = 0, bytes_left = 0, events_left = 0, drops_left = 0 }
