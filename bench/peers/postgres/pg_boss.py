"""pg-boss in batches of $BATCH jobs (1000) by two loops ($CONCURRENCY), of which the next is fetched at once if one was
full, and with its notifications on. A handler is called once for each batch.
"""

from bench import nodejs, protocol


class PgBossRunner(nodejs.NodeRunner):
    """pg-boss, with its defaults in all that a job relies on."""

    name = "pg-boss"
    package = "pg-boss"
    program = "pg_boss.mjs"
    bulk = True
    keeps_history = True
    pending_jobs = (
        "SELECT count(*) FROM pgboss.job WHERE name = 'noop' AND state < 'completed' AND start_after <= now()"
    )
    finished_jobs = "SELECT count(*) FROM pgboss.job WHERE name = 'noop' AND state = 'completed'"

    def promises(self) -> dict[str, str]:
        """From its source."""
        return {
            "history": "yes, 7 days",
            "fencing": "no: any active job of that id is completed",
            "recovery": "when its time is over, 15 minutes",
            "retries": "yes",
            "worker": "its own; one call of the handler for a batch",
        }


if __name__ == "__main__":
    protocol.main(PgBossRunner())
