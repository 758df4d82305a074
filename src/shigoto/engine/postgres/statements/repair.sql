-- What keeps the store healthy: leases, promotion, sweeps, deletion. Several sweeps may run at once, and none of them
-- waits for anybody, not even for another: where a row is skipped because somebody else has it locked, the next sweep
-- comes by anyway.

-- BEAT, REPORT, ANNOUNCE ---------------------------------------------------------------------------------------------

-- 0 rows: fenced. Beat and fence update one row, so exactly one of them wins.
-- name: renew
UPDATE shigoto.worker SET lease_until = $2::bigint + lease
WHERE id = encode($1::bytea, 'hex')::uuid AND fenced_at IS NULL

-- Not locked: a beat must not wait for whoever completes one of these, and who takes one away asks `held` first.
-- name: held_by
SELECT number, token, claimed_at, cancel_requested_at
FROM shigoto.running
WHERE worker = encode($1::bytea, 'hex')::uuid
ORDER BY number

-- Which of the leases $1 = [[number, token], …] are this worker's. Until the report is written, nobody can take their
-- jobs away.
-- name: holds
SELECT r.number, r.token
FROM jsonb_array_elements($1::text::jsonb) e
CROSS JOIN LATERAL (
  SELECT r.number, r.token FROM shigoto.running r
  WHERE r.number = (e ->> 0)::bigint AND r.token = (e ->> 1)::int AND r.worker = encode($2::bytea, 'hex')::uuid
  OFFSET 0 FOR KEY SHARE) r

-- name: note_progress
INSERT INTO shigoto.progress AS p (number, fraction, text, checkpoint)
SELECT (e ->> 0)::bigint, (e ->> 1)::double precision, e ->> 2, e ->> 3
FROM jsonb_array_elements($1::text::jsonb) e
ON CONFLICT (number) DO UPDATE SET
  fraction = coalesce(excluded.fraction, p.fraction),
  text = coalesce(excluded.text, p.text),
  checkpoint = coalesce(excluded.checkpoint, p.checkpoint)

-- A line that was told before is told again when its report was committed and the answer was lost.
-- name: add_log_line
INSERT INTO shigoto.log (number, token, line, at, level, text)
SELECT (e ->> 0)::bigint, (e ->> 1)::int, (e ->> 2)::int, (e ->> 3)::bigint, e ->> 4, e ->> 5
FROM jsonb_array_elements($1::text::jsonb) e
ON CONFLICT DO NOTHING

-- name: drop_log_lines
DELETE FROM shigoto.log l
USING jsonb_array_elements($1::text::jsonb) e
WHERE l.number = (e ->> 0)::bigint AND l.token = (e ->> 1)::int AND l.line < (e ->> 2)::int

-- name: announce
INSERT INTO shigoto.worker AS w (id, name, tasks, queues, slots, version, lease, started_at, lease_until,
  host, pid, isolates, stopping, owner)
VALUES (encode($1::bytea, 'hex')::uuid, $2::text, $3::text, $4::text, $5::int, $6::text, $7::bigint, $8::bigint,
  $8::bigint + $7::bigint, $9::text, $10::bigint, $11::int::boolean, $12::int::boolean, $13::text)
ON CONFLICT (id) DO UPDATE SET
  name = excluded.name, tasks = excluded.tasks, queues = excluded.queues, slots = excluded.slots,
  version = excluded.version, lease = excluded.lease, lease_until = excluded.lease_until,
  host = excluded.host, pid = excluded.pid, isolates = excluded.isolates, stopping = excluded.stopping
WHERE w.fenced_at IS NULL

-- name: forget_unknown
DELETE FROM shigoto.meta
WHERE name = ANY (ARRAY(SELECT 'unknown ' || e FROM jsonb_array_elements_text($1::text::jsonb) e))

-- name: leave
DELETE FROM shigoto.worker WHERE id = encode($1::bytea, 'hex')::uuid

-- PROMOTE ------------------------------------------------------------------------------------------------------------

