"""`multiclouddb exporter` checks many stored positions, and serves what it finds for Prometheus.

Each check is `token check` in a process of its own, which is killed after a time limit. So a database that
does not answer leaves nothing behind, and holds up only one of the processes that run at the same time.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event, Lock, Semaphore, Thread
from typing import Any, Final

import attrs
import typer

from multiclouddb_api import invalid_request
from multiclouddb_api.config import from_environment, toml_of
from multiclouddb_api.validators import unknown_name
from multiclouddb_cli.arguments import is_mirror_file, to_age
from multiclouddb_cli.exits import NOT_KNOWN, exit_code
from multiclouddb_cli.log import begin_log, say
from multiclouddb_cli.watched import exposed, labelled, served

_KEYS: Final = ("name", "url", "position", "max_lag", "options")
_CHECK: Final = "import json, sys; from multiclouddb_cli.main import app; app(json.load(sys.stdin))"
_EXPIRED: Final = exit_code("CHECKPOINT_EXPIRED")
_HELP: Final = {
    "lag_seconds": "How far the position is behind; there is no sample while that is not known.",
    "retention_headroom_seconds": "How long the service still keeps what comes after the position.",
    "known": "1 if the last check has found out whether the reader is late; 0 if not, or before the first.",
    "late": "1 if a change older than max_lag has not been read; no sample while that is not known.",
    "expired": "1 if changes after the position are no longer kept; no sample while that is not known.",
    "failed": "1 while the last check has ended with an error; its category and reason are labels.",
    "exit_code": "The exit code of the last token check.",
    "checked_timestamp_seconds": "When the last check has ended.",
    "checks_total": "The checks since the process began.",
}
_UNCHECKED: Final = {"known": 0.0, "checks_total": 0.0}
"""The samples before the first check, so that an alert sees a position that never gets one."""


@attrs.frozen
class Position:
    """A stored position to check."""

    name: str
    """Its name, as the label of the metrics."""
    words: tuple[str, ...] = attrs.field(repr=False)
    """The words of the command line after `multiclouddb`, which may contain secrets."""


def read_positions(path: Path) -> list[Position]:
    """Read the file with the positions.

    Args:
        path: The file.

    Raises:
        MulticloudDbError: `INVALID_REQUEST`, with the file and the key.
    """
    file, found = f"file {path.name}", list[Position]()
    content = toml_of(path)
    entries = content.pop("position", None)
    for name in content:
        raise unknown_name(file, name, ["position"])
    if not isinstance(entries, list) or not entries:
        raise invalid_request(
            file, "has no position", 'add [[position]] with name = "…", url = "…" and position = "…"'
        )
    for number, entry in enumerate(entries, 1):
        position = _position(path.name, number, entry)
        if position.name in [each.name for each in found]:
            raise invalid_request(file, f"has the name {position.name!r} twice", "give each its own")
        found.append(position)
    return found


def _position(file: str, number: int, entry: Any) -> Position:
    where = f"file {file}, position {number}"
    if not isinstance(entry, dict):
        raise invalid_request(where, "is no table", "write [[position]]")
    if isinstance(entry.get("name"), str):
        where += f" ({entry['name']})"
    for name in entry:
        if name not in _KEYS:
            raise unknown_name(where, name, _KEYS)
    values = {
        name: from_environment(where.removeprefix("file "), name, value) for name, value in entry.items()
    }
    options = values.pop("options", [])
    texts = {name: values.get(name) for name in ("name", "url")} | values
    for name, value in texts.items():
        if not isinstance(value, str) or not value:
            raise invalid_request(f"{where}, {name}", "is missing or no text", "write it as a text")
    if "position" not in texts and not is_mirror_file(texts["url"]):
        raise invalid_request(
            f"{where}, position",
            "is missing",
            "write it as a text; only the file of a mirror as url needs none",
        )
    if not isinstance(options, list) or not all(isinstance(each, str) for each in options):
        raise invalid_request(f"{where}, options", "is no list of texts", 'write ["mode=latest"]')
    words = ["token", "check", *(texts[each] for each in ("url", "position") if each in texts), "--json"]
    if "max_lag" in texts:
        to_age(texts["max_lag"], f"max_lag of {texts['name']}")
        words += ["--max-lag", texts["max_lag"]]
    return Position(texts["name"], (*words, *(word for each in options for word in ("--option", each))))


class Exporter:
    """Checks positions on a schedule.

    Args:
        positions: What to check.
        every: The seconds between two checks of a position.
        at_once: How many checks may run at the same time.
        limit: The seconds after which a check is killed.
    """

    def __init__(self, positions: list[Position], every: float, at_once: int, limit: float) -> None:
        self._positions, self._every, self._limit = positions, every, limit
        self._free, self._lock, self._stopped = Semaphore(at_once), Lock(), Event()
        self._running = set[subprocess.Popen[str]]()
        self._samples = {each.name: dict(_UNCHECKED) for each in positions}
        self._failures = dict[str, Mapping[str, str]]()

    def run(self, *, once: bool = False) -> None:
        """Check until `stop` is called.

        Args:
            once: True to check each position once, and end.
        """
        threads = [
            Thread(target=self._follow, args=(each, once), name=f"check {each.name}", daemon=True)
            for each in self._positions
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def stop(self) -> None:
        """End `run`; a signal handler may call this."""
        self._stopped.set()
        for process in tuple(self._running):
            process.kill()

    def answer(self, path: str) -> tuple[int, str]:
        """Return status and text for a path."""
        match path.partition("?")[0]:
            case "/metrics":
                return 200, self.metrics()
            case "/live":
                return 200, "live\n"
            case "/ready":
                left = sum(not each["checks_total"] for each in self._samples.values())
                return (503, f"{left} positions have not been checked yet\n") if left else (200, "ready\n")
            case _:
                return 404, "there are /metrics, /live and /ready\n"

    def metrics(self) -> str:
        """Return what is known, in the text format of Prometheus."""
        with self._lock:
            samples = {name: dict(each) for name, each in sorted(self._samples.items())}
            failures = sorted(self._failures.items())
        columns = {
            name: [
                (labelled({"position": each}), found[name])
                for each, found in samples.items()
                if name in found
            ]
            for name in _HELP
        }
        columns["failed"] = [(labelled({"position": each, **labels}), 1) for each, labels in failures]
        return exposed("multiclouddb_position", _HELP, columns)

    def _follow(self, position: Position, once: bool) -> None:
        while not self._stopped.is_set():
            with self._free:
                if self._stopped.is_set():
                    return
                code, facts = self._check(position)
            with self._lock:
                self._samples[position.name] = {
                    **_samples(code, facts),
                    "checks_total": self._samples[position.name]["checks_total"] + 1,
                    "checked_timestamp_seconds": time.time(),
                }
                self._failures.pop(position.name, None)
                if labels := _failure(facts):
                    self._failures[position.name] = labels
            if once or self._stopped.wait(self._every):
                return

    def _check(self, position: Position) -> tuple[int, Mapping[str, Any]]:
        """Return the exit code of a check, and what it has printed."""
        process = subprocess.Popen(
            [sys.executable, "-c", _CHECK],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._running.add(process)
        try:
            if self._stopped.is_set():
                process.kill()
            # Other users of the machine see the words of a command line, so they do not stand there.
            output, problem = process.communicate(json.dumps(position.words), timeout=self._limit)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            say(f"{position.name}: no answer in {self._limit:g} seconds")
            return NOT_KNOWN, {}
        finally:
            self._running.discard(process)
        if problem and not self._stopped.is_set():
            say(f"{position.name}: {problem.strip()}")
        try:
            return process.returncode, json.loads(output)
        except ValueError:
            return process.returncode, {}


def _samples(code: int, facts: Mapping[str, Any]) -> dict[str, float]:
    """Return the samples of a check; what it did not find out has none."""
    found: dict[str, float] = {"exit_code": code, "known": 0}
    if code == _EXPIRED:
        return {**found, "expired": 1}
    if facts.keys().isdisjoint(("late", "positions")):
        return found
    for name in ("lag_seconds", "retention_headroom_seconds"):
        if facts.get(name) is not None:
            found[name] = facts[name]
    lates = [each["late"] for each in _parts(facts)]
    resumes = all(each["resumes"] for each in _parts(facts))
    answers = [each["is_late"] for each in lates if each is not None]
    if any(answers):
        found["late"] = 1
    elif answers and None not in answers and resumes:
        found["late"] = 0
    if "late" in found if answers else "lag_seconds" in found and resumes:
        found["known"] = 1
    if found["known"] and resumes:
        found["expired"] = 0
    return found


def _failure(facts: Mapping[str, Any]) -> Mapping[str, str] | None:
    """Return the labels of the error of a check; an empty label is none for Prometheus."""
    failed = [each for each in _parts(facts) if each.get("error") is not None]
    if not failed:
        return None
    # As the command does: lost changes of one of several positions come before another error.
    worst = max(
        failed, key=lambda each: (each["error"] == "CHECKPOINT_EXPIRED", each.get("resumes") is False)
    )
    return {"category": worst["error"], "reason": worst["reason"] or ""}


def _parts(facts: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the facts of each position of a group, or those of the only position."""
    return [*facts["positions"].values()] if "positions" in facts else [facts]


def export(
    path: Path, place: tuple[str, int] | None, every: float, at_once: int, limit: float, *, once: bool
) -> None:
    """Check the positions of a file until SIGTERM, or once, and serve or print what is found."""
    exporter = Exporter(read_positions(path), every, at_once, limit)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: exporter.stop())
    if not once:
        begin_log()
    with served(exporter, place):
        exporter.run(once=once)
    if once:
        typer.echo(exporter.metrics(), nl=False)
