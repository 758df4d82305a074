-- What keeps the store healthy: leases, promotion, sweeps, deletion.

-- BEAT, REPORT, ANNOUNCE ---------------------------------------------------------------------------------------------

-- 0 rows: fenced. Beat and fence update one row, so exactly one of them wins.
-- name: renew
UPDATE shigoto_worker SET lease_until = ?2 + lease WHERE id = ?1 AND fenced_at IS NULL

-- name: held_by
SELECT number, token, claimed_at, cancel_requested_at
FROM shigoto_running
WHERE worker = ?1
ORDER BY number

-- Which of the leases ?1 = [[number, token], …] are this worker's.
-- name: holds
SELECT r.number, r.token
FROM json_each(?1) e
CROSS JOIN shigoto_running r ON r.number = e.value ->> 0
WHERE r.token = e.value ->> 1 AND r.worker = ?2

-- name: note_progress
INSERT INTO shigoto_progress (number, fraction, text, checkpoint)
SELECT e.value ->> 0, e.value ->> 1, e.value ->> 2, e.value ->> 3
FROM json_each(?1) e
WHERE TRUE
ON CONFLICT (number) DO UPDATE SET
  fraction = coalesce(excluded.fraction, fraction),
  text = coalesce(excluded.text, text),
  checkpoint = coalesce(excluded.checkpoint, checkpoint)

-- A line that was told before is told again when its report was committed and the answer was lost.
-- name: add_log_line
INSERT INTO shigoto_log (number, token, line, at, level, text)
SELECT e.value ->> 0, e.value ->> 1, e.value ->> 2, e.value ->> 3, e.value ->> 4, e.value ->> 5
FROM json_each(?1) e
WHERE TRUE
ON CONFLICT DO NOTHING

-- name: drop_log_lines
DELETE FROM shigoto_log
WHERE (number, token, line) IN (
  SELECT l.number, l.token, l.line
  FROM json_each(?1) e
  CROSS JOIN shigoto_log l ON l.number = e.value ->> 0 AND l.token = e.value ->> 1 AND l.line < e.value ->> 2)

-- name: announce
INSERT INTO shigoto_worker (id, name, tasks, queues, slots, version, lease, started_at, lease_until,
  host, pid, isolates, stopping, owner)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8 + ?7, ?9, ?10, ?11, ?12, ?13)
ON CONFLICT (id) DO UPDATE SET
  name = excluded.name, tasks = excluded.tasks, queues = excluded.queues, slots = excluded.slots,
  version = excluded.version, lease = excluded.lease, lease_until = excluded.lease_until,
  host = excluded.host, pid = excluded.pid, isolates = excluded.isolates, stopping = excluded.stopping
WHERE fenced_at IS NULL

-- name: forget_unknown
DELETE FROM shigoto_meta WHERE name IN (SELECT 'unknown ' || value FROM json_each(?1))

-- name: leave
DELETE FROM shigoto_worker WHERE id = ?1

-- PROMOTE ------------------------------------------------------------------------------------------------------------

-- name: next_due
SELECT min(run_at) FROM shigoto_scheduled

-- name: promote
INSERT INTO shigoto_ready (lane, priority, pos, number, expires_at, token, settled_token,
  failures, crashes, solo_crashes, releases, snoozes, solo)
SELECT s.lane, -b.priority, s.run_at, s.number, b.expires_at, s.token, s.settled_token,
  s.failures, s.crashes, s.solo_crashes, s.releases, s.snoozes, s.solo
FROM (SELECT * FROM shigoto_scheduled WHERE run_at <= ?1 ORDER BY run_at, number LIMIT ?2) s
CROSS JOIN shigoto_job b ON b.number = s.number

-- name: unschedule_promoted
DELETE FROM shigoto_scheduled
WHERE (run_at, number) IN
  (SELECT run_at, number FROM shigoto_scheduled WHERE run_at <= ?1 ORDER BY run_at, number LIMIT ?2)

-- SWEEP --------------------------------------------------------------------------------------------------------------

-- ?1 = [id as 32 digits, …]
-- name: fence
UPDATE shigoto_worker SET fenced_at = ?2
WHERE lower(hex(id)) IN (SELECT value FROM json_each(?1)) AND lease_until < ?2 AND fenced_at IS NULL
RETURNING id, name, (SELECT value FROM shigoto_meta WHERE name = 'notices')

-- name: jobs_of
SELECT worker, count(*)
FROM shigoto_running
WHERE lower(hex(worker)) IN (SELECT value FROM json_each(?1))
GROUP BY worker

