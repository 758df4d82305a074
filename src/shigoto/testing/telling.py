"""What is said of jobs that a test has looked for in vain, or has found where none should be."""

from shigoto.model.job import Job
from shigoto.testing.search import Compared, Search

MOST_SHOWN = 20
MOST_CLOSE = 3
MOST_LETTERS = 200


def missing(wanted: Search, all_jobs: Compared, count: int | None) -> str:
    """What to say of jobs that should have been enqueued, and were not, or not as often."""
    found = sum(not differences for _, differences in all_jobs)
    if count is None:
        said = f"No {wanted} was enqueued."
    else:
        said = f"{_counted(found)} instead of {count}: {wanted}."
    close = sorted(
        ((job, differences) for job, differences in all_jobs if differences and wanted.is_of_task(job)),
        key=lambda each: len(each[1]),
    )
    lines = [f"  {_line(job)}\n    {'; '.join(differences)}" for job, differences in close[:MOST_CLOSE]]
    return "\n".join([said, *(["The closest:", *lines] if lines else []), *_listing(all_jobs)])


def unwanted(wanted: Search, all_jobs: Compared) -> str:
    """What to say of jobs that should not have been enqueued."""
    found = sum(not differences for _, differences in all_jobs)
    return "\n".join([f"{_counted(found)} too many: {wanted}.", *_listing(all_jobs)])


def _listing(all_jobs: Compared) -> list[str]:
    if not all_jobs:
        return ["Nothing was enqueued at all."]
    lines = [f"{'  ' if differences else '* '}{_line(job)}" for job, differences in all_jobs[:MOST_SHOWN]]
    rest = len(all_jobs) - len(lines)
    return ["Enqueued in this test:", *lines, *([f"  … and {rest} more"] if rest else [])]


def _counted(count: int) -> str:
    return f"{count} job" if count == 1 else f"{count} jobs"


def _line(job: Job) -> str:
    payload = job.payload if len(job.payload) <= MOST_LETTERS else f"{job.payload[:MOST_LETTERS]}…"
    return f"#{job.number} {job.task} {payload} in {job.queue!r}, {job.state}"
