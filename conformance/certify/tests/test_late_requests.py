"""Tests what a harness does if a request of a killed process, or a first try, is carried out late."""

import itertools

import pytest
from google.api_core.exceptions import GoogleAPICallError, NotFound

from multiclouddb_certify import Run
from multiclouddb_certify.certification import PREFIX, load_certification
from multiclouddb_certify.spanner import SpannerHarness
from multiclouddb_conformance.harness import CollectionKind
from multiclouddb_cosmos_emulator import CosmosEmulator
from multiclouddb_spanner_emulator import ScriptedSpanner
from multiclouddb_spanner_emulator.database import Database
from testing.provider_servers import server_module


@pytest.fixture
def spanner():
    with ScriptedSpanner() as server:
        server.create("projects/tests/instances/tests/databases/shop")
        yield f"spanner://tests/tests?emulator_host={server.host}"


@pytest.fixture
def cosmos(monkeypatch):
    with CosmosEmulator() as server:
        monkeypatch.setenv("AZURE_COSMOS_KEY", server.key)
        yield f"cosmos://{server.endpoint.split('/')[2]}?tls=false"


@pytest.fixture(params=["spanner", "cosmos", "dynamo", "mongo"])
def url(request):
    if request.param == "mongo":
        module = server_module("mongo", "mongod")
        yield module.shared("certify", oplog_mb=1, auth=True).uri()
        module.stop()
    else:
        found = request.getfixturevalue(request.param)
        yield found if isinstance(found, str) else found.url


def opened(url, run, folder, monkeypatch):
    """Return the harness of a process of its own, which counts its names from the beginning."""
    certification = load_certification(url)
    made = certification.drill(url, run)
    module = __import__(type(certification).__module__, fromlist=["_COUNTER"])
    monkeypatch.setattr(module, "_COUNTER", itertools.count(7))
    harness = made(folder)
    harness.open()
    return harness


def removed(url):
    certification = load_certification(url)
    for name in [*certification.found(url)]:
        certification.remove(url, name)
        certification.remove(url, name)
    assert [*certification.found(url)] == []


def test_a_collection_that_was_created_late_is_the_one_that_is_wanted(url, tmp_path, monkeypatch):
    run = Run.new()
    first = opened(url, run, tmp_path, monkeypatch)
    address = first.create("drill", CollectionKind.PLAIN, 1)
    first.keep()
    first.close()
    second = opened(url, run, tmp_path, monkeypatch)
    assert second.create("drill", CollectionKind.PLAIN, 1) == address
    second.close()
    removed(url)


def test_a_collection_of_nobodys_run_is_not_taken(url, tmp_path, monkeypatch):
    """A name without the random part of a run may be another process's."""
    run = Run.new()
    monkeypatch.setattr(Run, "prefix", property(lambda run: f"{PREFIX}x"))
    first = opened(url, run, tmp_path, monkeypatch)
    first.create("drill", CollectionKind.PLAIN, 1)
    second = opened(url, run, tmp_path, monkeypatch)
    with pytest.raises(Exception, match=r"(?i)exist|in ?use|duplicate|conflict"):
        second.create("drill", CollectionKind.PLAIN, 1)
    second.keep()
    second.close()
    first.close()


class TestSchemaOfSpanner:
    @pytest.fixture
    def harness(self, spanner, tmp_path):
        made = type("Harness", (SpannerHarness,), {"url": spanner})(tmp_path)
        made.open()
        yield made
        made.close()

    @pytest.fixture
    def late(self, monkeypatch):
        """Let each DDL statement be carried out twice: a late one first, between the look and the request."""
        execute, told = Database.execute, []

        def twice(database, statement):
            if statement.startswith("ALTER"):
                execute(database, statement)
            try:
                execute(database, statement)
            except Exception as error:
                told.append(str(error))
                raise

        monkeypatch.setattr(Database, "execute", twice)
        return told

    def columns(self, harness, address):
        database = harness.instance.database(address.database)
        with database.snapshot() as snapshot:
            rows = snapshot.execute_sql("SELECT COLUMN_NAME FROM INFORMATION_SCHEMA.COLUMNS")
            return [row[0] for row in rows if row[0] == "certify_extra"]

    def test_a_column_that_was_added_late_is_there(self, harness, late):
        address = harness.create("drill", CollectionKind.PLAIN, 1)
        harness.alter(address, column=True)
        assert (len(late), self.columns(harness, address)) == (1, ["certify_extra"])

    def test_a_column_that_was_dropped_late_is_gone(self, harness, request):
        address = harness.create("drill", CollectionKind.PLAIN, 1)
        harness.alter(address, column=True)
        late = request.getfixturevalue("late")
        harness.alter(address, column=False)
        assert (len(late), self.columns(harness, address)) == (1, [])

    def test_what_is_done_is_not_done_again(self, harness, monkeypatch):
        address = harness.create("drill", CollectionKind.PLAIN, 1)
        asked, execute = [], Database.execute

        def noted(database, statement):
            asked.append(statement)
            execute(database, statement)

        monkeypatch.setattr(Database, "execute", noted)
        for column in (False, True, True, False, False, True):
            harness.alter(address, column=column)
        assert [" ".join(each.split()[3:5]) for each in asked] == ["ADD COLUMN", "DROP COLUMN", "ADD COLUMN"]

    def test_a_refusal_is_raised_if_the_schema_is_not_as_wanted(self, harness):
        address = harness.create("drill", CollectionKind.PLAIN, 1)
        harness.run(["DROP CHANGE STREAM drill_stream", "DROP TABLE drill"])
        with pytest.raises(GoogleAPICallError, match="Table not found"):
            harness.alter(address, column=True)

    def test_a_database_that_is_gone_is_dropped(self, harness, monkeypatch):
        drop = type(harness.instance.database("any")).drop

        def twice(database):
            drop(database)
            raise NotFound("Database not found")

        harness.create("drill", CollectionKind.PLAIN, 1)
        with monkeypatch.context() as patched:
            patched.setattr(type(harness.databases[0]), "drop", twice)
            harness.close()
        harness.databases.clear()
