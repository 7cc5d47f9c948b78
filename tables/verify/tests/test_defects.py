"""Each rule of the algorithm is broken once; random lives notice it."""

import attrs
import pytest

from multiclouddb_api import FromContinuationToken, NotKnown, encode_json
from multiclouddb_conformance.table import MemoryTable
from multiclouddb_verify import DifferenceKind, digests, texts
from multiclouddb_verify.comparison import GONE
from multiclouddb_verify.repair import Repair, _Plan
from multiclouddb_verify.sides import Sides
from multiclouddb_verify.source import Follower, Source, own_text
from multiclouddb_verify.verification import Verification

from .test_lives import smooth
from .worlds import World, found, key_of

LIVES = 12


def is_wrong(seed, folder, **settings):
    """Return whether a life finds anything but what was planted."""
    world = World(seed, behaviour=smooth(seed), **settings.pop("world", {}))
    if refused := settings.pop("refused", 0):
        world.refuse(refused)
    try:
        report = world.verify(folder / str(seed), patience_seconds=5.0, **settings)
        if settings.get("repair"):
            world.settle()
            if world.refused:
                return world.is_damaged()
            return bool(found(report)) or world.target.documents() != world.truth()
        return found(report) != world.faults
    finally:
        world.close()


def noticed(folder, **settings):
    return any(is_wrong(seed, folder, **settings) for seed in range(LIVES))


def test_no_life_is_wrong_without_a_defect(tmp_path):
    assert not noticed(tmp_path / "found")
    assert not noticed(tmp_path / "repaired", repair=True)
    assert not noticed(tmp_path / "refused", repair=True, refused=2)


def test_refused_look_up_is_taken_for_absence(tmp_path, monkeypatch):
    original = Source.look_up

    def look_up(self, keys, parts):
        for answers in original(self, keys, parts):
            yield {key: None if isinstance(each, NotKnown) else each for key, each in answers.items()}

    monkeypatch.setattr(Source, "look_up", look_up)
    assert noticed(tmp_path, repair=True, refused=2)


def test_foreign_text_is_overwritten_with_the_document(tmp_path, monkeypatch):
    def foreign(self, each, text, event, beside):
        self._row(attrs.evolve(each, expected=self._digest(event)), event)

    monkeypatch.setattr(_Plan, "_foreign", foreign)
    assert noticed(tmp_path, repair=True)


def test_foreign_row_is_removed_although_the_right_one_is_missing(tmp_path, monkeypatch):
    """Then a reader of the table sees no row of a document that exists."""
    world = World(1, behaviour=smooth(1), kinds=[DifferenceKind.FOREIGN])
    world.target.table = [row for row in world.target.table if row.key not in map(own_text, world.faults)]
    seen = []
    original = world.target.fix

    def fix(fixes, expected):
        done = original(fixes, expected)
        names = {own_text(row.key) for row in world.target.table if not row.deleted}
        seen.append(names >= set(map(own_text, world.faults)))
        return done

    world.target.fix = fix
    report = world.verify(tmp_path / "state", repair=True)
    assert seen
    assert all(seen)
    assert report.equal
    world.close()


def test_position_that_is_read_after_the_scan(tmp_path, monkeypatch):
    original = Sides.read_table

    def read_table(self):
        original(self)
        self.state._database.execute("DELETE FROM change")
        self.state.put("follow", self.next_position())

    monkeypatch.setattr(Sides, "read_table", read_table)
    assert noticed(tmp_path)


def test_window_that_is_too_short(tmp_path, monkeypatch):
    monkeypatch.setattr(Follower, "catch_up", lambda self: None)
    assert noticed(tmp_path)


class TestLateStream:
    """A change may be in a scan some time before it is in the stream."""

    def run(self, seed, folder, settle):
        world = World(seed, behaviour=smooth(seed), lag=1.0)
        world.settle_seconds = settle
        report = world.verify(folder / f"{settle} {seed}")
        world.close()
        return found(report) == world.faults

    def test_is_waited_for(self, tmp_path):
        assert all(self.run(seed, tmp_path, 3.0) for seed in range(10))

    def test_without_waiting_there_are_false_alarms(self, tmp_path):
        assert not all(self.run(seed, tmp_path, 0.0) for seed in range(LIVES))


def restless(world):
    """Let the application change keys, and the sink merge that, just before they are repaired."""
    original = world.target.fix

    def fix(fixes, expected):
        for each in fixes[:3]:
            [name] = [name for name in world.reserved if key_of(name) == each.key] or [None]
            if name is not None:
                world.put(name)
        world.moves = False
        world.drain()
        world.moves = True
        return original(fixes, expected)

    world.target.fix = fix


@pytest.mark.parametrize("guards", [True, False])
def test_repair_by_compare_and_set_loses_no_update(guards, tmp_path):
    kinds = [DifferenceKind.STALE, DifferenceKind.MISSING, DifferenceKind.TOMBSTONE]
    world = World(1, behaviour=smooth(1), kinds=kinds)
    world.target.guards = guards
    restless(world)
    world.verify(tmp_path / "state", repair=True)
    world.settle()
    assert (world.target.documents() == world.truth()) is guards
    world.close()


def test_highest_order_key_for_a_blocked_row(tmp_path, monkeypatch):
    """A blocked row keeps its `order_key`."""
    original = Repair._fix

    def fix(self, chunk, **settings):
        original(self, [attrs.evolve(each, kind=DifferenceKind.STALE) for each in chunk], **settings)

    monkeypatch.setattr(Repair, "_fix", fix)
    assert noticed(tmp_path, repair=True)


def test_text_instead_of_values(tmp_path, monkeypatch):
    def document_digests(values):
        found = texts.digests_of(b"" if value is None else encode_json(value) for value in values)
        found[[value is None for value in values]] = GONE
        return found

    def text_digests(found):
        return texts.digests_of(str(text).encode() for text in found)

    monkeypatch.setattr(digests, "text_digests", text_digests)
    monkeypatch.setattr(digests, "document_digests", document_digests)
    assert noticed(tmp_path)


def test_tombstones_as_rows(tmp_path, monkeypatch):
    original = MemoryTable.rows

    def rows(self, keys=None, *, own=False):
        for batch in original(self, keys, own=own):
            yield batch.set_column(3, "deleted", [False] * batch.num_rows)

    monkeypatch.setattr(MemoryTable, "rows", rows)
    assert noticed(tmp_path)


def test_segment_that_is_left_out(tmp_path, monkeypatch):
    original = Source.scan

    def scan(self, token):
        left_out = False
        for page in original(self, token):
            if page.events and not left_out:
                left_out = True
                page = attrs.evolve(page, events=page.events[3:])
            yield page

    monkeypatch.setattr(Source, "scan", scan)
    assert noticed(tmp_path)


def test_a_token_is_a_position_too(tmp_path):
    world = World(5, behaviour=smooth(5))
    world.left = 0
    token = world.token
    assert isinstance(FromContinuationToken(token).token, str)
    report = Verification(
        world.source(), world.target, token, state=tmp_path / "state", pause=world.pause, clock=world.clock,
    ).run()  # fmt: skip
    assert found(report) == world.faults
    world.close()
