-- What the doctor asks: each statement may walk all that is ready or running, and is asked by people, now and then.

-- name: ready_by_lane
SELECT l.queue, l.task, l.alone, c.jobs, c.oldest
FROM (
  SELECT r.lane, count(*) AS jobs,
    min(greatest(r.run_at, b.created_at, CASE r.token WHEN 0 THEN 0 ELSE coalesce(
      (SELECT max(a.finished_at) FROM shigoto.attempt a WHERE a.number = r.number), 0) END)) AS oldest
  FROM shigoto.ready r
  JOIN shigoto.job b ON b.number = r.number
  GROUP BY r.lane
) c
JOIN shigoto.lane l ON l.lane = c.lane
ORDER BY l.queue COLLATE "C", l.task COLLATE "C", l.alone

-- name: count_orphans
SELECT count(*)
FROM shigoto.running r
WHERE NOT EXISTS (SELECT 1 FROM shigoto.worker w WHERE w.id = r.worker AND w.fenced_at IS NULL)
