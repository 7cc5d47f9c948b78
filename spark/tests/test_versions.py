"""Tests queries on each minor version of Spark 4 and on each database, next to another source, in separate
processes.

`make soak` runs them, because each version is downloaded and starts a JVM of its own. All other tests run the
newest version, and `make test-oldest` merges with the oldest one.
"""

import json

import pyspark
import pytest

from multiclouddb_conformance.waiting import wait_until
from testing.spark_output import complaints_in

from .drivers import EVENTS, SECONDS, end, rows_of, start_driver
from .environments import DIGESTS

SOURCE = """
from pyspark.sql.datasource import DataSource, DataSourceReader


class Reader(DataSourceReader):
    def read(self, partition):
        yield (42,)


class DefaultSource(DataSource):
    @classmethod
    def name(cls):
        return "foreign"

    def schema(self):
        return "n INT"

    def reader(self, schema):
        return Reader()
"""


def install(folder):
    package = folder / "foreign" / "pyspark_foreign"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(SOURCE)
    return package.parent


pytestmark = pytest.mark.xdist_group("jvm apart")

OLDEST, *OTHERS = DIGESTS
LIMIT = EVENTS // 2


def run(feeds, folder, version, *, shows=False, replays=True):
    """Run queries that end by themselves on these feeds; return what the driver has found out."""
    for feed in feeds:
        feed.mark()
    given = {feed.name: {**feed.options(), "maxRecordsPerTrigger": str(LIMIT)} for feed in feeds}
    log, path = folder / "log", [install(folder)]
    wanted = {"queries": given, "events": EVENTS, "shows": shows, "replays": replays}
    process = start_driver("ended", folder, log, version, path, **wanted)
    try:
        wait_until(lambda: (folder / "pinned").exists() or process.poll() is not None, SECONDS)
        assert process.poll() is None, log.read_text()[-5000:]
        for feed in feeds:
            feed.write()
        (folder / "written").touch()
        assert process.wait(SECONDS) == 0, log.read_text()[-5000:]
    finally:
        end(process)
    facts = json.loads((folder / "facts").read_text())
    assert (facts["version"], facts["foreign"]) == (version, 42), "both sources are found"
    assert all(facts["replayed"]), "a batch that was not completed comes again with the same rows"
    for feed in feeds:
        assert sorted(rows_of(folder / feed.name)) == feed.ids()
        assert len(feed.ids()) == EVENTS
        sizes = [len(json.loads(file.read_text())) for file in (folder / feed.name / "rows").iterdir()]
        assert max(sizes) == LIMIT
    return facts


@pytest.mark.soak
@pytest.mark.parametrize("version", [OLDEST, *OTHERS])
def test_batches_and_streams_that_end_deliver_every_event_once(databases, tmp_path, version):
    [feed] = databases(f"ended{version}", "embedded")
    # On the oldest version, a soak test replays a batch of several databases.
    facts = run([feed], tmp_path, version, replays=version != OLDEST)
    lines = complaints_in((tmp_path / "log").read_text()).splitlines()
    noise = [line for line in lines if not line.startswith("WARNING: ")]
    assert noise == [], "a session prints nothing; only Java's launcher does"
    assert sorted(facts["batch"]) == feed.ids()
    # From 4.2 on, one run reads everything; in earlier versions, each run is one batch.
    assert (facts["runs"] == [1]) == (version >= "4.2")
    if version < "4.2":
        category, message = facts["refused"]
        assert category == "INVALID_REQUEST"
        assert "spark.sql.streaming.triggerAvailableNowWrapper.enabled" in message
        category, message = facts["replaced"]
        assert category == "INVALID_REQUEST"
        assert "function coalesce: is not Spark's own in this session" in message
    else:
        assert facts["refused"] is None
        assert facts["replaced"] == ["2"], "Spark finds its own function first"


@pytest.mark.soak
@pytest.mark.parametrize("version", [pyspark.__version__, OLDEST])
def test_no_secret_of_a_database_is_shown_or_written(databases, tmp_path, version):
    names = ["dynamo", "mongo", "cosmos"]
    feeds = list(databases(f"life{version[:3].replace('.', '')}", *names))
    run(feeds, tmp_path, version, shows=True)
    for feed in feeds:
        shown = tmp_path / "shown" / f"{feed.name}-batch"
        assert feed.position == "now" or f"={EVENTS})" in shown.read_text()
    files = [file for file in tmp_path.rglob("*") if file.is_file() and file.name != "given"]
    assert len([file for file in files if "page-" in file.name]) >= 10
    assert any("events" in file.parts for file in files)
    secrets = {secret for feed in feeds for secret in feed.secrets}
    found = [(file, secret) for file in files for secret in secrets if secret.encode() in file.read_bytes()]
    assert found == []
