"""The payload of the built-in tasks: one struct in code, its six fields as a flat JSON object in the store."""

import inspect
from collections.abc import Callable, Coroutine
from functools import update_wrapper
from typing import Any, TypeVar

from msgspec import Struct

from shigoto.context import Fail

R = TypeVar("R")

MODES = ("normal", "strict")


class Payload(Struct, frozen=True, kw_only=True):
    """What a job of a built-in task may carry; nothing of it is needed, unless `validation_mode` is strict."""

    user_id: int | None = None
    user_data: dict[str, Any] | None = None
    additional_properties: dict[str, Any] | None = None
    message: str = ""
    recipients: list[str] | None = None
    validation_mode: str = ""

    @property
    def values(self) -> dict[str, Any]:
        """Everything that is known of the user."""
        return {**(self.user_data or {}), **(self.additional_properties or {})}

    @property
    def mode(self) -> str:
        """How strictly to check it."""
        return self.validation_mode or "normal"

    def check(self, *needed: str) -> None:
        """Raise Fail, which is never retried, for a mode that does not exist; if strict, for empty fields too."""
        if self.mode not in MODES:
            raise Fail(f"there is no validation mode {self.mode!r}: it is {' or '.join(MODES)}")
        missing = [field for field in needed if getattr(self, field) in (None, "", [], {})]
        if self.mode == "strict" and missing:
            raise Fail(f"in strict mode {' and '.join(missing)} must be given")


Handler = Callable[[Payload], Coroutine[Any, Any, R]]


def by_field(handler: Handler[R]) -> Callable[..., Coroutine[Any, Any, R]]:
    """The handler as a function of the fields: what a task stores is an object of its parameters."""

    async def task(
        user_id: int | None = None,
        user_data: dict[str, Any] | None = None,
        additional_properties: dict[str, Any] | None = None,
        message: str = "",
        recipients: list[str] | None = None,
        validation_mode: str = "",
    ) -> R:
        return await handler(
            Payload(
                user_id=user_id,
                user_data=user_data,
                additional_properties=additional_properties,
                message=message,
                recipients=recipients,
                validation_mode=validation_mode,
            )
        )

    # By its names a child process finds it, and people know it; but its parameters are the fields, not the handler's.
    signature = inspect.signature(task).replace(return_annotation=handler.__annotations__["return"])
    update_wrapper(task, handler)
    task.__dict__["__signature__"] = signature
    return task
