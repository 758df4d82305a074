-- Schedules and the histories of their ticks.

-- name: all_schedules
SELECT s.id::text, s.name, s.revision, s.definition, s.origin, s.paused_at, s.failed, s.held, s.look_at, s.decided_to,
  s.job::text, s.errors, s.error, s.counts, s.created_at, s.declared_at, s.stretch, s.pauses
FROM shigoto.schedule s
ORDER BY s.name

-- name: schedules
SELECT s.id::text, s.name, s.revision, s.definition, s.origin, s.paused_at, s.failed, s.held, s.look_at, s.decided_to,
  s.job::text, s.errors, s.error, s.counts, s.created_at, s.declared_at, s.stretch, s.pauses
FROM shigoto.schedule s
WHERE s.name = ANY (ARRAY(SELECT e FROM jsonb_array_elements_text($1::text::jsonb) e))
ORDER BY s.name

-- What is due, in the order of its index. The last column: whether its job has not ended.
-- name: due_schedules
SELECT s.id::text, s.name, s.revision, s.definition, s.origin, s.paused_at, s.failed, s.held, s.look_at, s.decided_to,
  s.job::text, s.errors, s.error, s.counts, s.created_at, s.declared_at, s.stretch, s.pauses,
  EXISTS (SELECT 1 FROM shigoto.job b WHERE b.number = s.number)
    AND NOT EXISTS (SELECT 1 FROM shigoto.done d WHERE d.number = s.number)
FROM shigoto.schedule s
WHERE s.look_at <= $1::bigint
  AND (s.origin = '' OR s.name IN (SELECT e FROM jsonb_array_elements_text($2::text::jsonb) e))
ORDER BY s.look_at, s.name
LIMIT $3::int

-- The same, and what was decided by a clock that has gone back since, which is due now.
-- name: due_and_astray
SELECT s.id::text, s.name, s.revision, s.definition, s.origin, s.paused_at, s.failed, s.held, s.look_at, s.decided_to,
  s.job::text, s.errors, s.error, s.counts, s.created_at, s.declared_at, s.stretch, s.pauses,
  EXISTS (SELECT 1 FROM shigoto.job b WHERE b.number = s.number)
    AND NOT EXISTS (SELECT 1 FROM shigoto.done d WHERE d.number = s.number)
FROM (
  SELECT s.name, s.look_at AS since FROM shigoto.schedule s WHERE s.look_at <= $1::bigint AND (s.failed OR s.reached <= $2::bigint)
  UNION ALL
  SELECT s.name, $1::bigint FROM shigoto.schedule s WHERE s.reached > $2::bigint AND NOT s.failed
) d
JOIN shigoto.schedule s ON s.name = d.name
WHERE s.origin = '' OR s.name IN (SELECT e FROM jsonb_array_elements_text($3::text::jsonb) e)
ORDER BY d.since, s.name
LIMIT $4::int

-- Whether any was decided by a clock that has gone back since; and the first of all, whoever declares it.
-- name: first_look
SELECT a.astray, f.name, f.origin, f.look_at
FROM (
  SELECT coalesce(max(s.reached) > $1::bigint, false) AS astray FROM shigoto.schedule s WHERE NOT s.failed
) a
LEFT JOIN (
  SELECT s.name, s.origin, s.look_at FROM shigoto.schedule s WHERE s.look_at IS NOT NULL ORDER BY s.look_at LIMIT 1
) f ON true

-- name: next_look
SELECT CASE
  WHEN EXISTS (
    SELECT 1 FROM shigoto.schedule s
    WHERE s.reached > $2::bigint AND NOT s.failed
      AND (s.origin = '' OR s.name IN (SELECT e FROM jsonb_array_elements_text($3::text::jsonb) e)))
  THEN $1::bigint
  ELSE (
    SELECT min(s.look_at) FROM shigoto.schedule s
    WHERE s.look_at IS NOT NULL
      AND (s.origin = '' OR s.name IN (SELECT e FROM jsonb_array_elements_text($3::text::jsonb) e)))
END

-- name: later_look
SELECT min(s.look_at)
FROM shigoto.schedule s
WHERE s.look_at > $1::bigint
  AND (s.origin = '' OR s.name IN (SELECT e FROM jsonb_array_elements_text($2::text::jsonb) e))

-- name: lock_schedules
SELECT s.name, s.revision, s.id::text
FROM shigoto.schedule s
WHERE s.name = ANY (ARRAY(SELECT e FROM jsonb_array_elements_text($1::text::jsonb) e))
ORDER BY s.name
FOR UPDATE

-- name: add_schedules
INSERT INTO shigoto.schedule (id, name, revision, definition, origin, paused_at, failed, held, look_at, decided_to, job,
  errors, error, counts, created_at, declared_at, stretch, pauses)
SELECT (e ->> 0)::uuid, e ->> 1, (e ->> 2)::bigint, e ->> 3, e ->> 4, (e ->> 5)::bigint, e ->> 6 = '1', e ->> 7 = '1',
  (e ->> 8)::bigint, (e ->> 9)::bigint, (e ->> 10)::uuid, (e ->> 11)::int, e ->> 12, e ->> 13, (e ->> 14)::bigint,
  (e ->> 15)::bigint, e ->> 16, e ->> 17
