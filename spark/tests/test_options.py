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
from pyspark_multiclouddb.options import options_table, parse_options, position_from_text, position_text

LEAST = {"url": "embedded:///data/store.db", "collection": "orders"}
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


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
        ({"startingPosition": "2026-01-31T12:00:00Z"}, AtTime(NOON)),
        ({"startingPosition": "2026-01-31T14:00:00+02:00"}, AtTime(NOON)),
        ({"startingOffsets": "earliest"}, Beginning()),
        ({"startingOffsets": "latest"}, Now()),
        ({"startingTimestamp": str(int(NOON.timestamp() * 1000))}, AtTime(NOON)),
        ({"startingTimestamp": "100000000000"}, AtTime(datetime(1973, 3, 3, 9, 46, 40, tzinfo=UTC))),
        ({"startingTimestamp": "0"}, AtTime(datetime(1970, 1, 1, tzinfo=UTC))),
        ({"startingTimestamp": "-1000"}, AtTime(datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC))),
        ({"startingPosition": "snapshot"}, Snapshot(SnapshotOrder.ORDERED)),
        ({"startingPosition": "Snapshot", "snapshotOrder": "Auto"}, Snapshot(SnapshotOrder.AUTO)),
        (
            {"startingPosition": "snapshot", "snapshotOrder": "interleaved", "snapshotSegments": "12"},
            Snapshot(SnapshotOrder.INTERLEAVED, 12),
        ),
    ],
)
def test_start(options, start):
    settings = parse(**options)
    assert settings.start == start
    assert position_from_text(position_text(start)) == start


@pytest.mark.parametrize(
    ("options", "end"),
    [
        ({"endingPosition": "latest"}, None),
        ({"endingOffsets": "latest"}, None),
        ({"endingPosition": "2026-01-31T12:00:00Z"}, NOON),
        ({"endingTimestamp": str(int(NOON.timestamp() * 1000))}, NOON),
    ],
)
def test_end(options, end):
    assert parse(**options).for_batch().end == end


@pytest.mark.parametrize("text", ["resnapshot", "Resnapshot", "resnapshot()"])
def test_another_snapshot_after_a_loss(text):
    assert parse(failOnDataLoss=text).on_loss == Resnapshot()
    assert parse(failOnDataLoss=text).on_expired == Fail()
    settings = parse(failOnDataLoss=text, snapshotOrder="interleaved", snapshotSegments="3")
    assert settings.start == Beginning()
    assert settings.on_loss == Resnapshot(Snapshot(SnapshotOrder.INTERLEAVED, 3))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1 second", 1),
        ("2 seconds", 2),
        ("500ms", 0.5),
        ("250 milliseconds", 0.25),
        ("1.5", 1.5),
        ("7s", 7),
        ("2 min", 120),
        ("2 Min", 120),
        ("90 minutes", 5400),
        ("1 h", 3600),
        ("2 hours", 7200),
    ],
)
def test_intervals(text, seconds):
    assert parse(pollInterval=text).poll_seconds == pytest.approx(seconds)
    assert parse(idleCheckpointInterval=text).idle_checkpoint_seconds == pytest.approx(seconds)


def test_provider_without_url():
    settings = parse_options(
        {"provider": "dynamo", "connection.region": "eu-west-1", "database": "d", "collection": "c"}
    )
    assert settings.config.provider == "dynamo"
    assert settings.config.connection == {"region": "eu-west-1"}
    assert settings.address == ResourceAddress("d", "c")


def test_connection_options_come_along_with_a_url():
    config = parse(**{"connection.Tls": "false"}).config
    assert config.connection == {"url": LEAST["url"], "tls": "false"}


