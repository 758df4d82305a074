-- What the service keeps and asks: tokens, the audit, the feed.

-- name: add_token
INSERT INTO shigoto.token (id, name, hash, scopes, queues, tenant, created_at, expires_at, revoked_at)
VALUES ($1::text, $2::text, $3::bytea, $4::text, $5::text, $6::text, $7::bigint, $8::bigint, $9::bigint)
ON CONFLICT DO NOTHING

-- name: tokens
SELECT id, name, hash, scopes, queues, tenant, created_at, expires_at, revoked_at
FROM shigoto.token
ORDER BY created_at, id

-- name: revoke_token
UPDATE shigoto.token SET revoked_at = $2::bigint WHERE id = $1::text AND revoked_at IS NULL

-- $1 = [[at, actor, action, target, before, after], …]
-- name: note
INSERT INTO shigoto.audit (at, actor, action, target, before, after)
SELECT (e ->> 0)::bigint, e ->> 1, e ->> 2, e ->> 3, e ->> 4, e ->> 5
FROM jsonb_array_elements($1::text::jsonb) WITH ORDINALITY AS t(e, place)
ORDER BY place

-- name: noted
SELECT number, at, actor, action, target, before, after
FROM shigoto.audit
WHERE number < coalesce($1::bigint, 9223372036854775807)
ORDER BY number DESC
LIMIT $2::int

-- name: noted_of
SELECT number, at, actor, action, target, before, after
FROM shigoto.audit
WHERE target = $3::text AND number < coalesce($1::bigint, 9223372036854775807)
ORDER BY target DESC, number DESC
LIMIT $2::int

-- Behind the place ($1, $2, $3) and before the instant $4. A step is twice the token, and one more for a job.
-- name: ended_jobs
SELECT d.at, d.number, 2 * d.token + 1, d.state, uuid_send(b.id), l.task, l.queue, b.tenant, d.failure_kind
FROM shigoto.ended_jobs($1::bigint, $2::bigint, $3::int, $4::bigint, $5::int) d
CROSS JOIN LATERAL (SELECT b.id, b.lane, b.tenant FROM shigoto.job b WHERE b.number = d.number OFFSET 0) b
CROSS JOIN LATERAL (SELECT l.task, l.queue FROM shigoto.lane l WHERE l.lane = b.lane OFFSET 0) l

-- A run that has ended its job is told as the end of the job.
-- name: ended_runs
SELECT a.finished_at, a.number, 2 * a.token, a.outcome, uuid_send(b.id), l.task, l.queue, b.tenant, NULL::text
FROM (
  SELECT a.finished_at, a.number, a.token, a.outcome
  FROM shigoto.attempt a
  LEFT JOIN LATERAL (SELECT d.token, d.finished_at FROM shigoto.done d WHERE d.number = a.number OFFSET 0) d ON true
  WHERE a.finished_at >= $1::bigint AND a.finished_at < $4::bigint
    AND (a.finished_at, a.number, 2 * a.token) > ($1::bigint, $2::bigint, $3::int)
    AND (d.token IS NULL OR d.token <> a.token OR d.finished_at <> a.finished_at)
  ORDER BY a.finished_at, a.number, a.token
  LIMIT $5::int) a
CROSS JOIN LATERAL (SELECT b.id, b.lane, b.tenant FROM shigoto.job b WHERE b.number = a.number OFFSET 0) b
CROSS JOIN LATERAL (SELECT l.task, l.queue FROM shigoto.lane l WHERE l.lane = b.lane OFFSET 0) l
ORDER BY a.finished_at, a.number, a.token
