"""Freed memory stays in the process, and garbage is looked for less often."""

import platform
import subprocess
import sys
import sysconfig

import pytest

CYCLES = """
import resource
from shigoto.worker.starting import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

{prepare}
counts = []
for _ in range(10):
    before = faults()
    texts = ["x" * 10_000 + str(number) for number in range(800)]
    del texts
    counts.append(faults() - before)
print(sum(counts[5:]))
"""


def page_faults(prepare: str) -> int:
    ran = subprocess.run(
        [sys.executable, "-c", CYCLES.format(prepare=prepare)], capture_output=True, text=True, check=True
    )
    return int(ran.stdout)


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or sysconfig.get_config_var("Py_GIL_DISABLED") == 1,
    reason="another allocator has its own ways",
)
def test_payloads_that_come_and_go_need_no_new_memory() -> None:
    assert page_faults("keep_freed_memory()") < page_faults("") / 10


@pytest.mark.parametrize(("chosen", "kept"), [("700", 20_000), ("50_000", 50_000), ("0", 0)])
def test_garbage_is_looked_for_rarely_unless_the_app_has_chosen(chosen: str, kept: int) -> None:
    program = f"""
import gc
from shigoto.worker.starting import collect_rarely
gc.set_threshold({chosen}, 10, 10)
collect_rarely()
print(gc.get_threshold()[0], gc.get_freeze_count() > 0)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [str(kept), "True"]
