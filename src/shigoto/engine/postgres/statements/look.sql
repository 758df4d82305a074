-- What people ask and do.

-- LOOK AND MANAGE -----------------------------------------------------------------------------------------------------

-- A waiting row is found through the body: (lane, -priority, run_at, number) is its key.
-- name: details
SELECT b.number, uuid_send(b.id), l.task, l.queue, b.tenant, b.payload, b.priority, b.run_at, b.created_at,
  b.expires_at, b.max_failures, b.max_crashes, b.alone, b.retry, b.timeout, b.soft_timeout, b.key, b.tags, b.meta,
  CASE
    WHEN d.number IS NOT NULL THEN d.state
    WHEN n.number IS NOT NULL THEN 2
    WHEN r.number IS NOT NULL OR s.number IS NOT NULL THEN 1
  END,
  coalesce(d.token, n.token, r.token, s.token, 0),
  coalesce(d.failures, n.failures, r.failures, s.failures, 0),
  coalesce(d.crashes, n.crashes, r.crashes, s.crashes, 0),
  coalesce(d.releases, n.releases, r.releases, s.releases, 0),
  coalesce(d.snoozes, n.snoozes, r.snoozes, s.snoozes, 0),
  coalesce(d.solo, n.solo, r.solo, s.solo, false),
  coalesce(d.started_at, n.claimed_at), d.finished_at,
  coalesce(d.cancel_requested_at, n.cancel_requested_at),
  p.fraction, p.text,
  d.result,
  CASE
    WHEN d.state = 3 THEN NULL
    WHEN d.error IS NOT NULL THEN d.error
    WHEN coalesce(d.failures, n.failures, r.failures, s.failures, 0) > 0 THEN
      (SELECT a.error FROM shigoto.attempt a
       WHERE a.number = b.number AND a.error IS NOT NULL ORDER BY a.token DESC LIMIT 1)
  END,
  d.failure_kind, uuid_send(n.worker)
FROM jsonb_array_elements_text($1::text::jsonb) WITH ORDINALITY e(number, place)
CROSS JOIN LATERAL (SELECT * FROM shigoto.job b WHERE b.number = e.number::bigint OFFSET 0) b
CROSS JOIN LATERAL (SELECT * FROM shigoto.lane l WHERE l.lane = b.lane OFFSET 0) l
LEFT JOIN LATERAL (SELECT * FROM shigoto.done d WHERE d.number = b.number OFFSET 0) d ON true
LEFT JOIN LATERAL (SELECT * FROM shigoto.running n WHERE n.number = b.number OFFSET 0) n ON true
LEFT JOIN LATERAL (
  SELECT * FROM shigoto.ready r
  WHERE r.lane = b.lane AND r.priority = -b.priority AND r.run_at = b.run_at AND r.number = b.number OFFSET 0) r ON true
LEFT JOIN LATERAL (
  SELECT * FROM shigoto.scheduled s WHERE s.run_at = b.run_at AND s.number = b.number OFFSET 0) s ON true
LEFT JOIN LATERAL (SELECT * FROM shigoto.progress p WHERE p.number = b.number OFFSET 0) p ON true
ORDER BY e.place

-- name: payloads
SELECT b.number, b.payload
FROM jsonb_array_elements_text($1::text::jsonb) WITH ORDINALITY e(number, place)
CROSS JOIN LATERAL (SELECT b.number, b.payload FROM shigoto.job b WHERE b.number = e.number::bigint OFFSET 0) b
ORDER BY e.place

-- name: attempts
SELECT token, outcome, error, traceback, started_at, finished_at
FROM shigoto.attempt
WHERE number = (SELECT number FROM shigoto.job WHERE id = encode($1::bytea, 'hex')::uuid)
ORDER BY token

-- name: logs
SELECT token, line, at, level, text
FROM shigoto.log
WHERE number = (SELECT number FROM shigoto.job WHERE id = encode($1::bytea, 'hex')::uuid)
ORDER BY token, line

-- By queue, since when its first job that can run now is due. From one priority of a lane to the next, so that it does
-- not matter how many wait.
-- name: oldest
WITH RECURSIVE level(lane, priority) AS (
  SELECT l.lane, (SELECT min(r.priority) FROM shigoto.ready r WHERE r.lane = l.lane)
  FROM shigoto.lane l
  UNION ALL
  SELECT v.lane, (SELECT min(r.priority) FROM shigoto.ready r WHERE r.lane = v.lane AND r.priority > v.priority)
  FROM level v
  WHERE v.priority IS NOT NULL)
SELECT l.queue, min(f.since)
FROM level v
CROSS JOIN LATERAL (SELECT * FROM shigoto.lane l WHERE l.lane = v.lane OFFSET 0) l
CROSS JOIN LATERAL (
  SELECT greatest(r.run_at, b.created_at) AS since
  FROM (
    SELECT r.number, r.run_at FROM shigoto.ready r
    WHERE r.lane = v.lane AND r.priority = v.priority
    ORDER BY r.run_at, r.number
    LIMIT 1) r
  CROSS JOIN LATERAL (SELECT b.created_at FROM shigoto.job b WHERE b.number = r.number OFFSET 0) b) f
WHERE v.priority IS NOT NULL
GROUP BY l.queue