-- Those whose lease has ended, after a first row with the shortest lease of all that are not fenced.
-- name: expired_workers
SELECT NULL AS id, min(lease), 0 AS place FROM shigoto_worker WHERE fenced_at IS NULL
UNION ALL
SELECT id, lease, number FROM shigoto_worker WHERE lease_until < ?1 AND fenced_at IS NULL
ORDER BY place

-- name: renew_all
UPDATE shigoto_worker SET lease_until = ?1 + lease WHERE fenced_at IS NULL

-- "Orphan" is no unfenced worker, not a lease older than something: a claim that was in flight when its worker was
-- fenced is found here too.
-- name: orphans
SELECT r.number, r.worker, w.name, w.isolates
FROM (
  SELECT number, worker FROM shigoto_running
  WHERE worker NOT IN (SELECT id FROM shigoto_worker WHERE fenced_at IS NULL)
  ORDER BY number
  LIMIT ?1) r
LEFT JOIN shigoto_worker w ON w.id = r.worker

-- A fenced worker is remembered until nothing points at it, so that its late beat is answered with the truth.
-- name: forget_fenced
DELETE FROM shigoto_worker
WHERE fenced_at < ?1 AND id NOT IN (SELECT worker FROM shigoto_running)

-- A job that runs has started in time; if it comes back to be retried, it has not. 0: there is no such job.
-- name: due_expiries
SELECT e.expires_at, e.number,
  CASE
    WHEN b.number IS NULL THEN 0
    WHEN d.number IS NOT NULL THEN d.state
    ELSE 1
  END
FROM (
  SELECT e.expires_at, e.number
  FROM shigoto_expiry e
  WHERE e.expires_at < ?1 AND NOT EXISTS (SELECT 1 FROM shigoto_running n WHERE n.number = e.number)
  ORDER BY e.expires_at
  LIMIT ?2) e
LEFT JOIN shigoto_job b ON b.number = e.number
LEFT JOIN shigoto_done d ON d.number = e.number

-- ?1 = [[expires_at, number], …]
-- name: add_expiries
INSERT INTO shigoto_expiry (expires_at, number)
SELECT e.value ->> 0, e.value ->> 1
FROM json_each(?1) e
WHERE TRUE
ON CONFLICT DO NOTHING

-- name: forget_expiries
UPDATE shigoto_job SET expires_at = NULL WHERE number IN (SELECT value FROM json_each(?1))

-- ?1 = [[expires_at, number], …]
-- name: drop_expiries
DELETE FROM shigoto_expiry
WHERE (expires_at, number) IN (SELECT e.value ->> 0, e.value ->> 1 FROM json_each(?1) e)
RETURNING number

-- Where jobs wait that nobody knows how to run. A paused queue is left alone: nobody may start its jobs anyway.
-- name: unknown_lanes
SELECT l.lane, l.task
FROM shigoto_lane l
WHERE l.task NOT IN (
    SELECT t.value FROM shigoto_worker w CROSS JOIN json_each(w.tasks) t WHERE w.fenced_at IS NULL)
  AND NOT EXISTS (SELECT 1 FROM shigoto_queue q WHERE q.name = l.queue AND q.paused)
  AND EXISTS (SELECT 1 FROM shigoto_ready r WHERE r.lane = l.lane)

-- Since when: a job that a dead worker gave back has been due for as long as it ran; its task was not unknown.
-- The earlier instant stands, unless the clock was set back behind it.
-- name: note_unknown
INSERT INTO shigoto_meta (name, value)
SELECT 'unknown ' || e.value, ?2
FROM json_each(?1) e
WHERE TRUE
ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE excluded.value < value

-- name: note_look_for_unknown
INSERT INTO shigoto_meta (name, value) VALUES ('looked_for_unknown', ?1)
ON CONFLICT (name) DO UPDATE SET value = excluded.value

-- name: forget_all_unknown
DELETE FROM shigoto_meta WHERE name GLOB 'unknown *'

-- From one priority of a lane to the next, so that what is not due for so long is not looked at.
-- name: overdue_unknown
WITH RECURSIVE
level(lane, priority) AS (
  SELECT e.value, (SELECT min(r.priority) FROM shigoto_ready r WHERE r.lane = e.value)
  FROM json_each(?1) e
  UNION ALL
  SELECT v.lane, (SELECT min(r.priority) FROM shigoto_ready r WHERE r.lane = v.lane AND r.priority > v.priority)
  FROM level v
  WHERE v.priority IS NOT NULL)
SELECT r.number, l.task
FROM level v
CROSS JOIN shigoto_lane l ON l.lane = v.lane
CROSS JOIN shigoto_meta m ON m.name = 'unknown ' || l.task
CROSS JOIN shigoto_ready r ON r.lane = v.lane AND r.priority = v.priority AND r.pos < ?2
CROSS JOIN shigoto_job b ON b.number = r.number
WHERE m.value < ?2 AND b.created_at < ?2 AND (r.expires_at IS NULL OR r.expires_at >= ?3)
LIMIT ?4

