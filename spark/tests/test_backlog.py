"""Tests a stream without `maxRecordsPerTrigger`: its first micro-batches still have a limit."""

import pyspark_multiclouddb.stream
from pyspark_multiclouddb.options import parse_options
from pyspark_multiclouddb.stream import ChangeFeedStreamReader


def rows_of(reader, start, end):
    return sum(batch.num_rows for task in reader.partitions(start, end) for batch in reader.read(task))


def sizes(reader, start):
    """Return the number of rows of each micro-batch until nothing is left to read, and the final position."""
    found, limit = [], reader.getDefaultReadLimit()
    while (end := reader.latestOffset(start, limit)) != start:
        found.append(rows_of(reader, start, end))
        start = end
    return found, start


def test_bound_holds_until_the_stream_has_caught_up(source, monkeypatch):
    monkeypatch.setattr(pyspark_multiclouddb.stream, "BACKLOG_RECORDS", 50)
    source.write(230)
    settings = parse_options(source.options(pollInterval="1 ms"))
    reader = ChangeFeedStreamReader(settings)
    found, end = sizes(reader, reader.initialOffset())
    assert sum(found) == 230
    assert max(found) == 50
    source.write(120)
    assert sizes(reader, end)[0] == [120]
    # A new run begins with the limit, because it may come after a long pause.
    assert sizes(ChangeFeedStreamReader(settings), end)[0] == [50, 50, 20]


def test_option_wins(source):
    reader = ChangeFeedStreamReader(parse_options(source.options(maxRecordsPerTrigger="30")))
    source.write(80)
    assert reader.getDefaultReadLimit().max_rows == 30
    assert max(sizes(reader, reader.initialOffset())[0]) == 30


def test_option_with_the_default_number_wins_too(source, monkeypatch):
    """The option holds for the whole query, but the default limit ends when the query has caught up."""
    monkeypatch.setattr(pyspark_multiclouddb.stream, "BACKLOG_RECORDS", 50)
    options = {"maxRecordsPerTrigger": "50", "pollInterval": "1 ms"}
    reader = ChangeFeedStreamReader(parse_options(source.options(**options)))
    source.write(60)
    found, end = sizes(reader, reader.initialOffset())
    assert sum(found) == 60
    source.write(120)
    assert sizes(reader, end)[0] == [50, 50, 20]
