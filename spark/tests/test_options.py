"""Tests the meaning of every option, and the error for an invalid value."""

import pickle
from datetime import UTC, datetime
from pathlib import Path

import pytest

from multiclouddb_api import (
    AtTime,
    Beginning,
    ChangeFeedRequest,
    ErrorCategory,
    Fail,
    FromContinuationToken,
    MulticloudDbError,
    NewItemStateMode,
    Now,
    OldItemStateMode,
    Resnapshot,
    ResourceAddress,
    SkipToOldest,
    Snapshot,
    SnapshotOrder,
)
from pyspark_multiclouddb.checkpoint import Symbolic, offset_from_json, offset_to_json
from pyspark_multiclouddb.errors import SourceError
from pyspark_multiclouddb.options import options_table, parse_options, position_from_text, position_text
from pyspark_multiclouddb.readers import checked_schema, settings_of
from pyspark_multiclouddb.source_columns import ROW_SCHEMA, SPARK_SCHEMA

LEAST = {"url": "embedded:///data/store.db", "collection": "orders"}
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
MILLIS = str(int(NOON.timestamp() * 1000))
ISO = "2026-01-31T12:00:00Z"


def parse(**options):
    return parse_options({**LEAST, **options})


def test_defaults():
    settings = parse()
    assert settings.config.provider == "embedded"
    assert settings.address == ResourceAddress(None, "orders")
    assert settings.start == Beginning()
    assert settings.end is None
    assert (settings.max_records, settings.max_tasks, settings.poll_seconds) == (None, 32, 1.0)
    assert settings.idle_checkpoint_seconds == 300.0
    assert settings.on_expired == Fail()
    assert settings.new_item_state is NewItemStateMode.INCLUDE_IF_AVAILABLE
    assert settings.old_item_state is OldItemStateMode.OMIT


def test_the_token_of_a_mirror_is_a_start_that_spark_shows_to_nobody():
    settings = parse(startingtoken="a-token").for_stream()
    assert settings.start == FromContinuationToken("a-token")
    assert settings.on_expired == Fail()
    text = position_text(settings.start)
    assert "a-token" not in text
    offset = offset_to_json(settings, Symbolic(settings.start))
    assert offset_from_json(settings, offset) == Symbolic(settings.start)
    assert offset != offset_to_json(settings, Symbolic(FromContinuationToken("another")))
    with pytest.raises(MulticloudDbError, match="is set beside startingToken"):
        parse(startingToken="a-token", startingPosition="now")
    with pytest.raises(MulticloudDbError, match="has no meaning in a batch"):
        parse(startingToken="a-token").for_batch()
    assert "startingToken" not in options_table()


def test_request_has_the_options_of_the_rows():
    settings = parse(newitemstate="omit", oldItemState="REQUIRE", FAILONDATALOSS="False")
    assert settings.request() == ChangeFeedRequest(
        ResourceAddress(None, "orders"),
        Now(),
        new_item_state_mode=NewItemStateMode.OMIT,
        old_item_state_mode=OldItemStateMode.REQUIRE,
        on_expired=SkipToOldest(),
    )


@pytest.mark.parametrize(
    ("options", "start"),
    [
        ({"startingPosition": "beginning"}, Beginning()),
        ({"startingPosition": "Now"}, Now()),
        ({"startingPosition": ISO}, AtTime(NOON)),
        ({"startingPosition": "2026-01-31T14:00:00+02:00"}, AtTime(NOON)),
        ({"startingOffsets": "earliest"}, Beginning()),
        ({"startingOffsets": "latest"}, Now()),
        ({"startingTimestamp": MILLIS}, AtTime(NOON)),
        ({"startingTimestamp": "100000000000"}, AtTime(datetime(1973, 3, 3, 9, 46, 40, tzinfo=UTC))),
        ({"startingTimestamp": "0"}, AtTime(datetime(1970, 1, 1, tzinfo=UTC))),
        ({"startingTimestamp": "-1000"}, AtTime(datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC))),
        ({"startingPosition": "snapshot"}, Snapshot(SnapshotOrder.ORDERED)),
        ({"startingPosition": "Snapshot", "snapshotOrder": "Auto"}, Snapshot(SnapshotOrder.AUTO)),
        ({"startingPosition": "snapshot", "snapshotSegments": "12"}, Snapshot(SnapshotOrder.ORDERED, 12)),
    ],
)
def test_start(options, start):
    settings = parse(**options)
    assert settings.start == start
    assert position_from_text(position_text(start)) == start