-- How many were due, of at most $1, and in how many milliseconds the next one is.
-- name: promote
SELECT p.moved, p.next_in FROM shigoto.promote($1::int) p

-- SWEEP --------------------------------------------------------------------------------------------------------------

-- Writes down how late it is, every few seconds; or believes a step back of more than a minute, and tells how far it
-- was; also the last migration that was not for releases which do not know it, for whoever began before that. Of
-- several who see a step, one is told, and nobody waits for that one: it may be a sweep, which takes its time, and
-- beats come by here.
-- name: renew_clock
WITH late AS MATERIALIZED (
  SELECT c.mark, h.host
  FROM shigoto.clock c
  CROSS JOIN (SELECT shigoto.host_now() AS host) h
  WHERE h.host >= c.mark + 5000 OR h.host < c.mark - 60000
  FOR UPDATE OF c SKIP LOCKED),
renewed AS (
  UPDATE shigoto.clock c SET mark = l.host FROM late l)
SELECT coalesce((SELECT greatest(l.mark - l.host, 0) FROM late l), 0), m.version, m.name
FROM (SELECT 1) one
LEFT JOIN LATERAL (
  SELECT m.version, m.name FROM shigoto.migration m WHERE m.breaking ORDER BY m.version DESC LIMIT 1) m ON true

-- Who is locked is beating just now. $1 = [id as 32 digits, …]
-- name: fence
UPDATE shigoto.worker SET fenced_at = $2::bigint
WHERE number = ANY (ARRAY(
  SELECT w.number FROM shigoto.worker w
  WHERE w.id = ANY (ARRAY(SELECT e::uuid FROM jsonb_array_elements_text($1::text::jsonb) e))
    AND w.lease_until < $2::bigint AND w.fenced_at IS NULL
  FOR UPDATE SKIP LOCKED))
RETURNING uuid_send(id), name, (SELECT m.value FROM shigoto.meta m WHERE m.name = 'notices')

-- name: jobs_of
SELECT uuid_send(r.worker), count(*)
FROM shigoto.running r
WHERE r.worker = ANY (ARRAY(SELECT e::uuid FROM jsonb_array_elements_text($1::text::jsonb) e))
GROUP BY r.worker

-- Those whose lease has ended, after a first row with the shortest lease of all that are not fenced.
-- name: expired_workers
SELECT NULL::bytea AS id, min(lease), 0::bigint AS place FROM shigoto.worker WHERE fenced_at IS NULL
UNION ALL
SELECT uuid_send(id), lease, number FROM shigoto.worker WHERE lease_until < $1::bigint AND fenced_at IS NULL
ORDER BY place

-- Who is locked is beating just now, and renews its lease itself.
-- name: renew_all
UPDATE shigoto.worker SET lease_until = $1::bigint + lease
WHERE number = ANY (ARRAY(
  SELECT w.number FROM shigoto.worker w WHERE w.fenced_at IS NULL FOR UPDATE SKIP LOCKED))

-- "Orphan" is no unfenced worker, not a lease older than something: a claim that was in flight when its worker was
-- fenced is found here too.
-- name: orphans
SELECT r.number, uuid_send(r.worker), w.name, w.isolates
FROM (
  SELECT r.number, r.worker
  FROM shigoto.running r
  WHERE NOT EXISTS (SELECT 1 FROM shigoto.worker w WHERE w.id = r.worker AND w.fenced_at IS NULL)
  ORDER BY r.number
  LIMIT $1::int
  FOR UPDATE OF r SKIP LOCKED) r
LEFT JOIN shigoto.worker w ON w.id = r.worker
ORDER BY r.number

-- A fenced worker is remembered until nothing points at it, so that its late beat is answered with the truth.
-- name: forget_fenced
DELETE FROM shigoto.worker
WHERE number = ANY (ARRAY(
  SELECT w.number FROM shigoto.worker w
  WHERE w.fenced_at < $1::bigint AND NOT EXISTS (SELECT 1 FROM shigoto.running r WHERE r.worker = w.id)
  FOR UPDATE SKIP LOCKED))

