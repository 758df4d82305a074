"""Shigoto: durable background jobs for Python.

The names below are the public face. A worker is `from shigoto.worker import Worker`, a scheduler by itself is
`from shigoto.scheduler import Scheduler`: whoever only declares and enqueues does not pay for importing them.
"""

from shigoto.app import Shigoto
from shigoto.bulk import Cancelled
from shigoto.codec import JSON
from shigoto.context import Context, SoftTimeout, current
from shigoto.enqueue import Call
from shigoto.fan_out import FannedOut
from shigoto.handle import JobHandle
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
    NotReady,
    OptionInvalid,
    PayloadInvalid,
    PayloadTooLarge,
    ResultError,
    ResultInvalid,
    ResultPruned,
    ResultTimeout,
    ScheduleError,
    ScheduleInvalid,
    ScheduleNotFound,
    ScheduleTaken,
    SchemaMissing,
    SchemaTooNew,
    ShigotoError,
    StoreBusy,
    StoreError,
    StoreMoved,
    StoreMoving,
    StoreRefused,
    StoreUnavailable,
    TransactionConflict,
    TransactionTooLong,
    UnknownTask,
    Unsupported,
)
from shigoto.model.job import Attempt, Counts, FailureKind, Job, LoggedLine, State
from shigoto.model.schedule import ScheduleRecord, TickOutcome, TickRecord
from shigoto.model.worker import WorkerRecord
from shigoto.outcomes import Cancel, Fail, RetryLater, Snooze
from shigoto.queues import Queue
from shigoto.redrive import Redriven
from shigoto.retry import Retry
from shigoto.schedule.tick import Tick
from shigoto.task import Task, Tasks
from shigoto.transaction import AsyncTransaction

__all__ = [
    "JSON",
    "AsyncTransaction",
    "Attempt",
    "Call",
    "Cancel",
    "Cancelled",
    "Context",
    "Counts",
    "DeclarationError",
    "Fail",
    "FailureKind",
    "FannedOut",
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
    "LoggedLine",
    "NotReady",
    "OptionInvalid",
    "PayloadInvalid",
    "PayloadTooLarge",
    "Queue",
    "Redriven",
    "ResultError",
    "ResultInvalid",
    "ResultPruned",
    "ResultTimeout",
    "Retry",
    "RetryLater",
    "ScheduleError",
    "ScheduleInvalid",
    "ScheduleNotFound",
    "ScheduleRecord",
    "ScheduleTaken",
    "SchemaMissing",
    "SchemaTooNew",
    "Shigoto",
    "ShigotoError",
    "Snooze",
    "SoftTimeout",
    "State",
    "StoreBusy",
    "StoreError",
    "StoreMoved",
    "StoreMoving",
    "StoreRefused",
    "StoreUnavailable",
    "Task",
    "Tasks",
    "Tick",
    "TickOutcome",
    "TickRecord",
    "TransactionConflict",
    "TransactionTooLong",
    "UnknownTask",
    "Unsupported",
    "WorkerRecord",
    "current",
]
