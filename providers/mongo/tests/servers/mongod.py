"""Replica sets of real mongod processes, which tests may kill, pause, cut off and let elect."""

import contextlib
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

from multiclouddb_conformance.servers import ServerUnavailableError

from .fetch import fetch
from .proxy import Proxy

NAME = "rs"
USER, PASSWORD = "admin", "a/secret that:nobody@may?see"
# The appName of clients that write for a test: a fail point that is set for another does not hit them.
NATIVE = "native-writes"
# What the first message of a member to another holds.
MEMBER = "internalClient"
START_SECONDS = 60.0
TAIL = 4000
# Otherwise a member begins with 300 MB of it.
SMALL_JOURNAL = "log=(file_max=8MB)"
T = TypeVar("T")

# When we end, however that happens, it ends the servers and then removes their data, which may lie in memory:
# it reads a pipe that only we hold. A killed server may still write for a moment, and `rm` then fails.
WATCHER = """
read -r _
kill -s KILL -- "-$1"
shift
for pause in 0.1 0.1 0.3 1 3 10; do
    rm -rf -- "$@" && break
    sleep "$pause"
done
"""
# The group of processes that the servers are in is there as long as this is.
LEADER = ["sleep", "infinity"]


class ReplicaSet:
    """A replica set on the loopback interface, gone with this process at the latest.

    Attributes:
        members: `host:port` of each, as the set's own configuration names it.
        proxies: What each is reached through, if it was asked for: member → proxy.
    """

    def __init__(
        self,
        folder: Path,
        members: int = 1,
        oplog_mb: int | None = None,
        auth: bool = False,
        *,
        proxied: bool = False,
        parameters: Mapping[str, object] | None = None,
    ) -> None:
        """Start a set; it has a primary, and every other member follows it, when this returns.

        Args:
            folder: An empty folder, for data and logs.
            members: How many.
            oplog_mb: The size of the oplog, which then rolls over soon; the server's default if None.
            auth: Whether a user and a password are needed: `USER` and `PASSWORD`, who may do anything.
            proxied: Whether clients reach each member only through a proxy. Members and `client` go
                through it too, but it never troubles them.
            parameters: More of the server's parameters.

        Raises:
            ServerUnavailableError: A server could not be fetched or started, with what it had to say.
        """
        self._folder, self._auth = folder, auth
        self._options = ["--oplogSize", str(oplog_mb), "--syncdelay", "1"] if oplog_mb else []
        self._parameters = dict(parameters or {})
        self._clients: dict[str, MongoClient[dict[str, Any]]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.proxies: dict[str, Proxy] = {}
        folder.mkdir(parents=True, exist_ok=True)
        pipe = subprocess.PIPE
        data = [str(self._data(index)) for index in range(members)]
        self._leader = subprocess.Popen(LEADER, process_group=0)
        watcher = ["sh", "-c", WATCHER, "watcher", str(self._leader.pid), *data]
        self._watcher = subprocess.Popen(watcher, stdin=pipe, stderr=subprocess.DEVNULL, process_group=0)
        # Nobody else gets these ports, also while a member is down: they are ours until the end.
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
        """Close the clients, kill the servers and remove their data; the logs stay. May be called twice."""
        # A client says goodbye, which a paused member would not hear.
        for member in self.alive():
            self.resume(member)
        while self._clients:
            self._clients.popitem()[1].close()
        # First the servers: a connection through a proxy then ends by itself.
        for process in self._processes.values():
            process.kill()
            process.wait()
        for process in (self._leader, self._watcher):
            process.kill()
            process.communicate()
        for proxy in self.proxies.values():
            proxy.close()
        for port in self._ports:
            port.close()
        for index in range(len(self.members)):
            shutil.rmtree(self._data(index), ignore_errors=True)

    # -- Clients

    def uri(self, **options: object) -> str:
        """A connection string: of every member, checked often, since tests take members away.

        Args:
            options: More options, or other values, as the driver spells them.
        """
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
        """A plain client for native writes, the same each time; no proxy troubles it."""
        if NAME not in self._clients:
            options: dict[str, Any] = {"tz_aware": True, "uuidRepresentation": "standard"}
            self._clients[NAME] = MongoClient(self.uri(appName=NATIVE), **options)
        return self._clients[NAME]

    def direct(self, member: str) -> MongoClient[dict[str, Any]]:
        """A plain client of one member, the same each time, past its proxy."""
        if member not in self._clients:
            self._clients[member] = self._direct(member, self._auth)
        return self._clients[member]

    def _direct(self, member: str, auth: bool) -> MongoClient[dict[str, Any]]:
        options: dict[str, Any] = {"username": USER, "password": PASSWORD} if auth else {}
        return MongoClient(
            f"mongodb://{self._real[self.members.index(member)]}/",
            directConnection=True,
            appname=NATIVE,
            heartbeatFrequencyMS=500,
            serverMonitoringMode="poll",
            serverSelectionTimeoutMS=2000,
            socketTimeoutMS=10_000,
            **options,
        )

    # -- Troubles

    def primary(self) -> str:
        """The member that takes writes now.

        Raises:
            ServerUnavailableError: There is none at the moment.
        """
        for member in self.alive():
            with contextlib.suppress(ConnectionFailure):
                if self.direct(member).admin.command("hello")["isWritablePrimary"]:
                    return member
        raise ServerUnavailableError("the replica set has no primary now")

    def alive(self) -> list[str]:
        """The members whose process runs."""
        return [member for member, process in self._processes.items() if process.poll() is None]

    def wait_primary(self) -> str:
        """Wait until there is a primary, and return it."""
        return _wait(self.primary, "a primary")

    def wait_healthy(self) -> None:
        """Wait until there is a primary and every member follows it."""

        def states() -> None:
            status = self.direct(self.primary()).admin.command("replSetGetStatus")
            found = [member["stateStr"] for member in status["members"]]
            if set(found) - {"PRIMARY", "SECONDARY"}:
                raise ServerUnavailableError(f"the members are {', '.join(found)}")

        _wait(states, "members that all follow a primary")

    def kill(self, member: str) -> None:
        """End a member as `kill -9` does."""
        self._processes[member].kill()
        self._processes[member].wait()

    def restart(self, member: str) -> None:
        """Start a member that was killed; it answers when this returns, but may still be catching up."""
        self._launch(member)
        _wait(lambda: self._ping(self.direct(member), member), f"{member} to answer")

    def pause(self, member: str) -> None:
        """Let a member hang: its connections stay open and nothing answers."""
        self._processes[member].send_signal(signal.SIGSTOP)

    def resume(self, member: str) -> None:
        """Let a member go on after `pause`."""
        self._processes[member].send_signal(signal.SIGCONT)

    def step_down(self, seconds: int = 2) -> None:
        """Let the primary give up; there may be no primary when this returns.

        Args:
            seconds: For so long it does not stand for election, also if it is the only member.
        """
        force = len(self.members) == 1
        asked = {"replSetStepDown": seconds, "secondaryCatchUpPeriodSecs": 0 if force else 1}
        self.direct(self.primary()).admin.command(asked, force=force)

    def output(self) -> str:
        """The end of what each server has written."""
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
        first = self.members[0]
        # Before there is a user, nobody can log in.
        with self._direct(first, auth=False) as client:
            _wait(lambda: self._ping(client, first), "mongod to answer")
            hosts = [{"_id": number, "host": host} for number, host in enumerate(self.members)]
            settings = {"electionTimeoutMillis": 2000, "heartbeatIntervalMillis": 300}
            # The others may not answer yet.
            _wait(
                lambda: client.admin.command(
                    "replSetInitiate", {"_id": NAME, "members": hosts, "settings": settings}
                ),
                "the replica set to begin",
            )
            _wait(lambda: self._takes_writes(client), "a primary")
            if self._auth:
                client.admin.command("createUser", USER, pwd=PASSWORD, roles=["root"])
        self.wait_healthy()

    def _launch(self, member: str) -> None:
        index = self.members.index(member)
        data = self._data(index)
        data.mkdir(exist_ok=True)
        parameters = {
            "enableTestCommands": 1,
            "diagnosticDataCollectionEnabled": "false",
            **self._parameters,
        }
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
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=self._leader.pid
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

    @staticmethod
    def _takes_writes(client: MongoClient[dict[str, Any]]) -> None:
        if not client.admin.command("hello")["isWritablePrimary"]:
            raise ServerUnavailableError("there is no primary yet")


class _EndedError(ServerUnavailableError):
    """Waiting longer is of no use."""


def _reserve() -> socket.socket:
    """A free port, bound but not listened on: who binds it with the same option, as mongod does, gets it."""
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
