"""Handlers that end in every way there is but a good one, each in the event loop, in a thread and in a child process.

What a case must come to stands beside it. Tasks have no retries, so one run decides.
"""

from inspect import iscoroutinefunction

from faults.apps import endings, oddities  # each puts its cases into CASES
from faults.apps.cases import CASES
from faults.apps.jobs import recorded
from shigoto import Context, Shigoto

app = Shigoto()
ROOMS = (endings, oddities)


@app.task(retries=0)
async def in_loop(ctx: Context, case: str) -> object:
    with recorded(ctx):
        run = CASES[case].run
        return await run() if iscoroutinefunction(run) else run()


@app.task(retries=0)
def in_thread(ctx: Context, case: str) -> object:
    with recorded(ctx):
        return CASES[case].run()


@app.task(retries=0, executor="process")
def in_process(ctx: Context, case: str) -> object:
    with recorded(ctx):
        return CASES[case].run()


@app.task(retries=0, executor="process")
async def in_own_loop(ctx: Context, case: str) -> object:
    with recorded(ctx):
        run = CASES[case].run
        return await run() if iscoroutinefunction(run) else run()


@app.task(retries=0)
async def healthy_loop(ctx: Context) -> str:
    with recorded(ctx):
        return "well"


@app.task(retries=0)
def healthy_thread(ctx: Context) -> str:
    with recorded(ctx):
        return "well"


@app.task(retries=0, executor="process")
def healthy_process(ctx: Context) -> str:
    with recorded(ctx):
        return "well"


HEALTHY = ("healthy_loop", "healthy_thread", "healthy_process")
