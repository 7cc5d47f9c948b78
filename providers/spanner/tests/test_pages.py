"""Checks the pages about Spanner with the emulator: their statements and programs, and what these print."""

import re
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from google.cloud import spanner
from google.cloud.spanner_admin_database_v1 import DatabaseDialect

from multiclouddb_api import Beginning, ChangeFeedRequest, OldItemStateMode, ResourceAddress, connect
from testing.command_line import said

from .servers.emulator import STILL

pytestmark = pytest.mark.emulator(*STILL)

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "databases/spanner.md").read_text(encoding="utf-8")
MOVING = (DOCS / "jobs/leave-another-reader.md").read_text(encoding="utf-8")
QUERY = (DOCS / "tests/moving/spanner_query.py").read_text(encoding="utf-8")
MOVED = (
    "CREATE TABLE orders (id STRING(36) NOT NULL, status STRING(MAX)) PRIMARY KEY (id)",
    "CREATE TABLE others (id STRING(36) NOT NULL) PRIMARY KEY (id)",
    "CREATE CHANGE STREAM orders_stream FOR orders, others OPTIONS (value_capture_type = 'NEW_ROW')",
)


def blocks(page, head):
    return re.findall(rf"^```{head}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def run(page, name):
    (program,) = blocks(page, f'python title="{name}"')
    return output(program, name)


def output(program, name):
    with redirect_stdout(StringIO()) as printed:
        exec(compile(program, name, "exec"), {"__name__": "__main__"})
    return printed.getvalue()


@pytest.fixture
def made(own, monkeypatch, tmp_path):
    """Provide a function that makes the database of the pages, in a new instance."""
    monkeypatch.setenv("SPANNER_EMULATOR_HOST", own.host)
    monkeypatch.chdir(tmp_path)

    @contextmanager
    def make(statements, dialect=DatabaseDialect.GOOGLE_STANDARD_SQL):
        instance = spanner.Client("my-project").instance(
            "main", configuration_name="projects/my-project/instanceConfigs/emulator-config", node_count=1
        )
        instance.create().result(60)
        database = instance.database("shop", database_dialect=dialect)
        database.create().result(60)
        database.update_ddl(statements).result(60)
        yield database

    return make


@pytest.mark.parametrize(
    ("language", "dialect"),
    [("sql", DatabaseDialect.GOOGLE_STANDARD_SQL), ("postgresql", DatabaseDialect.POSTGRESQL)],
)
def test_from_an_empty_instance_to_the_first_event(made, language, dialect):
    block = blocks(PAGE, language)[0]
    with made([each.strip() for each in block.split(";") if each.strip()], dialect):
        run(PAGE, "write.py")
        assert run(PAGE, "first.py") == blocks(PAGE[PAGE.index('title="first.py"') :], "text")[0]
        with connect("spanner://my-project/main") as client:
            old = {"old_item_state_mode": OldItemStateMode.REQUIRE}
            request = ChangeFeedRequest(ResourceAddress("shop", "orders"), Beginning(), **old)
            events = client.read_changes(request).events
        assert [bool(event.old_item_state) for event in events] == [False, True, True]
        if language == "sql":
            for line in re.findall(r"^multiclouddb (.*)$", "".join(blocks(PAGE, "sh")), re.MULTILINE):
                said(*line.split(), *(["--until-idle"] if line.startswith("tail") else []))


@pytest.mark.parametrize(
    ("word", "dialect"),
    [("OPTIONS", DatabaseDialect.GOOGLE_STANDARD_SQL), ("WITH", DatabaseDialect.POSTGRESQL)],
)
def test_a_whole_database(made, word, dialect):
    whole = PAGE[PAGE.index("### A whole database") :]
    table = blocks(PAGE, "sql" if word == "OPTIONS" else "postgresql")[0].partition(";")[0]
    stream = blocks(whole, "sql")[0].strip().rstrip(";").replace("OPTIONS", word)
    with made([table, stream], dialect) as database:
        run(PAGE, "write.py")
        assert run(PAGE, "database.py") == blocks(whole, "text")[0]
        with database.batch() as batch:
            batch.insert("orders", ("id", "status"), [["o-2", "new"], ["o-3", "new"]])
        assert run(PAGE, "tables.py") == blocks(whole, "text")[1]


def test_both_programs_of_moving_print_what_the_page_says(made):
    with made(MOVED) as database:
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
        (printed,) = blocks(MOVING, "text")
        assert output(QUERY, "query.py") == run(MOVING, "spanner.py") == printed
