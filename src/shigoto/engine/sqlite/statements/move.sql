-- Whole jobs and schedules, for moves, exports and imports. Asked by operators; each may walk over everything there is.

-- name: any_job
SELECT 1 FROM shigoto_job WHERE lane <> 0 LIMIT 1

-- name: any_schedule
SELECT 1 FROM shigoto_schedule LIMIT 1

-- The husk has kept the number of a job that was deleted.
-- name: highest_ever
SELECT coalesce(max(number), 0) FROM shigoto_job

-- name: count_running
SELECT count(*) FROM shigoto_running

-- name: all_running
SELECT number, token, worker FROM shigoto_running ORDER BY number

-- name: lanes
SELECT lane, queue, task, alone FROM shigoto_lane

-- name: mark_finished
SELECT number / ?1, count(*), sum(token), sum(finished_at)
FROM shigoto_done
GROUP BY 1

-- name: mark_logs
SELECT g.number / ?1, count(*), sum(g.line)
FROM shigoto_log g
CROSS JOIN shigoto_done d ON d.number = g.number
GROUP BY 1

-- name: mark_keys
SELECT k.number / ?1, count(*)
FROM shigoto_key k
CROSS JOIN shigoto_done d ON d.number = k.number
GROUP BY 1

-- name: mark_each
SELECT d.number, d.token, d.finished_at,
  (SELECT count(*) FROM shigoto_log g WHERE g.number = d.number),
  (SELECT coalesce(sum(g.line), 0) FROM shigoto_log g WHERE g.number = d.number),
  EXISTS (SELECT 1 FROM shigoto_job b
    CROSS JOIN shigoto_key k ON k.tenant = b.tenant AND k.key = b.key AND k.number = b.number
    WHERE b.number = d.number)
FROM shigoto_done d
WHERE d.number BETWEEN ?1 AND ?2

-- ?1 = [[tenant, key], …]
-- name: free_keys
DELETE FROM shigoto_key WHERE (tenant, key) IN (SELECT e.value ->> 0, e.value ->> 1 FROM json_each(?1) e)

-- ?3: 1 for finished jobs, 0 for others, NULL for any.
-- name: weigh
SELECT b.number, 500 + length(b.payload) + coalesce(length(d.result), 0) + coalesce(length(d.error), 0)
  + coalesce((SELECT sum(length(g.text) + 100) FROM shigoto_log g WHERE g.number = b.number), 0)
  + coalesce((SELECT sum(coalesce(length(a.error), 0) + coalesce(length(a.traceback), 0) + 100)
      FROM shigoto_attempt a WHERE a.number = b.number), 0)
  + coalesce((SELECT length(p.checkpoint) FROM shigoto_progress p WHERE p.number = b.number), 0)
FROM shigoto_job b
LEFT JOIN shigoto_done d ON d.number = b.number
WHERE b.number > ?1 AND b.number <= ?2 AND b.lane <> 0 AND (?3 IS NULL OR (d.number IS NOT NULL) = ?3)
ORDER BY b.number
LIMIT ?4

-- name: whole
SELECT b.number, b.id, l.task, l.queue,
  CASE
    WHEN d.number IS NOT NULL THEN d.state
    WHEN n.number IS NOT NULL THEN 2
    WHEN r.number IS NOT NULL OR s.number IS NOT NULL THEN 1
    WHEN k.number IS NOT NULL THEN 6
  END,
  b.payload, b.created_at, b.run_at, b.max_failures, b.max_crashes, b.priority, b.tenant, b.key, b.expires_at, b.retry,
  b.timeout, b.soft_timeout, b.tags, b.meta,
  coalesce(d.token, n.token, r.token, s.token, 0),
  coalesce(d.settled_token, n.settled_token, r.settled_token, s.settled_token, 0),
  coalesce(d.failures, n.failures, r.failures, s.failures, 0),
  coalesce(d.crashes, n.crashes, r.crashes, s.crashes, 0),
  coalesce(n.solo_crashes, r.solo_crashes, s.solo_crashes, 0),
  coalesce(d.releases, n.releases, r.releases, s.releases, 0),
  coalesce(d.snoozes, n.snoozes, r.snoozes, s.snoozes, 0),
  coalesce(k.unmet, 0), coalesce(d.started_at, n.claimed_at), d.finished_at,
  coalesce(d.cancel_requested_at, n.cancel_requested_at),
  d.failure_kind, d.error, d.result, p.fraction, p.text, p.checkpoint,
  y.number IS NOT NULL, b.alone, coalesce(d.solo, n.solo, r.solo, s.solo, 0), coalesce(n.superseded, 0)
