"""The queue: which jobs there are, and where they live. The worker and the server both load this module."""

import os
from typing import Any, TypedDict

from shigoto import Context, Retry, Shigoto
from users_api.database import mark_welcomed

app = Shigoto(os.environ.get("SHIGOTO_URL") or "sqlite:///users.db")


class UserData(TypedDict):
    """What the service knows of every user."""

    name: str
    email: str


@app.task(retry=Retry.linear(minutes=5, retries=3))
def user_created(
    ctx: Context, user_id: int, user_data: UserData, additional_properties: dict[str, Any]
) -> str:
    """Welcome a new user: a mail, and a note in the user's row.

    The note and the completion of the job are one commit. A run that dies before it leaves no trace in the table, and
    the mail server is told the same key again, by which it can tell that it has sent this mail before.
    """
    greeting = f"Welcome, {user_data['name']}!"
    if hobby := additional_properties.get("hobby"):
        greeting += f" We hear that you like {hobby}."
    ctx.log(f"Mail to {user_data['email']}, key {ctx.idempotency_key}: {greeting}")
    with ctx.transaction() as tx:
        mark_welcomed(tx, user_id)
        tx.finish(greeting)
    return greeting
