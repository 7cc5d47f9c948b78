"""Tests the source on older minor versions of Spark 4, next to another source, in separate processes.

`test_databases.py` tests the other source on the Spark version that all other tests use.
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
from .environments import DIGESTS, build_in_background, environment
from .foreign import install
from .jvm_settings import environment_of
from .test_source import through_the_client

PROGRAM = Path(__file__).with_name("life.py")
SECONDS = 400


class Life:
    """The results of the program on one version.

    Attributes:
        version: The version of PySpark that was used.
        facts: The results that the program recorded.
        written: The ids of all events in the source, as the test itself reads them.
    """

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
        self.run("first", -signal.SIGKILL)
        self.run("second", 0)
        self.facts = {}
        for line in (folder / "facts").read_text().splitlines():
            self.facts |= json.loads(line)

    def run(self, part, status):
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


@pytest.fixture(scope="module")
def building():
    """Download the later versions while the first version is running."""
    with build_in_background() as process:
        yield
        process.wait()


@pytest.fixture(scope="module", params=DIGESTS)
def life(request, building, tmp_path_factory):
    return Life(request.param, tmp_path_factory.mktemp("life"))


def test_both_sources_are_found_and_a_batch_has_every_event(life):
    assert life.facts["version"] == life.version
    assert life.facts["foreign"] == [42]
    assert sorted(life.facts["batch"]) == life.written


def test_streams_that_end_deliver_every_event_once_within_the_limit(life):
    assert sorted(life.facts["ended"]) == life.written
    sizes = [len(json.loads(file.read_text())) for file in (life.folder / "ended").iterdir()]
    assert max(sizes) == 60
    # From 4.2 on, one run reads everything; in earlier versions, each run is one batch.
    assert (life.facts["runs"] == 1) == (life.version >= "4.2")


def test_batch_that_was_planned_and_not_done_comes_again_with_the_same_rows(life):
    assert life.facts["replayed"]
    assert life.facts["same"]


def test_unknown_position_is_refused_before_an_offset_is_written(life):
    assert life.facts["offsets_stay"]
    if life.version < "4.2":
        category, message = life.facts["refused"]
        assert category == "INVALID_REQUEST"
        assert "spark.sql.streaming.triggerAvailableNowWrapper.enabled" in message
    else:
        assert life.facts["refused"] is None


def test_nothing_is_lost_or_doubled_by_a_kill_of_driver_and_jvm(life):
    assert sorted(life.facts["followed"]) == life.written
