"""E31, E32 and E35 in their short forms: disks that are full, fail or lose power, and places that are no good."""

from pathlib import Path
from random import Random

import pytest

from faults.experiment import Setting
from faults.experiments import e31_full_disk, e32_power_loss, e35_bad_places
from faults.tools.powerloss import Disk, Event

pytestmark = [pytest.mark.engine("sqlite"), pytest.mark.timeout(300)]


def setting(folder: Path) -> Setting:
    return Setting(engine="sqlite", folder=folder, seed=1, full=False)


def test_a_disk_that_is_full_or_fails_costs_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """E31, I1-I6, I9: errors are clear, nothing is half settled, and all goes on without a restart."""
    outcome = e31_full_disk.EXPERIMENT.run(setting(tmp_path))
    if outcome.skipped:
        pytest.skip(outcome.skipped)

    assert outcome.passed, repr(outcome)
    parts = [name for name in outcome.figures if name != "left out"]
    assert all(outcome.figures[name]["refused"] > 0 for name in parts if name.startswith("small"))
    assert all(outcome.figures[name]["points"] > 0 for name in parts if name.startswith("failing"))


def test_what_was_acknowledged_survives_a_loss_of_power(tmp_path: Path) -> None:
    """E32, I1: with `synchronous=full` all of it, with `normal` not the newest; the file is whole in every case."""
    outcome = e32_power_loss.EXPERIMENT.run(setting(tmp_path))
    if outcome.skipped:
        pytest.skip(outcome.skipped)

    assert outcome.passed, repr(outcome)
    assert outcome.figures["full"]["acknowledged"] > 0
    assert outcome.figures["normal"]["images_with_loss"] > 0, (
        "no image has lost anything, so nothing is shown"
    )


def test_places_where_a_store_cannot_be_kept_are_refused_with_the_reason(tmp_path: Path) -> None:
    """E35 (F73): on file systems of the network nothing is written; where nothing can be, the error says so."""
    outcome = e35_bad_places.EXPERIMENT.run(setting(tmp_path))
    if outcome.skipped:
        pytest.skip(outcome.skipped)

    assert outcome.passed, repr(outcome)
    assert outcome.n > 20


STORE = Path("/x/jobs.db")
WAL = f"{STORE}-wal"


def images(*events: Event) -> dict[str, dict[str, bytes]]:
    disk = Disk(b"base", STORE, list(events))
    return {loss: disk.image(loss, Random(1)) for loss in ("nothing", "everything")}


def test_a_write_is_safe_once_a_sync_that_began_after_it_has_ended() -> None:
    written = Event("write", str(STORE), 4, b"more")
    cut = Event("cut", str(STORE), 2)

    assert images(written) == {"nothing": {"": b"basemore"}, "everything": {"": b"base"}}
    assert images(written, Event("sync", str(STORE), since=1))["everything"] == {"": b"basemore"}
    assert images(written, Event("sync", str(STORE), since=0))["everything"] == {"": b"base"}
    assert images(written, Event("sync", WAL.removesuffix("jobs.db-wal")[:-1], since=1))["everything"] == {
        "": b"base"
    }
    assert images(cut)["nothing"] == {"": b"ba"}


def test_a_new_file_is_there_once_its_folder_was_synced() -> None:
    made = [Event("create", WAL), Event("write", WAL, 0, b"log"), Event("sync", WAL, since=2)]

    assert images(*made) == {"nothing": {"": b"base", "-wal": b"log"}, "everything": {"": b"base"}}
    synced = [*made, Event("sync", "/x", since=3)]
    assert images(*synced)["everything"] == {"": b"base", "-wal": b"log"}
    assert images(*synced, Event("remove", WAL)) == {
        "nothing": {"": b"base"},
        "everything": {"": b"base", "-wal": b"log"},
    }


def test_a_write_can_be_torn_between_sectors() -> None:
    disk = Disk(bytes(2048), STORE, [Event("write", str(STORE), 100, b"x" * 1500)])

    found = {disk.image("sectors of 512", Random(seed))[""] for seed in range(50)}

    assert len(found) > 4
    parts = {
        tuple(image[begin : begin + 512].count(b"x") for begin in range(0, 2048, 512)) for image in found
    }
    assert {counts[1] for counts in parts} == {0, 512}
