"""What becomes of a run whose worker stays behind."""

from msgspec import structs

from shigoto.model.job import State
from shigoto.model.record import JobRecord
from shigoto.model.states import Counters, Held, after
from shigoto.model.time import Millis
from shigoto.model.worker import Ending, Settlement


def landed(record: JobRecord, at: Millis) -> JobRecord:
    """The job as it is put into a store where nobody runs it: given back (T8), if it was processing at that instant.

    Its token stays, and the next claim raises it: what its former worker may still send is out of date.
    """
    if record.state is not State.PROCESSING:
        return record
    counters = Counters(
        record.failures,
        record.crashes,
        record.solo_crashes,
        record.releases,
        record.snoozes,
        record.suspect,
    )
    held = Held(
        counters,
        record.max_failures,
        record.max_crashes,
        cancel_requested=record.cancel_requested_at is not None,
        superseded=record.superseded,
    )
    given_back = Settlement(
        number=record.number, token=record.token, queue=record.queue, ending=Ending.RELEASED, ran=False
    )
    to = after(held, given_back)
    record = structs.replace(
        record, state=to.state, failure_kind=to.failure_kind, releases=to.counters.releases, superseded=False
    )
    if to.state is State.PENDING:
        return structs.replace(record, started_at=None, cancel_requested_at=None)
    return structs.replace(record, finished_at=at)
