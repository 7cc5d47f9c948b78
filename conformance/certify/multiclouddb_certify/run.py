"""Runs a certification: plans it, starts the suite in a child, follows it, and removes everything at its end.

The child collects the tests, waits until the plan is agreed to, and runs them. However it ends, by itself, at
the bound of the budget, by a signal or with an error, the parent then removes everything with the prefix of
the run. Nothing else cleans up, except `certify clean` after the parent was killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import attrs

from multiclouddb_api import ErrorCategory, ErrorDetail, MulticloudDbError, invalid_request
from multiclouddb_certify.certification import (
    LOCAL,
    PREFIX,
    Certification,
    Granted,
    Permission,
    Run,
    RunPlace,
    load_certification,
    owner,
)
from multiclouddb_certify.order import Order
from multiclouddb_certify.private_files import make_private_folder, open_private, write_private
from multiclouddb_certify.progress import Progress
from multiclouddb_certify.wire import Price, add, cost, priced

__all__ = [
    "DRILL_FILE",
    "Plan",
    "RunEnd",
    "certify",
    "classified",
    "clean",
    "drill_marker",
    "look",
    "plan",
    "remove_run",
]

DRILL_FILE: Final = "drill.json"
"""What a drill stores in its folder."""
_CHILD: Final = "from multiclouddb_certify.child import main; main()"
_CLOCK_SECONDS: Final = 300.0
_ROUNDS: Final = 10
_LAST_WORDS_SECONDS: Final = 10.0
_USAGE: Final = 4  # pytest.ExitCode.USAGE_ERROR; pytest is imported by the child only
_ESTIMATES: Final = Path(__file__).parent / "estimates"


class _Child:
    """Runs the suite with pytest in a child process and a temporary folder."""

    def __init__(self, order: Order, folder: Path) -> None:
        self.log = folder / "pytest.log"
        with open_private(self.log) as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _CHILD],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, cwd=folder,
                start_new_session=True,
            )  # fmt: skip
        self._tell(json.dumps(attrs.asdict(order)))
        self.lines = self._read()

    def _read(self) -> Generator[dict[str, Any], None, None]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield json.loads(line)

    def go(self) -> None:
        """Let the child run the tests."""
        self._tell("go")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()

    def interrupt(self) -> None:
        """Let the process write where it is, and end."""
        os.kill(self._process.pid, signal.SIGINT)
        until = time.monotonic() + _LAST_WORDS_SECONDS
        # The process stays known until `kill`, which also ends what a test has forked.
        state = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while time.monotonic() < until and os.waitid(os.P_PID, self._process.pid, state) is None:
            time.sleep(0.05)

    def kill(self) -> None:
        """End the process, and what a test has forked."""
        if self._process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self.lines.close()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()
        self._process.wait()


@attrs.frozen
class Plan:
    """What a run will do; nothing has been created yet.

    Attributes:
        certification: The service's part.
        url: Where the suite will run.
        run: The run, whose name every resource will carry.
        only: The expression that chose the tests, or None for all.
        place: Where that is.
        creates: A line for each kind of resource.
        permissions: The permissions, with the results of their dry runs.
        prices: The prices that are assumed.
        tests: The names of the tests.
        deselected: The number of tests that cannot run here, by reason.
        units: The estimated units, the number of requests among them.
        usd: The estimated cost, in US dollars.
        largest: The estimated cost of the most expensive test.
        seconds: The estimated duration.
        unmeasured: The number of tests whose units are not known; the mean of the others is assumed.
        progress: What the child has reported so far.
        child: The process, which waits.
    """

    certification: Certification
    url: str = attrs.field(repr=False)
    run: Run
    only: str | None
    place: RunPlace
    creates: Sequence[str]
    permissions: Sequence[Permission]
    prices: Sequence[Price]
    tests: Sequence[str]
    deselected: Mapping[str, int]
    units: Mapping[str, float]
    usd: float
    largest: float
    seconds: float
    unmeasured: int
    progress: Progress = attrs.field(repr=False)
    child: _Child = attrs.field(repr=False)


class RunEnd:
    """Why a run ended."""

    DONE = "done"
    BOUND = "the budget was spent"
    INTERRUPTED = "interrupted"
    BROKEN = "the process of the suite ended"


@contextmanager
def plan(
    url: str,
    budget: float,
    only: str | None = None,
    check: Callable[[RunPlace], None] = lambda place: None,
    own_prices: Sequence[str] = (),
) -> Iterator[Plan]:
    """Look at the service and at the suite, and create nothing. The suite waits within the block.

    Args:
        url: Where the suite is to run.
        budget: The most that may be spent, in US dollars.
        only: An expression like pytest's `-k`, or None for all tests.
        check: Is called with the place, and refuses it.
        own_prices: Prices of the user, each as `UNIT=USD`, instead of those that are assumed.

    Raises:
        MulticloudDbError: The suite cannot run there.
    """
    certification = load_certification(url)
    prices = priced(certification.prices, own_prices)
    run = Run.new()
    place, permissions = look(certification, url, run, check)
    creates = certification.creates(url, run)
    progress = Progress({each.unit: each.usd for each in prices})
    with _child(Order(url, run.name, budget, only, own_prices)) as child:
        for line in child.lines:
            progress.take(line)
            if progress.ready is not None:
                break
        if progress.ready is None:
            said = child.log.read_text(errors="replace").strip().splitlines()[-1:] or ["it printed nothing"]
            if progress.code == _USAGE:
                raise invalid_request("--only", said[0].removeprefix("ERROR: "), "write it like pytest's -k")
            raise MulticloudDbError(
                f"certify: the tests cannot be collected: {said[0]}",
                ErrorDetail(ErrorCategory.PERMANENT_FAILURE),
            )
        if not progress.tests:
            raise invalid_request("--only", f"{only!r} selects no test", "write it like pytest's -k")
        yield _estimated(certification, url, run, only, place, creates, permissions, prices, progress, child)


def look(
    certification: Certification, url: str, run: Run, check: Callable[[RunPlace], None]
) -> tuple[RunPlace, Sequence[Permission]]:
    """Look where a URL leads, and which permissions there are; nothing is created.

    Raises:
        MulticloudDbError: Nothing can run there, `check` refuses it, the clock is wrong, or a permission is
            missing.
    """
    with classified(certification, url):
        place = certification.place(url)
        if place.problem is not None:
            raise MulticloudDbError(
                f"certify: {place.problem}", ErrorDetail(ErrorCategory.UNSUPPORTED_CAPABILITY)
            )
        if place.clock is not None and place.account != LOCAL:
            _check_clock(place.clock)
        check(place)
        permissions = certification.permissions(url, run)
    denied = [
        f"{each.name} ({each.reason})" if each.reason else each.name
        for each in permissions
        if each.granted is Granted.NO
    ]
    if denied:
        raise MulticloudDbError(
            f"certify: the credentials lack {', '.join(denied)}; grant them on {PREFIX}*",
            ErrorDetail(ErrorCategory.AUTHORIZATION_FAILED, certification.provider_id),
        )
    return place, permissions


def _check_clock(clock: datetime) -> None:
    off = (datetime.now(UTC) - clock).total_seconds()
    if abs(off) > _CLOCK_SECONDS:
        raise MulticloudDbError(
            f"certify: the clock of this machine is {off:+.0f} s off the service's; set it, "
            "for example with NTP",
            ErrorDetail(ErrorCategory.INVALID_REQUEST),
        )


def _estimated(
    certification: Certification,
    url: str,
    run: Run,
    only: str | None,
    place: RunPlace,
    creates: Sequence[str],
    permissions: Sequence[Permission],
    assumed: Sequence[Price],
    progress: Progress,
    child: _Child,
) -> Plan:
    file = _ESTIMATES / f"{certification.provider_id}.json"
    known: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.exists() else {}
    prices = progress.prices
    measured = [known[name] for name in progress.tests if name in known]
    everything = measured or list(known.values())
    mean: dict[str, float] = {}
    for each in everything:
        add(mean, {unit: number / len(everything) for unit, number in each["units"].items()})
    seconds = sum(each["seconds"] for each in everything) / len(everything) if everything else 0.0
    units: dict[str, float] = {}
    largest = duration = 0.0
    for name in progress.tests:
        test = known.get(name, {"units": mean, "seconds": seconds})
        add(units, test["units"])
        largest = max(largest, cost(test["units"], prices))
        duration += test["seconds"] + (0.0 if place.account == LOCAL else certification.collection_seconds)
    fixed = certification.fixed_units(duration)
    add(units, fixed)
    largest += cost(fixed, prices)
    return Plan(
        certification, url, run, only, place, creates, permissions, assumed, list(progress.tests),
        progress.deselected, dict(units), cost(units, prices), largest, duration,
        len(progress.tests) - len(measured), progress, child,
    )  # fmt: skip


@contextmanager
def classified(certification: Certification, url: str) -> Iterator[None]:
    """Raise every error of the vendor's SDK as an error that a person can read."""
    try:
        yield
    except Exception as error:
        ours = certification.error(url, error)
        if ours is error:
            raise
        raise ours from error


