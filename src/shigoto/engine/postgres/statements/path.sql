-- The hot path first, in the order in which a job meets it. Ids come and go as 16 bytes, batches as one JSON text, and
-- every value is cast, but for those of enqueue_one, so that no driver has to guess. LATERAL with OFFSET 0 fixes the join order, and = ANY (ARRAY(…))
-- goes through the index, whatever the planner believes of tables that are never what their statistics say.

-- name: now
SELECT shigoto.now()

-- ENQUEUE ------------------------------------------------------------------------------------------------------------

-- Alike jobs without keys; what they share, then ids and payloads as arrays, then whether to ring.
-- name: enqueue
SELECT shigoto.enqueue(
  $1::text, $2::text, $3::text, $4::int::boolean, $5::int, $6::bigint, $7::bigint, $8::bigint, $9::bigint,
  $10::int, $11::int, $12::text, $13::bigint, $14::bigint, $15::text, $16::text,
  $17::uuid[], $18::text[], $19::int::boolean)

-- One job without a key, the same with one id and one payload. Nothing is cast: only our own wire says this, the function
-- has each type, and nineteen casts would take the server 10 µs.
-- name: enqueue_one
SELECT shigoto.enqueue_one(
  $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)

-- Any jobs. $1 = [{id, payload, task, queue, …}, …], $2 = whether to ring.
-- name: enqueue_each
SELECT e.position, e.number, e.inserted FROM shigoto.enqueue_each($1::text::json, $2::int::boolean) e

-- name: add_queues
INSERT INTO shigoto.queue (name)
SELECT DISTINCT e ->> 0
FROM jsonb_array_elements($1::text::jsonb) e
WHERE NOT EXISTS (SELECT 1 FROM shigoto.queue q WHERE q.name = e ->> 0)
ORDER BY 1
ON CONFLICT (name) DO NOTHING

-- name: add_lanes
INSERT INTO shigoto.lane (queue, task, alone)
SELECT DISTINCT e ->> 0, e ->> 1, (e ->> 2)::boolean
FROM jsonb_array_elements($1::text::jsonb) e
WHERE NOT EXISTS (
  SELECT 1 FROM shigoto.lane l
  WHERE l.task = e ->> 1 AND l.queue = e ->> 0 AND l.alone = (e ->> 2)::boolean)
ORDER BY 1, 2, 3
ON CONFLICT (task, queue, alone) DO NOTHING

-- The lanes, by their place in $1 = [[queue, task, alone], …].
-- name: lanes_of
SELECT e.place::int - 1, l.lane
FROM jsonb_array_elements($1::text::jsonb) WITH ORDINALITY e(lane, place)
CROSS JOIN LATERAL (
  SELECT * FROM shigoto.lane l
  WHERE l.task = e.lane ->> 1 AND l.queue = e.lane ->> 0 AND l.alone = (e.lane ->> 2)::boolean OFFSET 0) l

-- name: known_ids
SELECT uuid_send(b.id), b.number
FROM jsonb_array_elements_text($1::text::jsonb) e
CROSS JOIN LATERAL (SELECT b.id, b.number FROM shigoto.job b WHERE b.id = e::uuid OFFSET 0) b

-- Locks keys, whether anybody holds them or not, in the order of their names. $1 = [[tenant, key], …]
-- name: lock_keys
INSERT INTO shigoto.key AS k (tenant, key, number)
SELECT DISTINCT e ->> 0, e ->> 1, 0
FROM jsonb_array_elements($1::text::jsonb) e
ORDER BY 1, 2
ON CONFLICT (tenant, key) DO UPDATE SET number = k.number

-- Who holds keys that are locked, by their place in $1 = [[tenant, key], …], and the state of each. A statement after
-- the one that may have waited for the lock, so that it sees what came of that. It does not lock the jobs: who is told
-- of one, and leaves it as it is, may be in a transaction that stays open, and its worker could not end it meanwhile.
-- name: key_holders
WITH held AS MATERIALIZED (
  SELECT e.place, b.number, b.id
  FROM jsonb_array_elements($1::text::jsonb) WITH ORDINALITY e(key, place)
  CROSS JOIN LATERAL (
    SELECT * FROM shigoto.key k WHERE k.tenant = e.key ->> 0 AND k.key = e.key ->> 1 OFFSET 0) k
  CROSS JOIN LATERAL (SELECT b.number, b.id FROM shigoto.job b WHERE b.number = k.number OFFSET 0) b)