FROM jsonb_array_elements($1::text::jsonb) e
ORDER BY (e ->> 1) COLLATE "C"
ON CONFLICT (name) DO NOTHING
RETURNING name

-- name: change_schedules
UPDATE shigoto.schedule s SET
  revision = (e ->> 2)::bigint,
  definition = e ->> 3,
  origin = e ->> 4,
  paused_at = (e ->> 5)::bigint,
  failed = e ->> 6 = '1',
  held = e ->> 7 = '1',
  look_at = (e ->> 8)::bigint,
  decided_to = (e ->> 9)::bigint,
  job = coalesce((e ->> 18)::uuid, s.job),
  number = coalesce((e ->> 19)::bigint, s.number),
  errors = (e ->> 11)::int,
  error = e ->> 12,
  counts = e ->> 13,
  declared_at = greatest(s.declared_at, (e ->> 15)::bigint),
  stretch = e ->> 16,
  pauses = e ->> 17
FROM jsonb_array_elements($1::text::jsonb) e
WHERE s.name = e ->> 1
  AND s.name = ANY (ARRAY(SELECT n ->> 1 FROM jsonb_array_elements($1::text::jsonb) n))

-- Without waiting: who changes one of them will say it the next time.
-- name: declare_schedules
UPDATE shigoto.schedule SET declared_at = $2::bigint
WHERE name = ANY (ARRAY(
  SELECT s.name
  FROM shigoto.schedule s
  WHERE s.name = ANY (ARRAY(SELECT e FROM jsonb_array_elements_text($1::text::jsonb) e))
  ORDER BY s.name
  FOR UPDATE SKIP LOCKED))

-- name: delete_schedules
DELETE FROM shigoto.schedule
WHERE name = ANY (ARRAY(SELECT e FROM jsonb_array_elements_text($1::text::jsonb) e))

-- name: delete_entries_of
DELETE FROM shigoto.tick
WHERE schedule = ANY (ARRAY(
  SELECT s.id FROM shigoto.schedule s
  WHERE s.name = ANY (ARRAY(SELECT e FROM jsonb_array_elements_text($1::text::jsonb) e))))

-- Ticks that have fired, of those that entries tell of. A run now is none, and only in the way of its own instant.
-- name: fired_entries
SELECT t.schedule::text, t.at
FROM jsonb_array_elements($1::text::jsonb) e
CROSS JOIN LATERAL (
  SELECT * FROM shigoto.tick t
  WHERE t.schedule = (e ->> 0)::uuid AND t.at BETWEEN (e ->> 1)::bigint AND (e ->> 2)::bigint OFFSET 0) t
WHERE t.outcome IN ('fired', 'caught_up', 'backfilled', 'run_now')
  AND (t.at = (e ->> 1)::bigint OR t.outcome <> 'run_now')

-- name: forget_later
DELETE FROM shigoto.tick
WHERE schedule = $1::text::uuid AND at > $2::bigint
  AND outcome NOT IN ('fired', 'caught_up', 'backfilled', 'run_now')
RETURNING outcome, count

-- name: forget_entries
DELETE FROM shigoto.tick
WHERE schedule = $1::text::uuid AND at = ANY (ARRAY(SELECT e::bigint FROM jsonb_array_elements_text($2::text::jsonb) e))
  AND outcome NOT IN ('fired', 'caught_up', 'backfilled', 'run_now')

-- name: put_entries
INSERT INTO shigoto.tick (schedule, at, outcome, decided_at, job, until, count)
SELECT (e ->> 0)::uuid, (e ->> 1)::bigint, e ->> 2, (e ->> 3)::bigint, (e ->> 4)::uuid, (e ->> 5)::bigint,
  (e ->> 6)::int
FROM jsonb_array_elements($1::text::jsonb) e
ON CONFLICT (schedule, at) DO UPDATE SET
  outcome = excluded.outcome,
  decided_at = excluded.decided_at,
  job = excluded.job,
  until = excluded.until,
  count = excluded.count

-- Those that ended before the newest ones begin.
-- name: prune_histories
DELETE FROM shigoto.tick
WHERE ctid = ANY (ARRAY(
  SELECT o.ctid
  FROM (
    SELECT e::uuid AS schedule, (
      SELECT n.at FROM shigoto.tick n WHERE n.schedule = e::uuid ORDER BY n.at DESC LIMIT 1 OFFSET $2::int - 1) AS since
    FROM jsonb_array_elements_text($1::text::jsonb) e
    OFFSET 0) k
  CROSS JOIN LATERAL (
    SELECT t.ctid FROM shigoto.tick t
    WHERE t.schedule = k.schedule AND t.at < k.since AND coalesce(t.until, t.at) < k.since
    OFFSET 0) o))

-- name: history
SELECT t.at, t.outcome, t.decided_at, t.job::text, t.until, t.count
FROM shigoto.schedule s
CROSS JOIN LATERAL (
  SELECT * FROM shigoto.tick t
  WHERE t.schedule = s.id AND t.at < coalesce($2::bigint, 9223372036854775807)
  ORDER BY t.at DESC
  LIMIT $3::int) t
WHERE s.name = $1::text
ORDER BY t.at DESC
