-- What the service keeps: who may ask for what, and who has done what. The feed is in history itself; the two indexes
-- that make it cheap cost every job that ends half a microsecond, and are made when a server first starts on the file.
CREATE TABLE shigoto_token (
  id         TEXT PRIMARY KEY,
  name       TEXT NOT NULL,
  hash       BLOB NOT NULL,
  scopes     TEXT NOT NULL,
  queues     TEXT,
  tenant     TEXT,
  created_at INTEGER NOT NULL,
  expires_at INTEGER,
  revoked_at INTEGER
) WITHOUT ROWID;

-- AUTOINCREMENT: pages of it are named by numbers, so none may be given twice, also when all entries were forgotten.
CREATE TABLE shigoto_audit (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  at     INTEGER NOT NULL,
  actor  TEXT NOT NULL,
  action TEXT NOT NULL,
  target TEXT NOT NULL,
  before TEXT,
  after  TEXT
);
CREATE INDEX shigoto_audit_by_target ON shigoto_audit (target, number);
