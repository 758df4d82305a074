"""Which job a log line comes from: for lines that handlers write themselves."""

from collections.abc import Mapping

from shigoto.context import current_context


def job_fields() -> Mapping[str, object]:
    """The job that runs here, as log fields; nothing outside of a job. For `configure_logging(fields=…)`."""
    context = current_context.get(None)
    if context is None:
        return {}
    return {
        "job_id": str(context.job_id),
        "number": context.number,
        "task": context.task,
        "queue": context.queue,
        "tenant": context.tenant,
        "attempt": context.attempt,
    }
