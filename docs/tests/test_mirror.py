"""Checks the commands and the cron lines of the nightly job.

A good night prints nothing, every failure something, and the table has every document at the end.
"""

import re
import sqlite3
import subprocess
import sys
from contextlib import closing

import psycopg
import pytest
from deltalake import DeltaTable
from pymongo import UpdateOne

from multiclouddb_embedded import EmbeddedStore
from testing.postgres_server import PostgresServer

from .page import Page, servers

PAGE = Page("jobs/mirror-nightly.md")
[SCRIPT] = re.findall(r'^```sh title="night.sh"\n(.*?)^```$', PAGE.text, re.DOTALL | re.MULTILINE)
LINES = re.findall(r"^ +\d+ [\d*]+ \* \* [\d*-]+ +(sh .*)$", PAGE.text, re.MULTILINE)
TABLES = ("Delta", "PostgreSQL", "SQLite")
LARGE = "x" * 40_000
"""A text so long that 600 changes of its document do not fit on one page."""


def target_of(table):
    """Return the page's target of this kind of table."""
    [found] = re.findall(rf'^=== "{table}"\n\n    ```sh\n    target=(.*)$', PAGE.text, re.MULTILINE)
    return found


# The command is the same for each table. `make test` runs what does not depend on the table with the first.
IN_SOAK = [TABLES[0], *(pytest.param(table, marks=pytest.mark.soak) for table in TABLES[1:])]


@pytest.fixture(scope="module")
def postgres():
    with PostgresServer() as made:
        yield made


@pytest.fixture(scope="module")
def replica_set(tmp_path_factory):
    with servers("mongo")("mongod").ReplicaSet(tmp_path_factory.mktemp("mongod")) as made:
        yield made


class Job:
    """The job in a folder, as the page says, but with the tests' database and PostgreSQL."""

    def __init__(self, folder, table, connection, collection, postgres=None):
        self.folder, self.table, self.postgres = folder, table, postgres
        ours = {"/data/": f"{folder.parent}/data/", "//mirror@db2.example.com/shop": "///postgres"}
        ours |= {"/srv/mirror": str(folder), "shop/orders": collection}
        self.names = {"target": replaced(target_of(table), ours)}
        self.place = self.names["target"].partition(":")[2].partition("#")[0]
        self.job, self.proof, self.alarm = (replaced(line, ours) for line in LINES)
        secrets = f"export SHOP={folder.parent}/shop.db PGUSER=postgres"
        if postgres is not None:
            secrets += f" PGHOST={postgres.folder}"
        files = {"night.sh": SCRIPT, "mongo.toml": connection, "password": secrets}
        folder.mkdir()
        (folder.parent / "data").mkdir()
        for name, text in files.items():
            (folder / name).write_text(text + "\n", encoding="utf-8")
        (folder / ".venv").symlink_to(sys.prefix)

    def by_cron(self, line):
        """Run a line as cron does; return its exit code and what would be mailed."""
        words = ["/bin/sh", "-c", line]
        ended = subprocess.run(words, cwd="/", env=self.names, capture_output=True, text=True)
        return ended.returncode, ended.stdout + ended.stderr

    def execute(self, statement):
        """Run a statement of SQL, and return the rows that it finds."""
        opened = sqlite3.connect(self.place) if self.postgres is None else psycopg.connect(self.postgres.dsn)
        with closing(opened) as database:
            found = database.execute(statement)
            rows = found.fetchall() if found.description else []
            database.commit()
        return rows

    def rows(self):
        """Return for each key whether its row is a tombstone."""
        if self.table == "Delta":
            found = DeltaTable(self.place).to_pyarrow_table(columns=["key", "_deleted_at"]).to_pylist()
            return {row["key"]: row["_deleted_at"] is not None for row in found}
        return {
            key: bool(is_gone)
            for key, is_gone in self.execute("SELECT key, _deleted_at IS NOT NULL FROM orders")
        }


def replaced(text, values):
    for old, new in values.items():
        text = text.replace(old, new)
    return text


