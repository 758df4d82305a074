-- Whole jobs and schedules, for moves, exports and imports. Asked by operators; each may walk over everything there is.

-- name: any_job
SELECT 1 FROM shigoto.job LIMIT 1

-- name: any_schedule
SELECT 1 FROM shigoto.schedule LIMIT 1

-- Also those that were given to nobody, because a transaction was rolled back.
-- name: highest_ever
SELECT CASE WHEN q.is_called THEN q.last_value ELSE 0 END FROM shigoto.job_number_seq q

-- name: count_running
SELECT count(*) FROM shigoto.running

-- name: all_running
SELECT number, token, uuid_send(worker) FROM shigoto.running ORDER BY number

-- name: lanes
SELECT lane, queue, task, alone FROM shigoto.lane

-- name: mark_finished
SELECT number / $1::bigint, count(*), sum(token), sum(finished_at)
FROM shigoto.done
GROUP BY 1

-- name: mark_logs
SELECT g.number / $1::bigint, count(*), sum(g.line)
FROM shigoto.log g
WHERE EXISTS (SELECT 1 FROM shigoto.done d WHERE d.number = g.number)
GROUP BY 1

-- name: mark_keys
SELECT k.number / $1::bigint, count(*)
FROM shigoto.key k
WHERE EXISTS (SELECT 1 FROM shigoto.done d WHERE d.number = k.number)
GROUP BY 1

-- Looked up job by job, whatever is known of the tables, which are new.
-- name: mark_each
SELECT d.number, d.token, d.finished_at,
  (SELECT count(*) FROM shigoto.log g WHERE g.number = d.number),
  (SELECT coalesce(sum(g.line), 0) FROM shigoto.log g WHERE g.number = d.number),
  (SELECT count(*)
    FROM shigoto.job b
    CROSS JOIN LATERAL (
      SELECT 1 FROM shigoto.key k WHERE k.tenant = b.tenant AND k.key = b.key AND k.number = b.number OFFSET 0) k
    WHERE b.number = d.number)
FROM shigoto.done d
WHERE d.number BETWEEN $1::bigint AND $2::bigint

-- $1 = [[tenant, key], …]
-- name: free_keys
DELETE FROM shigoto.key
WHERE ctid = ANY (ARRAY(
  SELECT k.ctid
  FROM jsonb_array_elements($1::text::jsonb) e
  CROSS JOIN LATERAL (
    SELECT k.ctid FROM shigoto.key k WHERE k.tenant = e ->> 0 AND k.key = e ->> 1 OFFSET 0) k))

-- $3: 1 for finished jobs, 0 for others, NULL for any.
-- name: weigh
SELECT b.number, 500 + length(b.payload) + coalesce(length(d.result), 0) + coalesce(length(d.error), 0)
  + coalesce((SELECT sum(length(g.text) + 100) FROM shigoto.log g WHERE g.number = b.number), 0)
  + coalesce((SELECT sum(coalesce(length(a.error), 0) + coalesce(length(a.traceback), 0) + 100)
      FROM shigoto.attempt a WHERE a.number = b.number), 0)
  + coalesce((SELECT length(p.checkpoint) FROM shigoto.progress p WHERE p.number = b.number), 0)
FROM shigoto.job b
LEFT JOIN shigoto.done d ON d.number = b.number
WHERE b.number > $1::bigint AND b.number <= $2::bigint
  AND ($3::int IS NULL OR (d.number IS NOT NULL) = ($3::int = 1))
ORDER BY b.number
LIMIT $4::int

-- name: whole
SELECT b.number, uuid_send(b.id), l.task, l.queue,
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
  y.number IS NOT NULL, b.alone, coalesce(d.solo, n.solo, r.solo, s.solo, false), coalesce(n.superseded, false)
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
LEFT JOIN LATERAL (SELECT * FROM shigoto.blocked k WHERE k.number = b.number OFFSET 0) k ON true
LEFT JOIN LATERAL (SELECT * FROM shigoto.progress p WHERE p.number = b.number OFFSET 0) p ON true
LEFT JOIN LATERAL (
  SELECT * FROM shigoto.key y WHERE y.tenant = b.tenant AND y.key = b.key AND y.number = b.number OFFSET 0) y ON true
ORDER BY e.place

-- name: whole_attempts
SELECT a.number, a.token, a.outcome, a.error, a.traceback, a.started_at, a.finished_at
FROM shigoto.attempt a
WHERE a.number = ANY (ARRAY(SELECT e::bigint FROM jsonb_array_elements_text($1::text::jsonb) e))
ORDER BY a.number, a.token

-- name: whole_logs
SELECT g.number, g.token, g.line, g.at, g.level, g.text
FROM shigoto.log g
WHERE g.number = ANY (ARRAY(SELECT e::bigint FROM jsonb_array_elements_text($1::text::jsonb) e))
ORDER BY g.number, g.token, g.line

-- name: delete_blocked
DELETE FROM shigoto.blocked
WHERE number = ANY (ARRAY(SELECT e::bigint FROM jsonb_array_elements_text($1::text::jsonb) e))

-- name: forget_counters
WITH gone AS (DELETE FROM shigoto.tally)
DELETE FROM shigoto.counter

-- name: recount
INSERT INTO shigoto.counter (queue, total, completed, failed, cancelled)
SELECT l.queue, count(*), count(*) FILTER (WHERE d.state = 3), count(*) FILTER (WHERE d.state = 4),
  count(*) FILTER (WHERE d.state = 5)
FROM shigoto.job b
JOIN shigoto.lane l ON l.lane = b.lane
LEFT JOIN shigoto.done d ON d.number = b.number
GROUP BY l.queue

-- name: go_on_after
SELECT setval('shigoto.job_number_seq', $1::bigint)

-- name: mark_schedules
SELECT s.name, s.id::text, s.revision, s.declared_at, t.entries, t.newest
FROM shigoto.schedule s
CROSS JOIN LATERAL (
  SELECT count(*) AS entries, max(t.at) AS newest FROM shigoto.tick t WHERE t.schedule = s.id OFFSET 0) t
ORDER BY s.name

-- name: whole_schedules
SELECT s.name, s.id::text, s.revision, s.definition, s.origin, s.paused_at, s.failed, s.held, s.look_at, s.decided_to,
  s.job::text, s.number, s.errors, s.error, s.counts, s.created_at, s.declared_at, s.pauses
FROM shigoto.schedule s
WHERE s.name = ANY (ARRAY(SELECT e FROM jsonb_array_elements_text($1::text::jsonb) e))
ORDER BY s.name

-- name: whole_histories
SELECT s.name, t.at, t.outcome, t.decided_at, t.job::text, t.until, t.count
FROM shigoto.schedule s
CROSS JOIN LATERAL (SELECT * FROM shigoto.tick t WHERE t.schedule = s.id ORDER BY t.at OFFSET 0) t
WHERE s.name = ANY (ARRAY(SELECT e FROM jsonb_array_elements_text($1::text::jsonb) e))
ORDER BY s.name, t.at
