-- What is done so often, or must be locked so carefully, that it is a function: its plan is kept by every connection,
-- also behind a pooler and without prepared statements, and its settings leave the planner one choice. The statistics
-- of a queue are always wrong: what they say of these tables was true a second ago.

-- THE DOORBELL: empty, on the channel that is called like the schema -------------------------------------------------

CREATE FUNCTION shigoto.ring() RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
  PERFORM pg_notify(n.nspname, '')
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE c.oid = 'shigoto.job'::regclass;
END
$$;

-- COUNTERS -----------------------------------------------------------------------------------------------------------

-- Moves what was appended into the counters. One at a time: who finds another at it leaves it to that one.
CREATE FUNCTION shigoto.fold_tally() RETURNS void
LANGUAGE sql
SET search_path = pg_catalog
AS $$
  WITH turn AS MATERIALIZED (
    SELECT 1 FROM shigoto.meta WHERE name = 'tally' FOR UPDATE SKIP LOCKED),
  gone AS (
    DELETE FROM shigoto.tally
    WHERE ctid = ANY (ARRAY(SELECT t.ctid FROM shigoto.tally t WHERE EXISTS (SELECT 1 FROM turn) LIMIT 100000))
    RETURNING queue, total, completed, failed, cancelled)
  INSERT INTO shigoto.counter AS c (queue, total, completed, failed, cancelled)
  SELECT g.queue, sum(g.total), sum(g.completed), sum(g.failed), sum(g.cancelled)
  FROM gone g
  GROUP BY g.queue
  ON CONFLICT (queue) DO UPDATE SET
    total = c.total + excluded.total,
    completed = c.completed + excluded.completed,
    failed = c.failed + excluded.failed,
    cancelled = c.cancelled + excluded.cancelled;
$$;

-- ENQUEUE ------------------------------------------------------------------------------------------------------------

-- T1 for jobs that differ in id and payload only, and have no key. It is quick because it expects the best: a known id
-- is an error (unique_violation), and so is a lane that is not there yet (no_data_found); enqueue_each takes both. The
-- numbers are given, and answered, in the order of the ids.
CREATE FUNCTION shigoto.enqueue(
  tenant text, queue text, task text, alone boolean, priority integer,
  delay bigint, run_at bigint, expires_in bigint, expires_at bigint,
  max_failures integer, max_crashes integer, retry text, timeout bigint, soft_timeout bigint, tags text, meta text,
  ids uuid[], payloads text[], ring boolean)
RETURNS bigint[]
LANGUAGE plpgsql
SET search_path = pg_catalog
SET plan_cache_mode = force_generic_plan
SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
  current bigint := shigoto.statement_now();
  due bigint := coalesce(run_at, current + delay);
  expiry bigint := coalesce(expires_at, current + expires_in);
  line integer := (SELECT l.lane FROM shigoto.lane l WHERE l.task = enqueue.task AND l.queue = enqueue.queue
    AND l.alone = enqueue.alone);
  numbers bigint[];
