"""Results used as what they are not."""

from uuid import uuid4

from shigoto import Call, JobHandle
from tests.typing.declared import add, aggregate, app, resize, send


async def handles() -> None:
    plain: JobHandle[str] = add.enqueue(1, 2)  # expect: mypy, pyright
    awaited: JobHandle[int] = await resize.aenqueue("a", width=1)  # expect: mypy, pyright
    used: JobHandle[str] = send.using(delay=1).enqueue("x")  # expect: mypy, pyright
    called: Call[str] = aggregate.call(uuid4(), "d")  # expect: mypy, pyright
    bulk: list[JobHandle[str]] = app.enqueue_many([add.call(1, 2)])  # expect: mypy, pyright
    print(plain, awaited, used, called, bulk)


async def values() -> None:
    plain: str = add.enqueue(1, 2).result()  # expect: mypy, pyright
    awaited: str = await send.enqueue("x").aresult()  # expect: mypy, pyright
    direct: str = add(1, 2)  # expect: mypy, pyright
    late: bool = send("x")  # expect: mypy, pyright
    add.enqueue(1, 2).result().upper()  # expect: mypy, pyright
    resize.enqueue("a", width=1).result() + 1  # expect: mypy, pyright
    print(plain, awaited, direct, late)