def test_end():
    for options in ({"endingPosition": "latest"}, {"endingOffsets": "latest"}):
        assert parse(**options).for_batch().end is None
    for options in ({"endingPosition": ISO}, {"endingTimestamp": MILLIS}):
        assert parse(**options).for_batch().end == NOON


@pytest.mark.parametrize("text", ["resnapshot", "Resnapshot", "resnapshot()"])
def test_another_snapshot_after_a_loss(text):
    assert parse(failOnDataLoss=text).on_loss == Resnapshot()
    assert parse(failOnDataLoss=text).on_expired == Fail()
    settings = parse(failOnDataLoss=text, snapshotOrder="interleaved", snapshotSegments="3")
    assert settings.start == Beginning()
    assert settings.on_loss == Resnapshot(Snapshot(SnapshotOrder.INTERLEAVED, 3))


SECONDS = {
    "1 second": 1, "2 seconds": 2, "500ms": 0.5, "250 milliseconds": 0.25, "1.5": 1.5, "7s": 7,
    "2 Min": 120, "90 minutes": 5400, "1 h": 3600, "2 hours": 7200,
}  # fmt: skip


@pytest.mark.parametrize("text", SECONDS)
def test_intervals(text):
    assert parse(pollInterval=text).poll_seconds == pytest.approx(SECONDS[text])
    assert parse(idleCheckpointInterval=text).idle_checkpoint_seconds == pytest.approx(SECONDS[text])


def test_provider_without_url():
    names = {"database": "d", "collection": "c"}
    settings = parse_options({"provider": "dynamo", "connection.region": "eu-west-1", **names})
    assert settings.config.provider == "dynamo"
    assert settings.config.connection == {"region": "eu-west-1"}
    assert settings.address == ResourceAddress("d", "c")


def test_connection_options_come_along_with_a_url_and_keep_their_blanks():
    settings = parse(collection=" orders ", **{"connection.Tls": "false", "connection.password": " hush "})
    assert settings.address.collection == "orders"
    assert settings.config.connection == {"url": LEAST["url"], "tls": "false", "password": " hush "}