FROM json_each(?1) e
CROSS JOIN shigoto_job b ON b.number = e.value
CROSS JOIN shigoto_lane l ON l.lane = b.lane
LEFT JOIN shigoto_done d ON d.number = b.number
LEFT JOIN shigoto_running n ON n.number = b.number
LEFT JOIN shigoto_ready r ON r.lane = b.lane AND r.priority = -b.priority AND r.pos = b.run_at AND r.number = b.number
LEFT JOIN shigoto_scheduled s ON s.run_at = b.run_at AND s.number = b.number
LEFT JOIN shigoto_blocked k ON k.number = b.number
LEFT JOIN shigoto_progress p ON p.number = b.number
LEFT JOIN shigoto_key y ON y.tenant = b.tenant AND y.key = b.key AND y.number = b.number

-- name: whole_attempts
SELECT a.number, a.token, a.outcome, a.error, a.traceback, a.started_at, a.finished_at
FROM json_each(?1) e
CROSS JOIN shigoto_attempt a ON a.number = e.value
ORDER BY a.number, a.token

-- name: whole_logs
SELECT g.number, g.token, g.line, g.at, g.level, g.text
FROM json_each(?1) e
CROSS JOIN shigoto_log g ON g.number = e.value
ORDER BY g.number, g.token, g.line

-- name: delete_blocked
DELETE FROM shigoto_blocked WHERE number IN (SELECT value FROM json_each(?1))

-- name: forget_counters
DELETE FROM shigoto_counter

-- name: recount
INSERT INTO shigoto_counter (queue, total, completed, failed, cancelled)
SELECT l.queue, count(*), sum(d.state IS 3), sum(d.state IS 4), sum(d.state IS 5)
FROM shigoto_job b
CROSS JOIN shigoto_lane l ON l.lane = b.lane
LEFT JOIN shigoto_done d ON d.number = b.number
GROUP BY l.queue

-- Numbers go on after that of a job that is not stored any more, as if it had just been deleted.
-- name: add_husk
INSERT INTO shigoto_job (number, id, lane, priority, run_at, created_at, max_failures, tenant, payload)
VALUES (?1, randomblob(16), 0, 0, 0, 0, 1, '', '')

-- name: mark_schedules
SELECT name, id, revision, declared_at,
  (SELECT count(*) FROM shigoto_tick t WHERE t.schedule = s.id),
  (SELECT max(t.at) FROM shigoto_tick t WHERE t.schedule = s.id)
FROM shigoto_schedule s
ORDER BY name

-- name: whole_schedules
SELECT s.name, s.id, s.revision, s.definition, s.origin, s.paused_at, s.failed, s.held, s.look_at, s.decided_to, s.job,
  s.number, s.errors, s.error, s.counts, s.created_at, s.declared_at, s.pauses
FROM json_each(?1) e
CROSS JOIN shigoto_schedule s ON s.name = e.value
ORDER BY s.name

-- name: whole_histories
SELECT s.name, t.at, t.outcome, t.decided_at, t.job, t.until, t.count
FROM json_each(?1) e
CROSS JOIN shigoto_schedule s ON s.name = e.value
CROSS JOIN shigoto_tick t ON t.schedule = s.id
ORDER BY s.name, t.at
