"""graphile-worker, at its best: a local queue of 500 jobs, and completions in batches without a delay, as its own page
about performance has it; $CONCURRENCY jobs at once, 24 as there. With $SETTINGS=default it has neither of the two.
"""

from bench import nodejs, protocol


class GraphileRunner(nodejs.NodeRunner):
    """graphile-worker, which deletes a job when it is completed."""

    name = "graphile-worker"
    package = "graphile-worker"
    program = "graphile_worker.mjs"
    bulk = True
    pending_jobs = "SELECT count(*) FROM graphile_worker._private_jobs WHERE run_at <= now()"

    def promises(self) -> dict[str, str]:
        """From its source."""
        return {
            "history": "no: deleted when completed",
            "fencing": "no",
            "recovery": "after four hours",
            "retries": "yes",
            "worker": "its own",
        }


if __name__ == "__main__":
    protocol.main(GraphileRunner())
