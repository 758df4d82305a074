"""E01H: E01 with workers on another host, who know the store by nothing but a server on a SQLite file.

Workers are killed with all that belongs to them, producers are killed, the line between them and the server is cut, and
so is the server itself, which is started again on the same file. Tasks with a transaction of the store are left out:
there is none to share over HTTP.
"""

import threading
from collections.abc import Callable, Collection
from contextlib import ExitStack
from random import Random

from faults.experiment import Experiment, Outcome, Setting
from faults.experiments import e01_worker_tree_dies as e01
from faults.stage import Stage
from faults.stores.served import HOST, Served
from faults.tools.elsewhere import Elsewhere, why_not
from faults.tools.monkey import Range
from faults.tools.proxy import Proxy

TASKS = ",".join(["asynchronous"] * 11 + ["in_a_thread"] * 8 + ["in_a_process"])
DOWN_FOR = 0.3  # seconds
# Seconds. Who is gone is noticed by the server alone, which sweeps every five seconds, looks twice ten seconds apart,
# and begins anew when it was killed.
RECOVERED_WITHIN = 60.0


def run(setting: Setting) -> Outcome:
    """The load of E01, and its kills, with more of them in between."""
    reason = why_not()
    with Stage(setting) as stage, ExitStack() as around:
        elsewhere = None if reason else around.enter_context(Elsewhere())
        host = HOST if elsewhere is None else elsewhere.host
        server = stage.between(Served(stage))
        line = stage.between(Proxy(server.port, seed=setting.seed, listen=host))
        url = server.url_for(server.token("work", "submit", "read"), host=host, port=line.port)
        jobs, kills = setting.of((360, 3), (20_000, 10))
        pause, kill_at = setting.of(((1.0, 2.0), (3,)), ((3.0, 10.0), range(8, 1_000, 8)))
        unrest = Unrest(server, line, setting.random("unrest"), pause, kill_at, stage.processing)
        with unrest:
            outcome = e01.disturb(
                stage,
                jobs=jobs,
                kills=kills,
                url=url,
                tasks=TASKS,
                wrap=() if elsewhere is None else elsewhere.wrap,
                within=RECOVERED_WITHIN,
            )
    outcome.figures |= {
        "workers are": "in a network namespace" if elsewhere else "behind a proxy on loopback",
        "connections cut": line.cuts,
        "servers killed": unrest.kills,
        "connections made": line.accepted,
    }
    if reason:
        outcome.left_out.append(f"a network namespace: {reason}")
    if not line.cuts or not unrest.kills:
        outcome.wrong.append("Neither the line nor the server was disturbed.")
    return outcome


class Unrest:
    """Cuts the line after each pause, or kills the server at these turns; in a thread of its own until the end of the
    block."""

    def __init__(
        self,
        server: Served,
        line: Proxy,
        random: Random,
        pause: Range,
        kill_at: Collection[int],
        at_work: Callable[[], object],
    ) -> None:
        self._server = server
        self._line = line
        self._random = random
        self._pause = pause
        self._kill_at = kill_at
        self._at_work = at_work
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="unrest")
        self._error: Exception | None = None
        self.kills = 0

    def __enter__(self) -> "Unrest":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        turn = 0
        # Not before somebody is at work: who finds no server when it begins ends, and says so.
        while not (self._over.wait(0.1) or self._at_work()):
            pass
        while not self._over.wait(self._random.uniform(*self._pause)):
            turn += 1
            try:
                if turn in self._kill_at:
                    self._server.restart(down_for=DOWN_FOR)
                    self.kills += 1
                else:
                    self._line.cut()
            except Exception as error:
                self._error = error
                return


EXPERIMENT = Experiment(id="E01H", title="workers over HTTP are killed, and so is their server", act=run)
