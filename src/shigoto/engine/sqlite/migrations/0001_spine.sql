-- The body never moves: shigoto_job is written once, and narrow rows travel
--   scheduled -> ready -> running -> done
-- so a state change touches a few dozen bytes, history stays out of the claim's way, and the state of a job is the table
-- that holds its number. Times are integer milliseconds since the Unix epoch.

-- A lane is one task in one queue, apart for the jobs that need a process of their own (alone). The ready set is ordered
-- inside each lane, and a claim merges only the lanes it wants: jobs of unknown tasks, paused queues or busy pools, and
-- suspects that nobody can isolate now, cost a claim nothing, however many wait at the head.
CREATE TABLE shigoto_lane (
  lane  INTEGER PRIMARY KEY,
  queue TEXT NOT NULL,
  task  TEXT NOT NULL,
  alone INTEGER NOT NULL,
  UNIQUE (task, queue, alone)
);

CREATE TABLE shigoto_queue (
  name               TEXT PRIMARY KEY,
  paused             INTEGER NOT NULL DEFAULT 0,
  keep_completed_for INTEGER,
  keep_failed_for    INTEGER,
  keep_cancelled_for INTEGER,
  max_pending        INTEGER
) WITHOUT ROWID;

-- No AUTOINCREMENT: it would dirty one more page per enqueue. Numbers still never repeat, because the row with the
-- highest one is emptied instead of deleted (lane 0, the husk).
-- run_at changes (retry, snooze, replace), and lane when a job becomes a suspect or is cleared, so that the waiting row of
-- any job can be found by (lane, -priority, run_at, number) without an index on number. alone is what was asked for.
CREATE TABLE shigoto_job (
  number       INTEGER PRIMARY KEY,
  id           BLOB NOT NULL,
  lane         INTEGER NOT NULL,
  priority     INTEGER NOT NULL,
  run_at       INTEGER NOT NULL,
  created_at   INTEGER NOT NULL,
  max_failures INTEGER NOT NULL,
  max_crashes  INTEGER,
  tenant       TEXT NOT NULL,
  key          TEXT,
  expires_at   INTEGER,
  retry        TEXT,
  timeout      INTEGER,
  soft_timeout INTEGER,
  tags         TEXT,
  meta         TEXT,
  alone        INTEGER NOT NULL DEFAULT 0,
  payload      TEXT NOT NULL -- last: SQLite finds what stands behind a long text only by following its pages
);
CREATE UNIQUE INDEX shigoto_job_by_id ON shigoto_job (id);
CREATE INDEX shigoto_job_by_key ON shigoto_job (key, number) WHERE key IS NOT NULL;

-- Can run now; nothing else is in it. Priority is negated so that best-first is ascending.
-- pos is the place in the line: run_at, unless a queue shares fairly and counts virtual time.
CREATE TABLE shigoto_ready (
  lane          INTEGER NOT NULL,
  priority      INTEGER NOT NULL,
  pos           INTEGER NOT NULL,
  number        INTEGER NOT NULL,
  expires_at    INTEGER,
  token         INTEGER NOT NULL DEFAULT 0,
  settled_token INTEGER NOT NULL DEFAULT 0,
  failures      INTEGER NOT NULL DEFAULT 0,
  crashes       INTEGER NOT NULL DEFAULT 0,
  solo_crashes  INTEGER NOT NULL DEFAULT 0,
  releases      INTEGER NOT NULL DEFAULT 0,
  snoozes       INTEGER NOT NULL DEFAULT 0,
  solo          INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (lane, priority, pos, number)
) WITHOUT ROWID;

CREATE TABLE shigoto_scheduled (
  run_at        INTEGER NOT NULL,
  number        INTEGER NOT NULL,
  lane          INTEGER NOT NULL,
  token         INTEGER NOT NULL DEFAULT 0,
  settled_token INTEGER NOT NULL DEFAULT 0,
  failures      INTEGER NOT NULL DEFAULT 0,
  crashes       INTEGER NOT NULL DEFAULT 0,
  solo_crashes  INTEGER NOT NULL DEFAULT 0,
  releases      INTEGER NOT NULL DEFAULT 0,
  snoozes       INTEGER NOT NULL DEFAULT 0,
  solo          INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (run_at, number)
) WITHOUT ROWID;

