-- Schedules and the histories of their ticks.

-- name: all_schedules
SELECT id, name, revision, definition, origin, paused_at, failed, held, look_at, decided_to, job, errors, error, counts,
  created_at, declared_at, stretch, pauses
FROM shigoto_schedule
ORDER BY name

-- name: schedules
SELECT s.id, s.name, s.revision, s.definition, s.origin, s.paused_at, s.failed, s.held, s.look_at, s.decided_to, s.job,
  s.errors, s.error, s.counts, s.created_at, s.declared_at, s.stretch, s.pauses
FROM json_each(?1) e
CROSS JOIN shigoto_schedule s ON s.name = e.value
ORDER BY s.name

-- What is due, in the order of its index. The last column: whether its job has not ended.
-- name: due_schedules
SELECT s.id, s.name, s.revision, s.definition, s.origin, s.paused_at, s.failed, s.held, s.look_at, s.decided_to, s.job,
  s.errors, s.error, s.counts, s.created_at, s.declared_at, s.stretch, s.pauses,
  EXISTS (SELECT 1 FROM shigoto_job b WHERE b.number = s.number AND b.lane <> 0)
    AND NOT EXISTS (SELECT 1 FROM shigoto_done d WHERE d.number = s.number)
FROM shigoto_schedule s
WHERE s.look_at <= ?1 AND (s.origin = '' OR s.name IN (SELECT value FROM json_each(?2)))
ORDER BY s.look_at, s.name
LIMIT ?3

-- The same, and what was decided by a clock that has gone back since, which is due now.
-- name: due_and_astray
SELECT s.id, s.name, s.revision, s.definition, s.origin, s.paused_at, s.failed, s.held, s.look_at, s.decided_to, s.job,
  s.errors, s.error, s.counts, s.created_at, s.declared_at, s.stretch, s.pauses,
  EXISTS (SELECT 1 FROM shigoto_job b WHERE b.number = s.number AND b.lane <> 0)
    AND NOT EXISTS (SELECT 1 FROM shigoto_done d WHERE d.number = s.number)
FROM (
  SELECT name, look_at AS since FROM shigoto_schedule WHERE look_at <= ?1 AND (failed OR reached <= ?2)
  UNION ALL
  SELECT name, ?1 FROM shigoto_schedule WHERE reached > ?2 AND NOT failed
) d
CROSS JOIN shigoto_schedule s ON s.name = d.name
WHERE s.origin = '' OR s.name IN (SELECT value FROM json_each(?3))
ORDER BY d.since, s.name
LIMIT ?4

-- Whether any was decided by a clock that has gone back since; and the first of all, whoever declares it.
-- name: first_look
SELECT a.astray, f.name, f.origin, f.look_at
FROM (SELECT coalesce(max(reached) > ?1, 0) AS astray FROM shigoto_schedule WHERE NOT failed) a
LEFT JOIN (
  SELECT name, origin, look_at FROM shigoto_schedule WHERE look_at IS NOT NULL ORDER BY look_at LIMIT 1
) f

-- name: next_look
SELECT CASE
  WHEN EXISTS (
    SELECT 1 FROM shigoto_schedule
    WHERE reached > ?2 AND NOT failed AND (origin = '' OR name IN (SELECT value FROM json_each(?3))))
  THEN ?1
  ELSE (
    SELECT min(look_at) FROM shigoto_schedule
    WHERE look_at IS NOT NULL AND (origin = '' OR name IN (SELECT value FROM json_each(?3))))
END

-- name: later_look
SELECT min(look_at)
FROM shigoto_schedule
WHERE look_at > ?1 AND (origin = '' OR name IN (SELECT value FROM json_each(?2)))

-- name: lock_schedules
SELECT s.name, s.revision, s.id FROM json_each(?1) e CROSS JOIN shigoto_schedule s ON s.name = e.value

-- name: add_schedules
INSERT INTO shigoto_schedule (id, name, revision, definition, origin, paused_at, failed, held, look_at, decided_to, job,
  errors, error, counts, created_at, declared_at, stretch, pauses)
