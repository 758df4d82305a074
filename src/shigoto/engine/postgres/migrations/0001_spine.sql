-- The body stays where it is: shigoto.job is written once, and narrow rows travel
--   scheduled -> ready -> running -> done
-- so a state change touches a few dozen bytes, history stays out of the claim's way, and the state of a job is the
-- table that holds its number. Times are integer milliseconds since the Unix epoch.
--
-- Who is about to change or judge a job locks its narrow row first; the body's run_at and lane change only under that.
-- Everybody locks in one order, so that nobody waits in a circle:
--   keys, by their names  ->  narrow rows, by their numbers  ->  the rest of the job
-- and sweeps wait for nobody: what somebody else has locked, they leave to the next one.

-- A lane is one task in one queue, apart for the jobs that need a process of their own (alone). The ready set is
-- ordered inside each lane, and a claim merges only the lanes it wants: jobs of unknown tasks, paused queues or busy
-- pools, and suspects that nobody can isolate now, cost a claim nothing, however many wait at the head.
CREATE TABLE shigoto.lane (
  lane  integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  alone boolean NOT NULL,
  queue text NOT NULL,
  task  text NOT NULL,
  UNIQUE (task, queue, alone)
);

CREATE TABLE shigoto.queue (
  name               text PRIMARY KEY,
  paused             boolean NOT NULL DEFAULT false,
  keep_completed_for bigint,
  keep_failed_for    bigint,
  keep_cancelled_for bigint,
  max_pending        bigint
);

-- run_at changes (retry, snooze, replace), and lane when a job becomes a suspect or is cleared, so that the waiting row
-- of any job can be found by (lane, -priority, run_at, number) without an index on number. Neither is indexed here, so
-- that no index has to learn of it, as long as there is room on the page (fillfactor). alone is what was asked for.
CREATE TABLE shigoto.job (
  number       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  id           uuid NOT NULL,
  run_at       bigint NOT NULL,
  created_at   bigint NOT NULL,
  expires_at   bigint,
  timeout      bigint,
  soft_timeout bigint,
  lane         integer NOT NULL,
  max_failures integer NOT NULL,
  max_crashes  integer,
  priority     integer NOT NULL,
  alone        boolean NOT NULL DEFAULT false,
  tenant       text NOT NULL,
  key          text,
  retry        text,
  tags         text,
  meta         text,
  payload      text NOT NULL
) WITH (fillfactor = 90);
CREATE UNIQUE INDEX job_by_id ON shigoto.job (id);
CREATE INDEX job_by_key ON shigoto.job (key, number) WHERE key IS NOT NULL;

-- Can run now; nothing else is in it. Priority is negated so that best-first is ascending. Rows come and go, and are
-- never updated: what is locked by its ctid is where it was. One index, not even unique: each more would cost every
-- enqueue a microsecond, and numbers are given once.
CREATE TABLE shigoto.ready (
  run_at        bigint NOT NULL,
  number        bigint NOT NULL,
  expires_at    bigint,
  lane          integer NOT NULL,
  priority      integer NOT NULL,
  token         integer NOT NULL DEFAULT 0,
  settled_token integer NOT NULL DEFAULT 0,
  failures      integer NOT NULL DEFAULT 0,
  crashes       integer NOT NULL DEFAULT 0,
  solo_crashes  integer NOT NULL DEFAULT 0,
  releases      integer NOT NULL DEFAULT 0,
  snoozes       integer NOT NULL DEFAULT 0,
  solo          boolean NOT NULL DEFAULT false
);
CREATE INDEX ready_in_order ON shigoto.ready (lane, priority, run_at, number);

-- Of one lane, what is behind this place in the line, up to and with the last priority.
CREATE TYPE shigoto.stretch AS (lane integer, priority integer, run_at bigint, number bigint, last_priority integer);

CREATE TABLE shigoto.scheduled (
  run_at        bigint NOT NULL,
  number        bigint NOT NULL,
  lane          integer NOT NULL,
  token         integer NOT NULL DEFAULT 0,
  settled_token integer NOT NULL DEFAULT 0,
  failures      integer NOT NULL DEFAULT 0,
  crashes       integer NOT NULL DEFAULT 0,
  solo_crashes  integer NOT NULL DEFAULT 0,
  releases      integer NOT NULL DEFAULT 0,
  snoozes       integer NOT NULL DEFAULT 0,
  solo          boolean NOT NULL DEFAULT false,
  PRIMARY KEY (run_at, number)
);

-- Waits for other jobs; unmet counts those that have not ended yet.
CREATE TABLE shigoto.blocked (
  number bigint PRIMARY KEY,
  unmet  integer NOT NULL
);