BEGIN
  IF line IS NULL THEN
    RAISE 'there is no lane for task % in queue %', task, queue USING ERRCODE = 'no_data_found';
  END IF;
  IF due <= current THEN
    WITH stored AS (
      INSERT INTO shigoto.job (id, lane, priority, run_at, created_at, max_failures, max_crashes, tenant, expires_at,
        retry, timeout, soft_timeout, tags, meta, alone, payload)
      SELECT e.id, line, priority, due, current, max_failures, max_crashes, tenant, expiry,
        retry, timeout, soft_timeout, tags, meta, alone, e.payload
      FROM unnest(ids, payloads) e(id, payload)
      RETURNING number),
    waiting AS (
      INSERT INTO shigoto.ready (lane, priority, run_at, number, expires_at)
      SELECT line, -priority, due, s.number, expiry FROM stored s)
    SELECT array_agg(s.number) INTO numbers FROM stored s;
  ELSE
    WITH stored AS (
      INSERT INTO shigoto.job (id, lane, priority, run_at, created_at, max_failures, max_crashes, tenant, expires_at,
        retry, timeout, soft_timeout, tags, meta, alone, payload)
      SELECT e.id, line, priority, due, current, max_failures, max_crashes, tenant, expiry,
        retry, timeout, soft_timeout, tags, meta, alone, e.payload
      FROM unnest(ids, payloads) e(id, payload)
      RETURNING number),
    waiting AS (
      INSERT INTO shigoto.scheduled (run_at, number, lane)
      SELECT due, s.number, line FROM stored s)
    SELECT array_agg(s.number) INTO numbers FROM stored s;
  END IF;
  IF expiry IS NOT NULL THEN
    INSERT INTO shigoto.expiry (expires_at, number) SELECT expiry, e FROM unnest(numbers) e;
  END IF;
  INSERT INTO shigoto.tally (queue, total, completed, failed, cancelled)
  VALUES (queue, cardinality(numbers), 0, 0, 0);
  -- Where nobody sweeps, because there are only producers, it is them who fold: one of thousands. Not in enqueue_each,
  -- which runs in callers' transactions too: these would have the turn for as long as they are open.
  IF (numbers[1] - 1) / 5000 <> numbers[cardinality(numbers)] / 5000 THEN
    PERFORM shigoto.fold_tally();
  END IF;
  IF ring THEN
    PERFORM shigoto.ring();
  END IF;
  RETURN numbers;
END
$$;

-- The same for one job, which is most often all that is stored at once: what an array of one and the statement around it
-- would take is a fifth of the whole. Lane and clock are one look (see statement_now); each statement here has one plan,
-- so that no settings are needed. Not even the one for safety, which takes 5 µs of 70: every operator has its schema.
-- It is a transaction by itself, never in a caller's, so that now() is this statement's. To set an expression up takes
-- half a microsecond for every operator in it, in each transaction: what is rare is asked in two steps.
CREATE FUNCTION shigoto.enqueue_one(
  tenant text, queue text, task text, alone boolean, priority integer,
  delay bigint, run_at bigint, expires_in bigint, expires_at bigint,
  max_failures integer, max_crashes integer, retry text, timeout bigint, soft_timeout bigint, tags text, meta text,
  id uuid, payload text, ring boolean)
RETURNS bigint
LANGUAGE plpgsql
AS $$
#variable_conflict use_variable
DECLARE
  current bigint := shigoto.host_now();
  seen bigint;
  line integer;
  due bigint;
  expiry bigint;
  number bigint;
BEGIN
  SELECT l.lane, c.mark INTO line, seen
  FROM shigoto.lane l
  CROSS JOIN shigoto.clock c
  WHERE l.task OPERATOR(pg_catalog.=) enqueue_one.task AND l.queue OPERATOR(pg_catalog.=) enqueue_one.queue
    AND l.alone OPERATOR(pg_catalog.=) enqueue_one.alone;
  IF line IS NULL THEN
    RAISE 'there is no lane for task % in queue %', task, queue USING ERRCODE = 'no_data_found';
  END IF;
  IF seen OPERATOR(pg_catalog.>) current THEN
    IF seen OPERATOR(pg_catalog.<=) (current OPERATOR(pg_catalog.+) 60000) THEN
      current := seen;
    END IF;
  END IF;
  due := coalesce(run_at, current OPERATOR(pg_catalog.+) delay);
  expiry := expires_at;
  IF expires_in IS NOT NULL THEN
    expiry := coalesce(expires_at, current OPERATOR(pg_catalog.+) expires_in);
  END IF;
  INSERT INTO shigoto.job AS b (id, lane, priority, run_at, created_at, max_failures, max_crashes, tenant, expires_at,
    retry, timeout, soft_timeout, tags, meta, alone, payload)
  VALUES (id, line, priority, due, current, max_failures, max_crashes, tenant, expiry,
    retry, timeout, soft_timeout, tags, meta, alone, payload)
  RETURNING b.number INTO number;
  IF due OPERATOR(pg_catalog.<=) current THEN
    INSERT INTO shigoto.ready (lane, priority, run_at, number, expires_at)
    VALUES (line, OPERATOR(pg_catalog.-) priority, due, number, expiry);
  ELSE
    INSERT INTO shigoto.scheduled (run_at, number, lane) VALUES (due, number, line);
  END IF;
  IF expiry IS NOT NULL THEN
    INSERT INTO shigoto.expiry (expires_at, number) VALUES (expiry, number);
  END IF;
  INSERT INTO shigoto.tally (queue, total, completed, failed, cancelled) VALUES (queue, 1, 0, 0, 0);
  IF number OPERATOR(pg_catalog.%) 5000 OPERATOR(pg_catalog.=) 0 THEN
    PERFORM shigoto.fold_tally();
  END IF;
  IF ring THEN
    PERFORM shigoto.ring();
  END IF;
  RETURN number;
