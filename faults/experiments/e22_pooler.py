"""E22: E01 through PgBouncer in transaction mode, where two transactions of a client need not meet the same connection.

Workers and producers know the server only by way of the pooler, which has fewer connections to it than they have
clients; only the doorbell has a connection of its own, since notifications do not pass through a pooler.
"""

from faults.experiment import Experiment, Outcome, Setting
from faults.experiments import e01_worker_tree_dies as e01
from faults.stage import Stage
from faults.tools import pooler


def run(setting: Setting) -> Outcome:
    """The load of E01, and its kills."""
    if not pooler.is_there():
        return Outcome(skipped="there is no PgBouncer on this machine")
    with Stage(setting) as stage:
        between = stage.between(pooler.Pooler(stage.database, setting.folder / "pooler"))
        jobs, kills = setting.of((360, 3), (10_000, 5))
        outcome = e01.disturb(stage, jobs=jobs, kills=kills, url=between.url)
        carried = between.transactions()
        outcome.figures["transactions through the pooler"] = carried
        if carried < outcome.n:
            outcome.wrong.append(f"The pooler has carried {carried} transactions only.")
    return outcome


EXPERIMENT = Experiment(
    id="E22", title="whole workers are killed behind PgBouncer", act=run, engines=("postgres",)
)