SELECT h.place::int - 1, h.number, uuid_send(h.id), s.state
FROM held h
JOIN shigoto.seen_states(ARRAY(SELECT h.number FROM held h)) s ON s.number = h.number
WHERE s.state IS NOT NULL

-- name: keys_of
SELECT b.number, b.tenant, b.key
FROM jsonb_array_elements_text($1::text::jsonb) e
CROSS JOIN LATERAL (SELECT * FROM shigoto.job b WHERE b.number = e::bigint OFFSET 0) b
WHERE b.key IS NOT NULL

-- $1 = [[tenant, key, number], …]
-- name: take_keys
INSERT INTO shigoto.key (tenant, key, number)
SELECT e ->> 0, e ->> 1, (e ->> 2)::bigint
FROM jsonb_array_elements($1::text::jsonb) e
ORDER BY 1, 2
ON CONFLICT (tenant, key) DO UPDATE SET number = excluded.number

-- name: supersede
UPDATE shigoto.running SET superseded = true
WHERE number = ANY (ARRAY(SELECT e::bigint FROM jsonb_array_elements_text($1::text::jsonb) e))

-- JSON as a text, which may be longer than what PostgreSQL has taken apart.
-- name: replace_jobs
UPDATE shigoto.job b
SET lane = (e ->> 1)::int, payload = e ->> 2, priority = (e ->> 3)::smallint, run_at = (e ->> 4)::bigint,
  max_failures = (e ->> 5)::int, max_crashes = (e ->> 6)::int, expires_at = (e ->> 7)::bigint, retry = e ->> 8,
  timeout = (e ->> 9)::bigint, soft_timeout = (e ->> 10)::bigint, tags = e ->> 11, meta = e ->> 12,
  alone = (e ->> 13)::boolean
FROM json_array_elements($1::text::json) e
WHERE b.number >= (e ->> 0)::bigint AND b.number <= (e ->> 0)::bigint

-- $1 = [[expires_at, number], …]
-- name: add_expiries
INSERT INTO shigoto.expiry (expires_at, number)
SELECT (e ->> 0)::bigint, (e ->> 1)::bigint
FROM jsonb_array_elements($1::text::jsonb) e
ON CONFLICT DO NOTHING

-- CLAIM --------------------------------------------------------------------------------------------------------------

-- $1 = worker, $2 = [{tasks, queues, limit, alone, slices, probes}, …]; the columns of Lease, then dead entries.
-- name: claim
SELECT c.* FROM shigoto.claim(encode($1::bytea, 'hex')::uuid, $2::text::json) c

-- name: live_worker
SELECT 1 FROM shigoto.worker WHERE id = encode($1::bytea, 'hex')::uuid AND fenced_at IS NULL

-- SETTLE -------------------------------------------------------------------------------------------------------------

-- $1 = worker; numbers, tokens and results as arrays. What comes back was held by these very leases.
-- name: complete
SELECT shigoto.complete(encode($1::bytea, 'hex')::uuid, $2::bigint[], $3::int[], $4::text[])

-- The same, outside of any transaction: who is locked is not waited for until the client has no patience any more.
-- name: complete_by_itself
SELECT shigoto.complete(encode($1::bytea, 'hex')::uuid, $2::bigint[], $3::int[], $4::text[])
FROM (SELECT set_config('lock_timeout', '2s', true) OFFSET 0) l

-- Locks all runs of a batch that are free, in the order in which everybody locks them, and tells which are not: somebody
-- else is about to end them, or has gone away in the midst of that. $1 = [number, …]
-- name: lock_free
WITH free AS MATERIALIZED (
  SELECT r.number FROM shigoto.running r
  WHERE r.number = ANY (ARRAY(SELECT e::bigint FROM jsonb_array_elements_text($1::text::jsonb) e))
  ORDER BY r.number
  FOR UPDATE SKIP LOCKED)
SELECT r.number FROM shigoto.running r
WHERE r.number = ANY (ARRAY(SELECT e::bigint FROM jsonb_array_elements_text($1::text::jsonb) e))
  AND NOT r.number = ANY (ARRAY(SELECT f.number FROM free f))

-- name: stop_running
DELETE FROM shigoto.running
WHERE number = ANY (ARRAY(SELECT e::bigint FROM jsonb_array_elements_text($1::text::jsonb) e))

