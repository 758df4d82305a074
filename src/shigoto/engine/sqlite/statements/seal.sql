-- What is encrypted, and how it is encrypted anew: the one exception to "the body never moves" (decision 0023).

-- Where a page of jobs ends.
-- name: sealed_to
SELECT max(number)
FROM (SELECT number FROM shigoto_job WHERE number > ?1 ORDER BY number LIMIT ?2) page

-- Envelopes are known by how they begin, and so are those of the current key, which stay.
-- name: sealed
SELECT s.number, s.held, s.token, s.line, s.text, b.id, b.tenant, l.task
FROM (
  SELECT number, 'payload' AS held, 0 AS token, 0 AS line, payload AS text
  FROM shigoto_job
  WHERE number > ?1 AND number <= ?2
  UNION ALL
  SELECT number, 'result', 0, 0, result
  FROM shigoto_done
  WHERE number > ?1 AND number <= ?2
  UNION ALL
  SELECT number, 'failure', 0, 0, error
  FROM shigoto_done
  WHERE number > ?1 AND number <= ?2
  UNION ALL
  SELECT number, 'progress', 0, 0, text
  FROM shigoto_progress
  WHERE number > ?1 AND number <= ?2
  UNION ALL
  SELECT number, 'checkpoint', 0, 0, checkpoint
  FROM shigoto_progress
  WHERE number > ?1 AND number <= ?2
  UNION ALL
  SELECT number, 'error', token, 0, error
  FROM shigoto_attempt
  WHERE number > ?1 AND number <= ?2
  UNION ALL
  SELECT number, 'traceback', token, 0, traceback
  FROM shigoto_attempt
  WHERE number > ?1 AND number <= ?2
  UNION ALL
  SELECT number, 'log', token, line, text
  FROM shigoto_log
  WHERE number > ?1 AND number <= ?2) s
JOIN shigoto_job b ON b.number = s.number
JOIN shigoto_lane l ON l.lane = b.lane
WHERE substr(s.text, 1, length(?3)) = ?3
  AND substr(s.text, 1, length(?4)) <> ?4
ORDER BY s.number, s.held, s.token, s.line

-- ?1 = [[number, token, line, seen, instead], …]
-- name: reseal_payload
UPDATE shigoto_job
SET payload = e.value ->> 4
FROM json_each(?1) e
WHERE number = e.value ->> 0 AND payload = e.value ->> 3

-- name: reseal_result
UPDATE shigoto_done
SET result = e.value ->> 4
FROM json_each(?1) e
WHERE number = e.value ->> 0 AND result = e.value ->> 3

-- name: reseal_failure
UPDATE shigoto_done
SET error = e.value ->> 4
FROM json_each(?1) e
WHERE number = e.value ->> 0 AND error = e.value ->> 3

-- name: reseal_progress
UPDATE shigoto_progress
SET text = e.value ->> 4
FROM json_each(?1) e
WHERE number = e.value ->> 0 AND text = e.value ->> 3

-- name: reseal_checkpoint
UPDATE shigoto_progress
SET checkpoint = e.value ->> 4
FROM json_each(?1) e
WHERE number = e.value ->> 0 AND checkpoint = e.value ->> 3

-- name: reseal_error
UPDATE shigoto_attempt
SET error = e.value ->> 4
FROM json_each(?1) e
WHERE number = e.value ->> 0 AND token = e.value ->> 1 AND error = e.value ->> 3

-- name: reseal_traceback
UPDATE shigoto_attempt
SET traceback = e.value ->> 4
FROM json_each(?1) e
WHERE number = e.value ->> 0 AND token = e.value ->> 1 AND traceback = e.value ->> 3

-- name: reseal_log
UPDATE shigoto_log
SET text = e.value ->> 4
FROM json_each(?1) e
WHERE number = e.value ->> 0 AND token = e.value ->> 1 AND line = e.value ->> 2 AND text = e.value ->> 3
