-- What people ask and do.

-- LOOK AND MANAGE ------------------------------------------------------------------------------------------------------

-- A waiting row is found through the body: (lane, -priority, run_at, number) is its key.
-- name: details
SELECT b.number, b.id, l.task, l.queue, b.tenant, b.payload, b.priority, b.run_at, b.created_at, b.expires_at,
  b.max_failures, b.max_crashes, b.alone, b.retry, b.timeout, b.soft_timeout, b.key, b.tags, b.meta,
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
  coalesce(d.solo, n.solo, r.solo, s.solo, 0),
  coalesce(d.started_at, n.claimed_at), d.finished_at,
  coalesce(d.cancel_requested_at, n.cancel_requested_at),
  p.fraction, p.text,
  d.result,
  CASE
    WHEN d.state = 3 THEN NULL
    WHEN d.error IS NOT NULL THEN d.error
    WHEN coalesce(d.failures, n.failures, r.failures, s.failures, 0) > 0 THEN
      (SELECT a.error FROM shigoto_attempt a
       WHERE a.number = b.number AND a.error IS NOT NULL ORDER BY a.token DESC LIMIT 1)
  END,
  d.failure_kind, n.worker
FROM json_each(?1) e
CROSS JOIN shigoto_job b ON b.number = e.value
CROSS JOIN shigoto_lane l ON l.lane = b.lane
LEFT JOIN shigoto_done d ON d.number = b.number
LEFT JOIN shigoto_running n ON n.number = b.number
LEFT JOIN shigoto_ready r ON r.lane = b.lane AND r.priority = -b.priority AND r.pos = b.run_at AND r.number = b.number
LEFT JOIN shigoto_scheduled s ON s.run_at = b.run_at AND s.number = b.number
LEFT JOIN shigoto_progress p ON p.number = b.number

-- name: payloads
SELECT b.number, b.payload
FROM json_each(?1) e
CROSS JOIN shigoto_job b ON b.number = e.value

-- name: attempts
SELECT token, outcome, error, traceback, started_at, finished_at
FROM shigoto_attempt
WHERE number = (SELECT number FROM shigoto_job WHERE id = ?1)
ORDER BY token

-- name: logs
SELECT token, line, at, level, text
FROM shigoto_log
WHERE number = (SELECT number FROM shigoto_job WHERE id = ?1)
ORDER BY token, line

-- By queue, since when its first job that can run now is due. From one priority of a lane to the next, so that it does
-- not matter how many wait.
-- name: oldest
WITH RECURSIVE level(lane, priority) AS (
  SELECT l.lane, (SELECT min(r.priority) FROM shigoto_ready r WHERE r.lane = l.lane)
  FROM shigoto_lane l
  UNION ALL
  SELECT v.lane, (SELECT min(r.priority) FROM shigoto_ready r WHERE r.lane = v.lane AND r.priority > v.priority)
  FROM level v
  WHERE v.priority IS NOT NULL)
SELECT l.queue, min((
  SELECT max(r.pos, b.created_at)
  FROM shigoto_ready r
  CROSS JOIN shigoto_job b ON b.number = r.number
  WHERE r.lane = v.lane AND r.priority = v.priority
  ORDER BY r.pos, r.number
  LIMIT 1))
FROM level v
CROSS JOIN shigoto_lane l ON l.lane = v.lane
WHERE v.priority IS NOT NULL
GROUP BY l.queue

-- name: waiting_rows
SELECT b.number, b.lane, l.alone, b.alone, b.priority, b.run_at, b.expires_at, l.queue, l.task, b.id,
  coalesce(r.token, s.token), coalesce(r.settled_token, s.settled_token), coalesce(r.failures, s.failures),
  coalesce(r.crashes, s.crashes), coalesce(r.solo_crashes, s.solo_crashes), coalesce(r.releases, s.releases),
  coalesce(r.snoozes, s.snoozes), coalesce(r.solo, s.solo)
