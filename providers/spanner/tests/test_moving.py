"""Tests that the two programs of the page "Moving from Spanner's own query" print the same text."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from google.cloud import spanner

from .servers.emulator import STILL

pytestmark = pytest.mark.emulator(*STILL)

PAGE = (Path(__file__).resolve().parents[3] / "docs/moving/spanner.md").read_text(encoding="utf-8")
PROGRAMS = dict(re.findall(r'^```python title="([^"]+)"\n(.*?)^```$', PAGE, re.DOTALL | re.MULTILINE))
(SAID,) = re.findall(r"^```text\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
ORDERS = "CREATE TABLE orders (id STRING(36) NOT NULL, status STRING(MAX)) PRIMARY KEY (id)"
OTHERS = "CREATE TABLE others (id STRING(36) NOT NULL) PRIMARY KEY (id)"
STREAM = "CREATE CHANGE STREAM orders_stream FOR orders, others OPTIONS (value_capture_type = 'NEW_ROW')"


def run(name):
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAMS[name]], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture
def database(still, monkeypatch, tmp_path):
    """Make the instance that the documentation page uses, and a database in this instance."""
    monkeypatch.setenv("SPANNER_EMULATOR_HOST", still.host)
    monkeypatch.chdir(tmp_path)
    instance = spanner.Client("my-project").instance(
        "main", configuration_name="projects/my-project/instanceConfigs/emulator-config", node_count=1
    )
    instance.create().result(60)
    database = instance.database("shop", ddl_statements=[ORDERS, OTHERS, STREAM])
    database.create().result(60)
    yield database
    database.drop()
    instance.delete()


def test_both_programs_print_what_the_page_says(database):
    with database.batch() as batch:
        batch.insert("orders", ("id", "status"), [["o-0", "before the position"]])
    with database.snapshot() as snapshot:
        ((position,),) = snapshot.execute_sql("SELECT CURRENT_TIMESTAMP()")
    Path("position.txt").write_text(position.isoformat())
    with database.batch() as batch:
        batch.insert("orders", ("id", "status"), [["o-1", "new"]])
    with database.batch() as batch:
        batch.update("orders", ("id", "status"), [["o-1", "paid"]])
        batch.insert("others", ("id",), [["not of this table"]])
    with database.batch() as batch:
        batch.insert("orders", ("id", "status"), [["o-2", "new"]])
    with database.batch() as batch:
        batch.delete("orders", spanner.KeySet(keys=[["o-1"]]))
    assert run("theirs.py") == SAID
    assert run("ours.py") == SAID
