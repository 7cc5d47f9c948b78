"""Tests sessions in which the name of one of Spark's functions means one of the user."""

import ast
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions

from multiclouddb_api import ErrorCategory, MulticloudDbError, connect
from multiclouddb_mirror import mirror
from multiclouddb_tables.delta import DeltaTarget
from pyspark_multiclouddb import (
    TableTarget,
    drop_tombstones,
    latest_by_key,
    merge_into_delta,
    merge_into_table,
    verify_with_spark,
)
from pyspark_multiclouddb import functions as checked
from pyspark_multiclouddb.functions import NAMES, _looks_own, check_functions

from .conftest import COLLECTION
from .micro_batches import rows
from .scala_catalog import table_in

ORDER = "spark.sql.functionResolution.sessionOrder"
PATH = "spark.sql.path.enabled"
TWO = rows(("a", 1, {"n": 1}), ("a", 2, {"n": 2}))


def older_first(order, *_):
    return f"{999_999 - int(order):06d}"


def none(*_):
    return None


@pytest.fixture
def session(spark):
    """Provide a session of its own, in which the user's functions come first."""
    own = spark.newSession()
    own.conf.set(ORDER, "first")
    return own


def refused(action, *names):
    with pytest.raises(MulticloudDbError, match=rf"functions? {', '.join(names)}: (is|are) ") as caught:
        action()
    assert caught.value.category == ErrorCategory.INVALID_REQUEST
    assert f"DROP TEMPORARY FUNCTION {names[0]};" in str(caught.value)


def test_nothing_is_merged_or_compared_by_a_function_of_the_user(session, source, path):
    """An older change would win, and nobody would be told."""
    frame, table = session.createDataFrame(TWO), table_in(session, path / "spark")
    merge_into_table(frame, 0, table, create_using="test")
    source.fill(2)
    session.udf.register("coalesce", older_first)
    with connect(source.options()["url"]) as client:
        for action in (
            lambda: latest_by_key(frame).collect(),
            lambda: merge_into_delta(frame, 0, path / "delta", "app"),
            lambda: merge_into_table(frame, 1, table),
            lambda: list(TableTarget(session, table).rows()),
            lambda: TableTarget(session, table).fix([], None),
            lambda: drop_tombstones(table, spark=session),
            lambda: verify_with_spark(session, client, COLLECTION, DeltaTarget(path / "delta")),
            lambda: mirror(client, COLLECTION, f"delta:{path / 'mirrored'}", spark=session),
        ):
            refused(action, "coalesce")
    session.sql("DROP TEMPORARY FUNCTION coalesce")
    assert [row.order_key for row in latest_by_key(frame).collect()] == ["000002"]


def test_each_name_is_noticed(session):
    missed = []
    for name in sorted(NAMES):
        session.udf.register(name, none, "string")
        missed += [name] if _looks_own(session) else []
        session.sql(f"DROP TEMPORARY FUNCTION `{name}`")
    assert missed == []
    assert _looks_own(session)


def test_several_names_are_told_together(session):
    for name in ("max", "explode", "order_first"):
        session.udf.register(name, none, "string")
    refused(lambda: check_functions(session), "explode", "max")


def test_a_path_that_puts_the_session_first_is_noticed(session):
    session.udf.register("coalesce", older_first)
    session.conf.set(ORDER, "second")
    check_functions(session)
    session.conf.set(PATH, "true")
    session.sql("SET PATH = system.session, system.builtin")
    refused(lambda: check_functions(session), "coalesce")


def test_a_function_in_sql_is_noticed(session):
    session.conf.set(ORDER, "second")
    session.sql("CREATE TEMPORARY FUNCTION length(s STRING) RETURNS INT COMMENT 'mine' RETURN 7")
    session.conf.set(ORDER, "first")
    refused(lambda: check_functions(session), "length")


def test_functions_after_those_of_spark_change_nothing(session):
    session.conf.set(ORDER, "second")
    session.udf.register("coalesce", older_first)
    [row] = latest_by_key(session.createDataFrame(TWO)).collect()
    assert row.order_key == "000002"


def test_the_check_runs_no_job_and_one_statement(spark, session, monkeypatch):
    asked, sql = [], type(session).sql
    monkeypatch.setattr(type(session), "sql", lambda *given: asked.append(given[1]) or sql(*given))
    spark.sparkContext.setJobGroup("check", "")
    try:
        check_functions(session)
        assert not spark.sparkContext.statusTracker().getJobIdsForGroup("check")
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    assert len(asked) == 1


@pytest.mark.parametrize("told", [["Class: com.vendor.Coalesce", "Usage: coalesce(a, b)"], None])
def test_an_engine_with_other_types_is_not_refused(told):
    def sql(statement):
        if told is None or statement.startswith("SELECT"):
            raise PySparkException("not here")
        return SimpleNamespace(collect=lambda: [(line,) for line in told])

    check_functions(SimpleNamespace(sql=sql))


def names_in(module):
    """Return the names of Spark's functions in a module, as attributes and in texts of SQL."""
    known = {name for name in dir(functions) if name.islower()} | {"cardinality"}
    for node in ast.walk(ast.parse(module.read_text())):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="F" | "f"), attr=name)):
                yield name
            case ast.Constant(value=str(text)):
                yield from known.intersection(re.findall(r"\b([a-z_0-9]+)\(", text))


def test_the_check_knows_every_function_that_is_used():
    package = Path(checked.__file__).parent
    found = {
        name: module.name
        for module in package.glob("*.py")
        if module.name != "functions.py"
        for name in names_in(module)
    }
    assert len(found) > 25
    not_looked_up, in_messages = {"col", "expr", "lit", "when"}, {"collate", "from_json", "parse_json"}
    assert found.keys() - NAMES <= not_looked_up | in_messages, found