POSITION = "; write beginning, now, snapshot, or a time"
NO_NUMBER = "; give a whole number, 1 or more"
SECRET = ": would show a secret: Spark prints this option in"
UNKNOWN = ": is not an option of this source; "
WRONG = {
    ("collection", None): ": is missing; add .option(",
    ("url", None): ": is missing; add .option(",
    ("url", "store.db"): "has no scheme",
    ("url", "env:NOT_SET_HERE"): ": is 'env:NOT_SET_HERE', but no such variable is set",
    ("provider", "mongo"): ": is mongo, but url is of embedded; leave it out",
    ("connection.URL", "embedded:///other.db"): "connection.url: is set beside the option url; leave",
    ("colection", "x"): UNKNOWN + "did you mean collection?",
    ("maxrecordspertriger", "1"): UNKNOWN + "did you mean maxRecordsPerTrigger?",
    ("path", "x"): UNKNOWN + "load() takes no path: ",
    ("topic", "x"): UNKNOWN + "use the option collection",
    ("checkpointLocation", "x"): UNKNOWN + "set it on the query: df.writeStream",
    ("option.url", "embedded:///store.db"): UNKNOWN + "Spark adds it for a table of a catalog; use CREATE",
    ("maxPartitionsPerBatch", "3"): UNKNOWN + "use the option maxTasksPerBatch",
    ("zebra", "x"): UNKNOWN + "known are url, provider, ",
    ("connection.key", "hush"): SECRET,
    ("connection.account_key", "x"): SECRET,
    ("connection.connection_string", "x"): SECRET,
    ("connection.credential", "x"): SECRET,
    ("connection.sas", "x"): SECRET,
    ("database", " "): ": is empty; give a value",
    ("startingOffsets", "first"): ": is 'first'" + POSITION,
    ("startingPosition", "yesterday"): ": is 'yesterday'" + POSITION,
    ("startingPosition", "2026-01-31T12:00:00"): ": has no time zone",
    ("startingTimestamp", "1767225600"): ": is '1767225600', which seems to be in sec",
    ("startingTimestamp", "99999999999"): ": 99999999999000",
    ("startingTimestamp", "noon"): ": is 'noon'; give milliseconds since 1970",
    ("startingTimestamp", "9" * 40): "; give milliseconds since 1970",
    ("endingPosition", "beginning"): ": is the beginning; write latest",
    ("endingPosition", "soon"): ": is 'soon'; write latest, or a time with its zone",
    ("endingOffsets", "soon"): ": is 'soon'; write latest, or a time with its zone",
    ("startingPosition", "resnapshot"): "; write snapshot, and set failOnDataLoss=resnapshot",
    ("endingPosition", "snapshot"): ": is snapshot; write latest",
    ("snapshotSegments", "3"): ": has no meaning",
    ("maxRecordsPerTrigger", "0"): ": is '0'" + NO_NUMBER,
    ("maxRecordsPerTrigger", "1e3"): ": is '1e3'" + NO_NUMBER,
    ("maxRecordsPerTrigger", "9" * 19): NO_NUMBER,
    ("maxRecordsPerTrigger", "\u0663"): NO_NUMBER,
    ("maxTasksPerBatch", "-1"): ": is '-1'" + NO_NUMBER,
    ("failOnDataLoss", "no"): ": is 'no'; write one of true, false, resnapshot",
    ("onPoison", "ignore"): ": is 'ignore'; write one of fail, skip",
    ("newItemState", "full"): ": is 'full'; write one of omit, include_if_available, require",
    ("oldItemState", "yes"): ": is 'yes'; write one of omit",
    ("pollInterval", "often"): ": is 'often'; write it as 1 second",
    ("pollInterval", "3 weeks"): ": is '3 weeks'; write it as",
    ("pollInterval", "3 hourss"): ": is '3 hourss'; write it as",
    ("idleCheckpointInterval", "never"): ": is 'never'; write it as 1 second",
}


def refused(options, text):
    given = {name: value for name, value in {**LEAST, **options}.items() if value is not None}
    with pytest.raises(MulticloudDbError) as caught:
        parse_options(given)
    assert text in caught.value.message
    assert caught.value.category == ErrorCategory.INVALID_REQUEST
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize(("option", "text"), WRONG.items(), ids=str)
def test_wrong_value_says_which_option_and_the_way_out(option, text):
    name, value = option
    message = refused({name: value}, text)
    assert name.lower() in message.lower()
    assert "hush" not in message


def test_wrong_order_and_number_of_a_snapshot():
    for name, value, text in (("Order", "sideways", "; write one of ordered, inter"), ("Segments", "0", "")):
        options = {"startingPosition": "snapshot", f"snapshot{name}": value}
        refused(options, f"snapshot{name}: is {value!r}{text}")


def test_options_that_contradict_each_other():
    refused({"maxTasksPerBatch": "3", "minPartitions": "4"}, "maxTasksPerBatch: is less than minPartitions")
    twice = {"startingPosition": "now", "startingOffsets": "latest"}
    refused(twice, "startingOffsets: is given twice, also as startingPosition")


LATER, EARLIER, LATE_MS = "2026-02-01T00:00:00Z", "2026-01-31T00:00:00Z", f"{int(MILLIS) + 1}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"maxRecordsPerTrigger": "5"}, "maxRecordsPerTrigger: has no meaning in a batch"),
        ({"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger: has no meaning in a batch"),
        ({"pollInterval": "5 s"}, "pollInterval: has no meaning in a batch"),
        ({"idleCheckpointInterval": "5 s"}, "idleCheckpointInterval: has no meaning in a batch"),
        ({"startingPosition": "now"}, "startingPosition: is now"),
        ({"startingOffsets": "latest"}, "startingOffsets: is now"),
        (
            {"startingPosition": LATER, "endingPosition": EARLIER},
            "endingPosition: is before startingPosition",
        ),
        ({"startingTimestamp": LATE_MS, "endingTimestamp": MILLIS}, "endingTimestamp: is before startingTim"),
        ({"failOnDataLoss": "resnapshot"}, "failOnDataLoss: is resnapshot.*startingPosition=snapshot"),
        ({"startingPosition": "snapshot", "endingPosition": EARLIER}, "endingPosition: is a time, but start"),
    ],
)
def test_what_means_nothing_in_a_batch(options, message):
    with pytest.raises(SourceError, match=rf"\[MULTICLOUDDB:INVALID_REQUEST\] {message}"):
        settings_of({**LEAST, **options}, SPARK_SCHEMA, is_stream=False)


