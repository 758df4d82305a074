-- The hot path first, in the order in which a job meets it. Each statement takes one row in and gives one row out where
-- it can (JSON arrays): every row that Python fetches is a hand-over of the interpreter lock.
-- CROSS JOIN fixes the join order in SQLite.

-- ENQUEUE ------------------------------------------------------------------------------------------------------------

-- Changes nothing, but no statement after it can be overtaken.
-- name: take_write_lock
UPDATE shigoto_meta SET value = value WHERE FALSE

-- name: add_queues
INSERT INTO shigoto_queue (name)
SELECT DISTINCT e.value ->> 0
FROM json_each(?1) e
WHERE NOT EXISTS (SELECT 1 FROM shigoto_queue q WHERE q.name = e.value ->> 0)

-- name: add_lanes
INSERT INTO shigoto_lane (queue, task, alone)
SELECT e.value ->> 0, e.value ->> 1, e.value ->> 2
FROM json_each(?1) e
WHERE NOT EXISTS (
  SELECT 1 FROM shigoto_lane l
  WHERE l.task = e.value ->> 1 AND l.queue = e.value ->> 0 AND l.alone = e.value ->> 2)

-- The lanes, by their place in ?1 = [[queue, task, alone], …].
-- name: lanes_of
SELECT e.key, l.lane
FROM json_each(?1) e
CROSS JOIN shigoto_lane l ON l.task = e.value ->> 1 AND l.queue = e.value ->> 0 AND l.alone = e.value ->> 2

-- name: number_of_id
SELECT number FROM shigoto_job WHERE id = ?1

-- Who holds keys, by their place in ?1 = [[tenant, key], …], and the state of each.
-- name: key_holders
SELECT e.key, b.number, b.id,
  CASE
    WHEN d.number IS NOT NULL THEN d.state
    WHEN n.number IS NOT NULL THEN 2
    ELSE 1
  END
FROM json_each(?1) e
CROSS JOIN shigoto_key k ON k.tenant = e.value ->> 0 AND k.key = e.value ->> 1
CROSS JOIN shigoto_job b ON b.number = k.number
LEFT JOIN shigoto_done d ON d.number = b.number
LEFT JOIN shigoto_running n ON n.number = b.number

-- name: keys_of
SELECT b.number, b.tenant, b.key
FROM json_each(?1) e
CROSS JOIN shigoto_job b ON b.number = e.value
WHERE b.key IS NOT NULL

-- ?1 = [[tenant, key, number], …]
-- name: take_keys
INSERT INTO shigoto_key (tenant, key, number)
SELECT e.value ->> 0, e.value ->> 1, e.value ->> 2
FROM json_each(?1) e
WHERE TRUE
ON CONFLICT (tenant, key) DO UPDATE SET number = excluded.number

-- name: supersede
UPDATE shigoto_running SET superseded = 1 WHERE number IN (SELECT value FROM json_each(?1))

-- name: replace_jobs
UPDATE shigoto_job
SET lane = e.value ->> 1, payload = e.value ->> 2, priority = e.value ->> 3, run_at = e.value ->> 4,
  max_failures = e.value ->> 5, max_crashes = e.value ->> 6, expires_at = e.value ->> 7, retry = e.value ->> 8,
  timeout = e.value ->> 9, soft_timeout = e.value ->> 10, tags = e.value ->> 11, meta = e.value ->> 12,
  alone = e.value ->> 13
FROM json_each(?1) e
WHERE number = e.value ->> 0

-- CLAIM --------------------------------------------------------------------------------------------------------------

-- name: live_worker
SELECT 1 FROM shigoto_worker WHERE id = ?1 AND fenced_at IS NULL

-- The best job of each lane that has any: one probe of the ready set per lane, and nothing else when all are empty.
-- name: heads
SELECT json_group_array(json_array(json(head), lane))
FROM (
  SELECT l.lane, (
    SELECT json_array(r.priority, r.pos, r.number)
    FROM shigoto_ready r
    WHERE r.lane = l.lane
    ORDER BY r.priority, r.pos, r.number
    LIMIT 1) AS head
  FROM shigoto_lane l
  WHERE l.task IN (SELECT value FROM json_each(?1))
    AND (?2 IS NULL OR l.queue IN (SELECT value FROM json_each(?2)))
    AND (?3 IS NULL OR l.alone = ?3)
    AND NOT EXISTS (SELECT 1 FROM shigoto_queue q WHERE q.name = l.queue AND q.paused))
WHERE head IS NOT NULL

-- What was read goes to running and leaves ready: everything up to the last of it, but for what has expired.
-- name: start
INSERT INTO shigoto_running (number, token, worker, claimed_at, settled_token,
  failures, crashes, solo_crashes, releases, snoozes, solo)
