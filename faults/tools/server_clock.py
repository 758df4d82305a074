"""The clock of a PostgreSQL server as the store sees it, made wrong at will; all other clocks stay as they are.

    clock = ServerClock(stage.server.url_of("jobs"))
    clock.step(600)

Only the raw time is replaced. What the store makes of it is held back after a step, as ever.
"""

import psycopg

INSTALL = """
CREATE SCHEMA disturbed;
CREATE TABLE disturbed.clock (ahead bigint NOT NULL);
INSERT INTO disturbed.clock (ahead) VALUES (0);
GRANT USAGE ON SCHEMA disturbed TO PUBLIC;
GRANT SELECT ON disturbed.clock TO PUBLIC;
CREATE OR REPLACE FUNCTION shigoto.host_now() RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE
AS 'SELECT floor(extract(epoch FROM now()) * 1000)::bigint + (SELECT c.ahead FROM disturbed.clock c)';
"""


class ServerClock:
    """The clock of the store in the database at this URL, which is that of a superuser. At first it is right."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.offset = 0.0
        self._execute(INSTALL)

    def step(self, seconds: float) -> None:
        """Jump forward, or backward if it is negative; whatever begins after this has returned sees it."""
        self.offset += seconds
        self._execute(f"UPDATE disturbed.clock SET ahead = {round(self.offset * 1000)}")

    def _execute(self, text: str) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(text)
