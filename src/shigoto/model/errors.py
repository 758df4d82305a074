"""The tree of all errors that a user can meet.

Each class says what has happened and has a code; `docs/reference/errors.md` shows the tree. What a handler raises to
choose an outcome (`RetryLater`, `Snooze`, `Cancel`, `Fail`) is no error (`context.py`).
"""

from typing import ClassVar


class ShigotoError(Exception):
    """The root of all errors; `code` is stable and made for programs, the text is made for people."""

    code: ClassVar[str] = "SHIGOTO"


class DeclarationError(ShigotoError):
    """A task or app is declared in a way that cannot work."""

    code = "WORKER.DECLARATION"


class JobError(ShigotoError):
    """Something is wrong with one job or with the request to make one."""

    code = "JOB"


class UnknownTask(JobError):
    """Neither this app nor any live worker knows the task name."""

    code = "JOB.UNKNOWN_TASK"


class OptionInvalid(JobError):
    """An option is misspelt, contradicts another, or has a value that cannot be meant."""

    code = "JOB.OPTION_INVALID"


class PayloadInvalid(JobError):
    """The arguments do not fit the task's signature, or are not JSON."""

    code = "JOB.PAYLOAD_INVALID"


class PayloadTooLarge(JobError):
    """The encoded arguments exceed the size limit."""

    code = "JOB.PAYLOAD_TOO_LARGE"


class ResultInvalid(JobError):
    """The handler's return value cannot be stored as JSON, or is too large."""

    code = "JOB.RESULT_INVALID"


class EncryptionKeyMissing(JobError):
    """What is stored is encrypted with a key that this process does not have, or shall be, and there is none."""

    code = "JOB.KEY_MISSING"


class JobNotFound(JobError):
    """No job has this id: it never existed here, or its retention has passed."""

    code = "JOB.NOT_FOUND"


class JobNotRetryable(JobError):
    """The job's state does not allow a retry."""

    code = "JOB.NOT_RETRYABLE"


class KeyTaken(JobError):
    """Another live job holds the unique key."""

    code = "JOB.KEY_TAKEN"


class IdTaken(JobError):
    """The id that was chosen for a new job is that of another one, or of one that the caller may not see."""

    code = "JOB.ID_TAKEN"


class QueueFull(JobError):
    """The queue holds as many pending jobs as its operator allows (`max_pending`); trying again later may help."""

    code = "JOB.QUEUE_FULL"


class ScheduleError(ShigotoError):
    """Something is wrong with a schedule, or with the request to change one."""

    code = "SCHEDULE"


class ScheduleInvalid(ScheduleError):
    """What is said about a schedule cannot be meant; `field` names what is wrong."""

    code = "SCHEDULE.INVALID"

    def __init__(self, text: str, field: str) -> None:
        super().__init__(text)
        self.field = field


class ScheduleNotFound(ScheduleError):
    """There is no schedule of this name."""

    code = "SCHEDULE.NOT_FOUND"


class ScheduleTaken(ScheduleError):
    """There is a schedule of this name already, or it is declared in code, which alone may change it."""

    code = "SCHEDULE.TAKEN"


class ResultError(ShigotoError):
    """There is no result to return."""

    code = "JOB.NO_RESULT"


class JobFailed(ResultError):
    """The job ended as failed; the text carries the last error."""

    code = "JOB.FAILED"


class JobExpired(JobFailed):
    """The job was not started before its `expires` instant."""

    code = "JOB.EXPIRED"


class JobCancelled(ResultError):
    """The job was cancelled."""

    code = "JOB.CANCELLED"


class ResultPruned(ResultError):
    """The job is gone: its retention has passed, or it never existed."""

    code = "JOB.PRUNED"


class ResultTimeout(ResultError, TimeoutError):
    """The job did not end within the time the caller was ready to wait. It goes on by itself."""

    code = "JOB.RESULT_TIMEOUT"


class LeaseLost(ShigotoError):
    """This worker no longer holds the job; whatever it would write is refused."""

    code = "JOB.LEASE_LOST"


class TransactionTooLong(ShigotoError):
    """A transaction block held the store's write lock for too long; everything in it was rolled back."""

    code = "JOB.TRANSACTION"


class RequestError(ShigotoError):
    """The service does not do what a request asks for."""

    code = "REQUEST"


