-- What the service keeps and asks: tokens, the audit, the feed.

-- name: add_token
INSERT INTO shigoto_token (id, name, hash, scopes, queues, tenant, created_at, expires_at, revoked_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
ON CONFLICT DO NOTHING

-- name: tokens
SELECT id, name, hash, scopes, queues, tenant, created_at, expires_at, revoked_at
FROM shigoto_token
ORDER BY created_at, id

-- name: revoke_token
UPDATE shigoto_token SET revoked_at = ?2 WHERE id = ?1 AND revoked_at IS NULL

-- ?1 = [[at, actor, action, target, before, after], …]
-- name: note
INSERT INTO shigoto_audit (at, actor, action, target, before, after)
SELECT e.value ->> 0, e.value ->> 1, e.value ->> 2, e.value ->> 3, e.value ->> 4, e.value ->> 5
FROM json_each(?1) e
WHERE TRUE
ORDER BY e.key

-- name: noted
SELECT number, at, actor, action, target, before, after
FROM shigoto_audit
WHERE number < coalesce(?1, 9223372036854775807)
ORDER BY number DESC
LIMIT ?2

-- name: noted_of
SELECT number, at, actor, action, target, before, after
FROM shigoto_audit
WHERE target = ?3 AND number < coalesce(?1, 9223372036854775807)
ORDER BY number DESC
LIMIT ?2

-- Behind the place (?1, ?2, ?3) and before the instant ?4. A step is twice the token, and one more for a job.
-- name: ended_jobs
SELECT d.finished_at, d.number, 2 * d.token + 1, d.state, b.id, l.task, l.queue, b.tenant, d.failure_kind
FROM (
  SELECT finished_at, number, token, state, failure_kind
  FROM shigoto_done
  WHERE finished_at = ?1 AND number >= ?2 AND finished_at < ?4 AND (number > ?2 OR 2 * token + 1 > ?3)
  UNION ALL
  SELECT finished_at, number, token, state, failure_kind
  FROM shigoto_done
  WHERE finished_at > ?1 AND finished_at < ?4
  ORDER BY finished_at, number
  LIMIT ?5) d
CROSS JOIN shigoto_job b ON b.number = d.number
CROSS JOIN shigoto_lane l ON l.lane = b.lane

-- A run that has ended its job is told as the end of the job.
-- name: ended_runs
SELECT a.finished_at, a.number, 2 * a.token, a.outcome, b.id, l.task, l.queue, b.tenant, NULL
FROM shigoto_attempt a
CROSS JOIN shigoto_job b ON b.number = a.number
CROSS JOIN shigoto_lane l ON l.lane = b.lane
WHERE a.finished_at >= ?1 AND a.finished_at < ?4
  AND (a.finished_at, a.number, 2 * a.token) > (?1, ?2, ?3)
  AND NOT EXISTS (
    SELECT 1 FROM shigoto_done d
    WHERE d.number = a.number AND d.token = a.token AND d.finished_at = a.finished_at)
ORDER BY a.finished_at, a.number, a.token
LIMIT ?5

-- name: watched
SELECT count(*) = 2 FROM sqlite_schema
WHERE type = 'index' AND name IN ('shigoto_done_by_end', 'shigoto_attempt_by_end')

-- name: watch_jobs
CREATE INDEX IF NOT EXISTS shigoto_done_by_end ON shigoto_done (finished_at)

-- name: watch_runs
CREATE INDEX IF NOT EXISTS shigoto_attempt_by_end ON shigoto_attempt (finished_at)
