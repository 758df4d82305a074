-- Jobs are taken, ended and judged.

-- LOCKS --------------------------------------------------------------------------------------------------------------

-- The states of jobs as they are now, without a lock; none for those that are in no table.
CREATE FUNCTION shigoto.seen_states(numbers bigint[]) RETURNS TABLE (number bigint, state integer)
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
BEGIN
  RETURN QUERY
  SELECT e, coalesce(d.state, n.state, r.state, s.state, k.state)
  FROM unnest(numbers) e
  LEFT JOIN LATERAL (SELECT * FROM shigoto.job b WHERE b.number = e OFFSET 0) b ON true
  LEFT JOIN LATERAL (SELECT d.state FROM shigoto.done d WHERE d.number = b.number OFFSET 0) d ON true
  LEFT JOIN LATERAL (SELECT 2 AS state FROM shigoto.running n WHERE n.number = b.number OFFSET 0) n ON true
  LEFT JOIN LATERAL (
    SELECT 1 AS state FROM shigoto.ready r
    WHERE r.lane = b.lane AND r.priority = -b.priority AND r.run_at = b.run_at AND r.number = b.number
    OFFSET 0) r ON true
  LEFT JOIN LATERAL (
    SELECT 1 AS state FROM shigoto.scheduled s WHERE s.run_at = b.run_at AND s.number = b.number OFFSET 0) s ON true
  LEFT JOIN LATERAL (SELECT 6 AS state FROM shigoto.blocked k WHERE k.number = b.number OFFSET 0) k ON true;
END
$$;

-- The states of jobs, each with its narrow row locked, whichever table that is in. What has moved between being seen
-- and being locked is looked for again. A job that is in no table, because somebody has deleted rows by hand, has no
-- state.
CREATE FUNCTION shigoto.locked_states(numbers bigint[]) RETURNS TABLE (number bigint, state integer)
LANGUAGE plpgsql
SET search_path = pg_catalog
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
  missing bigint[] := ARRAY(SELECT DISTINCT e FROM unnest(numbers) e ORDER BY e);
  seen bigint[];
  states integer[];
BEGIN
  FOR look IN 1..20 LOOP
    SELECT array_agg(b.number), array_agg(coalesce(d.state, n.state, r.state, s.state, k.state))
    INTO seen, states
    FROM unnest(missing) e
    CROSS JOIN LATERAL (SELECT * FROM shigoto.job b WHERE b.number = e OFFSET 0) b
    LEFT JOIN LATERAL (
      SELECT d.state FROM shigoto.done d WHERE d.number = b.number OFFSET 0 FOR UPDATE) d ON true
    LEFT JOIN LATERAL (
      SELECT 2 AS state FROM shigoto.running n WHERE n.number = b.number OFFSET 0 FOR UPDATE) n ON true
    LEFT JOIN LATERAL (
      SELECT 1 AS state FROM shigoto.ready r
      WHERE r.lane = b.lane AND r.priority = -b.priority AND r.run_at = b.run_at AND r.number = b.number
      OFFSET 0 FOR UPDATE) r ON true
    LEFT JOIN LATERAL (
      SELECT 1 AS state FROM shigoto.scheduled s
      WHERE s.run_at = b.run_at AND s.number = b.number OFFSET 0 FOR UPDATE) s ON true
    LEFT JOIN LATERAL (
      SELECT 6 AS state FROM shigoto.blocked k WHERE k.number = b.number OFFSET 0 FOR UPDATE) k ON true;
    RETURN QUERY SELECT f.number, f.state FROM unnest(seen, states) f(number, state) WHERE f.state IS NOT NULL;
    missing := ARRAY(SELECT f.number FROM unnest(seen, states) f(number, state) WHERE f.state IS NULL);
    IF missing = '{}' THEN
      RETURN;
    END IF;
  END LOOP;
  IF EXISTS (SELECT 1 FROM shigoto.seen_states(missing) s WHERE s.state IS NOT NULL)
  THEN
    RAISE 'one of the jobs % moves whenever it is looked at', missing USING ERRCODE = 'serialization_failure';
  END IF;
  RETURN QUERY SELECT e, NULL::integer FROM unnest(missing) e;
