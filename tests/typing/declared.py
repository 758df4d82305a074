"""One task of each kind, for the files that are only type-checked."""

from uuid import UUID

from shigoto import Context, Secret, Shigoto, Tasks

app = Shigoto("memory:")
tasks = Tasks()


@app.task
def add(first: int, second: int) -> int:
    return first + second


@app.task(queue="mail", retries=3)
async def send(to: str, copies: int = 1) -> bool:
    return bool(to) and copies > 0


@tasks.task
def resize(ctx: Context, path: str, *, width: int) -> str:
    ctx.progress(0.5, path)
    return f"{path}@{width}"


@tasks.task(name="aggregate-daily-sales-for-store", timeout=60)
async def aggregate(ctx: Context, store_id: UUID, target_date: str) -> list[int]:
    ctx.progress(1, f"{store_id} {target_date}")
    return []


@app.task
def log_in(user: str, password: Secret[str], code: Secret[int] | None = None) -> bool:
    """A handler has plain values."""
    return password.startswith(user) and (code or 0) > 1
