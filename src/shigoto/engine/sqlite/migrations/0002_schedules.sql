-- Schedules, and what became of their ticks. Ids are texts here: they come and go as JSON, by the thousand.
-- job is the last one that a tick has stored, and number the same, by which it is seen whether it has ended.
-- reached is how far the clock had come, at least, when the row was decided (Schedule.reached).
CREATE TABLE shigoto_schedule (
  name        TEXT PRIMARY KEY,
  id          TEXT NOT NULL,
  revision    INTEGER NOT NULL,
  definition  TEXT NOT NULL,
  origin      TEXT NOT NULL,
  paused_at   INTEGER,
  failed      INTEGER NOT NULL,
  held        INTEGER NOT NULL,
  look_at     INTEGER,
  decided_to  INTEGER NOT NULL,
  job         TEXT,
  number      INTEGER,
  errors      INTEGER NOT NULL,
  error       TEXT,
  counts      TEXT NOT NULL,
  created_at  INTEGER NOT NULL,
  declared_at INTEGER NOT NULL,
  stretch     TEXT,
  pauses      TEXT NOT NULL DEFAULT '[]',
  reached     INTEGER NOT NULL
    AS (CASE WHEN held OR errors > 0 THEN max(decided_to, coalesce(look_at, 0) - 60000) ELSE decided_to END)
) WITHOUT ROWID;
CREATE INDEX shigoto_schedule_by_look ON shigoto_schedule (look_at) WHERE look_at IS NOT NULL;
CREATE INDEX shigoto_schedule_by_reached ON shigoto_schedule (reached) WHERE NOT failed;

CREATE TABLE shigoto_tick (
  schedule   TEXT NOT NULL,
  at         INTEGER NOT NULL,
  outcome    TEXT NOT NULL,
  decided_at INTEGER NOT NULL,
  job        TEXT,
  until      INTEGER,
  count      INTEGER NOT NULL,
  PRIMARY KEY (schedule, at)
) WITHOUT ROWID;