-- A job that runs has started in time; if it comes back to be retried, it has not. The jobs are locked, and not their
-- instants: so nothing is forgotten of one that was claimed a moment ago. 0: it is nowhere, not even as a job.
-- name: due_expiries
WITH page AS MATERIALIZED (
  SELECT e.expires_at, e.number
  FROM shigoto.expiry e
  WHERE e.expires_at < $1::bigint AND NOT EXISTS (SELECT 1 FROM shigoto.running n WHERE n.number = e.number)
  ORDER BY e.expires_at, e.number
  LIMIT $2::int)
SELECT p.expires_at, p.number, s.state
FROM page p
JOIN shigoto.free_states(ARRAY(SELECT p.number FROM page p)) s ON s.number = p.number

-- name: forget_expiries
UPDATE shigoto.job SET expires_at = NULL
WHERE number = ANY (ARRAY(SELECT e::bigint FROM jsonb_array_elements_text($1::text::jsonb) e))

-- $1 = [[expires_at, number], …]
-- name: drop_expiries
DELETE FROM shigoto.expiry
WHERE ctid = ANY (ARRAY(
  SELECT x.ctid
  FROM jsonb_array_elements($1::text::jsonb) e
  CROSS JOIN LATERAL (
    SELECT x.ctid FROM shigoto.expiry x
    WHERE x.expires_at = (e ->> 0)::bigint AND x.number = (e ->> 1)::bigint OFFSET 0) x))
RETURNING number

-- Where jobs wait that nobody knows how to run. A paused queue is left alone: nobody may start its jobs anyway.
-- name: unknown_lanes
SELECT l.lane, l.task
FROM shigoto.lane l
CROSS JOIN LATERAL (
  SELECT 1 FROM shigoto.ready r WHERE r.lane = l.lane ORDER BY r.priority, r.run_at, r.number LIMIT 1) r
WHERE NOT EXISTS (
    SELECT 1 FROM shigoto.worker w CROSS JOIN LATERAL json_array_elements_text(w.tasks::json) t
    WHERE w.fenced_at IS NULL AND t = l.task)
  AND NOT EXISTS (SELECT 1 FROM shigoto.queue q WHERE q.name = l.queue AND q.paused)
ORDER BY l.lane

-- Since when: a job that a dead worker gave back has been due for as long as it ran; its task was not unknown.
-- The earlier instant stands, unless the clock was set back behind it.
-- It is only touched if it must change, since who announces that it knows the task wants to delete it.
-- name: note_unknown
WITH tasks AS MATERIALIZED (
  SELECT 'unknown ' || e AS name FROM jsonb_array_elements_text($1::text::jsonb) e),
later AS MATERIALIZED (
  SELECT m.name FROM shigoto.meta m
  WHERE m.name = ANY (ARRAY(SELECT t.name FROM tasks t)) AND m.value > $2::bigint
  FOR UPDATE SKIP LOCKED),
corrected AS (
  UPDATE shigoto.meta m SET value = $2::bigint WHERE m.name = ANY (ARRAY(SELECT l.name FROM later l)))
INSERT INTO shigoto.meta (name, value)
SELECT t.name, $2::bigint
FROM tasks t
WHERE NOT EXISTS (SELECT 1 FROM shigoto.meta m WHERE m.name = t.name)
ON CONFLICT (name) DO NOTHING

-- name: note_look_for_unknown
INSERT INTO shigoto.meta (name, value) VALUES ('looked_for_unknown', $1::bigint)
ON CONFLICT (name) DO UPDATE SET value = excluded.value

-- name: forget_all_unknown
DELETE FROM shigoto.meta
WHERE name = ANY (ARRAY(
  SELECT m.name FROM shigoto.meta m WHERE m.name LIKE 'unknown %' FOR UPDATE SKIP LOCKED))