END
$$;

-- T1 for any jobs: adds lanes that are missing, and answers for an id that is stored already with the job that has it.
-- jobs is a JSON array of objects whose names are those of JobSpec. A key is only written into the body: who holds it
-- was decided before. The look at known ids is a statement of its own, because the one that does not insert what it has
-- met cannot see it either, if it was committed meanwhile; and what was deleted between the two is inserted after all.
CREATE FUNCTION shigoto.enqueue_each(jobs json, ring boolean)
RETURNS TABLE ("position" integer, number bigint, inserted boolean)
LANGUAGE plpgsql
SET search_path = pg_catalog
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  current bigint := shigoto.statement_now();
  ids uuid[] := ARRAY(
    SELECT j.id FROM ROWS FROM (json_to_recordset(jobs) AS (id uuid)) WITH ORDINALITY j(id, place) ORDER BY j.place);
  missing uuid[];
  stored_now bigint[];
  stored_by_us bigint[] := '{}';
BEGIN
  INSERT INTO shigoto.queue (name)
  SELECT DISTINCT j.queue
  FROM json_to_recordset(jobs) j(queue text)
  WHERE NOT EXISTS (SELECT 1 FROM shigoto.queue q WHERE q.name = j.queue)
  ORDER BY 1
  ON CONFLICT (name) DO NOTHING;
  INSERT INTO shigoto.lane (queue, task, alone)
  SELECT DISTINCT j.queue, j.task, coalesce(j.alone, false)
  FROM json_to_recordset(jobs) j(queue text, task text, alone boolean)
  WHERE NOT EXISTS (
    SELECT 1 FROM shigoto.lane l
    WHERE l.task = j.task AND l.queue = j.queue AND l.alone = coalesce(j.alone, false))
  ORDER BY 1, 2, 3
  ON CONFLICT (task, queue, alone) DO NOTHING;

  FOR try IN 1..20 LOOP
    WITH stored AS (
      INSERT INTO shigoto.job AS b (id, lane, priority, run_at, created_at, max_failures, max_crashes, tenant, key,
        expires_at, retry, timeout, soft_timeout, tags, meta, alone, payload)
      SELECT j.id, l.lane, coalesce(j.priority, 0), coalesce(j.run_at, current + coalesce(j.delay, 0)), current,
        j.max_failures, j.max_crashes, coalesce(j.tenant, ''), j.key, coalesce(j.expires_at, current + j.expires_in),
        j.retry, j.timeout, j.soft_timeout, j.tags, j.meta, coalesce(j.alone, false), j.payload
      FROM json_to_recordset(jobs) j(
        id uuid, payload text, task text, queue text, tenant text, priority smallint, delay bigint, run_at bigint,
        expires_in bigint, expires_at bigint, key text, max_failures integer, max_crashes integer, retry text,
        timeout bigint, soft_timeout bigint, tags text, meta text, alone boolean)
      CROSS JOIN LATERAL (
        SELECT l.lane FROM shigoto.lane l
        WHERE l.task = j.task AND l.queue = j.queue AND l.alone = coalesce(j.alone, false) OFFSET 0) l
      WHERE try = 1 OR j.id = ANY (missing)
      ON CONFLICT (id) DO NOTHING
      RETURNING b.number, b.lane, b.priority, b.run_at, b.expires_at),
    ready AS (
      INSERT INTO shigoto.ready (lane, priority, run_at, number, expires_at)
      SELECT s.lane, -s.priority, s.run_at, s.number, s.expires_at FROM stored s WHERE s.run_at <= current),
    scheduled AS (
      INSERT INTO shigoto.scheduled (run_at, number, lane)
      SELECT s.run_at, s.number, s.lane FROM stored s WHERE s.run_at > current),
    expiries AS (
      INSERT INTO shigoto.expiry (expires_at, number)
      SELECT s.expires_at, s.number FROM stored s WHERE s.expires_at IS NOT NULL),
    counted AS (
      INSERT INTO shigoto.tally (queue, total, completed, failed, cancelled)
      SELECT l.queue, count(*), 0, 0, 0
      FROM stored s
      CROSS JOIN LATERAL (SELECT l.queue FROM shigoto.lane l WHERE l.lane = s.lane OFFSET 0) l
      GROUP BY l.queue)
    SELECT array_agg(s.number) INTO stored_now FROM stored s;
    stored_by_us := stored_by_us || stored_now;
    EXIT WHEN cardinality(stored_by_us) = cardinality(ids);
    missing := ARRAY(
      SELECT e FROM unnest(ids) e WHERE NOT EXISTS (SELECT 1 FROM shigoto.job b WHERE b.id = e OFFSET 0));
    EXIT WHEN missing = '{}';
  END LOOP;

  IF missing <> '{}' THEN
    RAISE 'jobs % come and go while they are enqueued', missing USING ERRCODE = 'serialization_failure';
  ELSIF cardinality(stored_by_us) = cardinality(ids) AND missing IS NULL THEN
    RETURN QUERY SELECT e.place::integer, e.number, true FROM unnest(stored_by_us) WITH ORDINALITY e(number, place);
  ELSE
    RETURN QUERY
    SELECT e.place::integer, b.number,
      s.number IS NOT NULL AND e.place = min(e.place) OVER (PARTITION BY e.id)
    FROM unnest(ids) WITH ORDINALITY e(id, place)
    CROSS JOIN LATERAL (SELECT b.number FROM shigoto.job b WHERE b.id = e.id OFFSET 0) b
    LEFT JOIN unnest(stored_by_us) s(number) ON s.number = b.number
    ORDER BY e.place;
  END IF;
  IF ring AND stored_by_us <> '{}' THEN
    PERFORM shigoto.ring();
  END IF;
