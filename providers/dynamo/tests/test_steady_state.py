"""Tests the calls of a feed of a large stream whose shards roll over all the time, on a clock of the test."""

import itertools
import math
import random
from collections import deque
from datetime import UTC, datetime

import attrs
import pytest

from multiclouddb_api import ResourceAddress, SkipToOldest
from multiclouddb_dynamo import shards as shards_module
from multiclouddb_dynamo import source as source_module
from multiclouddb_dynamo.client import Table
from multiclouddb_dynamo.feed import DynamoFeed
from multiclouddb_dynamo.position import After, cursor_of
from multiclouddb_dynamo.shards import ShardMap
from multiclouddb_dynamo.source import ReaderContext
from multiclouddb_dynamo.starts import end_of
from multiclouddb_spi import Deadline, FeedSpec
from multiclouddb_spi.continuation import follow as follow_module
from multiclouddb_spi.continuation.entry import Audited, Entry, NextSearch
from multiclouddb_spi.continuation.follow import Follow, Looks, apply_end, is_search_due
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.retry import directly

BEGAN = 1_800_000_000
EVERY = 600.0

# As many shards roll over in an hour as of 1,000 that live for four hours, and a listing has as many pages.
OPEN = 100
LIFE = 1440
GENERATIONS = 6
A_PAGE = 10
PAGES = OPEN * (GENERATIONS + 1) // A_PAGE


class Rolling:
    """A service with a fixed number of open shards; each lives equally long and is followed by another."""

    def __init__(self):
        self.clock, self.pages, self.filtered, self._number = float(BEGAN), 0, 0, 0
        self.open, self.closed = deque(), deque()  # each with its end, in this order
        draw, first = random.Random(1), []
        for _ in range(OPEN):
            end, parent = BEGAN + draw.random() * LIFE, None
            for generation in range(GENERATIONS, -1, -1):
                name = self._name()
                first.append((end - generation * LIFE, name, parent))
                parent = name
        for end, name, parent in sorted(first):
            (self.open if end > BEGAN else self.closed).append((end, name, parent))

    def _name(self):
        self._number += 1
        return f"shardId-{self._number:032d}"

    def monotonic(self):
        return self.clock

    time = monotonic

    def now(self):
        return datetime.fromtimestamp(self.clock, UTC)

    def is_passing(self, error, *, at_once=False):
        return False

    def iterator(self, arn, shard_id, kind, number=None):
        return "iterator"

    def roll_over(self):
        """Close the shards whose time has come, and return their names."""
        names = []
        while self.open[0][0] <= self.clock:
            end, name, parent = self.open.popleft()
            self.closed.append((end, name, parent))
            self.open.append((end + LIFE, self._name(), name))
            names.append(name)
        while self.closed[0][0] < self.clock - GENERATIONS * LIFE:
            self.closed.popleft()
        return names

    def describe_stream(self, arn, deadline, *, after=None, parent=None):
        self.clock += 0.1
        if parent is not None:
            self.filtered += 1
            found = [shard for shard in (*self.closed, *self.open) if shard[2] == parent]
            return {"StreamStatus": "ENABLED", "Shards": [self._listed(*shard) for shard in found]}
        self.pages += 1
        if after is None:
            self._listing = [*self.closed, *self.open]
            self._at = 0
        page, self._at = self._listing[self._at : self._at + A_PAGE], self._at + A_PAGE
        more = {"LastEvaluatedShardId": page[-1][1]} if self._at < len(self._listing) else {}
        return {"StreamStatus": "ENABLED", "Shards": [self._listed(*shard) for shard in page], **more}

    def _listed(self, end, name, parent):
        numbers = {"StartingSequenceNumber": "1"}
        numbers |= {"EndingSequenceNumber": "2"} if end <= self.clock else {}
        parents = {} if parent is None else {"ParentShardId": parent}
        return {"ShardId": name, "SequenceNumberRange": numbers, **parents}


class Reading:
    """A feed of the whole collection, which is read at once; only what the engine asks is real."""

    def __init__(self, service):
        self.service, self.ended, self.audits = service, set(), []
        table = Table("arn", True, "NEW_IMAGE", ("id",), 0, 0, False)
        self.source = ReaderContext(
            service, FeedSpec(ResourceAddress(collection="orders")), table, "arn", ShardMap(service, "arn")
        )
        self.feed, self.looks = DynamoFeed(self.source), Looks()
        entries = [Entry.read(name, self._here()) for _, name, _ in service.open]
        self.lineage = Lineage(entries, self.feed, Audited(BEGAN * 10**6, BEGAN, NextSearch.SOON))

    def _here(self):
        return cursor_of(After("1", int(self.service.clock)))

    def until(self, seconds):
        """Read on until this many seconds after the start."""
        while self.service.clock < BEGAN + seconds:
            self.ended.update(self.service.roll_over())
            self._poll()
            self.service.clock += 6.0

    def _poll(self):
        lineage, here = self.lineage, self._here()
        for name in [name for name in self.ended if lineage.reading(name) is not None]:
            self.ended.discard(name)
            lineage.took(name, here)
            children = end_of(self.source.shards.children(name), After("1", int(self.service.clock)))
            apply_end(lineage, name, children, names_late=True)
        forever = Deadline.after(1e9)
        follow = Follow(self.feed, lineage, directly, forever, SkipToOldest(), self.looks, EVERY)
        if due := follow.due():
            follow.look(due)
        if is_search_due(self.feed, lineage.audited, EVERY):
            self.audits.append(self.service.clock)
            follow.search(forever)


@pytest.fixture
def reading(monkeypatch):
    service = Rolling()
    for module in (shards_module, source_module, follow_module):
        monkeypatch.setattr(module, "time", service)
    return Reading(service)


def test_a_large_stream_is_asked_at_a_bounded_rate_and_its_ends_settle(reading):
    service, ends = reading.service, []
    reading.until(3600)
    calls = service.pages + service.filtered
    for minutes in (70, 80, 90, 100):
        reading.until(minutes * 60)
        ends.append(len(reading.lineage.ends()))
    calls = service.pages + service.filtered - calls
    assert calls <= 0.4 * 2400 + PAGES
    assert max(ends) <= 300
    assert len(reading.lineage.active()) == OPEN


def test_audits_after_ends_keep_the_rate_and_are_not_held_up_by_looks(reading):
    """A partition leaves the token all the time, so an audit is due ten times as soon as otherwise."""
    service = reading.service
    for poll in range(300):
        reading.lineage.audited = attrs.evolve(reading.lineage.audited, next=NextSearch.SOON)
        reading.until(poll * 6)
    assert service.pages + service.filtered <= 0.4 * 1800 + PAGES
    pauses = [later - at for at, later in itertools.pairwise(reading.audits)]
    assert len(pauses) >= 5
    assert max(pauses) < EVERY / 2


def test_an_audit_that_is_due_in_any_case_waits_for_no_credit(reading):
    reading.source.shards._looks.credit = -math.inf
    reading.until(2.5 * EVERY)
    assert len(reading.audits) == 2