SELECT e.value ->> 0, e.value ->> 1, e.value ->> 2, e.value ->> 3, e.value ->> 4, e.value ->> 5, e.value ->> 6,
  e.value ->> 7, e.value ->> 8, e.value ->> 9, e.value ->> 10, e.value ->> 11, e.value ->> 12, e.value ->> 13,
  e.value ->> 14, e.value ->> 15, e.value ->> 16, e.value ->> 17
FROM json_each(?1) e
WHERE true
ON CONFLICT (name) DO NOTHING
RETURNING name

-- name: change_schedules
UPDATE shigoto_schedule SET
  revision = e.value ->> 2,
  definition = e.value ->> 3,
  origin = e.value ->> 4,
  paused_at = e.value ->> 5,
  failed = e.value ->> 6,
  held = e.value ->> 7,
  look_at = e.value ->> 8,
  decided_to = e.value ->> 9,
  job = coalesce(e.value ->> 18, job),
  number = coalesce(e.value ->> 19, number),
  errors = e.value ->> 11,
  error = e.value ->> 12,
  counts = e.value ->> 13,
  declared_at = max(declared_at, e.value ->> 15),
  stretch = e.value ->> 16,
  pauses = e.value ->> 17
FROM json_each(?1) e
WHERE shigoto_schedule.name = e.value ->> 1

-- name: declare_schedules
UPDATE shigoto_schedule SET declared_at = ?2 WHERE name IN (SELECT value FROM json_each(?1))

-- name: delete_schedules
DELETE FROM shigoto_schedule WHERE name IN (SELECT value FROM json_each(?1))

-- name: delete_entries_of
DELETE FROM shigoto_tick
WHERE schedule IN (SELECT id FROM shigoto_schedule WHERE name IN (SELECT value FROM json_each(?1)))

-- Ticks that have fired, of those that entries tell of. A run now is none, and only in the way of its own instant.
-- name: fired_entries
SELECT t.schedule, t.at
FROM json_each(?1) e
CROSS JOIN shigoto_tick t ON t.schedule = e.value ->> 0 AND t.at BETWEEN e.value ->> 1 AND e.value ->> 2
WHERE t.outcome IN ('fired', 'caught_up', 'backfilled', 'run_now')
  AND (t.at = e.value ->> 1 OR t.outcome <> 'run_now')

-- name: forget_later
DELETE FROM shigoto_tick
WHERE schedule = ?1 AND at > ?2 AND outcome NOT IN ('fired', 'caught_up', 'backfilled', 'run_now')
RETURNING outcome, count

-- name: forget_entries
DELETE FROM shigoto_tick
WHERE schedule = ?1 AND at IN (SELECT value FROM json_each(?2))
  AND outcome NOT IN ('fired', 'caught_up', 'backfilled', 'run_now')

-- name: put_entries
INSERT INTO shigoto_tick (schedule, at, outcome, decided_at, job, until, count)
SELECT e.value ->> 0, e.value ->> 1, e.value ->> 2, e.value ->> 3, e.value ->> 4, e.value ->> 5, e.value ->> 6
FROM json_each(?1) e
WHERE true
ON CONFLICT (schedule, at) DO UPDATE SET
  outcome = excluded.outcome,
  decided_at = excluded.decided_at,
  job = excluded.job,
  until = excluded.until,
  count = excluded.count

-- Those that ended before the newest ones begin.
-- name: prune_histories
DELETE FROM shigoto_tick
WHERE (schedule, at) IN (
  WITH kept AS MATERIALIZED (
    SELECT e.value AS schedule,
      (SELECT n.at FROM shigoto_tick n WHERE n.schedule = e.value ORDER BY n.at DESC LIMIT 1 OFFSET ?2 - 1) AS since
    FROM json_each(?1) e)
  SELECT t.schedule, t.at
  FROM kept k
  CROSS JOIN shigoto_tick t ON t.schedule = k.schedule AND t.at < k.since
  WHERE coalesce(t.until, t.at) < k.since)

-- name: history
SELECT t.at, t.outcome, t.decided_at, t.job, t.until, t.count
FROM shigoto_schedule s
CROSS JOIN shigoto_tick t ON t.schedule = s.id
WHERE s.name = ?1 AND (?2 IS NULL OR t.at < ?2)
ORDER BY t.at DESC
LIMIT ?3
