-- What is encrypted, and how it is encrypted anew: the one exception to "the body never moves" (decision 0023).

-- Where a page of jobs ends.
-- name: sealed_to
SELECT max(number)
FROM (SELECT number FROM shigoto.job WHERE number > $1::bigint ORDER BY number LIMIT $2::int) page

-- Envelopes are known by how they begin, and so are those of the current key, which stay.
-- name: sealed
SELECT s.number, s.held, s.token, s.line, s.text, uuid_send(b.id), b.tenant, l.task
FROM (
  SELECT number, 'payload'::text AS held, 0 AS token, 0 AS line, payload AS text
  FROM shigoto.job
  WHERE number > $1::bigint AND number <= $2::bigint
  UNION ALL
  SELECT number, 'result', 0, 0, result
  FROM shigoto.done
  WHERE number > $1::bigint AND number <= $2::bigint
  UNION ALL
  SELECT number, 'failure', 0, 0, error
  FROM shigoto.done
  WHERE number > $1::bigint AND number <= $2::bigint
  UNION ALL
  SELECT number, 'progress', 0, 0, text
  FROM shigoto.progress
  WHERE number > $1::bigint AND number <= $2::bigint
  UNION ALL
  SELECT number, 'checkpoint', 0, 0, checkpoint
  FROM shigoto.progress
  WHERE number > $1::bigint AND number <= $2::bigint
  UNION ALL
  SELECT number, 'error', token, 0, error
  FROM shigoto.attempt
  WHERE number > $1::bigint AND number <= $2::bigint
  UNION ALL
  SELECT number, 'traceback', token, 0, traceback
  FROM shigoto.attempt
  WHERE number > $1::bigint AND number <= $2::bigint
  UNION ALL
  SELECT number, 'log', token, line, text
  FROM shigoto.log
  WHERE number > $1::bigint AND number <= $2::bigint) s
JOIN shigoto.job b ON b.number = s.number
JOIN shigoto.lane l ON l.lane = b.lane
WHERE substr(s.text, 1, length($3::text)) = $3::text
  AND substr(s.text, 1, length($4::text)) <> $4::text
ORDER BY s.number, s.held, s.token, s.line

-- $1 = [[number, token, line, seen, instead], …]
-- name: reseal_payload
UPDATE shigoto.job j
SET payload = e ->> 4
FROM jsonb_array_elements($1::text::jsonb) e
WHERE j.number = (e ->> 0)::bigint AND j.payload = e ->> 3

-- name: reseal_result
UPDATE shigoto.done d
SET result = e ->> 4
FROM jsonb_array_elements($1::text::jsonb) e
WHERE d.number = (e ->> 0)::bigint AND d.result = e ->> 3

-- name: reseal_failure
UPDATE shigoto.done d
SET error = e ->> 4
FROM jsonb_array_elements($1::text::jsonb) e
WHERE d.number = (e ->> 0)::bigint AND d.error = e ->> 3

-- name: reseal_progress
UPDATE shigoto.progress p
SET text = e ->> 4
FROM jsonb_array_elements($1::text::jsonb) e
WHERE p.number = (e ->> 0)::bigint AND p.text = e ->> 3

-- name: reseal_checkpoint
UPDATE shigoto.progress p
SET checkpoint = e ->> 4
FROM jsonb_array_elements($1::text::jsonb) e
WHERE p.number = (e ->> 0)::bigint AND p.checkpoint = e ->> 3

-- name: reseal_error
UPDATE shigoto.attempt a
SET error = e ->> 4
FROM jsonb_array_elements($1::text::jsonb) e
WHERE a.number = (e ->> 0)::bigint AND a.token = (e ->> 1)::int AND a.error = e ->> 3

-- name: reseal_traceback
UPDATE shigoto.attempt a
SET traceback = e ->> 4
FROM jsonb_array_elements($1::text::jsonb) e
WHERE a.number = (e ->> 0)::bigint AND a.token = (e ->> 1)::int AND a.traceback = e ->> 3

-- name: reseal_log
UPDATE shigoto.log l
SET text = e ->> 4
FROM jsonb_array_elements($1::text::jsonb) e
WHERE l.number = (e ->> 0)::bigint AND l.token = (e ->> 1)::int AND l.line = (e ->> 2)::int AND l.text = e ->> 3
