"""Messages as people get them: by a real mail server and a real web server, from real workers that are killed."""

import email
import email.policy
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from faults.tools.outside import Postbox, Receiver
from shigoto import State
from shigoto.model.job import JobFilter, QueueSettings
from shigoto.model.notice import DELIVER, NOTICE, QUEUE
from shigoto.notify import verify_webhook
from tests.journeys.yard import SHIGOTO, Yard, eventually

pytestmark = pytest.mark.engine("sqlite")

SECRET = "a-secret-that-only-the-test-has"

SHOP = """
import os
from shigoto import Retry, Shigoto
from shigoto.notify import Mail, Webhook, on_failure

HOOK = os.environ.get("HOOK_URL")

app = Shigoto("sqlite:///shop.db", notify=[
    on_failure(to=[Mail()]) if HOOK is None else on_failure(to=[Webhook("$HOOK_URL", internal=True)]),
])

@app.task(retry=Retry.immediate(retries=5))
def charge(card: str) -> None:
    raise ConnectionError("the bank does not answer")
"""


def read(message: bytes) -> EmailMessage:
    read = email.message_from_bytes(message, policy=email.policy.SMTP)
    assert isinstance(read, EmailMessage)
    return read


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    yard = Yard(tmp_path, shop=SHOP)
    yard.environment |= {
        "SHIGOTO_MAIL_TO": "admin@example.org",
        "SHIGOTO_MAIL_FROM": "jobs@example.org",
        "SHIGOTO_WEBHOOK_SECRET": SECRET,
    }
    yield yard
    yard.end()


@pytest.fixture
def post_office(yard: Yard) -> Iterator[Callable[..., Postbox]]:
    """Opens an SMTP server, whose address is in the environment of workers from then on."""
    made: list[Postbox] = []

    def opened(*answers: str) -> Postbox:
        made.append(Postbox(*answers))
        yard.environment["SHIGOTO_SMTP_URL"] = made[-1].url
        return made[-1]

    yield opened
    for each in made:
        each.close()


def jobs(yard: Yard, task: str) -> list[Any]:
    return yard.app.engine.run(yard.app.engine.find(JobFilter(task=task, limit=100)))


def ended(yard: Yard, task: str) -> bool:
    found = jobs(yard, task)
    return bool(found) and all(job.state is State.COMPLETED for job in found)


def kill(worker: "subprocess.Popen[bytes]") -> None:
    """The supervisor and all that it has started, at once."""
    os.killpg(worker.pid, signal.SIGKILL)


def test_the_administrator_gets_one_mail_when_the_retries_are_used_up(
    yard: Yard, post_office: Callable[..., Postbox]
) -> None:
    """S1-20: five retries, then failed, and a mail; the server says "not now" (451) first."""
    postbox = post_office("451 try again later")
    yard.start("--queues", "default")
    job = yard.enqueue("charge", card="4242 4242 4242 4242")

    eventually(lambda: bool(postbox.messages) and ended(yard, DELIVER), yard.log)

    assert postbox.tries == 2
    [message] = map(read, postbox.messages)
    assert message["To"] == "admin@example.org"
    assert message["Subject"] == "[shigoto] A job of charge failed for good"
    text = message.get_content()
    assert str(job.id) in text
    assert "attempt  6" in text
    assert "ConnectionError: the bank does not answer" in text
    assert "4242" not in message.as_string() + yard.log()
    assert len(jobs(yard, NOTICE)) == len(jobs(yard, DELIVER)) == 1


def test_the_mail_comes_once_although_the_worker_is_killed_before_the_notice_ran(
    yard: Yard, post_office: Callable[..., Postbox]
) -> None:
    """S1-20: killed between failure and delivery; the notice is in the store since the failure is."""
    postbox = post_office("451 try again later")
    engine = yard.app.engine
    engine.run(engine.configure(QueueSettings(name=QUEUE, paused=True)))
    first = yard.start("--lease", "2")
    job = yard.enqueue("charge", card="1")
    eventually(lambda: job.status() is State.FAILED, yard.log)
    kill(first)
    assert [each.state for each in jobs(yard, NOTICE)] == [State.PENDING]
    assert not postbox.tries

    engine.run(engine.configure(QueueSettings(name=QUEUE)))
    yard.start("--lease", "2")
    eventually(lambda: bool(postbox.messages) and ended(yard, DELIVER), yard.log, within=60)

    assert [read(message)["To"] for message in postbox.messages] == ["admin@example.org"]
    assert len(jobs(yard, DELIVER)) == 1


