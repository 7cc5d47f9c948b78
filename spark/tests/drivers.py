"""Starts drivers of queries on several databases, waits for their progress, and kills them."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pyspark

from multiclouddb_conformance.waiting import wait_until

from .databases import EVENTS
from .environments import environment
from .jvm_settings import environment_of

PROGRAM = Path(__file__).with_name("driver.py")
SECONDS = 400
LIMIT = 20


def start_driver(part, folder, log, version=pyspark.__version__, path=(), **given):
    """Start a driver on a version of Spark, in a session of its own."""
    (folder / "given").write_text(json.dumps(given))
    variables, folders = {}, [*path, *filter(None, [os.environ.get("PYTHONPATH")])]
    if version != pyspark.__version__:
        variables, folders = environment_of(environment(version)), [environment(version), *folders]
    with log.open("a") as out:
        return subprocess.Popen(
            [sys.executable, str(PROGRAM), part, str(folder)],
            env={**os.environ, **variables, "PYTHONPATH": os.pathsep.join(map(str, folders))},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )


class Queries:
    """Runs one query for each of several feeds in one driver.

    Attributes:
        folder: The folder with the files of all queries.
        feeds: The feeds that the queries read.
        process: The driver; None before `start`.
    """

    def __init__(self, folder, feeds, master="local[4,2]", version=pyspark.__version__):
        self.folder, self.feeds, self.master, self.version = folder, feeds, master, version
        folder.mkdir()
        self.process = None
        for feed in feeds:
            feed.mark()

    def start(self, moment="none", names=None, followed=None):
        """Start the driver.

        Args:
            moment: The moment at which each query stops.
            names: The databases that have a query in this run; None for all.
            followed: The options of one more query, which never stops, or None.
        """
        self.moment = moment
        self.running = [feed for feed in self.feeds if names is None or feed.name in names]
        given = {feed.name: {**feed.options(), "maxRecordsPerTrigger": str(LIMIT)} for feed in self.running}
        if followed is not None:
            given["followed"] = followed
        (self.folder / "go").unlink(missing_ok=True)
        self.log = self.folder / f"log-{moment}"
        options = {"queries": given, "master": self.master, "events": EVENTS, "moment": moment}
        self.process = start_driver("queries", self.folder, self.log, self.version, **options)

    def write(self, part=None, names=None):
        """When every query has fixed its start, change the databases."""
        self.wait(lambda place: (place / "checkpoint" / "commits" / "0").exists())
        for feed in self.running:
            if names is None or feed.name in names:
                feed.write(part)

    def places(self):
        return [self.folder / feed.name for feed in self.running]

    def wait(self, condition):
        """Wait until the folder of every query fulfils a condition."""

        def holds():
            assert self.process.poll() is None, self.log.read_text()[-5000:]
            return all(condition(place) for place in self.places())

        wait_until(holds, seconds=SECONDS)

    def reach(self):
        """Wait until every query has stopped at the given moment.

        Return the processes in which the queries wait.
        """
        self.wait(lambda place: (place / f"reached-{self.moment}").exists())
        return [int((place / f"reached-{self.moment}").read_text() or 0) for place in self.places()]

    def kill(self):
        """Kill the driver and its JVM.

        Both processes are stopped first, so that neither of them runs after the other is killed.
        """
        jvm = int((self.folder / "jvm").read_text())
        os.kill(jvm, signal.SIGSTOP)
        if self.moment == "commit":
            # Each sink returns, but Spark's JVM is stopped and does not notice.
            (self.folder / "go").touch()
            self.wait(lambda place: int((place / "returned").read_text()) == max(marks(place, "offsets")))
        os.kill(self.process.pid, signal.SIGSTOP)
        for pid in (jvm, self.process.pid):
            os.kill(pid, signal.SIGKILL)
        end(self.process)

    def wait_for_more(self, than):
        """Wait until every query has delivered more events."""
        self.wait(lambda place: len(rows_of(place)) > than)

    def end(self):
        assert self.process.wait(SECONDS) == 0, self.log.read_text()[-5000:]

    def check(self):
        """Check that each event was delivered once, and that repeated batches are correct.

        A repeated batch must have the same rows and stay within the limit. The last run must include all
        queries.
        """
        for feed, place in zip(self.feeds, self.places(), strict=True):
            rows = rows_of(place)
            assert sorted(rows) == feed.ids()
            assert len(rows) == EVENTS
            came = {}
            for file in (place / "deliveries").iterdir():
                came.setdefault(file.name.partition("-")[0], []).append(json.loads(file.read_text()))
            assert all(again == first for first, *rest in came.values() for again in rest)
            assert max(len(first) for first, *_ in came.values()) <= LIMIT


def end(process):
    """Kill a program and every process that it has started; all of them run in its session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def rows_of(place):
    return [row for file in (place / "rows").iterdir() for row in json.loads(file.read_text())]


def marks(place, kind):
    return {int(path.name) for path in (place / "checkpoint" / kind).iterdir() if path.name.isdigit()}
