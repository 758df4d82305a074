"""E18H: the line between workers and a server of theirs falls silent, as in E18; the workers are on another host.

    both ways, answers, questions, half open    as in E18, by a proxy between them
    unplugged                                   the cable is pulled, where the workers have a network of their own

Nobody is told. Workers say so when their beat was not answered in time, claim no more, and are no longer ready; when
the line speaks again work goes on, nobody was fenced meanwhile, and what a server has done without being able to say so
is neither lost nor done twice.
"""

import http.client
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress

from msgspec import Struct

from devtools.postgres.server import free_port
from faults.experiment import Experiment, Outcome, Setting
from faults.experiments.e05_rolling_deploy import judge_exits, stop_idle
from faults.experiments.e18_silent_network import CALM, STOPPED_WITHIN, TROUBLE, Act, judge
from faults.stage import Stage
from faults.stores.served import HOST, Served, ask
from faults.tools.elsewhere import Elsewhere, why_not
from faults.tools.outages import WORKERS, Load, goes_on
from faults.tools.proxy import HalfOpen, Mode, Pass, Proxy, Silent
from shigoto.worker.state import beat_deadline

TASKS = "plain,in_a_thread"
RED_WITHIN = 15.0  # seconds of silence
LOOK_EVERY = 0.25
NOTICED_WITHIN = (
    6.0  # seconds after the deadline of a beat, which may have been sent a third of a lease later
)


class Silence(Struct, frozen=True):
    """One way to fall silent, and to speak again; and whether those who are connected stay deaf for ever."""

    name: str
    begin: Callable[[], None]
    end: Callable[[], None]
    deaf: bool = False
    seen: bool = True  # whether workers can be asked meanwhile


class Glimpse(Struct, frozen=True):
    """What a worker said of itself at some moment."""

    at: float
    status: int


class Watcher:
    """Asks workers again and again whether they are ready, in a thread of its own until the end of the block."""

    def __init__(self, host: str, ports: Sequence[int]) -> None:
        self._host = host
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._look, args=(port,), name="watcher") for port in ports]
        self.seen: dict[int, list[Glimpse]] = {port: [] for port in ports}

    def __enter__(self) -> "Watcher":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _look(self, port: int) -> None:
        while not self._over.wait(LOOK_EVERY):
            with suppress(OSError, http.client.HTTPException):
                status = ask(self._host, port, "GET", "/readyz", timeout=3).status
                self.seen[port].append(Glimpse(time.monotonic(), status))

    def red_after(self, act: Act) -> list[float | None]:
        """How many seconds after the beginning of a silence each worker was not ready any more; None if it was."""
        return [
            next(
                (
                    each.at - act.began
                    for each in seen
                    if act.began < each.at < act.ended and each.status == 503
                ),
                None,
            )
            for seen in self.seen.values()
        ]

    def all_green(self) -> bool:
        """Whether all of them are ready."""
        return all(seen and seen[-1].status == 200 for seen in self.seen.values())


def run(setting: Setting) -> Outcome:
    """One silence after the other."""
    # Less than a lease: the server goes on looking, and fences a worker that is silent for longer.
    silence, rate, lease = setting.of((8.0, 30, 10), (28.0, 50, 30))
    reason, acts = why_not(), list[Act]()
    with Stage(setting, "outages") as stage, ExitStack() as around:
        elsewhere = None if reason else around.enter_context(Elsewhere())
        host = HOST if elsewhere is None else elsewhere.host
        server = stage.between(Served(stage))
        line = stage.between(Proxy(server.port, seed=setting.seed, listen=host))
        url = server.url_for(server.token("work", "submit", "read"), host=host, port=line.port)
        ports = [free_port() for _ in range(WORKERS)]
        load = Load(
            stage,
            rate=rate,
            tasks=TASKS,
            options=("--lease", str(lease)),
            own=[("--health", f"0.0.0.0:{port}") for port in ports],
            url=url,
            wrap=() if elsewhere is None else elsewhere.wrap,
        )
        watcher = around.enter_context(Watcher(HOST if elsewhere is None else elsewhere.theirs, ports))
        stage.wait_until(watcher.all_green, seconds=30, what="the workers were not ready")
        for each in silences(setting, line, elsewhere):
            acts.append(perform(stage, load, each, silence, beat_deadline(lease)))
            stage.wait_until(
                watcher.all_green, seconds=30, what=f"workers were not ready again ({each.name})"
            )
        load.end()
        stage.rest(setting.of(60, 120))
        outcome = load.judged(stage.evidence())
        exits = stop_idle(stage, load.workers)
        records = stage.evidence().records
        judge_readiness(outcome, watcher, acts, silence, setting)
    outcome.wrong += judge_exits(exits, STOPPED_WITHIN, "A worker")
    outcome.figures |= {
        "workers are": "in a network namespace" if elsewhere else "behind a proxy on loopback",
        "noticed after": {act.name: round(act.noticed - act.began, 1) for act in acts},
        "exit, max": round(max(end.seconds for end in exits), 2),
    }
    if reason:
        outcome.left_out.append(f"a network namespace: {reason}")
    judge(outcome, acts, records, 0.0)
    return outcome


def silences(setting: Setting, line: Proxy, elsewhere: Elsewhere | None) -> list[Silence]:
    """All ways, or two of them."""

    def set_to(mode: Mode) -> Callable[[], None]:
        def begin() -> None:
            line.mode = mode

        return begin

    speak = set_to(Pass())
    found = [
        Silence("answers", set_to(Silent(("to_client",))), speak),
        Silence("questions", set_to(Silent(("to_server",))), speak),
        Silence("half open", set_to(HalfOpen()), speak, deaf=True),
        Silence("both ways", set_to(Silent()), speak),
    ]
    if elsewhere is not None:
        found.append(Silence("unplugged", elsewhere.unplug, elsewhere.plug_in, seen=False))
    return found if setting.full else found[-2:]


def perform(stage: Stage, load: Load, silence: Silence, seconds: float, deadline: float) -> Act:
    """Fall silent, wait until a worker says so, and speak again."""
    stage.wait_until(
        lambda: time.time() - load.log.stat().st_mtime > CALM, seconds=30, what="there was trouble before"
    )
    goes_on(stage)
    told, began = load.log.stat().st_size, time.monotonic()
    silence.begin()
    stage.wait_until(
        lambda: TROUBLE in load.log.read_text(errors="replace")[told:],
        seconds=2 * deadline + NOTICED_WITHIN,
        what=f"nobody noticed that the line was silent ({silence.name})",
    )
    noticed = time.monotonic()
    time.sleep(max(0.0, began + seconds - noticed))
    over = time.monotonic()
    silence.end()
    goes_on(stage)
    return Act(name=silence.name, began=began, noticed=noticed, over=over, ended=time.monotonic() + CALM)


def judge_readiness(
    outcome: Outcome, watcher: Watcher, acts: Sequence[Act], silence: float, setting: Setting
) -> None:
    """Red in time, where the silence was long enough for that and somebody could ask."""
    for act in acts:
        if act.name in ("unplugged", "half open"):
            continue
        red = watcher.red_after(act)
        outcome.figures.setdefault("not ready after", {})[act.name] = [
            None if each is None else round(each, 1) for each in red
        ]
        late = [each for each in red if each is None or each > RED_WITHIN]
        if late and silence > RED_WITHIN:
            outcome.wrong.append(f"A worker was ready although the line was silent ({act.name}): {red}.")


EXPERIMENT = Experiment(id="E18H", title="the line between workers and their server falls silent", act=run)