def test_blanks_belong_to_a_value_of_the_connection_only():
    settings = parse(collection=" orders ", **{"connection.password": " hush "})
    assert settings.address.collection == "orders"
    assert settings.config.connection["password"] == " hush "


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"collection": None}, r"collection: is missing; add .option\("),
        ({"url": None}, r"url: is missing; add .option\(.*or provider"),
        ({"url": "store.db"}, r"url: .*has no scheme"),
        ({"provider": "mongo"}, r"provider: is mongo, but url is of embedded; leave it out"),
        ({"connection.URL": "embedded:///other.db"}, r"connection.url: is set beside the option url; leave"),
        ({"colection": "x"}, r"colection: is not an option of this source; did you mean collection\?"),
        ({"maxrecordspertriger": "1"}, r"did you mean maxRecordsPerTrigger\?"),
        ({"path": "x"}, r"path: is not an option of this source; load\(\) takes no path: .*url"),
        ({"topic": "x"}, r"topic: is not an option of this source; use the option collection"),
        ({"checkpointLocation": "x"}, r"checkpointLocation: is not an option.*writeStream"),
        ({"zebra": "x"}, r"zebra: is not an option of this source; known are url, provider, .*connection\."),
        (
            {"startingTimestamp": "1767225600"},
            r"startingTimestamp: is '1767225600', which seems to be in sec",
        ),
        ({"startingOffsets": "first"}, r"startingOffsets: is 'first'; write beginning, now, snapshot, or"),
        ({"maxTasksPerBatch": "3", "minPartitions": "4"}, r"maxTasksPerBatch: is less than minPartitions"),
        ({"maxPartitionsPerBatch": "3"}, r"maxPartitionsPerBatch: is not .*use the option maxTasksPerBatch"),
        ({"connection.key": "hush"}, r"connection.key: would show a secret: Spark prints this option in"),
        ({"connection.account_key": "x"}, r"connection.account_key: would show a secret"),
        ({"connection.connection_string": "x"}, r"connection.connection_string: would show a secret"),
        ({"url": "env:NOT_SET_HERE"}, r"url: is 'env:NOT_SET_HERE', but no such variable is set"),
        (
            {"startingPosition": "yesterday"},
            r"startingPosition: is 'yesterday'; write beginning, now, snapshot, or a time",
        ),
        ({"startingPosition": "2026-01-31T12:00:00"}, r"startingPosition: has no time zone"),
        ({"startingTimestamp": "noon"}, r"startingTimestamp: is 'noon'; give milliseconds since 1970"),
        ({"startingTimestamp": "99999999999"}, r"startingTimestamp: .* in seconds; .*: 99999999999000"),
        ({"startingTimestamp": "9" * 40}, r"startingTimestamp: is '9{40}'; give milliseconds since 1970"),
        (
            {"startingPosition": "now", "startingOffsets": "latest"},
            r"startingOffsets: is given twice, also as startingPosition",
        ),
        ({"endingPosition": "beginning"}, r"endingPosition: is the beginning; write latest"),
        ({"endingPosition": "soon"}, r"endingPosition: is 'soon'; write latest, or a time with its zone"),
        ({"endingOffsets": "soon"}, r"endingOffsets: is 'soon'; write latest, or a time with its zone"),
        ({"maxRecordsPerTrigger": "0"}, r"maxRecordsPerTrigger: is '0'; give a whole number, 1 or more"),
        ({"maxRecordsPerTrigger": "1e3"}, r"maxRecordsPerTrigger: is '1e3'; give a whole number"),
        ({"maxRecordsPerTrigger": "9" * 19}, r"maxRecordsPerTrigger: is '9{19}'; give a whole number"),
        ({"maxRecordsPerTrigger": "\u0663"}, r"maxRecordsPerTrigger: is '.'; give a whole number"),
        ({"maxTasksPerBatch": "-1"}, r"maxTasksPerBatch: is '-1'; give a whole number"),
        ({"failOnDataLoss": "no"}, r"failOnDataLoss: is 'no'; write true, false or resnapshot"),
        (
            {"newItemState": "full"},
            r"newItemState: is 'full'; write one of omit, include_if_available, require",
        ),
        ({"oldItemState": "yes"}, r"oldItemState: is 'yes'; write one of omit"),
        ({"pollInterval": "often"}, r"pollInterval: is 'often'; write it as 1 second"),
        ({"pollInterval": "3 weeks"}, r"pollInterval: is '3 weeks'; write it as"),
        ({"pollInterval": "3 hourss"}, r"pollInterval: is '3 hourss'; write it as"),
        ({"idleCheckpointInterval": "never"}, r"idleCheckpointInterval: is 'never'; write it as 1 second"),
        ({"database": " "}, r"database: is empty; give a value"),
    ],
)
def test_wrong_value_says_which_option_and_the_way_out(options, message):
    given = {name: value for name, value in {**LEAST, **options}.items() if value is not None}
    with pytest.raises(MulticloudDbError, match=message) as caught:
        parse_options(given)
    assert caught.value.category == ErrorCategory.INVALID_REQUEST
    assert "\n" not in caught.value.message


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
            {"startingPosition": "2026-02-01T00:00:00Z", "endingPosition": "2026-01-31T00:00:00Z"},
            "endingPosition: is before startingPosition",
        ),
        (
            {"startingTimestamp": "1767225600000", "endingTimestamp": "1767225599999"},
            "endingTimestamp: is before startingTimestamp",
        ),
        ({"failOnDataLoss": "resnapshot"}, "failOnDataLoss: is resnapshot.*startingPosition=snapshot"),
        (
            {"startingPosition": "snapshot", "endingPosition": "2026-01-31T00:00:00Z"},
            "endingPosition: is a time, but startingPosition is snapshot",
        ),
    ],
)
def test_what_means_nothing_in_a_batch(options, message):
    with pytest.raises(MulticloudDbError, match=message):
        parse(**options).for_batch()