class RequestMalformed(RequestError):
    """The body of the request is no JSON."""

    code = "REQUEST.MALFORMED"


class RequestInvalid(RequestError):
    """The request is not what the route takes; `field` names what is wrong."""

    code = "REQUEST.INVALID"

    def __init__(self, text: str, field: str | None = None) -> None:
        super().__init__(text)
        self.field = field


class RequestTooLarge(RequestError):
    """The body of the request is larger than the route takes."""

    code = "REQUEST.TOO_LARGE"


class RequestType(RequestError):
    """The body of the request is of a type that the route does not read, or is compressed."""

    code = "REQUEST.TYPE"


class RequestNotFound(RequestError):
    """There is no such route."""

    code = "REQUEST.NOT_FOUND"


class RequestMethod(RequestError):
    """The route has no such method."""

    code = "REQUEST.METHOD"


class ReusedKey(RequestError):
    """The Idempotency-Key was used before, for another request: other jobs, or more or fewer of them."""

    code = "REQUEST.REUSED_KEY"


class ConfirmNeeded(RequestError):
    """More jobs match (`matched`) than the caller has confirmed."""

    code = "REQUEST.CONFIRM"

    def __init__(self, text: str, matched: int) -> None:
        super().__init__(text)
        self.matched = matched


class TokenMissing(RequestError):
    """The request has no token."""

    code = "AUTH.MISSING"


class TokenInvalid(RequestError):
    """The token is unknown, wrong, expired or revoked; which of these is not told."""

    code = "AUTH.INVALID"


class Forbidden(RequestError):
    """The token does not allow what was asked for."""

    code = "AUTH.FORBIDDEN"


class AuthLimited(RequestError):
    """Too many requests from this address had no valid token; it must wait."""

    code = "AUTH.LIMITED"


class WorkerFenced(RequestError):
    """The worker is unknown, or was given up; it gets no work under this id any more."""

    code = "WORKER.FENCED"


class ServerStopping(RequestError):
    """The service is about to stop; another one, or the same in a moment, will answer."""

    code = "SERVER.STOPPING"


class ServerDeadline(RequestError):
    """The answer took longer than a request may."""

    code = "SERVER.DEADLINE"


class ServerError(RequestError):
    """A fault of the service's own, which its log tells more of."""

    code = "SERVER.ERROR"


class StoreError(ShigotoError):
    """Something is wrong with the place where jobs live."""

    code = "STORE"


class StoreUnavailable(StoreError):
    """The store cannot be opened, read or written now; trying again later may help."""

    code = "STORE.UNAVAILABLE"


class StoreBusy(StoreUnavailable):
    """Another transaction has locked what was to be changed, and does not end; trying again later may help."""

    code = "STORE.BUSY"


class TransactionConflict(StoreUnavailable):
    """The database has rolled a transaction block back in favour of another transaction; nothing of it has happened."""

    code = "STORE.CONFLICT"


class NotReady(StoreUnavailable):
    """A worker cannot begin, because its store is not there, or not for writing; starting it again later may help."""

    code = "WORKER.NOT_READY"


class StoreMoving(StoreUnavailable):
    """The jobs of the store are being moved to another one, or into this one; trying again in a moment may help."""

    code = "STORE.MOVING"


class StoreMoved(StoreError):
    """The jobs of the store were moved to another one, which the text names; whoever uses it must go there."""

    code = "STORE.MOVED"


class StoreRefused(StoreError):
    """This file or URL must not be used as a store; trying again does not help."""

    code = "STORE.REFUSED"


class SchemaMissing(StoreError):
    """The store has no schema yet and this process may not create it."""

    code = "WORKER.SCHEMA_MISSING"


class SchemaTooNew(StoreError):
    """The store was migrated by a newer release than this one."""

    code = "WORKER.SCHEMA_TOO_NEW"


class Unsupported(StoreError):
    """The engine does not have the capability that was asked for."""

    code = "STORE.UNSUPPORTED"


def nearest(name: str, known: "list[str] | tuple[str, ...] | set[str] | frozenset[str]") -> str:
    """A hint for a misspelt name: ` Did you mean 'x'?`, or an empty string when nothing is close."""
    from difflib import get_close_matches  # who spells well never needs it

    matches = get_close_matches(name, sorted(known), n=1)
    return f" Did you mean {matches[0]!r}?" if matches else ""