-- Pending jobs, which are locked already. $1 = [number, …]
-- name: waiting_rows
SELECT b.number, b.lane, l.alone, b.alone, b.priority, b.run_at, b.expires_at, l.queue, l.task, uuid_send(b.id),
  coalesce(r.token, s.token), coalesce(r.settled_token, s.settled_token), coalesce(r.failures, s.failures),
  coalesce(r.crashes, s.crashes), coalesce(r.solo_crashes, s.solo_crashes), coalesce(r.releases, s.releases),
  coalesce(r.snoozes, s.snoozes), coalesce(r.solo, s.solo)
FROM jsonb_array_elements_text($1::text::jsonb) e
CROSS JOIN LATERAL (SELECT * FROM shigoto.job b WHERE b.number = e::bigint OFFSET 0) b
CROSS JOIN LATERAL (SELECT * FROM shigoto.lane l WHERE l.lane = b.lane OFFSET 0) l
LEFT JOIN LATERAL (
  SELECT * FROM shigoto.ready r
  WHERE r.lane = b.lane AND r.priority = -b.priority AND r.run_at = b.run_at AND r.number = b.number OFFSET 0) r ON true
LEFT JOIN LATERAL (
  SELECT * FROM shigoto.scheduled s WHERE s.run_at = b.run_at AND s.number = b.number OFFSET 0) s ON true
WHERE coalesce(r.number, s.number) IS NOT NULL

-- Locks them, wherever they are, in the order of their numbers.
-- name: states_of
SELECT s.number, s.state, l.queue
FROM shigoto.locked_states(ARRAY(SELECT e::bigint FROM jsonb_array_elements_text($1::text::jsonb) e)) s
CROSS JOIN LATERAL (SELECT b.lane FROM shigoto.job b WHERE b.number = s.number OFFSET 0) b
CROSS JOIN LATERAL (SELECT l.queue FROM shigoto.lane l WHERE l.lane = b.lane OFFSET 0) l
WHERE s.state IS NOT NULL

-- name: request_cancel
UPDATE shigoto.running SET cancel_requested_at = coalesce(cancel_requested_at, $2::bigint)
WHERE number = ANY (ARRAY(SELECT e::bigint FROM jsonb_array_elements_text($1::text::jsonb) e))

-- Jobs that have ended, and are locked already. $1 = [number, …]
-- name: done_rows
SELECT d.number, d.state, d.token, d.settled_token, d.crashes, d.releases, d.snoozes, d.solo, b.lane, l.alone, b.alone,
  b.priority, b.expires_at, l.queue
FROM jsonb_array_elements_text($1::text::jsonb) e
CROSS JOIN LATERAL (SELECT * FROM shigoto.done d WHERE d.number = e::bigint OFFSET 0) d
CROSS JOIN LATERAL (SELECT * FROM shigoto.job b WHERE b.number = d.number OFFSET 0) b
CROSS JOIN LATERAL (SELECT * FROM shigoto.lane l WHERE l.lane = b.lane OFFSET 0) l

-- name: counters
SELECT c.queue, sum(c.total)::bigint, sum(c.completed)::bigint, sum(c.failed)::bigint, sum(c.cancelled)::bigint
FROM (
  SELECT queue, total, completed, failed, cancelled FROM shigoto.counter
  UNION ALL
  SELECT queue, total, completed, failed, cancelled FROM shigoto.tally) c
GROUP BY c.queue

-- Through the index, as is what is ready: after a rush the table has many pages, and nothing is on them.
-- name: running_by_queue
SELECT l.queue, sum(c.jobs)::bigint
FROM (SELECT r.lane, count(*) AS jobs FROM shigoto.running r WHERE r.number > 0 GROUP BY r.lane) c
JOIN shigoto.lane l ON l.lane = c.lane
GROUP BY l.queue

-- Of at most $1 jobs.
-- name: ready_by_queue
SELECT l.queue, sum(c.jobs)::bigint
FROM (
  SELECT r.lane, count(*) AS jobs
  FROM (SELECT r.lane FROM shigoto.ready r WHERE r.lane > 0 LIMIT $1::int) r
  GROUP BY r.lane) c
JOIN shigoto.lane l ON l.lane = c.lane
GROUP BY l.queue

-- name: scheduled_by_queue
SELECT l.queue, sum(c.jobs)::bigint
FROM (SELECT lane, count(*) AS jobs FROM shigoto.scheduled GROUP BY lane) c
JOIN shigoto.lane l ON l.lane = c.lane
GROUP BY l.queue

-- name: configure
INSERT INTO shigoto.queue (name, paused, keep_completed_for, keep_failed_for, keep_cancelled_for, max_pending)
VALUES ($1::text, $2::int::boolean, $3::bigint, $4::bigint, $5::bigint, $6::bigint)
ON CONFLICT (name) DO UPDATE SET
  paused = excluded.paused,
  keep_completed_for = excluded.keep_completed_for,
  keep_failed_for = excluded.keep_failed_for,
  keep_cancelled_for = excluded.keep_cancelled_for,
  max_pending = excluded.max_pending

-- name: settings
SELECT name, paused, keep_completed_for, keep_failed_for, keep_cancelled_for, max_pending
FROM shigoto.queue
ORDER BY name COLLATE "C"

-- name: workers
SELECT uuid_send(w.id), w.name, w.tasks, w.queues, w.slots, w.version, w.host, w.pid, w.isolates, w.stopping,
  w.started_at, w.lease_until, w.fenced_at,
  (SELECT count(*) FROM shigoto.running r WHERE r.worker = w.id), w.owner
FROM shigoto.worker w
WHERE w.fenced_at IS NULL
ORDER BY w.number
