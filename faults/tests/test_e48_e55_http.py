"""The experiments on the service in their short forms: workers over HTTP through kills and silence (E01H, E18H), the
API against its document (E48), hostile requests (E49 has them, too) and tokens (E55)."""

from pathlib import Path

import pytest

from faults.experiment import Setting
from faults.experiments import e01_over_http, e18_over_http, e48_api_contract, e55_tokens
from faults.tools.elsewhere import Elsewhere, why_not

pytestmark = [pytest.mark.engine("sqlite"), pytest.mark.timeout(300)]


def setting(folder: Path) -> Setting:
    return Setting(engine="sqlite", folder=folder, seed=48, full=False)


def test_workers_over_http_are_killed_cut_off_and_bereft_of_their_server(tmp_path: Path) -> None:
    """E01 over HTTP; S1-5, S1-7, S1-13: nothing is lost, nothing runs without a licence, no settlement of a dead worker
    is heard."""
    outcome = e01_over_http.EXPERIMENT.run(setting(tmp_path))

    assert outcome.passed, repr(outcome)
    assert outcome.figures["servers killed"]
    assert outcome.figures["connections cut"] > 1
    assert outcome.figures["workers are"] == (
        "behind a proxy on loopback" if why_not() else "in a network namespace"
    )


def test_a_line_that_falls_silent_harms_nobody(tmp_path: Path) -> None:
    """E18 over HTTP; S1-14: noticed by those at its end, and nobody is fenced for it."""
    outcome = e18_over_http.EXPERIMENT.run(setting(tmp_path))

    assert outcome.passed, repr(outcome)
    assert len(outcome.figures["noticed after"]) == 2


def test_the_api_keeps_to_its_document_and_tenants_apart(tmp_path: Path) -> None:
    """E48, S3-12, S3-13: no 5xx, nothing that the document does not say, nothing of another tenant."""
    outcome = e48_api_contract.EXPERIMENT.run(setting(tmp_path))

    assert outcome.passed, repr(outcome)
    assert min(outcome.figures["operations"].values()) > 30
    assert min(outcome.figures["requests"].values()) > 100
    assert outcome.figures["asked across tenants"] > 40


def test_who_has_no_right_is_refused_alike(tmp_path: Path) -> None:
    """E55: wrong, expired, revoked, of another scope, for the worker of another token."""
    outcome = e55_tokens.EXPERIMENT.run(setting(tmp_path))

    assert outcome.passed, repr(outcome)
    assert outcome.figures["kinds of refusal"] == 1
    assert outcome.figures["operations"] > 30


@pytest.mark.skipif(bool(why_not()), reason="needs network namespaces")
def test_elsewhere_is_another_host(tmp_path: Path) -> None:
    """Somebody there reaches us by one line only, and not at all when it is unplugged."""
    import socket
    import subprocess
    import sys

    with Elsewhere() as elsewhere, socket.create_server((elsewhere.host, 0)) as server:
        knock = f"import socket; socket.create_connection(({elsewhere.host!r}, {server.getsockname()[1]}), 1)"

        def reached() -> bool:
            words = [*elsewhere.wrap, sys.executable, "-c", knock]
            return not subprocess.run(words, capture_output=True, check=False).returncode

        assert reached()
        elsewhere.unplug()
        assert not reached()
        elsewhere.plug_in()
        assert reached()