-- From one priority of a lane to the next, so that what is not due for so long is not looked at. Locked, since somebody
-- may have begun to know the task a moment ago.
-- name: overdue_unknown
WITH RECURSIVE level(lane, priority) AS (
  SELECT e::int, (SELECT min(r.priority) FROM shigoto.ready r WHERE r.lane = e::int)
  FROM jsonb_array_elements_text($1::text::jsonb) e
  UNION ALL
  SELECT v.lane, (SELECT min(r.priority) FROM shigoto.ready r WHERE r.lane = v.lane AND r.priority > v.priority)
  FROM level v
  WHERE v.priority IS NOT NULL)
SELECT r.number, l.task
FROM level v
CROSS JOIN LATERAL (SELECT * FROM shigoto.lane l WHERE l.lane = v.lane OFFSET 0) l
CROSS JOIN LATERAL (SELECT * FROM shigoto.meta m WHERE m.name = 'unknown ' || l.task OFFSET 0) m
CROSS JOIN LATERAL (
  SELECT r.number
  FROM shigoto.ready r
  CROSS JOIN LATERAL (SELECT b.created_at FROM shigoto.job b WHERE b.number = r.number OFFSET 0) b
  WHERE r.lane = v.lane AND r.priority = v.priority AND r.run_at < $2::bigint
    AND m.value < $2::bigint AND b.created_at < $2::bigint AND (r.expires_at IS NULL OR r.expires_at >= $3::bigint)
  ORDER BY r.run_at, r.number
  LIMIT $4::int
  FOR UPDATE OF r SKIP LOCKED) r
LIMIT $4::int

-- name: meta
SELECT value FROM shigoto.meta WHERE name = $1::text
UNION ALL
SELECT mark FROM shigoto.clock WHERE $1::text = 'clock'

-- Whose turn it is, at what only one does at a time, and how far the last one came; nothing for whoever finds another
-- at it, and leaves it to that one.
-- name: turn
SELECT value FROM shigoto.meta WHERE name = $1::text FOR UPDATE SKIP LOCKED

-- name: switch_notices
INSERT INTO shigoto.meta AS m (name, value) VALUES ('notices', $1::bigint)
ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE m.value <> excluded.value

-- name: set_meta
UPDATE shigoto.meta SET value = $2::bigint WHERE name = $1::text AND value <> $2::bigint

-- name: fold_tally
SELECT shigoto.fold_tally()

-- The pruner walks history in order of number, a batch at a time, and remembers how far it came: no index on
-- finished_at has to be kept up by every settle. What has been kept long enough is locked; who could not have the lock
-- is told to keep it for ever, and so is what is no job, because somebody has written by hand. To lock the others too
-- would rewrite all of history again and again.
-- name: history_from
WITH t AS MATERIALIZED (
  SELECT shigoto.now() AS now),
page AS MATERIALIZED (
  SELECT d.number, d.state, d.finished_at, l.queue,
    coalesce(CASE d.state WHEN 3 THEN q.keep_completed_for WHEN 4 THEN q.keep_failed_for ELSE q.keep_cancelled_for END,
      CASE d.state WHEN 3 THEN $3::bigint WHEN 4 THEN $4::bigint ELSE $5::bigint END)
      + CASE WHEN b.lane IS NULL THEN 9000000000000000 ELSE 0 END AS keep_for
  FROM (
    SELECT d.number, d.state, d.finished_at FROM shigoto.done d
    WHERE d.number > $1::bigint
    ORDER BY d.number
    LIMIT $2::int) d
  LEFT JOIN LATERAL (SELECT b.lane FROM shigoto.job b WHERE b.number = d.number OFFSET 0) b ON true
  LEFT JOIN LATERAL (SELECT l.queue FROM shigoto.lane l WHERE l.lane = b.lane OFFSET 0) l ON true
  LEFT JOIN LATERAL (SELECT * FROM shigoto.queue q WHERE q.name = l.queue OFFSET 0) q ON true)
SELECT p.number, p.state, p.finished_at, p.queue,
  CASE WHEN p.finished_at + p.keep_for < t.now AND o.number IS NULL THEN 9000000000000000 ELSE p.keep_for END