@pytest.fixture
def made(tmp_path, request):
    """Return a function that makes the job with a kind of table, on an embedded store or a connection."""

    def make(table, connection=None, collection="shop/orders"):
        postgres = request.getfixturevalue("postgres") if table == "PostgreSQL" else None
        if postgres is not None:
            with psycopg.connect(postgres.dsn) as database:
                database.execute("DROP SCHEMA public CASCADE")
                database.execute("CREATE SCHEMA public")
        if connection is None:
            with EmbeddedStore(tmp_path / "shop.db") as store:
                store.create_collection("orders")
                store.put("orders", "o-1", {"total": 1})
            connection = 'provider = "embedded"\n[connection]\npath = { env = "SHOP" }'
            collection = "main/orders"
        return Job(tmp_path / "mirror", table, connection, collection, postgres)

    return make


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES)
def test_good_nights_print_nothing_and_an_alarm_is_told(table, made):
    job = made(table)
    for line in (job.job, job.alarm):
        assert job.by_cron(line) == (0, "")
    assert job.rows() == {'{"id":"o-1"}': False}
    with EmbeddedStore(job.folder.parent / "shop.db") as store:
        store.put("orders", "o-2", {"total": 2})
    code, told = job.by_cron(job.alarm.replace("26h", "0s"))
    assert code == 15, told
    assert "ended with 15" in told
    assert "error: [LATE]" in told
    assert job.by_cron(job.proof) == (0, "")
    assert len(job.rows()) == 2


@pytest.mark.parametrize("table", IN_SOAK)
def test_a_document_that_is_deleted_after_its_update_does_not_stop_the_job(table, made, replica_set):
    """Without images, a server has no document for an update that is read after the delete."""
    shop = replica_set.client()["shop"]
    shop.drop_collection("orders")
    orders = shop.create_collection("orders")
    orders.insert_many([{"_id": "o-1"}, {"_id": "o-2", "text": LARGE}])
    job = made(table, f'provider = "mongo"\n[connection]\nurl = "{replica_set.uri()}"')
    assert job.by_cron(job.job) == (0, "")
    orders.update_one({"_id": "o-1"}, {"$set": {"total": 1}})
    orders.bulk_write([UpdateOne({"_id": "o-2"}, {"$set": {"total": number}}) for number in range(600)])
    orders.delete_one({"_id": "o-1"})
    assert job.by_cron(job.job) == (0, "")
    assert job.rows() == {'{"_id":"o-1"}': True, '{"_id":"o-2"}': False}


@pytest.mark.parametrize("missing", ["mongo.toml", "password", ".venv", "night.sh", "."])
def test_whatever_is_missing_is_told(made, missing):
    job = made("Delta")
    gone = job.folder / missing
    gone.rename(job.folder.parent / "gone")
    code, told = job.by_cron(job.job)
    assert code != 0
    assert told.strip()


def test_a_killed_job_is_told(made):
    job = made("Delta")
    code, told = job.by_cron(re.sub("multiclouddb mirror .*", "sh -c 'kill -9 $$'", job.job))
    assert code == 137
    assert "ended with 137" in told


def test_a_damaged_row_is_told_by_the_proof(made):
    job = made("SQLite")
    assert job.by_cron(job.job) == (0, "")
    job.execute("UPDATE orders SET new_item_state = '{}'")
    code, told = job.by_cron(job.proof)
    assert code == 11
    assert "DIFFERENT" in told


AGED = {
    "PostgreSQL": "now() - interval '31 days'",
    "SQLite": "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-31 days')",
}


@pytest.mark.parametrize("table", AGED)
def test_the_option_of_the_page_removes_old_tombstones_only(table, made):
    assert "`--tombstones 30d`" in PAGE.text
    job = made(table)
    tidies = job.job.replace("multiclouddb mirror ", "multiclouddb mirror --tombstones 30d ")
    assert tidies != job.job
    assert job.by_cron(job.job) == (0, "")
    with EmbeddedStore(job.folder.parent / "shop.db") as store:
        store.delete("orders", "o-1")
    assert job.by_cron(tidies) == (0, "")
    assert job.rows() == {'{"id":"o-1"}': True}
    job.execute(f"UPDATE orders SET _deleted_at = {AGED[table]}")
    assert job.by_cron(tidies) == (0, "")
    assert job.rows() == {}