@pytest.mark.parametrize("options", [{"endingPosition": "latest"}, {"endingTimestamp": "1767225600000"}])
def test_end_means_nothing_in_a_stream(options):
    (name,) = options
    with pytest.raises(MulticloudDbError, match=rf"{name}: has no meaning in a stream.*availableNow"):
        parse(**options).for_stream()


def test_arrow_schema_of_the_source_is_taken():
    """Sail passes it."""
    assert settings_of(LEAST, ROW_SCHEMA, is_stream=False).columns is None
    columns = settings_of(LEAST, ROW_SCHEMA.remove(0), is_stream=False).columns
    assert columns.schema.names == ROW_SCHEMA.names[1:]


@pytest.mark.parametrize(
    "url", ["embedded:///none.db", "dynamo://eu-west-1", "mongodb://nowhere:1", "spanner://project/instance"]
)
def test_provider_checks_its_connection_without_opening_it(url):
    options = {"url": url, "collection": "c"}
    assert checked_schema(options).fieldNames()[0] == "event_id"
    with pytest.raises(SourceError, match=r"\[MULTICLOUDDB:INVALID_REQUEST\] connection.*'?colour'?"):
        checked_schema({**options, "connection.colour": "red"})


def test_digest_of_the_source_knows_what_is_read_and_not_how():
    same = [
        parse(),
        parse(url="embedded:///other/place.db"),
        parse(maxTasksPerBatch="5", startingOffsets="latest"),
    ]
    # Every checkpoint contains the digest, so another digest would refuse every existing checkpoint.
    assert {settings.source for settings in same} == {"f6ed17a01a34"}
    assert parse(url="mongodb://host", database="shop").source == "35563d8a1ebf"
    others = [parse(collection="other"), parse(database="other"), parse(url="mongodb://host")]
    assert len({settings.source for settings in [parse(), *others]}) == 4


def test_settings_show_no_secret():
    url = "mongodb://user:hush@host/?password=hush"
    assert "hush" not in repr(parse(url=url, **{"connection.password": "hush"}))


def test_value_from_the_environment_is_read_where_it_is_used(monkeypatch):
    for name, value in {"STORE": "embedded:///one.db", "WORD": "hush", "EMPTY": ""}.items():
        monkeypatch.setenv(name, value)
    given = {"connection.password": "env:WORD", "connection.user": "env:EMPTY"}
    settings = parse(url="env:STORE", **given)
    monkeypatch.setenv("STORE", "embedded:///two.db")
    there = pickle.loads(pickle.dumps(settings))
    assert there.config.connection == {"url": "embedded:///two.db", "password": "hush", "user": ""}
    assert b"hush" not in pickle.dumps(settings)
    assert parse(collection="env:WORD").address.collection == "hush"
    assert parse(collection="env: WORD").address.collection == "hush"


@pytest.mark.parametrize(
    ("least", "most", "tasks"),
    [(None, None, 32), ("7", None, 32), ("50", None, 50), ("4", "4", 4), ("4", "5", 5), (None, "3", 3)],
)
def test_tasks_wanted(least, most, tasks):
    given = {"minPartitions": least, "maxTasksPerBatch": most}
    assert parse(**{name: text for name, text in given.items() if text}).max_tasks == tasks


def test_table_in_the_docs_is_that_of_the_code():
    page = Path(__file__).parents[2] / "docs" / "reference" / "spark.md"
    assert options_table() in page.read_text(encoding="utf-8"), "run: python -m pyspark_multiclouddb.options"
