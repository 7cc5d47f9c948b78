"""Runs the suite in a process of its own, and tells its parent each request and each test, line by line.

The process ends when its parent ends, for any reason, and at the bound of the budget.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pytest

from multiclouddb_api import MulticloudDbError
from multiclouddb_certify.certification import Run, load_certification
from multiclouddb_certify.order import Order
from multiclouddb_certify.wire import AT_THE_BOUND, Meter, priced
from multiclouddb_conformance.harness import Harness
from multiclouddb_conformance.plugin import LACKING

__all__ = ["main"]

_WIDTH: Final = 200


class _Teller:
    """Writes lines to the parent. A line is shorter than a pipe's buffer, so lines of threads do not mix."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __call__(self, **fields: Any) -> None:
        try:
            os.write(self._descriptor, json.dumps(fields).encode() + b"\n")
        except OSError:  # nobody listens any more
            os._exit(1)


class _Plugin:
    """Gives the tests their harness, and tells what happens to them."""

    def __init__(
        self,
        harness: type[Harness],
        tell: _Teller,
        agreed: threading.Event,
        read: Callable[[Exception], MulticloudDbError],
    ) -> None:
        self._harness, self._tell, self._agreed, self._read = harness, tell, agreed, read
        self._began, self._is_first = 0.0, True

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            assert isinstance(item, pytest.Function)
            item.module.HARNESS = self._harness

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        reasons: Counter[str] = session.config.stash[LACKING]
        for text, count in sorted(reasons.items()):
            self._tell(deselected=text.partition(": ")[2], count=count)
        for item in session.items:
            self._tell(collected=_name(item.nodeid))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        # Not before: pytest also ends a collection whose `-k` is no expression.
        self._tell(ready=len(session.items))
        self._agreed.wait()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._began = time.monotonic()
        self._tell(begins=_name(nodeid))

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        if call.excinfo is not None:
            entry = call.excinfo.traceback[-1]
            error = call.excinfo.value
            category = str(error.category) if isinstance(error, MulticloudDbError) else None
            self._tell(
                failed=_name(item.nodeid),
                phase=call.when,
                error=type(error).__name__,
                category=category,
                where=f"{Path(str(entry.path)).name}:{entry.lineno + 1}",
            )
            if self._is_first and call.when == "setup" and isinstance(error, Exception):
                # The service refuses what every test needs.
                ours = self._read(error)
                self._tell(refused=str(ours.category), message=ours.message[:_WIDTH])
                item.session.shouldstop = "refused"
        elif call.when == "setup":
            self._is_first = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # pytest prints failures at its end, and the process may end before.
        if report.failed:
            sys.stderr.write(f"{_name(report.nodeid)}, {report.when}\n{report.longreprtext}\n\n")

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._tell(ends=_name(nodeid), seconds=round(time.monotonic() - self._began, 3))


def _name(nodeid: str) -> str:
    return nodeid.partition("::")[2][:_WIDTH]


def _follow_parent(agreed: threading.Event) -> None:
    if sys.stdin.buffer.readline():
        agreed.set()
        sys.stdin.buffer.read()
    os._exit(1)


def main() -> None:
    """Run the suite; the order is the first line of stdin, and lines for the parent go to stdout.

    The order is no argument, because other users of the machine can read the arguments of a process.
    """
    order = Order(**json.loads(sys.stdin.buffer.readline()))
    tell = _Teller(os.dup(1))
    os.dup2(2, 1)
    # An interrupted process writes where its threads are, and ends.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    faulthandler.register(signal.SIGINT, chain=True)
    agreed = threading.Event()
    threading.Thread(target=_follow_parent, args=(agreed,), daemon=True).start()
    certification = load_certification(order.url)
    run = Run.of(f"mcdb-certify-{order.name}")
    assert run is not None

    def note(operation: str, units: Mapping[str, float]) -> None:
        tell(asks=operation, units=units)

    def stop() -> None:
        tell(bound=True)
        os._exit(AT_THE_BOUND)

    suite = find_spec(certification.suite)
    assert suite is not None
    assert suite.origin is not None
    pytest.register_assert_rewrite("multiclouddb_certify.suites")
    Path("pytest.ini").write_text("[pytest]\n")
    # Without a capture, what a test prints is in the log, in order.
    words = [suite.origin, "-s", "-c", "pytest.ini", "--basetemp", "tmp"]
    words += ["-p", "no:terminal", "-p", "no:cacheprovider"]
    words += ["--rootdir", str(Path(suite.origin).parent), "--import-mode", "importlib"]
    words += ["--confcutdir", str(Path(suite.origin).parent)]
    words += ["-k", order.only] if order.only else []
    prices = priced(certification.prices, order.prices)
    meter = Meter(order.budget, prices, certification.units_of, note, stop)
    with certification.wire(meter):
        harness = certification.harness(order.url, run)
        code = pytest.main(
            words, plugins=[_Plugin(harness, tell, agreed, partial(certification.error, order.url))]
        )
    tell(code=int(code))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # Threads of the SDK may still run.
    os._exit(0)
