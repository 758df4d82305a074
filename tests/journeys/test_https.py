"""The ordinary worker over https, with an authority of one's own: real processes, a certificate made a moment ago."""

import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.certificates import Authority
from tests.journeys.far import Far
from tests.journeys.yard import SHIGOTO, eventually
from tests.service.ground import keep, key

HOST = "127.0.0.1"


class Sealed(Far):
    """A store, a server with a certificate before it, and workers that may trust it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.url = f"https://{HOST}:{self.port}"
        self.authority = Authority("mine")
        self.authority.write(folder / "ca.pem")
        Authority("another").write(folder / "another.pem")

    def seal(self, host: str = HOST, *, lasts: timedelta = timedelta(days=1)) -> "subprocess.Popen[bytes]":
        """`shigoto server` with a certificate for this host; it listens when this returns."""
        files = {"certificate": self.folder / "cert.pem", "key": self.folder / "key.pem"}
        self.authority.issue(host, **files, lasts=lasts)
        words = ["--app", "shop", "server", "shop.db", "--port", str(self.port)]
        process = self.program(*SHIGOTO, *words, "--certificate", "cert.pem", "--key", "key.pem")
        eventually(self._answers, self.log)
        return process

    def _answers(self) -> bool:
        blind = ssl.create_default_context()
        blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", context=blind, timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def said(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [*SHIGOTO, "--url", self.url, *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Sealed]:
    far = Sealed(tmp_path)
    far.environment.pop("SSL_CERT_DIR", None)
    far.environment["SSL_CERT_FILE"] = str(tmp_path / "ca.pem")
    yield far
    far.end()


def test_a_worker_runs_jobs_over_https(far: Sealed) -> None:
    """S1-5: leases, a token and the doorbell through TLS, by an authority that only $SSL_CERT_FILE knows."""
    token = key("work", "read")
    keep(far.app, [token])
    far.environment["SHIGOTO_TOKEN"] = token.text
    server = far.seal()
    far.work("--poll", "86400", log="worker-log")
    far.until_at_work(1)
    jobs = [far.enqueue("count", number=number) for number in range(20)]
    ping = far.enqueue("ping")

    far.until_done(ping, *jobs)

    assert ping.result(timeout=1) == "pong"
    assert "default" in far.said("stats")
    assert "clear" not in far.log("worker-log"), "nobody between can read the token"
    assert server.poll() is None


def test_a_server_that_another_authority_vouches_for_is_refused(far: Sealed) -> None:
    far.seal()
    far.environment["SSL_CERT_FILE"] = str(far.folder / "another.pem")

    worker = far.work(log="worker-log")

    assert worker.wait(30) == 1
    told = far.log("worker-log")
    assert f"Error [STORE.REFUSED]: The server at {far.url} cannot be trusted: " in told
    assert "issuer certificate" in told
    assert "name the file of that one in $SSL_CERT_FILE." in told
    assert "Traceback" not in told
    assert far.workers() == []
    assert "Error [STORE.REFUSED]" in far.said("stats", code=1)


@pytest.mark.parametrize(
    ("host", "lasts", "told"),
    [
        ("jobs.example.org", timedelta(days=1), "mismatch, certificate is not valid for '127.0.0.1'."),
        (HOST, timedelta(hours=-1), "certificate has expired."),
    ],
    ids=["for-another-host", "expired"],
)
def test_a_certificate_that_is_not_good_any_more_or_here_is_refused(
    far: Sealed, host: str, lasts: timedelta, told: str
) -> None:
    far.seal(host, lasts=lasts)

    refused = far.said("stats", code=1)

    assert refused.startswith(f"Error [STORE.REFUSED]: The server at {far.url} cannot be trusted: ")
    assert told in refused
    assert "SSL_CERT_FILE" not in refused


def test_who_speaks_in_the_clear_to_it_is_told_that_there_is_no_answer(far: Sealed) -> None:
    far.seal()
    far.url = far.url.replace("https", "http")

    assert "Error [STORE.UNAVAILABLE]" in far.said("stats", code=1)