SELECT number, token + 1, ?6, ?5, settled_token, failures, crashes, solo_crashes, releases, snoozes, solo
FROM shigoto_ready
WHERE lane IN (SELECT value FROM json_each(?1)) AND (priority, pos, number) <= (?2, ?3, ?4)
  AND (expires_at IS NULL OR expires_at >= ?5)

-- name: unready
DELETE FROM shigoto_ready
WHERE lane IN (SELECT value FROM json_each(?1)) AND (priority, pos, number) <= (?2, ?3, ?4)
  AND (expires_at IS NULL OR expires_at >= ?5)

-- For when somebody has written rows by hand: the keys of what stands at the front, and how one of them is taken out.
-- name: front
SELECT lane, priority, pos, number
FROM shigoto_ready
WHERE lane IN (SELECT value FROM json_each(?1)) AND (expires_at IS NULL OR expires_at >= ?2)
ORDER BY priority, pos, number
LIMIT ?3

-- name: queue_of_lane
SELECT queue FROM shigoto_lane WHERE lane = ?1

-- What it remembers stays with the job, or its tokens would begin again: a cast makes a number of whatever is there.
-- name: drop_ready_row
DELETE FROM shigoto_ready WHERE lane = ?1 AND priority = ?2 AND pos = ?3 AND number = ?4
RETURNING CAST(token AS INTEGER), CAST(settled_token AS INTEGER), CAST(failures AS INTEGER),
  CAST(crashes AS INTEGER), CAST(releases AS INTEGER), CAST(snoozes AS INTEGER), CAST(solo AS INTEGER)

-- SETTLE -------------------------------------------------------------------------------------------------------------

-- T4 for a whole batch: the guard (number, token, a worker that is not fenced) is in the join, so what is not ours is
-- simply not inserted, and the count tells. ?1 = [[number, token, result], ...]
-- name: complete
INSERT INTO shigoto_done (number, state, token, settled_token, failures, crashes, releases, snoozes,
  started_at, finished_at, cancel_requested_at, result)
SELECT r.number, 3, r.token, r.token, r.failures, r.crashes, r.releases, r.snoozes,
  r.claimed_at, ?3, r.cancel_requested_at, e.value ->> 2
FROM json_each(?1) e
CROSS JOIN shigoto_running r ON r.number = e.value ->> 0
WHERE r.token = e.value ->> 1 AND r.worker = ?2
  AND EXISTS (SELECT 1 FROM shigoto_worker WHERE id = ?2 AND fenced_at IS NULL)

-- The same for runs without a result that have the same token. ?1 = [number, ...]
-- name: complete_plain
INSERT INTO shigoto_done (number, state, token, settled_token, failures, crashes, releases, snoozes,
  started_at, finished_at, cancel_requested_at, result)
SELECT r.number, 3, r.token, r.token, r.failures, r.crashes, r.releases, r.snoozes,
  r.claimed_at, ?3, r.cancel_requested_at, 'null'
FROM json_each(?1) e
CROSS JOIN shigoto_running r ON r.number = e.value
WHERE r.token = ?4 AND r.worker = ?2
  AND EXISTS (SELECT 1 FROM shigoto_worker WHERE id = ?2 AND fenced_at IS NULL)

-- name: stop_running
DELETE FROM shigoto_running WHERE number IN (SELECT value FROM json_each(?1))

-- How many of these jobs each queue has. ?1 = [number, ...]
-- name: by_queue
SELECT l.queue, count(*)
FROM json_each(?1) e
CROSS JOIN shigoto_job b ON b.number = e.value
CROSS JOIN shigoto_lane l ON l.lane = b.lane
GROUP BY l.queue

-- The guard for everything else; what comes back is held by this very lease.
-- name: held
SELECT json_group_array(json_array(
  r.number, r.token, r.claimed_at, r.failures, r.crashes, r.solo_crashes, r.releases, r.snoozes, r.solo,
  b.max_failures, b.max_crashes, r.cancel_requested_at, r.superseded, b.lane, b.priority, b.run_at, b.expires_at,
  r.settled_token, l.queue, l.task, hex(b.id), l.alone, b.alone)),
  (SELECT value FROM shigoto_meta WHERE name = 'notices')
FROM json_each(?1) e
CROSS JOIN shigoto_running r ON r.number = e.value ->> 0
CROSS JOIN shigoto_job b ON b.number = r.number
CROSS JOIN shigoto_lane l ON l.lane = b.lane
WHERE r.token = e.value ->> 1 AND r.worker = ?2
  AND EXISTS (SELECT 1 FROM shigoto_worker WHERE id = ?2 AND fenced_at IS NULL)

-- The same rows, whoever has them. ?1 = [number, ...]
-- name: running_rows
SELECT json_group_array(json_array(
  r.number, r.token, r.claimed_at, r.failures, r.crashes, r.solo_crashes, r.releases, r.snoozes, r.solo,
  b.max_failures, b.max_crashes, r.cancel_requested_at, r.superseded, b.lane, b.priority, b.run_at, b.expires_at,
  r.settled_token, l.queue, l.task, hex(b.id), l.alone, b.alone)),
  (SELECT value FROM shigoto_meta WHERE name = 'notices')
