"""Runs short queries on every database with a secret: each event is delivered once, and no secret is
shown."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from multiclouddb_conformance.waiting import wait_until

from .databases import EVENTS
from .environments import environment
from .foreign import install
from .jvm_settings import environment_of

pytestmark = pytest.mark.xdist_group("jvm apart")

PROGRAM = Path(__file__).with_name("database_life.py")
SECONDS = 400


@pytest.mark.soak
@pytest.mark.parametrize("version", [pyspark.__version__, "4.0.5"])
def test_life(databases, tmp_path, version):
    names = ["dynamo", "mongo", "cosmos"]
    feeds = list(databases(f"life{version[:3].replace('.', '')}", *names))
    for feed in feeds:
        feed.mark()
    given = {feed.name: {**feed.options(), "maxRecordsPerTrigger": str(EVENTS // 2)} for feed in feeds}
    path, variables = [], {}
    if version != pyspark.__version__:
        path, variables = [str(environment(version))], environment_of(environment(version))
    path += [str(install(tmp_path)), *filter(None, [os.environ.get("PYTHONPATH")])]
    log = tmp_path / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(tmp_path), json.dumps(given), str(EVENTS)],
            env={**os.environ, **variables, "PYTHONPATH": os.pathsep.join(path)},
            stdout=out,
            stderr=out,
        )
        try:
            wait_until(lambda: (tmp_path / "pinned").exists() or process.poll() is not None, SECONDS)
            assert process.poll() is None, log.read_text()[-5000:]
            for feed in feeds:
                feed.write()
            (tmp_path / "written").touch()
            assert process.wait(SECONDS) == 0, log.read_text()[-5000:]
        finally:
            process.kill()
            process.wait()
    for feed in feeds:
        rows = [
            row for file in (tmp_path / "rows" / feed.name).iterdir() for row in json.loads(file.read_text())
        ]
        assert sorted(rows) == feed.ids()
        assert len(rows) == EVENTS
        shown = tmp_path / "shown" / f"{feed.name}-batch"
        assert feed.position == "now" or f"={EVENTS})" in shown.read_text()
    assert (tmp_path / "shown" / "foreign").read_text() == "42"
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert len([file for file in files if "page-" in file.name]) >= 10
    assert any("events" in file.parts for file in files)
    secrets = {secret for feed in feeds for secret in feed.secrets}
    found = [(file, secret) for file in files for secret in secrets if secret.encode() in file.read_bytes()]
    assert found == []
