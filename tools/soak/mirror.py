"""Keeps ten tables equal to collections of MongoDB and DynamoDB Local for hours, while everything fails once.

    python -m soak.mirror FOLDER --minutes 120

Two files `mirror.toml` with five tables each (PostgreSQL, Delta, SQLite, with and without columns) are
followed by two processes of the command, while writers write. After each fault the run waits until a document
that was written later has reached its table. At the end the writers stop, the mirrors catch up, and each
table is compared with its collection by reading both without the library. `steps.jsonl`, `samples.jsonl`, the
output of each process and `verdict.json` are in the folder, which has to be empty. The exit code is 1 if
something is not as it has to be.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.request import urlopen

import attrs

from multiclouddb_conformance.waiting import wait_until
from soak.copies import COLUMNS, Copy
from soak.sources import COLLECTIONS, Source, Writer, document, sources
from testing.postgres_server import PostgresServer

__all__ = ["main"]

T = TypeVar("T")

_FORBIDDEN: Final = "forbidden"
_CATCH_UP_SECONDS: Final = 120.0
_GIVES_UP_SECONDS: Final = 420.0
"""Longer than the five minutes for which a mirror tries to reach a server."""
_TARGET_KINDS: Final = {
    "orders": ("postgres", False),
    "customers": ("postgres", True),
    "items": ("delta", False),
    "bills": ("sqlite", True),
    "notes": ("delta", True),
}
_ENVIRONMENT: Final = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"}


@attrs.define
class Side:
    """One database, its tables, and the process that mirrors it."""

    source: Source
    writer: Writer
    copies: dict[str, Copy]
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    port: int = 0
    lives: int = 0

    @property
    def file(self) -> Path:
        return self.folder / "mirror.toml"

    @property
    def aside(self) -> Path:
        return self.folder / "aside"

    def set_aside(self) -> dict[str, dict[str, str]]:
        """Return the reasons of what is set aside, by collection and key."""
        found: dict[str, dict[str, str]] = {each: {} for each in COLLECTIONS}
        for file in self.aside.glob("*.json"):
            record = json.loads(file.read_text())
            (key,) = record["key"].values()
            found[record["collection"][1]][key] = record["reason"]
        return found

    def command(self, *words: str, seconds: float = 300.0) -> dict[str, Any]:
        """Run `multiclouddb`, and return what became of it."""
        began = time.monotonic()
        try:
            ran = subprocess.run(
                [_COMMAND, *words], capture_output=True, text=True, timeout=seconds, check=False,
                env={**os.environ, **_ENVIRONMENT},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"code": None, "seconds": seconds, "out": "", "err": "did not end"}
        took = round(time.monotonic() - began, 1)
        return {"code": ran.returncode, "seconds": took, "out": ran.stdout[-1500:], "err": ran.stderr[-1500:]}

    def follow(self) -> None:
        """Start the process that follows, and wait until it answers."""
        self.lives += 1
        self.port = _free_port()
        words = ["mirror", str(self.file), "--follow", "--set-aside", str(self.aside)]
        with self._output("out").open("ab") as out, self._output("err").open("ab") as err:
            self.process = subprocess.Popen(
                [_COMMAND, *words, "--listen", str(self.port)],
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, env={**os.environ, **_ENVIRONMENT},
            )  # fmt: skip
        wait_until(lambda: not self.is_alive() or self.answers(), seconds=120)

    def _output(self, kind: str) -> Path:
        return self.folder / f"life-{self.lives:02}.{kind}"

    def end(self, number: signal.Signals) -> dict[str, Any]:
        """End the process by a signal, and return what became of it."""
        assert self.process is not None
        began = time.monotonic()
        self.process.send_signal(number)
        try:
            code: int | None = self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            code = None
        return {"code": code, "seconds": round(time.monotonic() - began, 1), **self.said()}

    def said(self) -> dict[str, Any]:
        """Return what the process has printed so far."""
        return {kind: self._output(kind).read_text(errors="replace")[-2500:] for kind in ("out", "err")}

    def state(self) -> dict[str, Any]:
        """Return what can be seen of the process."""
        return {"alive": self.is_alive(), "metrics": self.metrics(), **self.said()}

    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def memory(self) -> dict[str, int] | None:
        """Return the memory (kB) and the number of threads of the process."""
        if self.process is None or not self.is_alive():
            return None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        # A process that has just ended has no memory.
        return {name: int(kb) for name, kb in re.findall(r"(VmRSS|VmHWM|Threads):\s+(\d+)", status)}

    def answers(self) -> bool:
        """Return whether the process answers over HTTP."""
        try:
            urlopen(f"http://localhost:{self.port}/live", timeout=5).close()
        except OSError:
            return False
        return True

    def metrics(self) -> dict[str, float]:
        """Return what `/metrics` says, without the help."""
        try:
            with urlopen(f"http://localhost:{self.port}/metrics", timeout=5) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return {}
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[:1] != "#"}


class Run:
    """The whole run.

    Args:
        folder: Where everything is written.
        seconds: How long the writers write.
        a_second: How many writes there are in a second.
        seed: The seed of the writers, and of the moments of the kills.
    """

    def __init__(self, folder: Path, seconds: float, a_second: float, seed: int) -> None:
        self.folder, self.seconds, self._random = folder, seconds, random.Random(seed)
        self.is_long = seconds >= 3600
        self.postgres = PostgresServer()
        self.sides = [
            self._side(source, a_second / 2, seed + number)
            for number, source in enumerate(sources(folder / "mongod"))
        ]
        self.faults: list[str] = []
        self._began = time.monotonic()
        self._done = threading.Event()

    def _side(self, source: Source, a_second: float, seed: int) -> Side:
        folder = self.folder / source.name
        folder.mkdir()
        copies = {}
        for collection, (kind, has_columns) in _TARGET_KINDS.items():
            place = {
                "delta": str(folder / collection),
                "postgres": self.postgres.dsn,
                "sqlite": str(folder / "copy.db"),
            }[kind]
            copies[collection] = Copy(collection, kind, place, f"{source.name}_{collection}", has_columns)
            source.make(collection)
            for number in range(200):
                source.put(collection, f"k-{number}", document(number))
        side = Side(source, Writer(source, a_second, seed), copies, folder)
        (folder / "columns.toml").write_text(COLUMNS)
        (folder / "source.toml").write_text(source.toml())
        entries = (copy.entry(source.address(name)) for name, copy in copies.items())
        side.file.write_text(source.toml() + "".join(entries))
        return side

    def close(self) -> None:
        """Stop everything."""
        self._done.set()
        for side in self.sides:
            if side.is_alive() and side.process is not None:
                side.process.kill()
                side.process.wait()
            side.source.close()
        self.postgres.stop()

    # -- What is written down

    def note(self, step: str, side: Side | None = None, **what: Any) -> None:
        """Write what a step has found."""
        entry = {
            "minute": round((time.monotonic() - self._began) / 60, 2),
            "at": time.strftime("%H:%M:%S"),
            "step": step,
            **({} if side is None else {"side": side.source.name}),
            **what,
        }
        with (self.folder / "steps.jsonl").open("a") as file:
            file.write(json.dumps(entry, default=str) + "\n")
        _say(f"{entry['at']} {step} {'' if side is None else side.source.name} {_short(what)}")

    def wrong(self, step: str, side: Side, what: str) -> None:
        """Note something that is not as it has to be."""
        self.faults.append(f"{step}, {side.source.name}: {what}")
        self.note(step, side, wrong=what)

    def sample(self) -> None:
        """Write memory and lag from time to time, until the run ends."""
        while not self._done.wait(30):
            for side in self.sides:
                lags = {name: _late(copy) for name, copy in side.copies.items()}
                versions = {name: _answer(copy.version) for name, copy in side.copies.items()}
                entry = {
                    "minute": round((time.monotonic() - self._began) / 60, 2),
                    "side": side.source.name,
                    "life": side.lives,
                    "memory": side.memory(),
                    "lag": lags,
                    "aside": len(list(side.aside.glob("*.json"))),
                    "versions": versions,
                    "written": side.writer.written,
                    "failed": side.writer.failed,
                    "last_failure": side.writer.last_failure,
                    "metrics": side.metrics(),
                }
                with (self.folder / "samples.jsonl").open("a") as file:
                    file.write(json.dumps(entry) + "\n")

    def arrives(
        self,
        step: str,
        side: Side,
        names: Iterable[str] = COLLECTIONS,
        seconds: float = _CATCH_UP_SECONDS,
    ) -> bool:
        """Wait until each table has what was written after now; note how long it took."""
        since, began, left = time.time(), time.monotonic(), set(names)
        took: dict[str, float] = {}
        while left and time.monotonic() - began < seconds:
            time.sleep(2)
            for name in sorted(left):
                at = _answer(side.copies[name].canary)
                if isinstance(at, float) and at >= since:
                    took[name] = round(time.monotonic() - began, 1)
                    left.discard(name)
        self.note(step, side, arrived=took, missing=sorted(left), alive=side.is_alive())
        return not left

    def must_arrive(self, step: str, side: Side, collections: Iterable[str] = COLLECTIONS) -> None:
        """Wait for each table, and note it as wrong if one does not follow."""
        if not self.arrives(step, side, collections):
            self.wrong(step, side, "a table does not follow")

    # -- The steps

    def start(self) -> None:
        for side in self.sides:
            side.follow()
            self.note("start", side, **side.said())
        for side in self.sides:
            self.must_arrive("first copy", side)

    def terminate(self) -> None:
        for side in self.sides:
            ended = side.end(signal.SIGTERM)
            self.note("SIGTERM", side, **ended)
            if ended["code"] not in (0, 18) or ended["seconds"] > 10:
                self.wrong("SIGTERM", side, f"code {ended['code']} after {ended['seconds']} s")
            side.follow()
        for side in self.sides:
            self.must_arrive("after SIGTERM", side)

    def kill(self) -> None:
        for side in self.sides:
            for _ in range(3):
                time.sleep(self._random.uniform(0, 10))
                side.end(signal.SIGKILL)
                side.follow()
        for side in self.sides:
            self.must_arrive("after three SIGKILLs", side)

    def roll_over(self) -> None:
        for side in self.sides:
            side.source.roll_over()
            self.must_arrive("after new shards", side)

    def target_away(self, seconds: float) -> None:
        self.postgres.kill()
        time.sleep(seconds)
        for side in self.sides:
            self.note("target away", side, seconds=seconds, **side.state())
            others = [name for name, copy in side.copies.items() if copy.kind != "postgres"]
            self.must_arrive("the other tables while the target is away", side, others)
        self.postgres.start()
        for side in self.sides:
            if not self.arrives("after an outage of the target", side):
                if seconds < 300:
                    self.wrong("after an outage of the target", side, "a table does not follow")
                self._restart(side, "an outage of the target")

    def source_away(self, seconds: float) -> None:
        for side in self.sides:
            side.source.break_off()
        time.sleep(seconds)
        for side in self.sides:
            self.note("source away", side, seconds=seconds, **side.state())
            side.source.come_back()
        for side in self.sides:
            if not self.arrives("after an outage of the source", side):
                if seconds < 300:
                    self.wrong("after an outage of the source", side, "a table does not follow")
                self._restart(side, "an outage of the source")

    def _restart(self, side: Side, reason: str) -> None:
        """Do what an operator does: stop the process, look at its exit code, and start it again."""
        was_alive = side.is_alive()
        self.note(f"restart after {reason}", side, was_alive=was_alive, **side.end(signal.SIGTERM))
        side.follow()
        self.must_arrive(f"restarted after {reason}", side)

    def refuse(self, number: int) -> None:
        """Write rows that a constraint of PostgreSQL refuses, and documents that do not fit a column."""
        for side in self.sides:
            table = side.copies["orders"]
            side.copies["orders"].statement(
                f"ALTER TABLE {table.table} DROP CONSTRAINT IF EXISTS no_{table.table}; "
                f"ALTER TABLE {table.table} ADD CONSTRAINT no_{table.table} "
                f"CHECK (new_item_state::text NOT LIKE '%{_FORBIDDEN}%')"
            )
            bad = [f"bad-{number}-{each}" for each in range(number)]
            for key in bad:
                side.source.put("orders", key, document(1, _FORBIDDEN))
                for collection in ("customers", "bills", "notes"):
                    side.source.put(collection, key, {**document(1), "total": "many"})
        for side in self.sides:
            step = f"{number} refused rows at once"
            if not self.arrives(step, side):
                self.wrong(step, side, "a table does not follow")
                self._restart(side, step)
            self.note(step, side, aside=side.set_aside(), alive=side.is_alive(), **side.said())

    def drop(self) -> None:
        others = [each for each in COLLECTIONS if each != "notes"]
        for side in self.sides:
            side.writer.leave_out("notes")
            side.source.drop("notes")
        for side in self.sides:
            self.must_arrive("the other tables after a drop", side, others)
            time.sleep(20)
            self.note("dropped", side, **side.state())
            side.source.make("notes")
            for number in range(50):
                side.source.put("notes", f"again-{number}", document(number))
            side.writer.take_up("notes")
        time.sleep(10)
        for side in self.sides:
            self.arrives("made again, and nothing done", side, seconds=30)
            self.note("stop after a drop", side, **side.end(signal.SIGTERM))
            address, target = side.source.address("notes"), side.copies["notes"].target
            words = [address, "--target", target, "--columns", str(side.folder / "columns.toml"), "--resync"]
            self.note("a run with the file", side, **side.command("mirror", str(side.file), seconds=60))
            self.note("--resync with mirror.toml", side, **side.command("mirror", str(side.file), *words))
            resynced = side.command(
                "mirror", str(side.folder / "source.toml"), *words, "--set-aside", str(side.aside)
            )
            self.note("--resync", side, **resynced)
            if resynced["code"] not in (0, 18):
                self.wrong("--resync", side, f"code {resynced['code']}")
            side.follow()
        for side in self.sides:
            self.must_arrive("after --resync", side)

    def kill_in_outage(self) -> None:
        self.postgres.kill()
        for side in self.sides:
            side.end(signal.SIGKILL)
            side.follow()
        time.sleep(20)
        for side in self.sides:
            self.note("started while the target is away", side, alive=side.is_alive(), **side.said())
        self.postgres.start()
        for side in self.sides:
            if not self.arrives("after a start in an outage", side):
                self.wrong("after a start in an outage", side, "a table does not follow")
                self._restart(side, "a start in an outage")

    # -- The end

    def compare(self, step: str, *, may_lack: bool) -> None:
        """Compare each table with its collection; what is set aside may differ if `may_lack` is true."""
        for side in self.sides:
            aside, result = side.set_aside(), {}
            for name, copy in side.copies.items():
                wanted = {
                    key: (each, (each["status"], each["total"]) if copy.has_columns else ())
                    for key, each in side.source.read(name).items()
                }
                found = copy.read()
                for state, _ in found.values():
                    state.pop(side.source.key, None)
                differ = {key for key in wanted.keys() | found.keys() if wanted.get(key) != found.get(key)}
                lacks = sorted(differ - (aside[name].keys() if may_lack else set()))
                counts = (len(wanted), len(found), len(differ), len(aside[name]))
                result[name] = dict(zip(("documents", "rows", "differ", "aside"), counts, strict=True))
                if lacks:
                    self.wrong(step, side, f"{name} differs at {len(lacks)} keys: {lacks[:5]}")
            self.note(step, side, tables=result)

    def finish(self) -> None:
        for side in self.sides:
            side.writer.stop()
            self.note("writers stopped", side, written=side.writer.written, failed=side.writer.failed)
            self.note("last SIGTERM", side, **side.end(signal.SIGTERM))
            words = [str(side.file), "--set-aside", str(side.aside)]
            ended = side.command("mirror", *words)
            self.note("catch up", side, **ended)
            wanted = 18 if any(side.set_aside().values()) else 0
            if ended["code"] != wanted:
                self.wrong("catch up", side, f"code {ended['code']}, and not {wanted}")
        self.compare("compared", may_lack=True)
        for side in self.sides:
            self.note("set aside at the end", side, aside=side.set_aside())
            for name, copy in side.copies.items():
                found = side.command("mirror", "status", copy.target, "--set-aside", str(side.aside))
                self.note(f"status of {name}", side, **found)
            self._correct(side)
        self.compare("compared after the retry", may_lack=False)
        for side in self.sides:
            words = [str(side.file), "--set-aside", str(side.aside), "--prove"]
            # Where nothing is written, verify has to wait for the clock of the service, a minute for a table.
            ended = side.command("mirror", *words, seconds=1200)
            self.note("proved", side, **ended)
            if ended["code"]:
                self.wrong("proved", side, f"code {ended['code']}")
        self.compare("compared at the end", may_lack=False)

    def _correct(self, side: Side) -> None:
        """Remove the causes, and retry what is set aside."""
        table = side.copies["orders"]
        table.statement(f"ALTER TABLE {table.table} DROP CONSTRAINT IF EXISTS no_{table.table}")
        aside = side.set_aside()
        for name, keys in aside.items():
            for key in keys if name != "orders" else ():
                side.source.put(name, key, document(2))
        for name, copy in side.copies.items():
            if not aside[name]:
                continue  # the command refuses a table of which there is nothing
            ended = side.command(
                "set-aside", "retry", str(side.aside), copy.target, str(side.folder / "source.toml")
            )
            self.note(f"retry of {name}", side, **ended)
            if ended["code"]:
                self.wrong(f"retry of {name}", side, f"code {ended['code']}")

    def run(self) -> None:
        """Run everything."""
        for side in self.sides:
            side.writer.start()
        self.start()
        threading.Thread(target=self.sample, daemon=True).start()
        short = min(90.0, self.seconds / 12)
        steps: list[tuple[float, Callable[[], None]]] = [
            (0.04, self.terminate),
            (0.08, self.kill),
            (0.14, self.roll_over),
            (0.18, lambda: self.target_away(short)),
            (0.26, lambda: self.source_away(short)),
            (0.34, lambda: self.refuse(1)),
            (0.40, lambda: self.refuse(3)),
            (0.46, self.drop),
            (0.86, self.kill_in_outage),
            (0.91, self.roll_over),
            (0.92, self.kill),
        ]
        if self.is_long:
            steps += [
                (0.56, lambda: self.target_away(_GIVES_UP_SECONDS)),
                (0.70, lambda: self.source_away(_GIVES_UP_SECONDS)),
            ]
        for part, step in sorted(steps, key=lambda each: each[0]):
            while (left := part * self.seconds - (time.monotonic() - self._began)) > 0:
                time.sleep(min(left, 5))
            try:
                step()
            except Exception:  # noqa: BLE001 - the rest of the run is worth having
                self.wrong(getattr(step, "__name__", "step"), self.sides[0], traceback.format_exc()[-1500:])
                self._mend()
        while time.monotonic() - self._began < self.seconds:
            time.sleep(1)
        self.finish()

    def _mend(self) -> None:
        """Start again what a step has left stopped."""
        for side in self.sides:
            if not side.is_alive():
                side.follow()


def _late(copy: Copy) -> float | str | None:
    """Return how many seconds a table is behind."""
    at = _answer(copy.canary)
    return round(time.time() - at, 1) if isinstance(at, float) else at


def _answer(ask: Callable[[], T]) -> T | str:
    """Return an answer, or the name of the error if there is none: the server may be away."""
    try:
        return ask()
    except Exception as error:  # noqa: BLE001
        return type(error).__name__


def _short(what: dict[str, Any]) -> str:
    shown = {name: each for name, each in what.items() if name not in ("out", "err", "metrics")}
    return json.dumps(shown, default=str)[:400]


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        port: int = made.getsockname()[1]
        return port


_COMMAND: Final = str(Path(sys.executable).parent / "multiclouddb")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return the exit code."""
    parser = argparse.ArgumentParser("soak.mirror", description=__doc__)
    parser.add_argument("folder", type=Path, help="an empty folder for everything")
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--rate", type=float, default=24.0, help="writes a second")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # stops the servers too
    asked.folder.mkdir(parents=True, exist_ok=True)
    run = Run(asked.folder, asked.minutes * 60, asked.rate, asked.seed)
    try:
        run.run()
    finally:
        run.close()
        verdict = {"wrong": run.faults, "equal": not run.faults}
        (asked.folder / "verdict.json").write_text(json.dumps(verdict, indent=1))
    _say(json.dumps(verdict, indent=1))
    return 1 if run.faults else 0


if __name__ == "__main__":
    sys.exit(main())
