"""Jobs as they may be shown: without the secrets in their arguments, and of what is encrypted only that it is.

Whoever shows a job, its runs or its lines, to people or to programs, shows these. What acts on jobs, moves them or
hands them to workers has them as they are stored.
"""

from collections.abc import Sequence

from msgspec import structs

from shigoto.model.job import Attempt, Job, LoggedLine
from shigoto.model.masking import masked_payload, without_mark
from shigoto.model.sealed import is_sealed, without_key


def presented(job: Job) -> Job:
    """The job as it may be shown."""
    result = job.result
    return structs.replace(
        job,
        payload=masked_payload(job.payload, job.meta),
        meta=without_mark(job.meta),
        progress_text=_words(job.progress_text),
        result=f'"{without_key(result)}"' if result is not None and is_sealed(result) else result,
        error=_words(job.error),
    )


def presented_attempts(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Its runs as they may be shown. Where a traceback is encrypted there is the error, which tells its type."""
    return [
        structs.replace(
            each, error=_words(each.error), traceback=None if is_sealed(each.traceback) else each.traceback
        )
        for each in attempts
    ]


def presented_lines(lines: Sequence[LoggedLine]) -> list[LoggedLine]:
    """Its lines as they may be shown."""
    return [
        structs.replace(each, text=without_key(each.text)) if is_sealed(each.text) else each for each in lines
    ]


def _words(text: str | None) -> str | None:
    return None if text is None else without_key(text)