END
$$;

-- PROMOTE ------------------------------------------------------------------------------------------------------------

-- T3: the jobs that are due, at most so many, from one table to the other in one statement: what was locked is what is
-- moved. With nothing due it is a look. By itself and at once: what is half promoted is seen by no claim.
CREATE FUNCTION shigoto.promote(most integer, OUT moved bigint, OUT next_in bigint)
LANGUAGE plpgsql
SET search_path = pg_catalog
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
  current bigint := shigoto.now();
BEGIN
  moved := 0;
  next_in := (SELECT min(s.run_at) FROM shigoto.scheduled s) - current;
  IF next_in <= 0 THEN
    WITH due AS MATERIALIZED (
      SELECT s.ctid AS at, s.*
      FROM shigoto.scheduled s
      WHERE s.run_at <= current
      ORDER BY s.run_at, s.number
      LIMIT most
      FOR UPDATE SKIP LOCKED),
    gone AS (
      DELETE FROM shigoto.scheduled s WHERE s.ctid = ANY (ARRAY(SELECT d.at FROM due d)))
    INSERT INTO shigoto.ready (lane, priority, run_at, number, expires_at, token, settled_token,
      failures, crashes, solo_crashes, releases, snoozes, solo)
    SELECT d.lane, -b.priority, d.run_at, d.number, b.expires_at, d.token, d.settled_token,
      d.failures, d.crashes, d.solo_crashes, d.releases, d.snoozes, d.solo
    FROM due d
    CROSS JOIN LATERAL (SELECT b.priority, b.expires_at FROM shigoto.job b WHERE b.number = d.number OFFSET 0) b;
    GET DIAGNOSTICS moved = ROW_COUNT;
    next_in := (SELECT min(s.run_at) FROM shigoto.scheduled s) - current;
    IF next_in < 0 THEN
      next_in := 0;
    END IF;
  END IF;
END
$$;
