"""The signs of life of a supervisor's runners, for its health port. They are read from outside: a runner that is too
busy to say how it is has stopped being at work."""

from collections.abc import Callable, Sequence

from shigoto.worker.health import Signs
from shigoto.worker.supervisor.office import Office
from shigoto.worker.supervisor.post import Post


def signs_of(
    posts: Sequence[Post], office: Office, clock: Callable[[], float], *, poll: float, stopping: bool
) -> Signs:
    """What is known of the runners on these posts, and of their stores, now."""
    now, runners = clock(), [post.runner for post in posts if post.ready]
    cycles = [runner.cycled_at() for runner in runners if runner is not None]
    hellos = [runner.hello for runner in runners if runner is not None]
    return Signs(
        stopping=stopping,
        missing=len(posts) - len(cycles),
        stores=office.signs({hello.url for hello in hellos if hello is not None}),
        cycles=[None if at is None else now - at for at in cycles],
        poll=poll,
    )
