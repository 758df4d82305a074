-- What the doctor asks: each statement may walk all that is ready or running, and is asked by people, now and then.

-- name: ready_by_lane
SELECT l.queue, l.task, l.alone, c.jobs, c.oldest
FROM (SELECT lane, count(*) AS jobs, min(pos) AS oldest FROM shigoto_ready GROUP BY lane) c
CROSS JOIN shigoto_lane l ON l.lane = c.lane
ORDER BY l.queue, l.task, l.alone

-- name: count_orphans
SELECT count(*)
FROM shigoto_running
WHERE worker NOT IN (SELECT id FROM shigoto_worker WHERE fenced_at IS NULL)
