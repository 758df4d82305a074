-- What the doctor asks: each statement may walk all that is ready or running, and is asked by people, now and then.

-- name: ready_by_lane
SELECT l.queue, l.task, l.alone, c.jobs, c.oldest
FROM (
  SELECT r.lane, count(*) AS jobs,
    min(max(r.pos, b.created_at, CASE r.token WHEN 0 THEN 0 ELSE coalesce(
      (SELECT max(a.finished_at) FROM shigoto_attempt a WHERE a.number = r.number), 0) END)) AS oldest
  FROM shigoto_ready r
  CROSS JOIN shigoto_job b ON b.number = r.number
  GROUP BY r.lane
) c
CROSS JOIN shigoto_lane l ON l.lane = c.lane
ORDER BY l.queue, l.task, l.alone

-- name: count_orphans
SELECT count(*)
FROM shigoto_running
WHERE worker NOT IN (SELECT id FROM shigoto_worker WHERE fenced_at IS NULL)