def certify(
    planned: Plan, show: Callable[[Progress], None], log: Path
) -> tuple[Progress, str, Sequence[str]]:
    """Run the suite, and remove everything that it has created.

    Args:
        planned: The plan that was agreed to.
        show: Is called often with the progress.
        log: Where pytest's output goes if a test fails or the run does not get to its end; it may contain
            names and values.

    Returns:
        What happened, why it ended, and the names that could not be removed.
    """
    certification, url, run = planned.certification, planned.url, planned.run
    progress, child = planned.progress, planned.child
    progress.began = time.monotonic()
    ended = RunEnd.BROKEN
    with _interruptible() as interrupted:
        try:
            child.go()
            for line in child.lines:
                progress.take(line)
                show(progress)
                interrupted.check()
            if progress.at_the_bound:
                ended = RunEnd.BOUND
            elif progress.refusal is not None:
                ended = f"stopped: {progress.refusal[0]}"
            elif progress.code is not None:
                ended = RunEnd.DONE
        except KeyboardInterrupt:
            ended = RunEnd.INTERRUPTED
        interrupted.ignore()
        if ended == RunEnd.INTERRUPTED:
            child.interrupt()
        child.kill()
        if ended != RunEnd.DONE or any(test.outcome == "failed" for test in progress.tests.values()):
            shutil.copy(child.log, log)
        left = remove_run(certification, url, run)
    return progress, ended, left


