"""Shigoto: durable background jobs for Python.

The names below are the public face. A worker is `from shigoto.worker import Worker`.
"""

from shigoto.app import Shigoto
from shigoto.codec import JSON
from shigoto.context import Cancel, Context, Fail, RetryLater, Snooze, current
from shigoto.enqueue import Call
from shigoto.model.errors import (
    DeclarationError,
    JobCancelled,
    JobError,
    JobExpired,
    JobFailed,
    JobNotFound,
    JobNotRetryable,
    KeyTaken,
    LeaseLost,
    OptionInvalid,
    PayloadInvalid,
    PayloadTooLarge,
    ResultError,
    ResultInvalid,
    ResultPruned,
    ResultTimeout,
    SchemaMissing,
    SchemaTooNew,
    ShigotoError,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    UnknownTask,
    Unsupported,
)
from shigoto.model.job import Attempt, Counts, FailureKind, Job, State
from shigoto.query import JobHandle
from shigoto.retry import Retry
from shigoto.task import Task, Tasks

__all__ = [
    "JSON",
    "Attempt",
    "Call",
    "Cancel",
    "Context",
    "Counts",
    "DeclarationError",
    "Fail",
    "FailureKind",
    "Job",
    "JobCancelled",
    "JobError",
    "JobExpired",
    "JobFailed",
    "JobHandle",
    "JobNotFound",
    "JobNotRetryable",
    "KeyTaken",
    "LeaseLost",
    "OptionInvalid",
    "PayloadInvalid",
    "PayloadTooLarge",
    "ResultError",
    "ResultInvalid",
    "ResultPruned",
    "ResultTimeout",
    "Retry",
    "RetryLater",
    "SchemaMissing",
    "SchemaTooNew",
    "Shigoto",
    "ShigotoError",
    "Snooze",
    "State",
    "StoreError",
    "StoreRefused",
    "StoreUnavailable",
    "Task",
    "Tasks",
    "UnknownTask",
    "Unsupported",
    "current",
]
