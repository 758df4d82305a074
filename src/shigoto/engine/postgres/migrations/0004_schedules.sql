-- Schedules, and what became of their ticks. job is the last one that a tick has stored, and number the same, by which
-- it is seen whether it has ended. Who changes a schedule locks its row, in the order of names, before anything else.
-- reached is how far the clock had come, at least, when the row was decided (Schedule.reached).
CREATE TABLE shigoto.schedule (
  name        text COLLATE "C" PRIMARY KEY,
  id          uuid NOT NULL,
  revision    bigint NOT NULL,
  definition  text NOT NULL,
  origin      text NOT NULL,
  paused_at   bigint,
  failed      boolean NOT NULL,
  held        boolean NOT NULL,
  look_at     bigint,
  decided_to  bigint NOT NULL,
  job         uuid,
  number      bigint,
  errors      integer NOT NULL,
  error       text,
  counts      text NOT NULL,
  created_at  bigint NOT NULL,
  declared_at bigint NOT NULL,
  stretch     text,
  pauses      text NOT NULL DEFAULT '[]',
  reached     bigint NOT NULL GENERATED ALWAYS AS (
    CASE WHEN held OR errors > 0 THEN greatest(decided_to, look_at - 60000) ELSE decided_to END) STORED
) WITH (fillfactor = 50);
CREATE INDEX schedule_by_look ON shigoto.schedule (look_at, name) WHERE look_at IS NOT NULL;
CREATE INDEX schedule_by_reached ON shigoto.schedule (reached) WHERE NOT failed;

CREATE TABLE shigoto.tick (
  schedule   uuid NOT NULL,
  at         bigint NOT NULL,
  outcome    text NOT NULL,
  decided_at bigint NOT NULL,
  job        uuid,
  until      bigint,
  count      integer NOT NULL,
  PRIMARY KEY (schedule, at)
);
