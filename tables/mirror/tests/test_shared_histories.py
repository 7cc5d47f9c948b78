"""Explores every small history of two tables that share a reading, and finds each planted defect in it."""

import logging

import attrs
import pytest

from multiclouddb_mirror import mirroring, sharing
from multiclouddb_spi import parts
from multiclouddb_spi.continuation.token import decode_token, encode_token, to_moment

from .memory_service import LOG, PARTS
from .shared_histories import Violation, explored, follows_of

KINDS = (LOG, PARTS)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Let a page have one event, so that a run has many moments."""
    monkeypatch.setattr(mirroring, "_PAGE_EVENTS", 1)
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("kind", KINDS)
def test_every_small_history(kind):
    assert explored(kind, (1,)) > 300


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_that_begins_while_the_other_goes_on(kind):
    assert explored(kind, (0,), ("a",)) > 40


@pytest.mark.parametrize("kind", KINDS)
def test_tables_that_follow(kind):
    assert explored(kind, (0,), ("a",), follows_of) > 2


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
class TestEveryHistory:
    def test_of_two_changes(self, kind):
        assert explored(kind, (2,)) > 1000

    def test_of_two_runs(self, kind):
        assert explored(kind, (1, 1), every=60) > 1000

    def test_of_a_table_that_begins_while_the_other_goes_on(self, kind):
        assert explored(kind, (1,), ("a",)) > 300

    @pytest.mark.parametrize("copied", [("a", "b"), ("a",)])
    def test_of_tables_that_follow(self, kind, copied):
        assert explored(kind, (1,), copied, follows_of) > 10


PART = parts.Part


def _takes_what_is_before(monkeypatch):
    """A table gets what is before its own position."""
    made = PART.__init__

    def init(part, *arguments):
        made(part, *arguments)
        part._is_before = lambda event: False

    monkeypatch.setattr(PART, "__init__", init)


def _moves_at_once(monkeypatch):
    """A position becomes that of the reading before this has reached it."""
    made = PART.__init__

    def init(part, *arguments):
        made(part, *arguments)
        part._is_reached = True
        part._is_before = lambda event: False

    monkeypatch.setattr(PART, "__init__", init)


def _begins_at_the_newest(monkeypatch):
    """The reading begins at the newest of the positions, and takes in every table."""
    begun, at, part = sharing.SharedReading._begun, sharing.parts_at, parts.Parts.part

    def begins(reading):
        newest = max(decode_token(seat.token).watermark for seat in reading._seats)
        monkeypatch.setattr(
            sharing, "parts_at", lambda client, whole, _, *rest: at(client, whole, to_moment(newest), *rest)
        )
        return begun(reading)

    def taken(made, token):
        made._feed.reaches = lambda place, other: True
        return part(made, token)

    monkeypatch.setattr(sharing.SharedReading, "_begun", begins)
    monkeypatch.setattr(parts.Parts, "part", taken)


def _overlooks_a_drop(monkeypatch):
    """A table stays in the reading when its collection is dropped."""
    monkeypatch.setattr(sharing, "concerns", lambda notice, source: False)


def _leaves_after_a_drop(monkeypatch):
    """A table leaves the reading only after the page that follows the drop of its collection."""
    give, before = sharing.SharedReading._give, []

    def late(reading, divided, page):
        told, before[:] = list(before), page.notices
        give(reading, divided, attrs.evolve(page, notices=()))
        give(reading, attrs.evolve(divided, events={}), attrs.evolve(page, notices=tuple(told)))

    monkeypatch.setattr(sharing.SharedReading, "_give", late)


def _stores_the_position_of_the_database(monkeypatch):
    """A table stores the position of the reading."""
    page = PART.page

    def whole(part, divided):
        made = page(part, divided)
        return made and attrs.evolve(made, continuation_token=encode_token(divided.envelope))

    monkeypatch.setattr(PART, "page", whole)


def _drops_tombstones_that_are_needed(monkeypatch):
    """A run removes each tombstone, whatever the mark of its position is."""
    tidied = mirroring.Mirror._tidied
    monkeypatch.setattr(mirroring.Mirror, "_tidied", lambda run, report, mark: tidied(run, report, None))


def _takes_in_another_incarnation(monkeypatch):
    """A table joins although its collection was made again."""
    part = parts.Parts.part

    def taken(self, token):
        own = decode_token(token)
        there = self._collections.get(own.address.collection)
        if there is not None:
            self._collections = {
                **self._collections, own.address.collection: attrs.evolve(there, incarnation=own.incarnation)
            }  # fmt: skip
        return part(self, token)

    monkeypatch.setattr(parts.Parts, "part", taken)


def _takes_rows_of_another_key(monkeypatch):
    """A table gets the changes of one with another key that had its name."""
    made = PART.__init__

    def init(part, *arguments):
        made(part, *arguments)
        part._fits = lambda event: True

    monkeypatch.setattr(PART, "__init__", init)


def _ends_early(monkeypatch):
    """A reading ends after its first page."""
    monkeypatch.setattr(sharing, "_has_read", lambda page, time: True)


def _goes_on_without_waiting(monkeypatch):
    """A table that has not merged its page gets the next one in its place."""
    monkeypatch.setattr(sharing.SharedReading, "_busy", lambda reading: [])


def _gives_a_page_to_the_others(monkeypatch):
    """A table gets the changes of all tables."""
    page = PART.page

    def every(part, divided):
        events = [event for each in divided.events.values() for event in each]
        return page(part, attrs.evolve(divided, events={part.address.collection: events}))

    monkeypatch.setattr(PART, "page", every)


PLANTED = {
    _takes_what_is_before: LOG,
    _moves_at_once: LOG,
    _begins_at_the_newest: LOG,
    _overlooks_a_drop: LOG,
    _leaves_after_a_drop: LOG,
    _stores_the_position_of_the_database: LOG,
    _drops_tombstones_that_are_needed: PARTS,
    _takes_in_another_incarnation: PARTS,
    _takes_rows_of_another_key: PARTS,
    _ends_early: LOG,
    _goes_on_without_waiting: LOG,
    _gives_a_page_to_the_others: LOG,
}
"""Each planted defect, with the kind of service on which it shows."""


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.__name__.strip("_"))
def test_a_planted_defect_is_found(planted, monkeypatch):
    planted(monkeypatch)
    with pytest.raises(Violation):
        explored(PLANTED[planted], (1,))


def _never_looks_at_the_collections(monkeypatch):
    """A reading that goes on never asks which collections there are; Spanner tells of no dropped table."""
    monkeypatch.setattr(sharing.SharedReading, "_check", lambda reading: None)


@pytest.mark.parametrize(
    ("planted", "kind"), [(_gives_a_page_to_the_others, LOG), (_never_looks_at_the_collections, PARTS)]
)
def test_a_planted_defect_is_found_in_tables_that_follow(planted, kind, monkeypatch):
    planted(monkeypatch)
    with pytest.raises(Violation):
        explored(kind, (0,), ("a",), follows_of)