def test_the_mail_comes_once_although_the_worker_is_killed_while_the_server_has_it(
    yard: Yard, post_office: Callable[..., Postbox]
) -> None:
    """S1-20: the server had not taken it, so the next worker sends it, as a suspect in a process of its own."""
    postbox = post_office("451 not now")
    workers = [yard.start("--lease", "2")]
    postbox.before_answer = lambda: kill(workers[0]) if postbox.tries == 1 else None
    yard.enqueue("charge", card="1")
    eventually(lambda: postbox.tries == 1, yard.log)

    yard.start("--lease", "2")
    eventually(lambda: bool(postbox.messages) and ended(yard, DELIVER), yard.log, within=60)

    assert len(postbox.messages) == 1
    [delivery] = jobs(yard, DELIVER)
    assert delivery.crashes == 1


@pytest.fixture
def receiver() -> Iterator[Callable[..., Receiver]]:
    made: list[Receiver] = []

    def opened(*statuses: int) -> Receiver:
        made.append(Receiver(*statuses))
        return made[-1]

    yield opened
    for each in made:
        each.close()


def test_a_webhook_arrives_signed_and_is_tried_again(yard: Yard, receiver: Callable[..., Receiver]) -> None:
    """S0-66, S19: the same event under the same id, each time signed anew."""
    there = receiver(503)
    yard.environment["HOOK_URL"] = f"http://{there.address}/hook?a=b"
    yard.start()
    job = yard.enqueue("charge", card="4242")

    eventually(lambda: ended(yard, DELIVER), yard.log)

    ids = {verify_webhook(request.headers, request.body, SECRET) for request in there.requests}
    assert len(there.requests) == 2
    assert ids == {str(jobs(yard, DELIVER)[0].id)}
    told = json.loads(there.requests[-1].body)
    assert (told["kind"], told["subject"], told["job"]) == ("failed", "charge", str(job.id))
    assert told["error"] == "ConnectionError: the bank does not answer"
    assert b"4242" not in there.requests[-1].body
    assert SECRET not in yard.log()


@pytest.mark.parametrize("status", [302, 307, 400, 410])
def test_what_a_receiver_refuses_or_would_send_elsewhere_is_not_tried_again(
    yard: Yard, receiver: Callable[..., Receiver], status: int
) -> None:
    there = receiver(status)
    yard.environment["HOOK_URL"] = f"http://{there.address}/hook?a=b"
    yard.start()
    yard.enqueue("charge", card="1")

    eventually(lambda: [each.state for each in jobs(yard, DELIVER)] == [State.FAILED], yard.log)

    assert len(there.requests) == 1
    assert str(status) in jobs(yard, DELIVER)[0].error
    assert len(jobs(yard, NOTICE)) == 1


def run(yard: Yard, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*SHIGOTO, "--app", "shop", *words],
        cwd=yard.folder,
        env=yard.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_test_message_says_whether_it_arrives(yard: Yard, post_office: Callable[..., Postbox]) -> None:
    postbox = post_office()

    good = run(yard, "notify", "test")
    bad = run(yard, "notify", "test", "--rule", "failures")
    del yard.environment["SHIGOTO_MAIL_TO"]
    nobody = run(yard, "notify", "test", "--json")
    listed = run(yard, "notify", "list")

    assert (good.returncode, good.stderr) == (0, "")
    assert "delivered" in good.stdout
    assert [read(message)["Subject"] for message in postbox.messages] == ["[shigoto] This is a test"]
    assert bad.returncode == 2
    assert "'failure'" in bad.stderr
    assert nobody.returncode == 1
    assert "SHIGOTO_MAIL_TO" in json.loads(nobody.stdout)[0]["error"]
    assert "failed" in listed.stdout
    assert not (yard.folder / "shop.db").exists()


def test_a_worker_that_could_not_deliver_does_not_start(yard: Yard) -> None:
    worker = yard.start()

    assert worker.wait(30) != 0
    assert "$SHIGOTO_SMTP_URL" in yard.log()


def test_notices_are_switched_off_by_hand(yard: Yard, post_office: Callable[..., Postbox]) -> None:
    post_office()
    yard.start("--drain").wait(30)

    assert "No more notices" in run(yard, "notify", "off").stdout
    assert "No notices were written" in run(yard, "notify", "off").stdout
