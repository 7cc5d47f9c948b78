"""Tells others how a mirror that follows its collection is: over HTTP, and to systemd."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Final, Protocol

import typer

if TYPE_CHECKING:
    from multiclouddb_api import MulticloudDbError
    from multiclouddb_mirror import MirrorProgress

_LIVE_SECONDS: Final = 600.0
"""How long one page may take: a merge into a large Delta table takes minutes, and an outage is waited for."""
_HELP: Final = {
    "events_total": "The rows and changes that were merged since the process began.",
    "deletes_total": "How many of them were deletes.",
    "pages_total": "The pages that were read; it grows while the mirror is alive.",
    "lag_seconds": "How far the table is behind; it grows while the database or the table does not answer.",
    "outage_seconds": "For how long the database or the table has not answered; 0 if it answers.",
    "snapshot": "1 while the copy of every row is under way.",
    "proofs_total": "The proofs that have ended.",
    "proof_exit_code": "The exit code of the last proof; 0 is equal.",
    "proved_timestamp_seconds": "When the last proof has ended.",
    "failed": "1 while the table is not followed; the log has the message.",
    "failure": "1 while the table is not followed; category and reason of the error are labels.",
    "set_aside": "The rows of which a change is set aside.",
}


class WatchedTable:
    """How one table is.

    Args:
        labels: What each metric is labelled with.
        set_aside: Returns the records that are set aside; None if there is no folder for them.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        labels: Mapping[str, str],
        set_aside: Callable[[], int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.labels = dict(labels)
        self.failure: MulticloudDbError | None = None
        self._set_aside, self._clock, self._lock = set_aside, clock, Lock()
        self._values = dict[str, float]()
        self._before = (0, 0)
        self._told = (0, 0)
        self._turned_at: float | None = None
        self._tried_at: float | None = None
        self._has_failed = False
        self._outage_since: float | None = None

    def turned(self, progress: MirrorProgress) -> None:
        """Note that a page is done.

        Args:
            progress: How far the run is.
        """
        with self._lock:
            self._told = (progress.events, progress.deletes)
            events, deletes = (a + b for a, b in zip(self._before, self._told, strict=True))
            self._values |= {"events_total": events, "deletes_total": deletes, "failed": 0}
            self._values["pages_total"] = self._values.get("pages_total", 0) + 1
            self._values["snapshot"] = int(progress.snapshot is not None)
            if progress.lag_seconds is not None:
                self._values["lag_seconds"] = progress.lag_seconds
            self._has_failed, self.failure = False, None
        self.alive()

    def outage(self, seconds: float | None) -> None:
        """Note that the database or the table does not answer.

        Args:
            seconds: For how long; None if it answers again.
        """
        self._outage_since = None if seconds is None else self._clock() - seconds

    def alive(self) -> None:
        """Note that the loop turns, for example during a proof."""
        self._turned_at = self._tried_at = self._clock()

    def failed(self, error: MulticloudDbError, *, ends: bool) -> None:
        """Note that the table is not followed.

        Args:
            error: Why.
            ends: False if it is tried again.
        """
        with self._lock:
            self._values["failed"], self.failure = 1, error
            self._tried_at, self._has_failed = self._clock(), ends

    def run_ended(self) -> None:
        """Note that a run has ended, after which another may begin to count at 0."""
        with self._lock:
            self._before = (self._before[0] + self._told[0], self._before[1] + self._told[1])
            self._told = (0, 0)

    def proved(self, exit_code: int) -> None:
        """Note that a proof has ended.

        Args:
            exit_code: Its exit code.
        """
        with self._lock:
            self._values["proofs_total"] = self._values.get("proofs_total", 0) + 1
            self._values["proof_exit_code"] = exit_code
            self._values["proved_timestamp_seconds"] = time.time()

    @property
    def is_live(self) -> bool:
        """False if a page takes longer than ten minutes."""
        # Before the first page nothing is known; a first read may wait for the database. And to start the
        # process again does not help a table that has failed, and harms the others.
        return self._tried_at is None or self._has_failed or self._clock() - self._tried_at < _LIVE_SECONDS

    @property
    def is_ready(self) -> bool:
        """True after the first page, and if there will be none."""
        return self._turned_at is not None or self._has_failed

    def values(self) -> dict[str, float]:
        """Return the metrics as they are now."""
        with self._lock:
            values = dict(self._values)
            if "lag_seconds" in values and self._turned_at is not None:
                values["lag_seconds"] += self._clock() - self._turned_at
        since = self._outage_since
        values["outage_seconds"] = 0.0 if since is None else self._clock() - since
        if self._set_aside is not None:
            values["set_aside"] = self._set_aside()
        return values


class Watched:
    """How the tables of a process are."""

    def __init__(self) -> None:
        self._tables, self._is_ready, self._systemd = list[WatchedTable](), False, _Systemd()

    def add(self, *tables: WatchedTable) -> None:
        """Add tables, all of which belong to the answers from now on."""
        self._tables += tables

    def turned(self) -> None:
        """Tell systemd that a loop turns, unless that of another table hangs."""
        if not self._is_ready:
            if not self._all_ready():
                return
            self._is_ready = True
            self._systemd.tell("READY=1")
        elif self._all_live():
            self._systemd.tell("WATCHDOG=1")

    def stopping(self) -> None:
        """Tell systemd that the process ends."""
        self._systemd.tell("STOPPING=1")

    def answer(self, path: str) -> tuple[int, str]:
        """Return status and text for a path."""
        match path.partition("?")[0]:
            case "/metrics":
                return 200, self._metrics()
            case "/live":
                if self._all_live():
                    return 200, "live\n"
                return 503, "no page has been done for ten minutes\n"
            case "/ready":
                return (200, "ready\n") if self._all_ready() else (503, "no page has been done yet\n")
            case _:
                return 404, "there are /metrics, /live and /ready\n"

    def _all_live(self) -> bool:
        return all(each.is_live for each in self._tables)

    def _all_ready(self) -> bool:
        return bool(self._tables) and all(each.is_ready for each in self._tables)

    def _metrics(self) -> str:
        tables = [(labelled(each.labels), each.values()) for each in self._tables]
        samples = {
            name: [(labels, values[name]) for labels, values in tables if name in values] for name in _HELP
        }
        samples["failure"] = [
            (labelled({**each.labels, "category": error.category, "reason": error.reason or ""}), 1)
            for each in self._tables
            if (error := each.failure) is not None
        ]
        return exposed("multiclouddb_mirror", _HELP, samples)


class Answering(Protocol):
    """What answers over HTTP."""

    def answer(self, path: str) -> tuple[int, str]:
        """Return status and text for a path."""
        ...


def exposed(prefix: str, helps: Mapping[str, str], samples: Mapping[str, Sequence[tuple[str, float]]]) -> str:
    """Return metrics in the text format of Prometheus.

    Args:
        prefix: The first part of their names.
        helps: What each of them is.
        samples: The labels and values of each of them.
    """
    lines = list[str]()
    for name, each in samples.items():
        full = f"{prefix}_{name}"
        if each:
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP {full} {helps[name]}", f"# TYPE {full} {kind}"]
        lines += [f"{full}{{{labels}}} {value}" for labels, value in each]
    return "\n".join((*lines, ""))


def labelled(labels: Mapping[str, str]) -> str:
    """Return labels in the text format of Prometheus."""
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


@contextmanager
def served(watched: Answering, place: tuple[str, int] | None) -> Iterator[None]:
    """Answer over HTTP while a block runs.

    Args:
        watched: What answers.
        place: Host and port; None to answer nowhere.
    """
    if place is None:
        yield
        return

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text = watched.answer(self.path)
            content = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: Any) -> None:
            pass  # each probe would be a line of the log

    try:
        server = ThreadingHTTPServer(place, Answers)
    except OSError as error:
        host, port = place
        problem = f"{host}:{port}: {error.strerror or error}"
        raise typer.BadParameter(problem, param_hint="--listen") from error
    with server:
        server.daemon_threads = True
        answering = Thread(target=server.serve_forever, name="multiclouddb-listen", daemon=True)
        answering.start()
        try:
            yield
        finally:
            server.shutdown()
            answering.join()


def to_place(text: str) -> tuple[str, int]:
    """Read `[HOST:]PORT`."""
    host, colon, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536 or (colon and not host):
        raise typer.BadParameter(f"{text!r} is not [HOST:]PORT, such as 9100", param_hint="--listen")
    return host.strip("[]") or "localhost", int(port)


class _Systemd:
    """The socket of systemd, if the environment names one."""

    def __init__(self) -> None:
        address = os.environ.get("NOTIFY_SOCKET", "")
        # A name that begins with @ is one of Linux' abstract names.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._pid = os.environ.get("WATCHDOG_PID", str(os.getpid()))
        self._watches = "WATCHDOG_USEC" in os.environ and self._pid == str(os.getpid())

    def tell(self, state: str) -> None:
        if not self._address or (state == "WATCHDOG=1" and not self._watches):
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
            made.sendto(state.encode(), self._address)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