FROM json_each(?1) e
CROSS JOIN shigoto_running r ON r.number = e.value
CROSS JOIN shigoto_job b ON b.number = r.number
CROSS JOIN shigoto_lane l ON l.lane = b.lane

-- name: settled_tokens
SELECT b.number, coalesce(n.settled_token, d.settled_token, r.settled_token, s.settled_token)
FROM json_each(?1) e
CROSS JOIN shigoto_job b ON b.number = e.value
LEFT JOIN shigoto_done d ON d.number = b.number
LEFT JOIN shigoto_running n ON n.number = b.number
LEFT JOIN shigoto_ready r ON r.lane = b.lane AND r.priority = -b.priority AND r.pos = b.run_at AND r.number = b.number
LEFT JOIN shigoto_scheduled s ON s.run_at = b.run_at AND s.number = b.number

-- From here to `add_attempt`: ?1 = a JSON array with an array for each row.
-- name: add_ready
INSERT INTO shigoto_ready (lane, priority, pos, number, expires_at, token, settled_token,
  failures, crashes, solo_crashes, releases, snoozes, solo)
SELECT e.value ->> 0, e.value ->> 1, e.value ->> 2, e.value ->> 3, e.value ->> 4, e.value ->> 5, e.value ->> 6,
  e.value ->> 7, e.value ->> 8, e.value ->> 9, e.value ->> 10, e.value ->> 11, e.value ->> 12
FROM json_each(?1) e

-- name: add_scheduled
INSERT INTO shigoto_scheduled (run_at, number, lane, token, settled_token,
  failures, crashes, solo_crashes, releases, snoozes, solo)
SELECT e.value ->> 0, e.value ->> 1, e.value ->> 2, e.value ->> 3, e.value ->> 4, e.value ->> 5, e.value ->> 6,
  e.value ->> 7, e.value ->> 8, e.value ->> 9, e.value ->> 10
FROM json_each(?1) e

-- The same task in the same queue, on the other side of the line between jobs that run alone and jobs that do not.
-- name: add_other_lanes
INSERT INTO shigoto_lane (queue, task, alone)
SELECT l.queue, l.task, 1 - l.alone
FROM json_each(?1) e
CROSS JOIN shigoto_lane l ON l.lane = e.value
WHERE TRUE
ON CONFLICT (task, queue, alone) DO NOTHING

-- name: other_lanes
SELECT l.lane, o.lane
FROM json_each(?1) e
CROSS JOIN shigoto_lane l ON l.lane = e.value
CROSS JOIN shigoto_lane o ON o.task = l.task AND o.queue = l.queue AND o.alone = 1 - l.alone

-- name: set_lanes
UPDATE shigoto_job SET lane = e.value ->> 1
FROM json_each(?1) e
WHERE number = e.value ->> 0

-- name: set_run_at
UPDATE shigoto_job SET run_at = e.value ->> 1
FROM json_each(?1) e
WHERE number = e.value ->> 0

-- name: add_done
INSERT INTO shigoto_done (number, state, token, settled_token, failures, crashes, releases, snoozes,
  solo, started_at, finished_at, cancel_requested_at, failure_kind, error)
SELECT e.value ->> 0, e.value ->> 1, e.value ->> 2, e.value ->> 3, e.value ->> 4, e.value ->> 5, e.value ->> 6,
  e.value ->> 7, e.value ->> 8, e.value ->> 9, e.value ->> 10, e.value ->> 11, e.value ->> 12, e.value ->> 13
FROM json_each(?1) e

-- name: add_attempt
INSERT INTO shigoto_attempt (number, token, outcome, error, traceback, started_at, finished_at)
SELECT e.value ->> 0, e.value ->> 1, e.value ->> 2, e.value ->> 3, e.value ->> 4, e.value ->> 5, e.value ->> 6
FROM json_each(?1) e

-- name: drop_released_attempts
DELETE FROM shigoto_attempt
WHERE (number, token) IN (
  SELECT a.number, a.token
  FROM json_each(?1) e
  CROSS JOIN shigoto_attempt a ON a.number = e.value ->> 0 AND a.token <= e.value ->> 1
  WHERE a.outcome = 'released')

-- name: count
INSERT INTO shigoto_counter (queue, total, completed, failed, cancelled)
SELECT e.value ->> 0, e.value ->> 1, e.value ->> 2, e.value ->> 3, e.value ->> 4
FROM json_each(?1) e
WHERE TRUE
ON CONFLICT (queue) DO UPDATE SET
  total = total + excluded.total,
  completed = completed + excluded.completed,
  failed = failed + excluded.failed,
  cancelled = cancelled + excluded.cancelled