END
$$;

-- The same for a sweep: what somebody else has locked is left out, and so is what has moved meanwhile. 0 is the state
-- of what is in no table.
CREATE FUNCTION shigoto.free_states(numbers bigint[]) RETURNS TABLE (number bigint, state integer)
LANGUAGE plpgsql
SET search_path = pg_catalog
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
  seen bigint[];
  states integer[];
BEGIN
  SELECT array_agg(e.number), array_agg(coalesce(d.state, n.state, r.state, s.state, k.state))
  INTO seen, states
  FROM unnest(numbers) e(number)
  LEFT JOIN LATERAL (SELECT * FROM shigoto.job b WHERE b.number = e.number OFFSET 0) b ON true
  LEFT JOIN LATERAL (
    SELECT d.state FROM shigoto.done d WHERE d.number = b.number OFFSET 0 FOR UPDATE SKIP LOCKED) d ON true
  LEFT JOIN LATERAL (
    SELECT 2 AS state FROM shigoto.running n WHERE n.number = b.number OFFSET 0 FOR UPDATE SKIP LOCKED) n ON true
  LEFT JOIN LATERAL (
    SELECT 1 AS state FROM shigoto.ready r
    WHERE r.lane = b.lane AND r.priority = -b.priority AND r.run_at = b.run_at AND r.number = b.number
    OFFSET 0 FOR UPDATE SKIP LOCKED) r ON true
  LEFT JOIN LATERAL (
    SELECT 1 AS state FROM shigoto.scheduled s
    WHERE s.run_at = b.run_at AND s.number = b.number OFFSET 0 FOR UPDATE SKIP LOCKED) s ON true
  LEFT JOIN LATERAL (
    SELECT 6 AS state FROM shigoto.blocked k WHERE k.number = b.number OFFSET 0 FOR UPDATE SKIP LOCKED) k ON true;
  RETURN QUERY
  SELECT f.number, f.state FROM unnest(seen, states) f(number, state) WHERE f.state IS NOT NULL;
  RETURN QUERY
  SELECT s.number, 0
  FROM shigoto.seen_states(ARRAY(
    SELECT f.number FROM unnest(seen, states) f(number, state) WHERE f.state IS NULL)) s
  WHERE s.state IS NULL;
END
$$;

-- CLAIM --------------------------------------------------------------------------------------------------------------

-- T2. wants is a JSON array of {tasks, queues or null, limit, alone or null, slices or null, probes}. A slice is a place
-- in the line, which is -priority, run_at and number, and the last -priority that belongs to it: only what is behind
-- that place is looked at. A probe is a -priority and, in it, two places: if there is any job between them, or if slices
-- is null, everything is looked at. The columns are those of Lease. After the jobs for each want comes one more row, with
-- the time and, in dead, how many places in the index were passed whose rows are gone, which an old snapshot keeps there.
--
-- The rows of each wanted lane are in the order of the index, so a lane is read, and locked, from its front. With more
-- than one stretch, a look without locks tells first how many each of them contributes to the best. It reads four times
-- as many of each as there would be if all were alike, and then twice as many of those that could contribute more, until
-- none could: with many lanes, to read all that is wanted of each would be too much. What others take meanwhile is made
-- up for by the next of the same stretch, and if nothing was left there, by the next of all.
--
-- Bodies are read by one walk through their index (= ANY), and joined by hash: to look each up by itself would take half
-- a microsecond more for each job. A nested loop is left only to where nothing else can be done (LATERAL).
CREATE FUNCTION shigoto.claim(worker uuid, wants json)
RETURNS TABLE (
  number bigint, token integer, id uuid, task text, queue text, attempt integer, failures integer, snoozes integer,
  max_failures integer, priority integer, run_at bigint, claimed_at bigint, solo boolean, tenant text, key text,
  retry text, timeout bigint, soft_timeout bigint, tags text, meta text, checkpoint text, alone boolean, payload text,
  dead bigint)
