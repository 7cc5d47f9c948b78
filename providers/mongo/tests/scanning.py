"""Contains shared code of the tests of snapshots: keys of every type, and reads up to the end of a scan."""

import datetime
import uuid

from bson import Binary, Code, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Timestamp

from multiclouddb_api import BackfillDone, ChangeFeedRequest, FromContinuationToken

# Every BSON type that the server accepts as an _id, with several values for some types.
IDS = (
    MinKey(),
    None,
    float("nan"),
    float("-inf"),
    1,
    2.5,
    Int64(2**53 + 1),
    Decimal128("4.50"),
    "",
    "$a",
    "b" * 50,
    {},
    {"a": 1},
    {"a": {"b": [1, 2]}},
    b"x",
    Binary(b"y", 5),
    Binary.from_uuid(uuid.UUID(int=7)),
    ObjectId("6b019d9fd29d1122ca89d32f"),
    False,
    True,
    datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
    Timestamp(1, 1),
    Code("f()"),
    Code("f()", {"x": 1}),
    DBRef("c", 1),
    MaxKey(),
)


def pages(client, address, start, size=0, between=lambda number: None, **settings):
    """Read pages from a start or a token, up to the first idle page."""
    for number in range(3000):
        position = FromContinuationToken(start) if isinstance(start, str) else start
        page = client.read_changes(ChangeFeedRequest(address, position, max_page_size=size, **settings))
        yield page
        if page.idle:
            return
        start = page.continuation_token
        between(number)
    raise AssertionError("neither idle nor over")


def rows(found):
    """Return the rows of the scan that some pages contain."""
    return [event for page in found for event in page.events if event.backfilled]


def is_done(page):
    """Return True if the given page ends the scan."""
    return any(isinstance(notice, BackfillDone) for notice in page.notices)


def keys(events):
    """Return the keys as text. The text shows the type, so different keys always have different texts."""
    return [event.key.canonical() for event in events]
