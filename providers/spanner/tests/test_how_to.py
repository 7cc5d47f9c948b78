"""Checks the page about Spanner with the emulator: its statements in both dialects, and its programs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from google.cloud import spanner
from google.cloud.spanner_admin_database_v1 import DatabaseDialect

from multiclouddb_api import Beginning, ChangeFeedRequest, OldItemStateMode, ResourceAddress, connect
from multiclouddb_conformance.command_line import said

from .servers.emulator import STILL

pytestmark = pytest.mark.emulator(*STILL)

PAGE = (Path(__file__).resolve().parents[3] / "docs/how-to/spanner.md").read_text(encoding="utf-8")
PROGRAMS = dict(re.findall(r'^```python title="([^"]+)"\n(.*?)^```$', PAGE, re.DOTALL | re.MULTILINE))
SHOP = ResourceAddress("shop", "orders")


def statements(language):
    (block,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return [each.strip() for each in block.split(";") if each.strip()]


@pytest.fixture(params=["sql", "postgresql"])
def shop(request, still, monkeypatch, tmp_path):
    """Make the database that the page uses, in a new instance."""
    monkeypatch.setenv("SPANNER_EMULATOR_HOST", still.host)
    monkeypatch.chdir(tmp_path)
    instance = spanner.Client("my-project").instance(
        "main", configuration_name="projects/my-project/instanceConfigs/emulator-config", node_count=1
    )
    instance.create().result(60)
    dialect = getattr(DatabaseDialect, {"sql": "GOOGLE_STANDARD_SQL"}.get(request.param, "POSTGRESQL"))
    database = instance.database("shop", database_dialect=dialect)
    database.create().result(60)
    database.update_ddl(statements(request.param)).result(60)
    yield database
    database.drop()
    instance.delete()


def run(name):
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAMS[name]], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_from_an_empty_instance_to_the_first_event(shop):
    run("write.py")
    end = PAGE.index('title="first.py"')
    (printed,) = re.findall(r"^```text\n(.*?)^```$", PAGE[end:], re.DOTALL | re.MULTILINE)[:1]
    assert run("first.py") == printed
    assert run("own_client.py") == "3\n"
    assert run("snapshot.py") == ""  # the row was deleted
    assert PROGRAMS.keys() == {"write.py", "first.py", "own_client.py", "snapshot.py"}
    for line in re.findall(r"^multiclouddb (.*)$", PAGE, re.MULTILINE):
        said(*line.split(), *(["--until-idle"] if line.startswith("tail") else []))


def test_a_stream_of_the_page_has_old_and_new_rows(shop):
    run("write.py")
    with connect("spanner://my-project/main") as client:
        request = ChangeFeedRequest(SHOP, Beginning(), old_item_state_mode=OldItemStateMode.REQUIRE)
        events = client.read_changes(request).events
    assert [bool(event.old_item_state) for event in events] == [False, True, True]


def test_every_way_that_it_fails_has_a_row():
    rows = PAGE[PAGE.index("## When it fails") :]
    found = set(re.findall(r"^\| `([A-Z_]+)`", rows, re.MULTILINE))
    assert found >= {"NOT_FOUND", "CHECKPOINT_EXPIRED", "INVALID_REQUEST", "UNSUPPORTED_CAPABILITY"}
