"""The service over HTTP: `uvicorn users_api.server:api`.

The endpoints are plain functions, so FastAPI runs each in a thread, where it may wait for the disk.
"""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec
from fastapi import FastAPI, HTTPException, Path, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from shigoto import Job, JobError, StoreError
from users_api import service
from users_api.database import EmailTaken, User

UserId = Annotated[int, Path(ge=1, le=2**63 - 1)]


class NewUser(BaseModel):
    """The body of `POST /users`; whatever else it has is kept with the user as additional properties."""

    model_config = ConfigDict(extra="allow", str_strip_whitespace=True)

    name: str = Field(max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")
    email: str = Field(max_length=254, pattern=r"^[^@\s\x00]+@[^@\s\x00]+\.[^@\s\x00]+$")


class UserView(BaseModel):
    """A user."""

    id: int
    name: str
    email: str
    additional_properties: dict[str, Any]
    created_at: str
    welcomed_at: str | None

    @classmethod
    def of(cls, user: User) -> "UserView":
        """The user as this service shows them."""
        return cls(
            id=user.id,
            name=user.name,
            email=user.email,
            additional_properties=user.additional_properties,
            created_at=user.created_at,
            welcomed_at=user.welcomed_at,
        )


class Created(BaseModel):
    """The answer to `POST /users`; without a job if that was given up."""

    user: UserView
    job_id: UUID | None


class JobView(BaseModel):
    """A job of a user."""

    id: UUID
    number: int
    task: str
    state: str
    priority: int
    attempt: int
    result: Any
    error: str | None
    created_at: datetime
    finished_at: datetime | None

    @classmethod
    def of(cls, job: Job) -> "JobView":
        """The job as this service shows it."""
        return cls(
            id=job.id,
            number=job.number,
            task=job.task,
            state=job.state,
            priority=job.priority,
            attempt=job.attempt,
            result=None if job.result is None else msgspec.json.decode(job.result),
            error=job.error,
            created_at=job.created_at,
            finished_at=job.finished_at,
        )


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Nobody is served before the database is ready."""
    await run_in_threadpool(service.start)
    yield


api = FastAPI(title="Users", lifespan=lifespan)


@api.post("/users", status_code=201)
def create_user(new: NewUser, response: Response) -> Created:
    """Create a user, and the job that welcomes them."""
    user, job = service.create_user(new.name, new.email, new.model_extra or {})
    response.headers["Location"] = f"/users/{user.id}"
    return Created(user=UserView.of(user), job_id=None if job is None else job.id)


@api.get("/users/{user_id}")
def get_user(user_id: UserId) -> UserView:
    """One user."""
    return UserView.of(_found(user_id))


@api.get("/users/{user_id}/jobs")
def get_jobs(user_id: UserId) -> list[JobView]:
    """The jobs of one user, newest first."""
    return [JobView.of(job) for job in service.jobs_of(_found(user_id).id)]


def _found(user_id: int) -> User:
    user = service.find_user(user_id)
    if user is None:
        raise HTTPException(404, f"There is no user {user_id}.")
    return user


@api.exception_handler(RequestValidationError)
def not_valid(_: Request, error: RequestValidationError) -> JSONResponse:
    """What is wrong, and where. What was sent is not sent back: it may be long, secret, or no text at all."""
    problems = [
        {"where": ".".join(str(part) for part in each["loc"]), "problem": each["msg"]}
        for each in error.errors()
    ]
    return JSONResponse({"detail": problems}, 422)


@api.exception_handler(EmailTaken)
def conflict(_: Request, error: EmailTaken) -> JSONResponse:
    """Two users cannot have one e-mail address."""
    return JSONResponse({"detail": str(error)}, 409)


@api.exception_handler(JobError)
def no_argument(_: Request, error: JobError) -> JSONResponse:
    """The additional properties cannot be stored: too large, too deep, or not a number."""
    return JSONResponse({"detail": str(error)}, 422)


@api.exception_handler(StoreError)
@api.exception_handler(sqlite3.Error)
def not_now(_: Request, error: Exception) -> JSONResponse:
    """The database does not do what it should. Nothing was stored; it may be tried again."""
    return JSONResponse({"detail": f"The database cannot be used right now: {error}"}, 503)
