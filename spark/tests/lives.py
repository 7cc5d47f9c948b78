"""Runs `database_life.py` on a version of Spark, and searches everything that it leaves for secrets."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyspark

PROGRAM = Path(__file__).with_name("database_life.py")
ENVIRONMENTS = Path(__file__).with_name("environments.py")
SECONDS = 400
VERSIONS = (pyspark.__version__, "4.0.5")


def live(folder, version, options, count, secrets, write=None, **environ):
    """Check that every event came once and that no secret can be found.

    With the version of `.venv` the query is killed once.

    Args:
        folder: An empty folder.
        version: The version of PySpark to use.
        options: The options of the source.
        count: The number of events in the feed.
        secrets: Texts that must not be found anywhere.
        write: Makes the events, for a database whose queries start at the present; in that case the query is
            not killed.
        environ: Environment variables for the program.
    """
    log = folder / "log"
    given = {**options, "maxRecordsPerTrigger": str(max(count // 2, 1))}
    command = [sys.executable, str(PROGRAM), str(folder), json.dumps(given), str(count)]
    path = []
    if version != pyspark.__version__:
        located = [sys.executable, str(ENVIRONMENTS), version]
        path = [subprocess.run(located, capture_output=True, text=True, check=True).stdout.strip()]
    path += filter(None, [os.environ.get("PYTHONPATH")])
    environ = {**os.environ, **environ, "PYTHONPATH": os.pathsep.join(path)}

    def run(status, *more):
        with log.open("a") as out:
            ended = subprocess.run(
                [*command, *more], env=environ, stdout=out, stderr=out, timeout=SECONDS, check=False
            )
        assert ended.returncode == status, log.read_text()[-5000:]

    if write is not None:
        run(0, "pin")
        write()
    elif version == pyspark.__version__:
        run(-signal.SIGKILL, "die")
    run(0)
    rows = [row for file in (folder / "rows").iterdir() for row in json.loads(file.read_text())]
    assert len(rows) == len(set(rows)) == count
    if write is None:
        assert f"={count})" in (folder / "shown" / "batch").read_text()
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert len([file for file in files if "page-" in file.name]) >= 10
    assert any("events" in file.parts for file in files)
    found = [(file, secret) for file in files for secret in secrets if secret.encode() in file.read_bytes()]
    assert found == []
    return folder
