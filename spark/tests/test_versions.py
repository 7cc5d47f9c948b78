"""Tests the source on older minor versions of Spark 4, next to another source, in separate processes.

`make test` runs the oldest version; `test_connect.py` and all other tests run the newest one.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from multiclouddb_embedded import EmbeddedStore

from .conftest import Source
from .environments import DIGESTS, environment
from .foreign import install
from .jvm_settings import environment_of
from .test_source import through_the_client

pytestmark = pytest.mark.xdist_group("jvm apart")

PROGRAM = Path(__file__).with_name("life.py")
SECONDS = 400
OLDEST, *OTHERS = DIGESTS


class Life:
    """Runs the program on one version; `written` are the ids of all events, as the test itself reads them."""

    def __init__(self, version, folder):
        self.version, self.folder = version, folder
        self.foreign = install(folder)
        with EmbeddedStore(folder / "store.db", durable=False) as store:
            source = Source(store)
            source.write(70)
            source.split()
            source.write(50)
            source.merge(1)
            source.write(30)
            self.written = sorted(row["event_id"] for row in through_the_client(source))
        (folder / "count").write_text(str(len(self.written)))

    def run(self, part, status=0):
        """Run one part of the program, and return what all parts so far have recorded."""
        place = environment(self.version)
        folders = [place, self.foreign, *filter(None, [os.environ.get("PYTHONPATH")])]
        path = os.pathsep.join(map(str, folders))
        ran = subprocess.run(
            [sys.executable, str(PROGRAM), str(self.folder), part],
            env={**os.environ, **environment_of(place), "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert ran.returncode == status, ran.stdout + ran.stderr
        noise = [line for line in ran.stderr.splitlines() if not line.startswith("WARNING: ")]
        assert noise == [], "a session prints nothing; only Java's launcher does"
        facts = self.folder / "facts"
        return dict(fact for line in facts.read_text().splitlines() for fact in json.loads(line).items())


@pytest.mark.parametrize(
    "version", [OLDEST, *(pytest.param(version, marks=pytest.mark.soak) for version in OTHERS)]
)
def test_batches_and_streams_that_end_deliver_every_event_once(version, tmp_path):
    life = Life(version, tmp_path)
    facts = life.run("ended")
    assert (facts["version"], facts["foreign"]) == (version, [42]), "both sources are found"
    assert sorted(facts["batch"]) == life.written
    assert sorted(facts["ended"]) == life.written
    sizes = [len(json.loads(file.read_text())) for file in (tmp_path / "ended").iterdir()]
    assert max(sizes) == 60
    # From 4.2 on, one run reads everything; in earlier versions, each run is one batch.
    assert (facts["runs"] == 1) == (version >= "4.2")
    assert (facts["replayed"], facts["same"]) == (True, True), "a batch that was not done comes again"
    assert facts["offsets_stay"]
    if version < "4.2":
        category, message = facts["refused"]
        assert category == "INVALID_REQUEST"
        assert "spark.sql.streaming.triggerAvailableNowWrapper.enabled" in message
    else:
        assert facts["refused"] is None


@pytest.mark.soak
@pytest.mark.parametrize("version", DIGESTS)
def test_nothing_is_lost_or_doubled_by_a_kill_of_driver_and_jvm(version, tmp_path):
    life = Life(version, tmp_path)
    life.run("killed", -signal.SIGKILL)
    assert sorted(life.run("resumed")["followed"]) == life.written