-- name: meta
SELECT value FROM shigoto_meta WHERE name = ?1

-- Whose turn it is, at what only one does at a time; and how far the last one came. One who writes has every turn.
-- name: turn
SELECT coalesce((SELECT value FROM shigoto_meta WHERE name = ?1), 0)

-- name: switch_notices
INSERT INTO shigoto_meta (name, value) VALUES ('notices', ?1)
ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE value <> excluded.value

-- name: set_meta
UPDATE shigoto_meta SET value = ?2 WHERE name = ?1

-- name: fold
INSERT INTO shigoto_counter (queue, total)
SELECT l.queue, count(*)
FROM shigoto_job b
CROSS JOIN shigoto_lane l ON l.lane = b.lane
WHERE b.number > ?1 AND b.number <= ?2
GROUP BY l.queue
ON CONFLICT (queue) DO UPDATE SET total = total + excluded.total

-- name: highest
SELECT coalesce(max(number), 0) FROM shigoto_job

-- The pruner walks history in order of number, a batch at a time, and remembers how far it came: no index on
-- finished_at has to be kept up by every settle. What is no job, because somebody has written by hand, is kept for ever.
-- name: history_from
SELECT d.number, d.state, d.finished_at, l.queue,
  coalesce(CASE d.state WHEN 3 THEN q.keep_completed_for WHEN 4 THEN q.keep_failed_for ELSE q.keep_cancelled_for END,
    CASE d.state WHEN 3 THEN ?3 WHEN 4 THEN ?4 ELSE ?5 END) + iif(b.number IS NULL, 9000000000000000, 0)
FROM (SELECT number, state, finished_at FROM shigoto_done WHERE number > ?1 ORDER BY number LIMIT ?2) d
LEFT JOIN shigoto_job b ON b.number = d.number
LEFT JOIN shigoto_lane l ON l.lane = b.lane
LEFT JOIN shigoto_queue q ON q.name = l.queue

-- The oldest, if they are old enough; one look if not.
-- name: prune_audit
DELETE FROM shigoto_audit
WHERE number < (SELECT min(number) FROM shigoto_audit) + ?2
  AND at < ?1
  AND (SELECT at FROM shigoto_audit WHERE number = (SELECT min(number) FROM shigoto_audit)) < ?1

-- DELETE: everything that belongs to the given numbers -----------------------------------------------------------------

-- name: delete_keys
DELETE FROM shigoto_key
WHERE (tenant, key) IN
  (SELECT b.tenant, b.key FROM json_each(?1) e CROSS JOIN shigoto_job b ON b.number = e.value WHERE b.key IS NOT NULL)
  AND number IN (SELECT value FROM json_each(?1))

-- name: delete_expiries
DELETE FROM shigoto_expiry
WHERE (expires_at, number) IN
  (SELECT b.expires_at, b.number FROM json_each(?1) e CROSS JOIN shigoto_job b ON b.number = e.value
   WHERE b.expires_at IS NOT NULL)

-- name: delete_ready
DELETE FROM shigoto_ready
WHERE (lane, priority, pos, number) IN
  (SELECT b.lane, -b.priority, b.run_at, b.number FROM json_each(?1) e CROSS JOIN shigoto_job b ON b.number = e.value)

-- name: delete_scheduled
DELETE FROM shigoto_scheduled
WHERE (run_at, number) IN
  (SELECT b.run_at, b.number FROM json_each(?1) e CROSS JOIN shigoto_job b ON b.number = e.value)

-- name: delete_attempts
DELETE FROM shigoto_attempt WHERE number IN (SELECT value FROM json_each(?1))

-- name: delete_logs
DELETE FROM shigoto_log WHERE number IN (SELECT value FROM json_each(?1))

-- name: delete_progress
DELETE FROM shigoto_progress WHERE number IN (SELECT value FROM json_each(?1))

-- name: delete_done
DELETE FROM shigoto_done WHERE number IN (SELECT value FROM json_each(?1))

-- name: delete_jobs
DELETE FROM shigoto_job WHERE number IN (SELECT value FROM json_each(?1))

-- name: make_husk
UPDATE shigoto_job
SET id = randomblob(16), lane = 0, payload = '', key = NULL, expires_at = NULL, retry = NULL, tags = NULL, meta = NULL
WHERE number = ?1

-- name: delete_husk
DELETE FROM shigoto_job
WHERE number = (SELECT value FROM shigoto_meta WHERE name = 'husk')
  AND lane = 0
  AND number < (SELECT max(number) FROM shigoto_job)