@pytest.mark.parametrize("options", [{"endingPosition": "latest"}, {"endingTimestamp": "1767225600000"}])
def test_end_means_nothing_in_a_stream(options):
    (name,) = options
    with pytest.raises(MulticloudDbError, match=rf"{name}: has no meaning in a stream.*availableNow"):
        parse(**options).for_stream()


def test_digest_of_the_source_knows_what_is_read_and_not_how():
    same = [
        parse(),
        parse(url="embedded:///other/place.db"),
        parse(maxRecordsPerTrigger="5", startingPosition="now"),
    ]
    assert len({settings.source for settings in same}) == 1
    others = [parse(collection="other"), parse(database="other"), parse(url="mongodb://host")]
    assert len({settings.source for settings in [parse(), *others]}) == 4


def test_digest_of_the_source_never_changes():
    """Every checkpoint contains the digest, so another digest would refuse every existing checkpoint."""
    assert parse().source == "f6ed17a01a34"
    assert parse(url="mongodb://host", database="shop").source == "35563d8a1ebf"


def test_settings_show_no_secret():
    settings = parse_options(
        {"url": "mongodb://user:hush@host/?password=hush", "connection.password": "hush", "collection": "c"}
    )
    assert "hush" not in repr(settings)


def test_value_from_the_environment_is_read_where_it_is_used(monkeypatch):
    monkeypatch.setenv("STORE", "embedded:///one.db")
    monkeypatch.setenv("WORD", "hush")
    settings = parse(url="env:STORE", **{"connection.password": "env:WORD"})
    monkeypatch.setenv("STORE", "embedded:///two.db")
    there = pickle.loads(pickle.dumps(settings))
    assert there.config.connection == {"url": "embedded:///two.db", "password": "hush"}
    assert b"hush" not in pickle.dumps(settings)
    assert parse(collection="env:WORD").address.collection == "hush"
    assert parse(collection="env: WORD").address.collection == "hush"


def test_variable_may_be_set_to_an_empty_text(monkeypatch):
    monkeypatch.setenv("WORD", "")
    assert parse(**{"connection.password": "env:WORD"}).config.connection["password"] == ""


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