-- Waits for other jobs; unmet counts those that have not ended yet.
CREATE TABLE shigoto_blocked (
  number INTEGER PRIMARY KEY,
  unmet  INTEGER NOT NULL
);

-- No index on worker: the table holds what runs right now and is small.
CREATE TABLE shigoto_running (
  number              INTEGER PRIMARY KEY,
  token               INTEGER NOT NULL,
  worker              BLOB NOT NULL,
  claimed_at          INTEGER NOT NULL,
  settled_token       INTEGER NOT NULL,
  failures            INTEGER NOT NULL,
  crashes             INTEGER NOT NULL,
  solo_crashes        INTEGER NOT NULL,
  releases            INTEGER NOT NULL,
  snoozes             INTEGER NOT NULL,
  solo                INTEGER NOT NULL,
  superseded          INTEGER NOT NULL DEFAULT 0,
  cancel_requested_at INTEGER
);

-- state: 3 completed, 4 failed, 5 cancelled
CREATE TABLE shigoto_done (
  number              INTEGER PRIMARY KEY,
  state               INTEGER NOT NULL,
  token               INTEGER NOT NULL,
  settled_token       INTEGER NOT NULL,
  failures            INTEGER NOT NULL,
  crashes             INTEGER NOT NULL,
  releases            INTEGER NOT NULL,
  snoozes             INTEGER NOT NULL,
  solo                INTEGER NOT NULL DEFAULT 0,
  started_at          INTEGER,
  finished_at         INTEGER NOT NULL,
  cancel_requested_at INTEGER,
  failure_kind        TEXT,
  error               TEXT,
  result              TEXT
);
CREATE INDEX shigoto_done_not_completed ON shigoto_done (state, number) WHERE state <> 3;

-- The newest job that took a unique key. Whether the key is free follows from that job's state, so settling writes
-- nothing here.
CREATE TABLE shigoto_key (
  tenant TEXT NOT NULL,
  key    TEXT NOT NULL,
  number INTEGER NOT NULL,
  PRIMARY KEY (tenant, key)
) WITHOUT ROWID;

CREATE TABLE shigoto_expiry (
  expires_at INTEGER NOT NULL,
  number     INTEGER NOT NULL,
  PRIMARY KEY (expires_at, number)
) WITHOUT ROWID;

-- Runs that did not end completed; the history row tells of the other.
CREATE TABLE shigoto_attempt (
  number      INTEGER NOT NULL,
  token       INTEGER NOT NULL,
  outcome     TEXT NOT NULL,
  error       TEXT,
  traceback   TEXT,
  started_at  INTEGER NOT NULL,
  finished_at INTEGER NOT NULL,
  PRIMARY KEY (number, token)
) WITHOUT ROWID;

-- What running jobs say of themselves; only jobs that say something have a row. It outlives the run: people see it
-- after the end, and a rerun resumes from its checkpoint.
CREATE TABLE shigoto_progress (
  number     INTEGER PRIMARY KEY,
  fraction   REAL,
  text       TEXT,
  checkpoint TEXT
);

-- What runs have written: the last lines of each, as many as its worker wants to be kept.
CREATE TABLE shigoto_log (
  number INTEGER NOT NULL,
  token  INTEGER NOT NULL,
  line   INTEGER NOT NULL,
  at     INTEGER NOT NULL,
  level  TEXT NOT NULL,
  text   TEXT NOT NULL,
  PRIMARY KEY (number, token, line)
) WITHOUT ROWID;