def clean(url: str, name: str | None = None) -> tuple[Sequence[str], Mapping[str, str]]:
    """Remove what ended runs have left: the runs of this user, and all that have expired.

    Args:
        url: Where the runs were.
        name: Only this run, whoever owns it, also if it is a drill that waits; or None.

    Returns:
        The names that were removed, and those that were kept, each with the reason.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if `name` is not the name of a run; `TRANSIENT_FAILURE` if
            something could not be removed.
    """
    certification = load_certification(url)
    only = None if name is None else Run.of(PREFIX + name.removeprefix(PREFIX))
    if name is not None and only is None:
        way_out = "copy it from what certify clean prints, or from the drill.json of a drill"
        raise invalid_request("--run", f"{name!r} is not the name of a run", way_out)
    kept: dict[str, str] = {}
    removed: set[str] = set()

    def is_over(resource: str) -> bool:
        run = Run.of(resource)
        assert run is not None
        if only is not None and run != only:
            return False
        why = _why_kept(run, is_named=only is not None)
        if why is None:
            removed.add(resource)
        else:
            kept[resource] = why
        return why is None

    with classified(certification, url):
        left = _removed(certification, url, is_over)
    if only is not None and not left and not kept:
        _give_up(only)
    for folder in runs_folder().glob("*/"):
        run = Run.of(PREFIX + folder.name)
        if run is not None and run.owner == owner() and not _is_alive(run):
            shutil.rmtree(folder, ignore_errors=True)
    if left:
        raise MulticloudDbError(
            f"certify: {len(left)} resources could not be removed, the first is {left[0]}; try again later",
            ErrorDetail(ErrorCategory.TRANSIENT_FAILURE),
        )
    return sorted(removed), dict(sorted(kept.items()))


