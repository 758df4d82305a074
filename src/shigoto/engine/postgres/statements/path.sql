-- The hot path first, in the order in which a job meets it. Ids come and go as 16 bytes, batches as one JSON text, and
-- every value is cast, so that no driver has to guess. LATERAL with OFFSET 0 fixes the join order, and = ANY (ARRAY(…))
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

-- $1 = [[queue, task, alone], …]
-- name: lanes_of
SELECT l.queue, l.task, l.alone, l.lane
FROM jsonb_array_elements($1::text::jsonb) e
CROSS JOIN LATERAL (
  SELECT * FROM shigoto.lane l
  WHERE l.task = e ->> 1 AND l.queue = e ->> 0 AND l.alone = (e ->> 2)::boolean OFFSET 0) l

-- name: number_of_id
SELECT number FROM shigoto.job WHERE id = encode($1::bytea, 'hex')::uuid

-- name: known_ids
SELECT uuid_send(b.id), b.number
FROM jsonb_array_elements_text($1::text::jsonb) e
CROSS JOIN LATERAL (SELECT b.id, b.number FROM shigoto.job b WHERE b.id = e::uuid OFFSET 0) b

-- Locks the key, whether anybody holds it or not.
-- name: key_holder
SELECT h.number, uuid_send(h.id) FROM shigoto.locked_key($1::text, $2::text) h

-- Locks keys, in the order of their names, so that nobody waits in a circle. $1 = [[tenant, key], …]
-- name: lock_keys
INSERT INTO shigoto.key AS k (tenant, key, number)
SELECT DISTINCT e ->> 0, e ->> 1, 0
FROM jsonb_array_elements($1::text::jsonb) e
ORDER BY 1, 2
ON CONFLICT (tenant, key) DO UPDATE SET number = k.number

-- Who holds keys that are locked: a statement after the one that may have waited for the lock, and sees what came of
-- that. $1 = [[tenant, key], …]
-- name: key_holders
SELECT k.tenant, k.key, b.number, uuid_send(b.id)
FROM jsonb_array_elements($1::text::jsonb) e
CROSS JOIN LATERAL (
  SELECT * FROM shigoto.key k WHERE k.tenant = e ->> 0 AND k.key = e ->> 1 OFFSET 0) k
CROSS JOIN LATERAL (SELECT b.number, b.id FROM shigoto.job b WHERE b.number = k.number OFFSET 0) b

-- name: take_key
INSERT INTO shigoto.key (tenant, key, number) VALUES ($1::text, $2::text, $3::bigint)
ON CONFLICT (tenant, key) DO UPDATE SET number = excluded.number

-- $1 = [[tenant, key, number], …]
-- name: take_keys
INSERT INTO shigoto.key (tenant, key, number)
SELECT e ->> 0, e ->> 1, (e ->> 2)::bigint
FROM jsonb_array_elements($1::text::jsonb) e
ORDER BY 1, 2
ON CONFLICT (tenant, key) DO UPDATE SET number = excluded.number

-- name: supersede_all
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
WHERE b.number = (e ->> 0)::bigint

-- $1 = [[expires_at, number], …]
-- name: add_expiries
INSERT INTO shigoto.expiry (expires_at, number)
SELECT (e ->> 0)::bigint, (e ->> 1)::bigint
FROM jsonb_array_elements($1::text::jsonb) e
ON CONFLICT DO NOTHING

-- CLAIM --------------------------------------------------------------------------------------------------------------

-- $1 = worker, $2 = [{tasks, queues, limit, alone, after}, …]; the columns of Lease, then the place of the want.
-- name: claim
SELECT c.* FROM shigoto.claim(encode($1::bytea, 'hex')::uuid, $2::text::json) c

-- name: live_worker
SELECT 1 FROM shigoto.worker WHERE id = encode($1::bytea, 'hex')::uuid AND fenced_at IS NULL

-- name: queue_of_lane
SELECT queue FROM shigoto.lane WHERE lane = $1::int

-- name: drop_ready_row
DELETE FROM shigoto.ready
WHERE lane = $1::int AND priority = $2::int AND run_at = $3::bigint AND number = $4::bigint

-- SETTLE -------------------------------------------------------------------------------------------------------------

-- $1 = worker; numbers, tokens and results as arrays. What comes back was held by these very leases.
-- name: complete
SELECT shigoto.complete(encode($1::bytea, 'hex')::uuid, $2::bigint[], $3::int[], $4::text[])

-- name: stop_running
DELETE FROM shigoto.running
WHERE number = ANY (ARRAY(SELECT e::bigint FROM jsonb_array_elements_text($1::text::jsonb) e))

-- The guard for everything else; what comes back is held by this very lease, and locked.
-- name: held
SELECT coalesce(json_agg(json_build_array(
  r.number, r.token, r.claimed_at, r.failures, r.crashes, r.solo_crashes, r.releases, r.snoozes, r.solo,
  b.max_failures, b.max_crashes, r.cancel_requested_at, r.superseded, b.lane, b.priority, b.run_at, b.expires_at,
  r.settled_token, l.queue, l.task, b.id, l.alone, b.alone)), '[]')::text
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

-- name: settled_token
SELECT coalesce(n.settled_token, d.settled_token, r.settled_token, s.settled_token)
FROM shigoto.job b
LEFT JOIN LATERAL (SELECT * FROM shigoto.done d WHERE d.number = b.number OFFSET 0) d ON true
LEFT JOIN LATERAL (SELECT * FROM shigoto.running n WHERE n.number = b.number OFFSET 0) n ON true
LEFT JOIN LATERAL (
  SELECT * FROM shigoto.ready r
  WHERE r.lane = b.lane AND r.priority = -b.priority AND r.run_at = b.run_at AND r.number = b.number OFFSET 0) r ON true
LEFT JOIN LATERAL (
  SELECT * FROM shigoto.scheduled s WHERE s.run_at = b.run_at AND s.number = b.number OFFSET 0) s ON true
WHERE b.number = $1::bigint

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
-- name: add_other_lane
INSERT INTO shigoto.lane (queue, task, alone)
SELECT l.queue, l.task, NOT l.alone
FROM shigoto.lane l
WHERE l.lane = $1::int
  AND NOT EXISTS (SELECT 1 FROM shigoto.lane o WHERE o.task = l.task AND o.queue = l.queue AND o.alone <> l.alone)
ON CONFLICT (task, queue, alone) DO NOTHING

-- name: other_lane
SELECT o.lane
FROM shigoto.lane l
JOIN shigoto.lane o ON o.task = l.task AND o.queue = l.queue AND o.alone <> l.alone
WHERE l.lane = $1::int

-- name: set_lane
UPDATE shigoto.job SET lane = $2::int WHERE number = $1::bigint

-- name: set_run_at
UPDATE shigoto.job b SET run_at = (e ->> 1)::bigint
FROM jsonb_array_elements($1::text::jsonb) e
WHERE b.number = (e ->> 0)::bigint

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
DELETE FROM shigoto.attempt WHERE number = $1::bigint AND token <= $2::int AND outcome = 'released'

-- Appended, so that nobody waits for anybody; a sweep adds it up.
-- name: count
INSERT INTO shigoto.tally (queue, total, completed, failed, cancelled)
VALUES ($1::text, $2::int, $3::int, $4::int, $5::int)

-- name: ring
SELECT shigoto.ring()
