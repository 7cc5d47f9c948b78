"""Tests the errors when a source is loaded: each is one clear line and is raised before anything is
opened."""

import pytest

from pyspark_multiclouddb.errors import SourceError
from pyspark_multiclouddb.opening import checked_schema

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
@pytest.mark.parametrize("name", ["key", "account_key", "connection_string", "credential", "sas", "auth"])
def test_setting_that_would_show_a_secret(provider, name):
    options = {"url": URLS[provider], "collection": "c", f"connection.{name}": "hush"}
    with pytest.raises(SourceError, match=rf"connection\.{name}: would show a secret") as caught:
        checked_schema(options)
    assert "hush" not in str(caught.value)


def test_nothing_is_opened():
    assert checked_schema({"url": URLS["mongo"], "collection": "c"}).fieldNames()[0] == "event_id"


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