-- The guard for everything else; what comes back is held by this very lease, of a worker that is not fenced, and locked.
-- name: held
SELECT coalesce(json_agg(json_build_array(
  r.number, r.token, r.claimed_at, r.failures, r.crashes, r.solo_crashes, r.releases, r.snoozes, r.solo,
  b.max_failures, b.max_crashes, r.cancel_requested_at, r.superseded, b.lane, b.priority, b.run_at, b.expires_at,
  r.settled_token, l.queue, l.task, b.id, l.alone, b.alone)), '[]')::text,
  (SELECT m.value FROM shigoto.meta m WHERE m.name = 'notices')
FROM (
  SELECT (e ->> 0)::bigint AS number, (e ->> 1)::int AS token
  FROM jsonb_array_elements($1::text::jsonb) e
  ORDER BY 1) e
CROSS JOIN LATERAL (
  SELECT * FROM shigoto.running r
  WHERE r.number = e.number AND r.token = e.token AND r.worker = encode($2::bytea, 'hex')::uuid
  OFFSET 0 FOR UPDATE) r
CROSS JOIN LATERAL (SELECT * FROM shigoto.job b WHERE b.number = r.number OFFSET 0) b
CROSS JOIN LATERAL (SELECT * FROM shigoto.lane l WHERE l.lane = b.lane OFFSET 0) l
WHERE EXISTS (SELECT 1 FROM shigoto.worker w WHERE w.id = encode($2::bytea, 'hex')::uuid AND w.fenced_at IS NULL)

-- The same rows, whoever has them, of jobs that are locked already. $1 = [number, …]
-- name: running_rows
SELECT coalesce(json_agg(json_build_array(
  r.number, r.token, r.claimed_at, r.failures, r.crashes, r.solo_crashes, r.releases, r.snoozes, r.solo,
  b.max_failures, b.max_crashes, r.cancel_requested_at, r.superseded, b.lane, b.priority, b.run_at, b.expires_at,
  r.settled_token, l.queue, l.task, b.id, l.alone, b.alone)), '[]')::text,
  (SELECT m.value FROM shigoto.meta m WHERE m.name = 'notices')
FROM jsonb_array_elements_text($1::text::jsonb) e
CROSS JOIN LATERAL (SELECT * FROM shigoto.running r WHERE r.number = e::bigint OFFSET 0) r
CROSS JOIN LATERAL (SELECT * FROM shigoto.job b WHERE b.number = r.number OFFSET 0) b
CROSS JOIN LATERAL (SELECT * FROM shigoto.lane l WHERE l.lane = b.lane OFFSET 0) l

-- name: settled_tokens
SELECT b.number, coalesce(n.settled_token, d.settled_token, r.settled_token, s.settled_token)
FROM jsonb_array_elements_text($1::text::jsonb) e
CROSS JOIN LATERAL (SELECT * FROM shigoto.job b WHERE b.number = e::bigint OFFSET 0) b
LEFT JOIN LATERAL (SELECT * FROM shigoto.done d WHERE d.number = b.number OFFSET 0) d ON true
LEFT JOIN LATERAL (SELECT * FROM shigoto.running n WHERE n.number = b.number OFFSET 0) n ON true
LEFT JOIN LATERAL (
  SELECT * FROM shigoto.ready r
  WHERE r.lane = b.lane AND r.priority = -b.priority AND r.run_at = b.run_at AND r.number = b.number OFFSET 0) r ON true
LEFT JOIN LATERAL (
  SELECT * FROM shigoto.scheduled s WHERE s.run_at = b.run_at AND s.number = b.number OFFSET 0) s ON true

-- From here to `add_attempt`: $1 = a JSON array with an array for each row.
-- name: add_ready
INSERT INTO shigoto.ready (lane, priority, run_at, number, expires_at, token, settled_token,
  failures, crashes, solo_crashes, releases, snoozes, solo)
SELECT (e ->> 0)::int, (e ->> 1)::int, (e ->> 2)::bigint, (e ->> 3)::bigint, (e ->> 4)::bigint, (e ->> 5)::int,
  (e ->> 6)::int, (e ->> 7)::int, (e ->> 8)::int, (e ->> 9)::int, (e ->> 10)::int, (e ->> 11)::int, (e ->> 12)::boolean
