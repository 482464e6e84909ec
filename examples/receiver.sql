-- How the database of an HTTP receiver handles each event of an object once, and one at a time
-- (docs/http.md, "One at a time").
--
-- :object, :id, :prev and :attempt are the headers seriatim-object, seriatim-id, seriatim-prev and
-- seriatim-attempt. For a list of events, last_id becomes the id of its last event.

CREATE TABLE objects (name text PRIMARY KEY, last_id bigint NOT NULL, attempt bigint NOT NULL);

-- 1. Workers with --sink-exclusive: refuse a request that is late.

-- In a transaction of its own, before the work:
INSERT INTO objects (name, last_id, attempt) VALUES (:object, 0, 0) ON CONFLICT (name) DO NOTHING;
UPDATE objects SET attempt = :attempt WHERE name = :object AND attempt < :attempt RETURNING last_id;
-- no row            a later request has begun: answer 503
-- last_id >= :id    the event is done: answer 200
-- last_id < :prev   an event before it is missing: answer 503

-- In the transaction of the work, at its end; if no row is changed, roll back:
UPDATE objects SET last_id = :id WHERE name = :object AND attempt = :attempt;

-- 2. Workers without it: lock a row of the object, so that a second request waits.

BEGIN;
INSERT INTO objects (name, last_id, attempt) VALUES (:object, 0, 0) ON CONFLICT (name) DO NOTHING;
SELECT last_id FROM objects WHERE name = :object FOR UPDATE;  -- waits for an earlier request
-- last_id >= :id    the event is done: COMMIT, and answer 200
-- last_id < :prev   an event before it is missing: ROLLBACK, and answer 503
-- ... the work ...
UPDATE objects SET last_id = :id WHERE name = :object;
COMMIT;