def _why_kept(run: Run, *, is_named: bool) -> str | None:
    if _is_alive(run):
        return "its run goes on"
    if is_named:
        return None
    if _waits(run):
        return f"it is a drill that waits; to give it up, add --run {run.name}"
    if run.owner == owner() or run.expires < datetime.now(UTC):
        return None
    return "it belongs to somebody else and has not expired"


def remove_run(certification: Certification, url: str, run: Run) -> list[str]:
    """Remove everything of a run, and return the names that are still there after several rounds."""
    return _removed(certification, url, lambda name: Run.of(name) == run)


def _removed(certification: Certification, url: str, chosen: Callable[[str], bool]) -> list[str]:
    """Remove the chosen resources, and return those that are still there after several rounds."""
    names: list[str] = []
    for round_ in range(_ROUNDS):
        if round_:
            time.sleep(min(5.0, 0.1 * 2**round_))
        # The answer to a request of a killed process may come late, and a listing may be older than it.
        names = [name for name in certification.found(url) if Run.of(name) and chosen(name)]
        if not names:
            return []
        for name in names:
            certification.remove(url, name)
    return names


class _Interrupts:
    """Turns the first signal that ends a process into a KeyboardInterrupt; later signals are ignored."""

    _NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self._has_come = False
        self._before = {number: signal.signal(number, self._raise) for number in self._NUMBERS}

    def _raise(self, number: int, frame: object) -> None:
        del number, frame
        self._has_come = True
        self.ignore()
        raise KeyboardInterrupt

    def check(self) -> None:
        """Raise again what Python has dropped, as it does with what is raised while a finalizer runs."""
        if self._has_come:
            raise KeyboardInterrupt

    def ignore(self) -> None:
        for number in self._NUMBERS:
            signal.signal(number, signal.SIG_IGN)

    def close(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)


@contextmanager
def _interruptible() -> Iterator[_Interrupts]:
    interrupts = _Interrupts()
    try:
        yield interrupts
    finally:
        interrupts.close()


def runs_folder() -> Path:
    """Return the folder in which runs on this machine know of each other."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "multiclouddb", "certify")


def _lock_of(run: Run) -> Path:
    return runs_folder() / f"{run.name}.lock"


@contextmanager
def _alive(run: Run) -> Iterator[None]:
    """Hold the lock of a run, by which `clean` on this machine knows that the run goes on."""
    file = _lock_of(run)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            file.unlink(missing_ok=True)


def drill_marker(run: Run) -> Path:
    """Return the file by which `clean` on this machine knows that a drill waits."""
    return runs_folder() / f"{run.name}.drill"


def _waits(run: Run) -> bool:
    return drill_marker(run).exists() and run.expires > datetime.now(UTC)


def _give_up(run: Run) -> None:
    """End a drill, if the run is one."""
    if drill_marker(run).exists():
        file = Path(drill_marker(run).read_text()) / DRILL_FILE
        with suppress(OSError, ValueError):
            state = {**json.loads(file.read_text()), "ended": "it was given up"}
            write_private(file, json.dumps(state, indent=2))
        drill_marker(run).unlink(missing_ok=True)


def _is_alive(run: Run) -> bool:
    try:
        with _lock_of(run).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    _lock_of(run).unlink(missing_ok=True)
    return False


@contextmanager
def _child(order: Order) -> Iterator[_Child]:
    folder, run = runs_folder() / order.name, Run.of(PREFIX + order.name)
    assert run is not None
    with _alive(run):
        make_private_folder(folder)
        try:
            child = _Child(order, folder)
            try:
                yield child
            finally:
                child.kill()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