LANGUAGE plpgsql
SET search_path = pg_catalog
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_nestloop = off
SET enable_mergejoin = off
SET enable_sort = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  current bigint := shigoto.now();
  room CONSTANT integer := 8 * 1024 * 1024;  -- of payloads and checkpoints; with so many, fewer jobs are given
  everything CONSTANT json := '[[-2147483648, -9223372036854775808, 0, 2147483647]]';
  line CONSTANT regclass := 'shigoto.ready_in_order';
  wanted record;
  before bigint;
  lanes integer[];
  stretches shigoto.stretch[];
  chosen integer[];
  shares integer[];
  depths integer[];
  deeper integer[];
BEGIN
  IF NOT EXISTS (SELECT 1 FROM shigoto.worker w WHERE w.id = claim.worker AND w.fenced_at IS NULL) THEN
    RETURN;
  END IF;
  FOR wanted IN
    SELECT * FROM json_to_recordset(wants) w(
      tasks text[], queues text[], "limit" integer, alone boolean, slices json, probes json)
  LOOP
    before := pg_stat_get_xact_tuples_returned(line) - pg_stat_get_xact_tuples_fetched(line);
    lanes := ARRAY(
      SELECT l.lane
      FROM unnest(wanted.tasks) t(task)
      CROSS JOIN LATERAL (
        SELECT l.lane, l.queue FROM shigoto.lane l
        WHERE l.task = t.task AND (wanted.alone IS NULL OR l.alone = wanted.alone) OFFSET 0) l
      WHERE wanted."limit" > 0 AND (wanted.queues IS NULL OR l.queue = ANY (wanted.queues))
        AND NOT EXISTS (SELECT 1 FROM shigoto.queue q WHERE q.name = l.queue AND q.paused));
    IF wanted.slices IS NULL OR EXISTS (
      SELECT 1 FROM unnest(lanes) l(lane)
      CROSS JOIN json_array_elements(wanted.probes) e
      CROSS JOIN LATERAL (
        SELECT 1 FROM shigoto.ready r
        WHERE r.lane = l.lane AND r.priority = (e ->> 0)::integer
          AND (r.run_at, r.number) > ((e ->> 1)::bigint, (e ->> 2)::bigint)
          AND (r.run_at, r.number) <= ((e ->> 3)::bigint, (e ->> 4)::bigint)
          AND (r.expires_at IS NULL OR r.expires_at >= current)
        ORDER BY r.run_at, r.number
        LIMIT 1) r) THEN
      wanted.slices := everything;
    END IF;
    stretches := ARRAY(
      SELECT ROW(l.lane, e ->> 0, e ->> 1, e ->> 2, e ->> 3)::shigoto.stretch
      FROM unnest(lanes) l(lane)
      CROSS JOIN json_array_elements(wanted.slices) e);
    IF cardinality(stretches) > 1 THEN
      stretches := ARRAY(
        SELECT s FROM unnest(stretches) s
        CROSS JOIN LATERAL (
          SELECT 1 FROM shigoto.ready r
          WHERE r.lane = s.lane AND r.priority <= s.last_priority
            AND (r.priority, r.run_at, r.number) > (s.priority, s.run_at, s.number)
            AND (r.expires_at IS NULL OR r.expires_at >= current)
          ORDER BY r.priority, r.run_at, r.number
          LIMIT 1) r);
    END IF;
    chosen := ARRAY(SELECT generate_series(1, cardinality(stretches)));
    shares := ARRAY[wanted."limit"];
    IF cardinality(stretches) > 1 THEN
      depths := array_fill(
        least(4 * wanted."limit" / cardinality(stretches) + 1, wanted."limit"), ARRAY[cardinality(stretches)]);
      LOOP
        SELECT array_agg(s.place), array_agg(s.share),
          array_agg(s.place) FILTER (WHERE s.share = s.depth AND s.depth < wanted."limit")
        INTO chosen, shares, deeper
        FROM (
          SELECT b.place, b.depth, count(*)::integer AS share
          FROM (
            SELECT p.place, p.depth
            FROM unnest(depths) WITH ORDINALITY p(depth, place)
            CROSS JOIN LATERAL (SELECT (stretches[p.place::integer]).* OFFSET 0) s
            CROSS JOIN LATERAL (
              SELECT r.priority, r.run_at, r.number FROM shigoto.ready r
              WHERE r.lane = s.lane AND r.priority <= s.last_priority
                AND (r.priority, r.run_at, r.number) > (s.priority, s.run_at, s.number)
                AND (r.expires_at IS NULL OR r.expires_at >= current)
              ORDER BY r.priority, r.run_at, r.number
              LIMIT p.depth) r
            ORDER BY r.priority, r.run_at, r.number
            LIMIT wanted."limit") b
          GROUP BY b.place, b.depth) s;
        EXIT WHEN deeper IS NULL;
        depths := ARRAY(
          SELECT CASE WHEN p.place = ANY (deeper) THEN least(2 * p.depth, wanted."limit") ELSE p.depth END
          FROM unnest(depths) WITH ORDINALITY p(depth, place)
          ORDER BY p.place);
      END LOOP;
    END IF;
    WHILE cardinality(chosen) > 0 LOOP
      RETURN QUERY
      WITH taken AS MATERIALIZED (
        SELECT r.ctid AS at, r.lane, r.priority AS rank, r.number, r.token + 1 AS token, r.settled_token, r.failures,
          r.crashes, r.solo_crashes, r.releases, r.snoozes, r.solo
        FROM unnest(chosen, shares) p(place, share)
        CROSS JOIN LATERAL (SELECT (stretches[p.place]).* OFFSET 0) s
        CROSS JOIN LATERAL (
          SELECT r.ctid, r.* FROM shigoto.ready r
          WHERE r.lane = s.lane AND r.priority <= s.last_priority
            AND (r.priority, r.run_at, r.number) > (s.priority, s.run_at, s.number)
            AND (r.expires_at IS NULL OR r.expires_at >= current)
          ORDER BY r.priority, r.run_at, r.number
          LIMIT p.share
          FOR UPDATE SKIP LOCKED) r),
      best AS MATERIALIZED (
        SELECT t.*, l.task, l.queue, l.alone, b.id, b.max_failures, b.run_at, b.tenant, b.key, b.retry, b.timeout,
          b.soft_timeout, b.tags, b.meta, b.payload,
          CASE WHEN t.token > 1 THEN (SELECT p.checkpoint FROM shigoto.progress p WHERE p.number = t.number) END
            AS checkpoint
        FROM taken t
        JOIN shigoto.job b ON b.number = t.number AND b.number = ANY (ARRAY(SELECT t.number FROM taken t))
        JOIN shigoto.lane l ON l.lane = t.lane AND l.lane = ANY (lanes)),
      -- All of them, as mostly, or the numbers of those that may be given.
      given AS MATERIALIZED (
        SELECT t.whole, CASE WHEN NOT t.whole THEN ARRAY(
            SELECT c.number
            FROM (
              SELECT f.number, f.size, sum(f.size) OVER line AS total, row_number() OVER line AS place
              FROM (
                SELECT b.rank, b.run_at, b.number,
                  octet_length(b.payload) + coalesce(octet_length(b.checkpoint), 0) AS size
                FROM best b) f
              WINDOW line AS (ORDER BY f.rank, f.run_at, f.number ROWS UNBOUNDED PRECEDING)) c
            WHERE c.place <= wanted."limit" AND c.total - c.size < room) END AS numbers
        FROM (
          SELECT count(*) <= wanted."limit"
            AND sum(octet_length(f.payload) + coalesce(octet_length(f.checkpoint), 0)) <= room AS whole
          FROM best f) t),
      gone AS (
        DELETE FROM shigoto.ready r
        WHERE r.ctid = ANY (ARRAY(
          SELECT b.at FROM best b
          WHERE (SELECT g.whole FROM given g) OR b.number = ANY ((SELECT g.numbers FROM given g)::bigint[])))),
      started AS (
        INSERT INTO shigoto.running (number, token, worker, lane, claimed_at, settled_token,
          failures, crashes, solo_crashes, releases, snoozes, solo)
        SELECT b.number, b.token, claim.worker, b.lane, current, b.settled_token,
          b.failures, b.crashes, b.solo_crashes, b.releases, b.snoozes, b.solo
        FROM best b
        WHERE (SELECT g.whole FROM given g) OR b.number = ANY ((SELECT g.numbers FROM given g)::bigint[]))
      SELECT b.number, b.token, b.id, b.task, b.queue, b.token - b.releases - b.snoozes, b.failures, b.snoozes,
        b.max_failures, -b.rank, b.run_at, current, b.solo, b.tenant, b.key, b.retry, b.timeout, b.soft_timeout,
        b.tags, b.meta, b.checkpoint, b.alone, b.payload, NULL::bigint
      FROM best b
      WHERE (SELECT g.whole FROM given g) OR b.number = ANY ((SELECT g.numbers FROM given g)::bigint[]);
      EXIT WHEN FOUND OR cardinality(chosen) = cardinality(stretches);
      chosen := ARRAY(SELECT generate_series(1, cardinality(stretches)));
      shares := array_fill(wanted."limit", ARRAY[cardinality(stretches)]);
    END LOOP;
    claimed_at := current;
    dead := pg_stat_get_xact_tuples_returned(line) - pg_stat_get_xact_tuples_fetched(line) - before;
    RETURN NEXT;
  END LOOP;
