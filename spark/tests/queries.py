"""Runs queries on several databases in one driver. A test kills this driver."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from multiclouddb_conformance.waiting import wait_until

from .databases import EVENTS

PROGRAM = Path(__file__).with_name("queries_life.py")
SECONDS = 300
LIMIT = 20


class Queries:
    """Runs one query for each of several feeds.

    Attributes:
        folder: The folder with the files of all queries.
        feeds: The feeds that the queries read.
        process: The driver; None before `start`.
    """

    def __init__(self, folder, feeds, master="local[4,2]"):
        self.folder, self.feeds, self.master = folder, feeds, master
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
        (self.folder / "queries").write_text(json.dumps(given))
        (self.folder / "go").unlink(missing_ok=True)
        self.log = self.folder / f"log-{moment}"
        command = [sys.executable, str(PROGRAM), str(self.folder), self.master, str(EVENTS), moment]
        with self.log.open("a") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)

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
        self.clean()

    def wait_for_more(self, than):
        """Wait until every query has delivered more events."""
        self.wait(lambda place: len(rows_of(place)) > than)

    def clean(self):
        """Kill every process that the driver has started. All of them run in the driver's session."""
        if self.process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

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


def rows_of(place):
    return [row for file in (place / "rows").iterdir() for row in json.loads(file.read_text())]


def marks(place, kind):
    return {int(path.name) for path in (place / "checkpoint" / kind).iterdir() if path.name.isdigit()}
