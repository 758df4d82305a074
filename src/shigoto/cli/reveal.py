"""The words of an encrypted job in clear, for whoever has the keys and asks for them."""

from typing import TYPE_CHECKING

from msgspec import structs

from shigoto.encryption import Field, opened
from shigoto.model.job import Job

if TYPE_CHECKING:
    from shigoto.cli.show import Story
    from shigoto.encryption import Encryption


def revealed(story: "Story", keys: "Encryption") -> "Story":
    """The story of a job, decrypted. Secret parameters are still left out when it is shown. Raises
    EncryptionKeyMissing."""
    job = story.job
    return structs.replace(
        story,
        job=structs.replace(
            job,
            payload=opened(keys, job.payload, job, "payload"),
            result=_text(keys, job, "result", job.result),
            progress_text=_text(keys, job, "progress", job.progress_text),
            error=_text(keys, job, "error", job.error),
        ),
        attempts=[
            structs.replace(
                each,
                error=_text(keys, job, "error", each.error),
                traceback=_text(keys, job, "traceback", each.traceback),
            )
            for each in story.attempts
        ],
        logs=[structs.replace(each, text=opened(keys, each.text, job, "log")) for each in story.logs],
    )


def _text(keys: "Encryption", job: Job, field: Field, text: str | None) -> str | None:
    return None if text is None else opened(keys, text, job, field)
