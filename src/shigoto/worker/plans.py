"""What running a job of one task takes, looked up once when the worker starts."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from msgspec import Struct

from shigoto.codec import Signature
from shigoto.context import Context
from shigoto.encryption import Encryption, uncovered
from shigoto.model.errors import PayloadInvalid
from shigoto.model.job import Lease
from shigoto.model.time import Millis
from shigoto.retry import Retry
from shigoto.task import Task


class Plan(Struct, frozen=True, eq=False):
    """What running a job of one task takes, looked up once. `bare` says that no argument is required, `covered` that a
    job of it may have something to hide: there are `keys`, or `secrets` among its arguments."""

    fn: Callable[..., Any]
    takes_context: bool
    decode: Callable[[str], dict[str, Any]]
    encode: Callable[[Any], str]
    bare: bool
    timeout: Millis | None
    soft_timeout: Millis | None
    limited: bool
    retry: Retry
    covered: bool = False
    keys: Encryption | None = None
    encrypts: bool = False
    secrets: frozenset[str] = frozenset()
    defaults: Mapping[str, Any] = MappingProxyType({})  # of the secrets


class Guard(Protocol):
    """What may raise in a sync handler from outside, but only between these two."""

    def arm(self) -> None:
        """The handler begins."""
        ...

    def disarm(self) -> None:
        """The handler has ended."""
        ...


def plan_of(task: Task[..., Any], guard: Guard | None) -> Plan:
    """The plan of a task; `guard` surrounds its function, if that is a sync one."""
    signature, options = task.signature, task.options
    return Plan(
        fn=task.fn if guard is None or task.is_async else _guarded(task.fn, guard),
        takes_context=task.takes_context,
        decode=signature.decode,
        encode=signature.encode_result,
        bare=_is_bare(signature),
        timeout=options.timeout,
        soft_timeout=options.soft_timeout,
        limited=bool(options.timeout or options.soft_timeout),
        retry=options.retry,
        covered=task.encryption is not None or bool(signature.arguments.secrets),
        keys=task.encryption,
        encrypts=task.encrypts,
        secrets=signature.arguments.secrets,
        defaults=signature.arguments.secret_defaults,
    )


def _guarded(fn: Callable[..., Any], guard: Guard) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            guard.arm()
            return fn(*args, **kwargs)
        finally:
            guard.disarm()

    return call


def _is_bare(signature: Signature) -> bool:
    try:
        return signature.decode("{}") == {}
    except PayloadInvalid:
        return False


def arguments_of(plan: Plan, lease: Lease, context: Context) -> dict[str, Any]:
    """The arguments of a job, which may be encrypted, or have secrets in them. Raises EncryptionKeyMissing."""
    if not plan.covered:
        return {} if plan.bare and lease.payload == "{}" else plan.decode(lease.payload)
    payload, cover = uncovered(
        lease, plan.keys, encrypts=plan.encrypts, secrets=plan.secrets, defaults=plan.defaults
    )
    if cover is not None:
        context.take_cover(cover)
    return plan.decode(payload)


def limits_of(lease: Lease, plan: Plan) -> tuple[Millis | None, Millis | None]:
    """The limits in force; those given with the job come first, where 0 is for none."""
    hard = plan.timeout if lease.timeout is None else lease.timeout
    soft = plan.soft_timeout if lease.soft_timeout is None else lease.soft_timeout
    return hard or None, soft or None


def too_long(which: str, limit: Millis | None) -> str:
    """What is said of a run that reached this limit."""
    return f"the run took longer than its {which} of {(limit or 0) / 1000:g} s"
