"""E52 in its short form, which is all of it: which addresses a webhook reaches, in a world where each one is ours."""

from pathlib import Path

import pytest

from faults.experiment import Setting
from faults.experiments import e52_webhook_addresses
from shigoto.notify.egress import is_forbidden

pytestmark = [pytest.mark.engine("sqlite"), pytest.mark.timeout(300)]


@pytest.mark.skipif(bool(e52_webhook_addresses.why_not()), reason="needs namespaces")
def test_no_webhook_reaches_a_network_of_ones_own(tmp_path: Path) -> None:
    """E52, S18: numbers in all dresses, names, names that change their minds, redirects; connections are counted."""
    outcome = e52_webhook_addresses.EXPERIMENT.run(
        Setting(engine="sqlite", folder=tmp_path, seed=52, full=False)
    )

    assert outcome.passed, repr(outcome)
    assert outcome.figures["of them forbidden"] >= 80
    assert outcome.figures["forbidden connects"] == 0
    assert outcome.figures["led astray by rebinding, if names are resolved twice"] == 2


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "93.184.216.34", "1.1.1.1", "2606:4700:4700::1111", "2a00:1450:4001::1", "64:ff9b::808:808"],
)
def test_the_public_internet_is_not_forbidden(address: str) -> None:
    assert not is_forbidden(address)


@pytest.mark.parametrize("address", ["", "no address", "1.2.3", "fe80::1%lo", "::1%1"])
def test_what_is_no_address_is_forbidden(address: str) -> None:
    assert is_forbidden(address)
