"""What the service does, whoever asks: create users, find them, follow their jobs."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from shigoto import Job, JobHandle
from users_api import database
from users_api.database import User
from users_api.jobs import UserData, app, user_created

# An empty value means no, as for a variable that is not set.
FIRE_AND_FORGET = "USERS_API_FIRE_AND_FORGET"


def start() -> None:
    """Connect, see that the database answers, and create what is missing there."""
    with _connected() as connection:
        connection.execute("SELECT 1").fetchone()
        database.create_tables(connection)


def create_user(
    name: str, email: str, additional_properties: dict[str, Any]
) -> tuple[User, JobHandle[str] | None]:
    """Create a user and the job that welcomes them; None for a job that was given up.

    Both are one transaction: neither is there without the other. Raises EmailTaken, or what the queue raises.
    """
    data = UserData(name=name, email=email)
    # What cannot be the argument of a job is refused before there is a user.
    user_created.call(0, data, additional_properties)
    if os.environ.get(FIRE_AND_FORGET):
        return _create_and_forget(data, additional_properties)
    with _connected() as connection, connection:
        user = database.insert_user(connection, name, email, additional_properties)
        welcome = user_created.using(priority=1, key=_key(user.id), connection=connection)
        return user, welcome.enqueue(user.id, data, additional_properties)


def _create_and_forget(
    data: UserData, additional_properties: dict[str, Any]
) -> tuple[User, JobHandle[str] | None]:
    """The same, but a queue that fails is only logged: the user is there, and nobody will welcome them."""
    with _connected() as connection, connection:
        user = database.insert_user(connection, data["name"], data["email"], additional_properties)
    welcome = user_created.using(priority=1, key=_key(user.id), on_error="log")
    handle = welcome.enqueue(user.id, data, additional_properties)
    return user, None if handle.enqueued == "not_enqueued" else handle


def find_user(user_id: int) -> User | None:
    """The user with this id."""
    with _connected() as connection:
        return database.find_user(connection, user_id)


def jobs_of(user_id: int) -> list[Job]:
    """The newest jobs of this user that are still stored, as many as fit on a page."""
    # By the key, for which there is an index. To ask for the argument, args={"user_id": user_id}, would read the
    # payloads of all users' jobs, for every request: that is for people who look for something, not for a service.
    return app.find(key=_key(user_id), limit=100)


def _key(user_id: int) -> str:
    """What the jobs that welcome one user have in common: of them one can wait or run at a time."""
    return f"user_created:{user_id}"


@contextmanager
def _connected() -> Iterator[sqlite3.Connection]:
    """A connection for one request, in the thread that serves it."""
    connection: sqlite3.Connection = app.connect()
    try:
        yield connection
    finally:
        connection.close()
