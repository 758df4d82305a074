"""Options of a job reach every place that copies a job: schedules, reruns, moves, the HTTP API.

A place that lacks a field loses the option without an error. If a field is new, add it to the place, or name it here.
"""

from typing import Any
from uuid import uuid4

from shigoto.handle import _again
from shigoto.model.job import Job, JobSpec
from shigoto.model.record import JobRecord
from shigoto.options import CallOptions
from shigoto.schedule.definition import Template
from shigoto.server.job_models import JobView, Submission

STORED = {*JobSpec.__struct_fields__} - {"template"}  # a hint for the engine, not stored
TIMES = {"delay", "expires_in"}  # stored as the instants run_at and expires_at
KEY = {"key", "key_mode"}


def test_a_schedule_makes_jobs_with_every_option_but_those_of_one_instant() -> None:
    assert STORED - {*Template.__struct_fields__} == {"id", "run_at", "expires_at"}


def test_a_job_that_moves_takes_every_option_along() -> None:
    assert STORED - {*JobRecord.__struct_fields__} == TIMES | {"key_mode"}


def test_a_rerun_has_the_options_of_the_job_but_not_its_times_and_its_key() -> None:
    values: dict[str, Any] = {name: f"the {name}" for name in Job.__struct_fields__}
    job = Job(**values | {"tags": ("a",), "meta": "{}"})

    again = _again(job, uuid4())

    kept = {name for name in STORED if name in values and getattr(again, name) == values[name]}
    assert (again.tags, again.meta) == ('["a"]', "{}")
    assert STORED - kept - {"id", "tags", "meta"} == {*TIMES, *KEY, "run_at", "expires_at"}


def test_the_http_api_takes_every_option_that_is_data() -> None:
    options = {*CallOptions.__annotations__}

    # A policy is code, so HTTP takes the number of retries alone; encryption is for the task to say.
    assert options - {*Submission.__struct_fields__} == {"retry", "encrypt", "connection", "on_error"}


def test_the_http_api_shows_every_option_of_a_job() -> None:
    assert STORED - {*JobView.__struct_fields__} == TIMES | {"key_mode", "retry"}
