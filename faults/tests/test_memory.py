"""How experiments measure memory: the marks of the processes that they look at, and of nobody else."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from faults.experiment import Outcome
from faults.experiments import e49_hostile_input as e49
from faults.tools.peak import Peak

MB = 1_000_000
SMALL = 40  # MB that a Python needs who does nothing


@contextmanager
def having_had(size: int) -> Iterator[int]:
    """A process that has had so many bytes, and has given them back."""
    words = f"bytearray({size}); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", words], stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.communicate(b"\n")


def test_a_mark_stays_when_the_memory_is_given_back_and_when_the_process_is_gone() -> None:
    peak = Peak()
    with having_had(150 * MB) as pid:
        peak.look(pid)
    peak.look(pid)

    assert 150 < peak.highest < 150 + SMALL


def test_nobody_is_blamed_for_what_this_process_or_another_child_has_had() -> None:
    """What `getrusage` says of children has both in it: one experiment was found guilty of another's memory."""
    own = bytearray(200 * MB)
    del own
    with having_had(150 * MB):
        pass
    peak = Peak()
    with having_had(0) as pid:
        peak.look(pid)

    assert peak.highest < SMALL


def test_hostile_input_that_takes_memory_is_a_finding() -> None:
    seen = e49.Seen()
    with having_had(int((e49.MOST_MEMORY + 20) * MB)) as pid:
        seen.memory.look(pid)

    outcome = e49._outcome(Outcome(n=1), seen)

    assert not outcome.passed
    assert [word for word in outcome.wrong if "MB, more than 250" in word]
    assert e49._outcome(Outcome(n=1), e49.Seen()).passed