-- No index on worker: the table holds what runs right now and is small. lane is the body's, which stays as it is while
-- the job runs: so its queue can be counted at the end without a look at the body.
CREATE TABLE shigoto.running (
  number              bigint PRIMARY KEY,
  claimed_at          bigint NOT NULL,
  cancel_requested_at bigint,
  worker              uuid NOT NULL,
  token               integer NOT NULL,
  lane                integer NOT NULL,
  settled_token       integer NOT NULL,
  failures            integer NOT NULL,
  crashes             integer NOT NULL,
  solo_crashes        integer NOT NULL,
  releases            integer NOT NULL,
  snoozes             integer NOT NULL,
  solo                boolean NOT NULL,
  superseded          boolean NOT NULL DEFAULT false
);

-- state: 3 completed, 4 failed, 5 cancelled
CREATE TABLE shigoto.done (
  number              bigint PRIMARY KEY,
  started_at          bigint,
  finished_at         bigint NOT NULL,
  cancel_requested_at bigint,
  token               integer NOT NULL,
  settled_token       integer NOT NULL,
  failures            integer NOT NULL,
  crashes             integer NOT NULL,
  releases            integer NOT NULL,
  snoozes             integer NOT NULL,
  state               smallint NOT NULL,
  solo                boolean NOT NULL DEFAULT false,
  failure_kind        text,
  error               text,
  result              text
);
CREATE INDEX done_not_completed ON shigoto.done (state, number) WHERE state <> 3;

-- The newest job that took a unique key; number 0 is nobody. Whether the key is free follows from that job's state, so
-- settling writes nothing here.
CREATE TABLE shigoto.key (
  tenant text NOT NULL,
  key    text NOT NULL,
  number bigint NOT NULL,
  PRIMARY KEY (tenant, key)
) WITH (fillfactor = 80);

CREATE TABLE shigoto.expiry (
  expires_at bigint NOT NULL,
  number     bigint NOT NULL,
  PRIMARY KEY (expires_at, number)
);

-- Runs that did not end completed; the history row tells of the other.
CREATE TABLE shigoto.attempt (
  number      bigint NOT NULL,
  started_at  bigint NOT NULL,
  finished_at bigint NOT NULL,
  token       integer NOT NULL,
  outcome     text NOT NULL,
  error       text,
  traceback   text,
  PRIMARY KEY (number, token)
);

-- What running jobs say of themselves; only jobs that say something have a row. It outlives the run: people see it
-- after the end, and a rerun resumes from its checkpoint.
CREATE TABLE shigoto.progress (
  number     bigint PRIMARY KEY,
  fraction   double precision,
  text       text,
  checkpoint text
) WITH (fillfactor = 70);

-- What runs have written: the last lines of each, as many as its worker wants to be kept.
CREATE TABLE shigoto.log (
  number bigint NOT NULL,
  at     bigint NOT NULL,
  token  integer NOT NULL,
  line   integer NOT NULL,
  level  text NOT NULL,
  text   text NOT NULL,
  PRIMARY KEY (number, token, line)
);

CREATE TABLE shigoto.worker (
  number      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  id          uuid NOT NULL UNIQUE,
  started_at  bigint NOT NULL,
  lease_until bigint NOT NULL,
  fenced_at   bigint,
  lease       bigint NOT NULL,
  slots       integer NOT NULL,
  pid         bigint NOT NULL,
  isolates    boolean NOT NULL,
  stopping    boolean NOT NULL,
  name        text NOT NULL,
  host        text NOT NULL,
  version     text NOT NULL,
  tasks       text NOT NULL,
  queues      text,
  owner       text  -- the id of the token by which it came, if it is not at the store itself
) WITH (fillfactor = 50);