FROM jsonb_array_elements($1::text::jsonb) e

-- name: add_scheduled
INSERT INTO shigoto.scheduled (run_at, number, lane, token, settled_token,
  failures, crashes, solo_crashes, releases, snoozes, solo)
SELECT (e ->> 0)::bigint, (e ->> 1)::bigint, (e ->> 2)::int, (e ->> 3)::int, (e ->> 4)::int,
  (e ->> 5)::int, (e ->> 6)::int, (e ->> 7)::int, (e ->> 8)::int, (e ->> 9)::int, (e ->> 10)::boolean
FROM jsonb_array_elements($1::text::jsonb) e

-- The same task in the same queue, on the other side of the line between jobs that run alone and jobs that do not.
-- name: add_other_lanes
INSERT INTO shigoto.lane (queue, task, alone)
SELECT l.queue, l.task, NOT l.alone
FROM jsonb_array_elements_text($1::text::jsonb) e
CROSS JOIN LATERAL (SELECT * FROM shigoto.lane l WHERE l.lane = e::int OFFSET 0) l
WHERE NOT EXISTS (SELECT 1 FROM shigoto.lane o WHERE o.task = l.task AND o.queue = l.queue AND o.alone <> l.alone)
ORDER BY 1, 2, 3
ON CONFLICT (task, queue, alone) DO NOTHING

-- name: other_lanes
SELECT l.lane, o.lane
FROM jsonb_array_elements_text($1::text::jsonb) e
CROSS JOIN LATERAL (SELECT * FROM shigoto.lane l WHERE l.lane = e::int OFFSET 0) l
CROSS JOIN LATERAL (
  SELECT * FROM shigoto.lane o WHERE o.task = l.task AND o.queue = l.queue AND o.alone <> l.alone OFFSET 0) o

-- Two comparisons that stand for number = number leave the planner no other way than by the bodies' key.
-- name: set_lanes
UPDATE shigoto.job b SET lane = (e ->> 1)::int
FROM jsonb_array_elements($1::text::jsonb) e
WHERE b.number >= (e ->> 0)::bigint AND b.number <= (e ->> 0)::bigint

-- name: set_run_at
UPDATE shigoto.job b SET run_at = (e ->> 1)::bigint
FROM jsonb_array_elements($1::text::jsonb) e
WHERE b.number >= (e ->> 0)::bigint AND b.number <= (e ->> 0)::bigint

-- name: add_done
INSERT INTO shigoto.done (number, state, token, settled_token, failures, crashes, releases, snoozes,
  solo, started_at, finished_at, cancel_requested_at, failure_kind, error)
SELECT (e ->> 0)::bigint, (e ->> 1)::smallint, (e ->> 2)::int, (e ->> 3)::int, (e ->> 4)::int, (e ->> 5)::int,
  (e ->> 6)::int, (e ->> 7)::int, (e ->> 8)::boolean, (e ->> 9)::bigint, (e ->> 10)::bigint, (e ->> 11)::bigint,
  e ->> 12, e ->> 13
FROM jsonb_array_elements($1::text::jsonb) e

-- name: add_attempt
INSERT INTO shigoto.attempt (number, token, outcome, error, traceback, started_at, finished_at)
SELECT (e ->> 0)::bigint, (e ->> 1)::int, e ->> 2, e ->> 3, e ->> 4, (e ->> 5)::bigint, (e ->> 6)::bigint
FROM jsonb_array_elements($1::text::jsonb) e

-- name: drop_released_attempts
DELETE FROM shigoto.attempt
WHERE ctid = ANY (ARRAY(
  SELECT a.ctid
  FROM jsonb_array_elements($1::text::jsonb) e
  CROSS JOIN LATERAL (
    SELECT a.ctid FROM shigoto.attempt a
    WHERE a.number = (e ->> 0)::bigint AND a.token <= (e ->> 1)::int AND a.outcome = 'released' OFFSET 0) a))

-- Appended, so that nobody waits for anybody; a sweep adds it up.
-- name: count
INSERT INTO shigoto.tally (queue, total, completed, failed, cancelled)
SELECT e ->> 0, (e ->> 1)::int, (e ->> 2)::int, (e ->> 3)::int, (e ->> 4)::int
FROM jsonb_array_elements($1::text::jsonb) e

-- name: ring
SELECT shigoto.ring()