CREATE TABLE shigoto_worker (
  number      INTEGER PRIMARY KEY,
  id          BLOB NOT NULL UNIQUE,
  name        TEXT NOT NULL,
  tasks       TEXT NOT NULL,
  queues      TEXT,
  owner       TEXT,  -- the id of the token by which it came, if it is not at the store itself
  slots       INTEGER NOT NULL,
  version     TEXT NOT NULL,
  host        TEXT NOT NULL,
  pid         INTEGER NOT NULL,
  isolates    INTEGER NOT NULL,
  stopping    INTEGER NOT NULL,
  lease       INTEGER NOT NULL,
  started_at  INTEGER NOT NULL,
  lease_until INTEGER NOT NULL,
  fenced_at   INTEGER
);

-- How many jobs a queue holds (total) and how many of them ended. Enqueues are not counted one by one: rows above
-- meta 'counted_to' are added by the next sweep, and numbers are given in commit order, so the sum is exact.
CREATE TABLE shigoto_counter (
  queue     TEXT PRIMARY KEY,
  total     INTEGER NOT NULL DEFAULT 0,
  completed INTEGER NOT NULL DEFAULT 0,
  failed    INTEGER NOT NULL DEFAULT 0,
  cancelled INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

CREATE TABLE shigoto_meta (
  name  TEXT PRIMARY KEY,
  value INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO shigoto_meta VALUES ('clock', 0), ('counted_to', 0), ('pruned_to', 0), ('husk', 0);

-- Triggers, so that one INSERT is a whole enqueue: one statement, one commit, also inside a caller's transaction.
CREATE TRIGGER shigoto_job_ready AFTER INSERT ON shigoto_job WHEN new.run_at <= new.created_at
BEGIN
  INSERT INTO shigoto_ready (lane, priority, pos, number, expires_at)
  VALUES (new.lane, -new.priority, new.run_at, new.number, new.expires_at);
END;

CREATE TRIGGER shigoto_job_scheduled AFTER INSERT ON shigoto_job WHEN new.run_at > new.created_at
BEGIN
  INSERT INTO shigoto_scheduled (run_at, number, lane)
  VALUES (new.run_at, new.number, new.lane);
END;

CREATE TRIGGER shigoto_job_expiry AFTER INSERT ON shigoto_job WHEN new.expires_at IS NOT NULL
BEGIN
  INSERT INTO shigoto_expiry (expires_at, number) VALUES (new.expires_at, new.number);
END;

-- The table of specification S0, as a view over all of the above.
CREATE VIEW IF NOT EXISTS job_queue AS
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
      (SELECT a.error FROM shigoto_attempt a WHERE a.number = b.number ORDER BY a.token DESC LIMIT 1))
  END AS error_message,
  strftime('%Y-%m-%d %H:%M:%f', b.run_at / 1000.0, 'unixepoch') AS scheduled_at,
  strftime('%Y-%m-%d %H:%M:%f', s.started_at / 1000.0, 'unixepoch') AS started_at,
  strftime('%Y-%m-%d %H:%M:%f', s.finished_at / 1000.0, 'unixepoch') AS completed_at,
  strftime('%Y-%m-%d %H:%M:%f', b.created_at / 1000.0, 'unixepoch') AS created_at
FROM (
  SELECT number, 'pending' AS status, failures, NULL AS started_at, NULL AS finished_at, NULL AS error FROM shigoto_ready
  UNION ALL
  SELECT number, 'pending', failures, NULL, NULL, NULL FROM shigoto_scheduled
  UNION ALL
  SELECT number, 'processing', failures, claimed_at, NULL, NULL FROM shigoto_running
  UNION ALL
  SELECT number, 'completed', failures, started_at, finished_at, error FROM shigoto_done WHERE state = 3
  UNION ALL
  SELECT number, 'failed', failures, started_at, finished_at, error FROM shigoto_done WHERE state = 4
  UNION ALL
  SELECT number, 'cancelled', failures, started_at, finished_at, error FROM shigoto_done WHERE state = 5
) s
CROSS JOIN shigoto_job b ON b.number = s.number
CROSS JOIN shigoto_lane l ON l.lane = b.lane;
