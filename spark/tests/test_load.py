"""Tests the errors when a source is loaded: each is one clear line and is raised before anything is
opened."""

import pyspark
import pytest
from pyspark.sql.types import IntegerType, StructField, StructType

from pyspark_multiclouddb.errors import SourceError, no_pyspark
from pyspark_multiclouddb.readers import checked_schema, settings_of
from pyspark_multiclouddb.rows import SPARK_SCHEMA

URLS = {
    "embedded": "embedded:///none.db",
    "dynamo": "dynamo://eu-west-1",
    "mongo": "mongodb://nowhere:1",
    "spanner": "spanner://project/instance",
}


@pytest.mark.parametrize("provider", URLS)
def test_unknown_setting_of_the_connection(provider):
    options = {"url": URLS[provider], "collection": "c", "connection.colour": "red"}
    with pytest.raises(SourceError, match=r"\[MULTICLOUDDB:INVALID_REQUEST\] connection.*'?colour'?"):
        checked_schema(options)


@pytest.mark.parametrize("provider", URLS)
@pytest.mark.parametrize("name", ["account_key", "credential", "sas"])
def test_setting_that_would_show_a_secret(provider, name):
    options = {"url": URLS[provider], "collection": "c", f"connection.{name}": "hush"}
    with pytest.raises(SourceError, match=rf"connection\.{name}: would show a secret") as caught:
        checked_schema(options)
    assert "hush" not in str(caught.value)


def test_nothing_is_opened():
    assert checked_schema({"url": URLS["mongo"], "collection": "c"}).fieldNames()[0] == "event_id"


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize(
    "fields",
    [
        SPARK_SCHEMA.fields[:-1],
        [*SPARK_SCHEMA.fields[:-1], StructField("sequence", IntegerType())],
        [*SPARK_SCHEMA.fields[1:], SPARK_SCHEMA.fields[0]],
    ],
    ids=["too few", "other type", "other order"],
)
def test_schema_of_the_user_is_refused(fields, is_stream):
    options = {"url": URLS["embedded"], "collection": "c"}
    assert settings_of(options, SPARK_SCHEMA, is_stream=is_stream).address.collection == "c"
    with pytest.raises(SourceError, match=r"\[MULTICLOUDDB:INVALID_REQUEST\] schema: differs .*from_json"):
        settings_of(options, StructType(fields), is_stream=is_stream)


@pytest.mark.parametrize(
    ("name", "value", "is_stream"),
    [
        ("endingPosition", "latest", True),
        ("maxRecordsPerTrigger", "5", False),
        ("startingPosition", "now", False),
    ],
)
def test_option_without_a_meaning_there(name, value, is_stream):
    options = {"url": URLS["embedded"], "collection": "c", name: value}
    with pytest.raises(SourceError, match=rf"\[MULTICLOUDDB:INVALID_REQUEST\] {name}: "):
        settings_of(options, SPARK_SCHEMA, is_stream=is_stream)
    assert settings_of(options, SPARK_SCHEMA, is_stream=not is_stream).named(name) == name


def test_function_that_needs_a_newer_pyspark_names_the_version():
    message = str(no_pyspark("local_session"))
    assert message.startswith("local_session needs PySpark 4.0 or newer: ")
    assert message.endswith(f"this is {pyspark.__version__}; install a newer one")


@pytest.mark.parametrize(
    "options",
    [
        {"url": "mongodb://user:hush-hush@nowhere:1"},
        {"url": "mongodb://nowhere:1", "connection.username": "u", "connection.password": "hush-hush"},
    ],
    ids=["url", "password"],
)
def test_secrets_are_not_in_the_plan_of_a_stream(spark, capsys, options):
    stream = spark.readStream.format("multiclouddb").options(collection="c", **options).load()
    stream.explain(True)
    out = capsys.readouterr().out
    assert "collection" in out or "multiclouddb" in out
    assert "hush-hush" not in out