END
$$;

-- SETTLE -------------------------------------------------------------------------------------------------------------

-- T4 for those of the leases that this worker holds, if it is not fenced; the answer is their numbers. Named once each.
--
-- DELETE waits for whoever has the row locked, and looks at token and worker again then. Leases and rows meet in a hash
-- join, and both come in the order of their numbers, in which everybody locks, so that nobody waits in a circle.
CREATE FUNCTION shigoto.complete(worker uuid, numbers bigint[], tokens integer[], results text[]) RETURNS bigint[]
LANGUAGE plpgsql
SET search_path = pg_catalog
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_nestloop = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
  current bigint := shigoto.statement_now();
  accepted bigint[];
BEGIN
  WITH gone AS (
    DELETE FROM shigoto.running r
    USING (
      SELECT * FROM unnest(numbers, tokens, results) e(number, token, result) ORDER BY e.number) e
    WHERE r.number = e.number AND r.number = ANY (numbers) AND r.token = e.token AND r.worker = complete.worker
      AND EXISTS (SELECT 1 FROM shigoto.worker w WHERE w.id = complete.worker AND w.fenced_at IS NULL)
    RETURNING r.number, r.token, r.lane, r.failures, r.crashes, r.releases, r.snoozes, r.claimed_at,
      r.cancel_requested_at, e.result),
  history AS (
    INSERT INTO shigoto.done (number, state, token, settled_token, failures, crashes, releases, snoozes,
      started_at, finished_at, cancel_requested_at, result)
    SELECT g.number, 3, g.token, g.token, g.failures, g.crashes, g.releases, g.snoozes,
      g.claimed_at, current, g.cancel_requested_at, g.result
    FROM gone g),
  counted AS (
    INSERT INTO shigoto.tally (queue, total, completed, failed, cancelled)
    SELECT l.queue, 0, sum(c.jobs), 0, 0
    FROM (SELECT g.lane, count(*) AS jobs FROM gone g GROUP BY g.lane) c
    CROSS JOIN LATERAL (SELECT l.queue FROM shigoto.lane l WHERE l.lane = c.lane OFFSET 0) l
    GROUP BY l.queue)
  SELECT array_agg(g.number) INTO accepted FROM gone g;
  RETURN coalesce(accepted, '{}');
END
$$;