-- How many jobs a queue holds (total) and how many of them ended. A counter that every enqueue updated would be locked
-- until the slowest caller's transaction ends; so everybody appends to tally, and a sweep moves that into counter.
-- The truth is the sum of both.
CREATE TABLE shigoto.counter (
  queue     text PRIMARY KEY,
  total     bigint NOT NULL DEFAULT 0,
  completed bigint NOT NULL DEFAULT 0,
  failed    bigint NOT NULL DEFAULT 0,
  cancelled bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

CREATE TABLE shigoto.tally (
  queue     text NOT NULL,
  total     integer NOT NULL,
  completed integer NOT NULL,
  failed    integer NOT NULL,
  cancelled integer NOT NULL
);

-- pruned_to is how far the pruner has walked, looked_for_unknown when somebody has looked for tasks that nobody knows;
-- these rows, and tally, are locked by whoever is at it.
CREATE TABLE shigoto.meta (
  name  text PRIMARY KEY,
  value bigint NOT NULL
) WITH (fillfactor = 50);
INSERT INTO shigoto.meta (name, value) VALUES ('pruned_to', 0), ('tally', 0), ('looked_for_unknown', 0);

-- The highest time that was seen, a few seconds behind; one row.
CREATE TABLE shigoto.clock (
  lone boolean PRIMARY KEY DEFAULT true CHECK (lone),
  mark bigint NOT NULL
) WITH (fillfactor = 10);
INSERT INTO shigoto.clock (mark) VALUES (0);

-- Rows pass through these by the thousand a second. A vacuum after a share of the table would come late, and one that
-- gives pages back to the system would lock everybody out meanwhile.
ALTER TABLE shigoto.ready SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
ALTER TABLE shigoto.running SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
ALTER TABLE shigoto.scheduled SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
ALTER TABLE shigoto.tally SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);

-- TIME ---------------------------------------------------------------------------------------------------------------

-- No function of ours goes by the caller's search_path, which may put other things before pg_catalog. This one has no
-- SET for it, so that it can become part of the statement that calls it.

-- The server's clock as it is. now() is that of the transaction, so that all of one operation is one instant.
CREATE FUNCTION shigoto.host_now() RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE
AS 'SELECT pg_catalog.floor(extract(epoch FROM pg_catalog.now()) OPERATOR(pg_catalog.*) 1000)::bigint';

-- The same as of this statement. In a transaction that its caller keeps open it is this that counts: a job that expires
-- in a minute has that minute from when it was enqueued, and one that ends there does not end before it was done.
CREATE FUNCTION shigoto.host_statement_now() RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE
AS 'SELECT shigoto.host_now() OPERATOR(pg_catalog.+) pg_catalog.floor(extract(epoch FROM
  pg_catalog.statement_timestamp() OPERATOR(pg_catalog.-) pg_catalog.now()) OPERATOR(pg_catalog.*) 1000)::bigint';

-- Store time. A small step back is ridden out by standing still at the mark; one of more than a minute is believed.
CREATE FUNCTION shigoto.now() RETURNS bigint LANGUAGE plpgsql STABLE PARALLEL SAFE SET search_path = pg_catalog AS $$
DECLARE
  host bigint := shigoto.host_now();
  seen bigint := (SELECT c.mark FROM shigoto.clock c);
BEGIN
  RETURN CASE WHEN seen - host BETWEEN 1 AND 60000 THEN seen ELSE host END;
END
$$;

CREATE FUNCTION shigoto.statement_now() RETURNS bigint LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path = pg_catalog
AS $$
DECLARE
  host bigint := shigoto.host_statement_now();
  seen bigint := (SELECT c.mark FROM shigoto.clock c);
BEGIN
  RETURN CASE WHEN seen - host BETWEEN 1 AND 60000 THEN seen ELSE host END;
END
$$;

-- The table of specification S0, as a view over all of the above.
CREATE VIEW shigoto.job_queue AS
SELECT
  b.number AS id,
  l.task AS job_type,
  b.payload AS payload,
  s.status AS status,
  b.priority AS priority,
  b.max_failures - 1 AS max_retries,
  s.failures AS retry_count,
  CASE
    WHEN s.status = 'completed' THEN NULL
    ELSE coalesce(s.error,
      (SELECT a.error FROM shigoto.attempt a WHERE a.number = b.number ORDER BY a.token DESC LIMIT 1))
  END AS error_message,
  to_timestamp(b.run_at / 1000.0) AS scheduled_at,
  to_timestamp(s.started_at / 1000.0) AS started_at,
  to_timestamp(s.finished_at / 1000.0) AS completed_at,
  to_timestamp(b.created_at / 1000.0) AS created_at
FROM (
  SELECT number, 'pending' AS status, failures, NULL::bigint AS started_at, NULL::bigint AS finished_at,
    NULL::text AS error
  FROM shigoto.ready
  UNION ALL
  SELECT number, 'pending', failures, NULL, NULL, NULL FROM shigoto.scheduled
  UNION ALL
  SELECT number, 'processing', failures, claimed_at, NULL, NULL FROM shigoto.running
  UNION ALL
  SELECT number, CASE state WHEN 3 THEN 'completed' WHEN 4 THEN 'failed' ELSE 'cancelled' END, failures, started_at,
    finished_at, error
  FROM shigoto.done
) s
JOIN shigoto.job b ON b.number = s.number
JOIN shigoto.lane l ON l.lane = b.lane;
