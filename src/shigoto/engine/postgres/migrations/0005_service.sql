-- What the service keeps: who may ask for what, and who has done what.
CREATE TABLE shigoto.token (
  id         text COLLATE "C" PRIMARY KEY,
  created_at bigint NOT NULL,
  expires_at bigint,
  revoked_at bigint,
  name       text NOT NULL,
  hash       bytea NOT NULL,
  scopes     text NOT NULL,
  queues     text,
  tenant     text
);

CREATE TABLE shigoto.audit (
  number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at     bigint NOT NULL,
  actor  text NOT NULL,
  action text NOT NULL,
  target text NOT NULL,
  before text,
  after  text
);
CREATE INDEX audit_by_target ON shigoto.audit (target, number);

-- The feed is history, read by when it came to be. Rows of done are added in about that order, so that a summary of
-- their pages is enough, which costs a job that ends next to nothing. Runs that did not complete are few.
CREATE INDEX done_by_end ON shigoto.done USING brin (finished_at) WITH (pages_per_range = 16, autosummarize = on);
CREATE INDEX attempt_by_end ON shigoto.attempt (finished_at, number, token);

-- Jobs that ended behind a place in the feed and before an instant, in order. A planner without statistics does not
-- believe in the summary, and would read all of history.
CREATE FUNCTION shigoto.ended_jobs(after_at bigint, after_number bigint, after_step integer, until bigint, most integer)
RETURNS TABLE (at bigint, number bigint, token integer, state smallint, failure_kind text)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog SET enable_seqscan = off SET max_parallel_workers_per_gather = 0
AS $$
BEGIN
  RETURN QUERY
  SELECT d.finished_at, d.number, d.token, d.state, d.failure_kind
  FROM shigoto.done d
  WHERE d.finished_at >= after_at AND d.finished_at < until
    AND (d.finished_at, d.number, 2 * d.token + 1) > (after_at, after_number, after_step)
  ORDER BY d.finished_at, d.number
  LIMIT most;
END
$$;