FROM json_each(?1) e
CROSS JOIN shigoto_job b ON b.number = e.value
CROSS JOIN shigoto_lane l ON l.lane = b.lane
LEFT JOIN shigoto_ready r ON r.lane = b.lane AND r.priority = -b.priority AND r.pos = b.run_at AND r.number = b.number
LEFT JOIN shigoto_scheduled s ON s.run_at = b.run_at AND s.number = b.number
WHERE coalesce(r.number, s.number) IS NOT NULL

-- name: states_of
SELECT b.number,
  CASE
    WHEN d.number IS NOT NULL THEN d.state
    WHEN n.number IS NOT NULL THEN 2
    ELSE 1
  END,
  l.queue
FROM json_each(?1) e
CROSS JOIN shigoto_job b ON b.number = e.value
CROSS JOIN shigoto_lane l ON l.lane = b.lane
LEFT JOIN shigoto_done d ON d.number = b.number
LEFT JOIN shigoto_running n ON n.number = b.number

-- name: request_cancel
UPDATE shigoto_running SET cancel_requested_at = coalesce(cancel_requested_at, ?2)
WHERE number IN (SELECT value FROM json_each(?1))

-- name: done_rows
SELECT d.number, d.state, d.token, d.settled_token, d.crashes, d.releases, d.snoozes, d.solo, b.lane, l.alone, b.alone,
  b.priority, b.expires_at, l.queue
FROM json_each(?1) e
CROSS JOIN shigoto_done d ON d.number = e.value
CROSS JOIN shigoto_job b ON b.number = d.number
CROSS JOIN shigoto_lane l ON l.lane = b.lane

-- name: counters
SELECT queue, total, completed, failed, cancelled FROM shigoto_counter

-- name: uncounted
SELECT l.queue, count(*)
FROM shigoto_job b
CROSS JOIN shigoto_lane l ON l.lane = b.lane
WHERE b.number > (SELECT value FROM shigoto_meta WHERE name = 'counted_to')
GROUP BY l.queue

-- name: running_by_queue
SELECT l.queue, count(*)
FROM shigoto_running r
CROSS JOIN shigoto_job b ON b.number = r.number
CROSS JOIN shigoto_lane l ON l.lane = b.lane
GROUP BY l.queue

-- Of at most ?1 jobs.
-- name: ready_by_queue
SELECT l.queue, sum(c.jobs)
FROM (SELECT lane, count(*) AS jobs FROM (SELECT lane FROM shigoto_ready LIMIT ?1) GROUP BY lane) c
CROSS JOIN shigoto_lane l ON l.lane = c.lane
GROUP BY l.queue

-- name: scheduled_by_queue
SELECT l.queue, sum(c.jobs)
FROM (SELECT lane, count(*) AS jobs FROM shigoto_scheduled GROUP BY lane) c
CROSS JOIN shigoto_lane l ON l.lane = c.lane
GROUP BY l.queue

-- name: configure
INSERT INTO shigoto_queue (name, paused, keep_completed_for, keep_failed_for, keep_cancelled_for, max_pending)
VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (name) DO UPDATE SET
  paused = excluded.paused,
  keep_completed_for = excluded.keep_completed_for,
  keep_failed_for = excluded.keep_failed_for,
  keep_cancelled_for = excluded.keep_cancelled_for,
  max_pending = excluded.max_pending

-- name: settings
SELECT name, paused, keep_completed_for, keep_failed_for, keep_cancelled_for, max_pending
FROM shigoto_queue
ORDER BY name

-- name: workers
SELECT w.id, w.name, w.tasks, w.queues, w.slots, w.version, w.host, w.pid, w.isolates, w.stopping,
  w.started_at, w.lease_until, w.fenced_at,
  (SELECT count(*) FROM shigoto_running r WHERE r.worker = w.id), w.owner
FROM shigoto_worker w
WHERE w.fenced_at IS NULL
ORDER BY w.number
