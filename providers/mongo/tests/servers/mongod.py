"""Runs replica sets of real mongod processes.

Tests can kill, pause or disconnect each process, or force an election.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlencode

from pymongo import MongoClient
from pymongo.errors import ConnectionFailure, OperationFailure, PyMongoError

from multiclouddb_conformance.proxy import Proxy
from multiclouddb_conformance.servers import ServerUnavailableError

from .fetch import fetch

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
T = TypeVar("T")

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
        folder: Path,
        members: int = 1,
        oplog_mb: int | None = None,
        auth: bool = False,
        *,
        proxied: bool = False,
        election_ms: int = ELECTION_MS,
        parameters: Mapping[str, object] | None = None,
    ) -> None:
        """Start the replica set."""
        # When the call returns, the set has a primary that every other member follows.
        self._folder, self._auth, self._election_ms = folder, auth, election_ms
        self._options = ["--oplogSize", str(oplog_mb), "--syncdelay", "1"] if oplog_mb else []
        self._parameters = dict(parameters or {})
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the clients, kill the servers and remove their data. The logs are kept."""
        # The method may be called more than once.
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
        asked = {
            "replicaSet": NAME,
            "heartbeatFrequencyMS": 500,
            "serverMonitoringMode": "poll",
            "appName": "tests",
            **options,
        }
        texts = {
            name: str(value).lower() if value in (True, False) else value for name, value in asked.items()
        }
        user = f"{quote(USER, safe='')}:{quote(PASSWORD, safe='')}@" if self._auth else ""
        return f"mongodb://{user}{','.join(self.members)}/?{urlencode(texts)}"

    def client(self) -> MongoClient[dict[str, Any]]:
        """Return a plain client for native writes."""
        # Each call returns the same client. No proxy disturbs this client.
        if NAME not in self._clients:
            options: dict[str, Any] = {"tz_aware": True, "uuidRepresentation": "standard"}
            self._clients[NAME] = MongoClient(self.uri(appName=NATIVE), **options)
        return self._clients[NAME]

    def direct(self, member: str) -> MongoClient[dict[str, Any]]:
        """Return a plain client that is connected directly to one member."""
        # Each call returns the same client.
        if member not in self._clients:
            self._clients[member] = self._direct(member, self._auth)
        return self._clients[member]

    def _direct(self, member: str, auth: bool, selection_ms: int = 30_000) -> MongoClient[dict[str, Any]]:
        options: dict[str, Any] = {"username": USER, "password": PASSWORD} if auth else {}
        return MongoClient(
            f"mongodb://{self._real[self.members.index(member)]}/",
            directConnection=True,
            appname=NATIVE,
            heartbeatFrequencyMS=500,
            serverMonitoringMode="poll",
            serverSelectionTimeoutMS=selection_ms,
            socketTimeoutMS=30_000,
            **options,
        )

    # -- Faults

    def primary(self) -> str:
        """Return the member that accepts writes now."""
        for member in self.alive():
            with contextlib.suppress(ConnectionFailure):
                if self.direct(member).admin.command("hello")["isWritablePrimary"]:
                    return member
        raise ServerUnavailableError("the replica set has no primary now")

    def alive(self) -> list[str]:
        """Return the members whose processes are running."""
        return [member for member, process in self._processes.items() if process.poll() is None]

    def wait_primary(self) -> str:
        """Wait until there is a primary, and return it."""
        return _wait(self.primary, "a primary")

    def wait_healthy(self) -> None:
        """Wait until there is a primary, every member follows it, and `client` writes to it."""

        def states() -> None:
            primary = self.primary()
            status = self.direct(primary).admin.command("replSetGetStatus")
            found = [member["stateStr"] for member in status["members"]]
            if set(found) - {"PRIMARY", "SECONDARY"}:
                raise ServerUnavailableError(f"the members are {', '.join(found)}")
            # Otherwise the client uses the former primary until its next check, and some commands are not
            # retried.
            self.client().admin.command("ping")
            known = "{}:{}".format(*self.client().primary or ("nobody", 0))
            if known != primary:
                raise ServerUnavailableError(f"the primary is {primary}, and the client knows {known}")

        _wait(states, "members that all follow a primary")

    def kill(self, member: str) -> None:
        """Kill a member in the same way as `kill -9`."""
        self._processes[member].kill()
        self._processes[member].wait()

    def restart(self, member: str) -> None:
        """Start a member that was killed."""
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
        """Let a paused member continue."""
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
        """Return the end of each server's output."""
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
            clients = [
                stack.enter_context(self._direct(member, auth=False, selection_ms=2000))
                for member in self.members
            ]
            first = clients[0]
            _wait(lambda: self._ping(first, self.members[0]), "mongod to answer")
            hosts = [{"_id": number, "host": host} for number, host in enumerate(self.members)]
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
        parameters = {"enableTestCommands": 1, "diagnosticDataCollectionEnabled": "false", **self._parameters}
        command = [
            str(fetch()),
            *("--dbpath", str(data), "--port", self._real[index].rpartition(":")[2]),
            *("--bind_ip", "127.0.0.1", "--nounixsocket", "--replSet", NAME),
            *("--wiredTigerCacheSizeGB", "0.25", "--wiredTigerEngineConfigString", SMALL_JOURNAL),
            *self._options,
            *(["--keyFile", str(self._folder / "key")] if self._auth else []),
        ]
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


def _writable(clients: list[MongoClient[dict[str, Any]]]) -> MongoClient[dict[str, Any]]:
    for client in clients:
        with contextlib.suppress(ConnectionFailure):
            if client.admin.command("hello")["isWritablePrimary"]:
                return client
    raise ServerUnavailableError("there is no primary yet")


def _reserve() -> socket.socket:
    """Return a free port that is bound and on which nothing listens."""
    # mongod can still bind the port, because mongod also sets SO_REUSEADDR.
    port = socket.socket()
    port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port.bind(("127.0.0.1", 0))
    return port


def _wait(attempt: Callable[[], T], what: str) -> T:
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
