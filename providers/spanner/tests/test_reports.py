"""Tests what users of other readers of Spanner reported, and what Google documents."""

import re

import pytest
from google.cloud.spanner_admin_database_v1 import DatabaseDialect

from multiclouddb_api import Beginning, ErrorCategory, ResourceAddress, connect

from .servers.emulator import STILL
from .test_emulator import drained, refused

pytestmark = pytest.mark.emulator(*STILL)


@pytest.mark.parametrize("dialect", [None, DatabaseDialect.POSTGRESQL], ids=["googlesql", "postgresql"])
@pytest.mark.parametrize("name", ["order", "Group"])
def test_the_statement_that_an_error_prints_runs_if_the_table_has_the_name_of_a_keyword(still, dialect, name):
    """As `Order` and `Group` have, and tables that a mapper of objects has named."""
    if dialect is None:
        database = still.database(f"CREATE TABLE `{name}` (id STRING(9) NOT NULL) PRIMARY KEY (id)")
    else:
        database = still.database(
            f'CREATE TABLE "{name}" (id varchar(9) NOT NULL PRIMARY KEY)', dialect=dialect
        )
    try:
        here = ResourceAddress(database.database_id, name)
        with connect(still.url) as client:
            statement = re.search(
                r"CREATE CHANGE STREAM .*?\)", refused(ErrorCategory.NOT_FOUND, client, here)
            )
            database.update_ddl([statement[0]]).result(60)
            with database.batch() as batch:
                batch.insert(name, ["id"], [["a"]])
            assert [event.key.components["id"] for event in drained(client, here, Beginning())] == ["a"]
    finally:
        database.drop()