FROM page p
CROSS JOIN t
LEFT JOIN LATERAL (
  SELECT d.number FROM shigoto.done d
  WHERE d.number = p.number AND p.finished_at + p.keep_for < t.now
  OFFSET 0 FOR UPDATE SKIP LOCKED) o ON true
ORDER BY p.number

-- The oldest, if they are old enough; one look if not. Whose turn it is to prune is alone here.
-- name: prune_audit
DELETE FROM shigoto.audit
WHERE number < (SELECT min(number) FROM shigoto.audit) + $2::int
  AND at < $1::bigint
  AND (SELECT a.at FROM shigoto.audit a ORDER BY a.number LIMIT 1) < $1::bigint

-- DELETE: everything that belongs to the given numbers ----------------------------------------------------------------

-- A key that somebody has locked stays: nobody holds a key whose job is gone, and who takes it writes over it.
-- name: delete_keys
DELETE FROM shigoto.key
WHERE ctid = ANY (ARRAY(
  SELECT k.ctid
  FROM jsonb_array_elements_text($1::text::jsonb) e
  CROSS JOIN LATERAL (SELECT * FROM shigoto.job b WHERE b.number = e::bigint AND b.key IS NOT NULL OFFSET 0) b
  CROSS JOIN LATERAL (
    SELECT k.ctid FROM shigoto.key k
    WHERE k.tenant = b.tenant AND k.key = b.key AND k.number = b.number OFFSET 0 FOR UPDATE SKIP LOCKED) k))

-- name: delete_expiries
DELETE FROM shigoto.expiry
WHERE ctid = ANY (ARRAY(
  SELECT x.ctid
  FROM jsonb_array_elements_text($1::text::jsonb) e
  CROSS JOIN LATERAL (SELECT * FROM shigoto.job b WHERE b.number = e::bigint AND b.expires_at IS NOT NULL OFFSET 0) b
  CROSS JOIN LATERAL (
    SELECT x.ctid FROM shigoto.expiry x WHERE x.expires_at = b.expires_at AND x.number = b.number OFFSET 0) x))

-- name: delete_ready
DELETE FROM shigoto.ready
WHERE ctid = ANY (ARRAY(
  SELECT r.ctid
  FROM jsonb_array_elements_text($1::text::jsonb) e
  CROSS JOIN LATERAL (SELECT * FROM shigoto.job b WHERE b.number = e::bigint OFFSET 0) b
  CROSS JOIN LATERAL (
    SELECT r.ctid FROM shigoto.ready r
    WHERE r.lane = b.lane AND r.priority = -b.priority AND r.run_at = b.run_at AND r.number = b.number OFFSET 0) r))

-- name: delete_scheduled
DELETE FROM shigoto.scheduled
WHERE ctid = ANY (ARRAY(
  SELECT s.ctid
  FROM jsonb_array_elements_text($1::text::jsonb) e
  CROSS JOIN LATERAL (SELECT * FROM shigoto.job b WHERE b.number = e::bigint OFFSET 0) b
  CROSS JOIN LATERAL (
    SELECT s.ctid FROM shigoto.scheduled s WHERE s.run_at = b.run_at AND s.number = b.number OFFSET 0) s))

-- name: delete_attempts
DELETE FROM shigoto.attempt
WHERE number = ANY (ARRAY(SELECT e::bigint FROM jsonb_array_elements_text($1::text::jsonb) e))

-- name: delete_logs
DELETE FROM shigoto.log
WHERE number = ANY (ARRAY(SELECT e::bigint FROM jsonb_array_elements_text($1::text::jsonb) e))

-- name: delete_progress
DELETE FROM shigoto.progress
WHERE number = ANY (ARRAY(SELECT e::bigint FROM jsonb_array_elements_text($1::text::jsonb) e))

-- name: delete_done
DELETE FROM shigoto.done
WHERE number = ANY (ARRAY(SELECT e::bigint FROM jsonb_array_elements_text($1::text::jsonb) e))

-- name: delete_jobs
DELETE FROM shigoto.job
WHERE number = ANY (ARRAY(SELECT e::bigint FROM jsonb_array_elements_text($1::text::jsonb) e))
