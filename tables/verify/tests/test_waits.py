"""Tests what is told while a comparison waits, and that a listener can end it there."""

import logging

import pytest

from multiclouddb_api import ErrorCategory, ErrorDetail, MulticloudDbError, MulticloudDbKey
from multiclouddb_verify.source import Source
from multiclouddb_verify.verification import Verification

from .worlds import World, found

AWAY = MulticloudDbError(
    "table: is away; try again", ErrorDetail(ErrorCategory.TRANSIENT_FAILURE, retryable=True)
)


class Enough(Exception):  # noqa: N818 - nothing is wrong
    """What a listener raises."""


@pytest.fixture
def world():
    made = World(1)
    made.moves = False
    yield made
    made.close()


def waiting(world, folder, pause, **settings):
    return Verification(
        world.source(), world.target, world.stored, pause=pause, clock=world.clock, state=folder,
        patience_seconds=60.0, **settings,
    )  # fmt: skip


class Away:
    """Lets the table be away for some seconds, from when all its rows are read."""

    def __init__(self, world, seconds, monkeypatch):
        self.world, self.seconds, self.rows, self.since = world, seconds, world.target.rows, None
        monkeypatch.setattr(world.target, "rows", self)

    def __call__(self, keys=None, **how):
        if keys is None:
            self.since = self.world.clock() if self.since is None else self.since
            if self.world.clock() < self.since + self.seconds:
                raise AWAY
        return self.rows(keys, **how)


@pytest.mark.parametrize(("seconds", "times"), [(2.0, 0), (10.0, 1), (50.0, 2)])
def test_a_table_that_is_away_for_more_than_some_seconds_is_told(
    world, seconds, times, tmp_path, monkeypatch, caplog
):
    Away(world, seconds, monkeypatch)
    with caplog.at_level(logging.WARNING, "multiclouddb.verify"):
        report = waiting(world, tmp_path / "state", world.pause).run()
    assert found(report) == world.faults
    told = [each.getMessage() for each in caplog.records if "is away" in each.getMessage()]
    assert len(told) == times
    assert all("is away; trying again since" in each for each in told)


def test_a_listener_ends_a_comparison_whose_table_is_away(world, tmp_path, monkeypatch):
    away = Away(world, 1000.0, monkeypatch)

    def listen(progress):
        if away.since is not None:
            raise Enough

    with pytest.raises(Enough):
        waiting(world, tmp_path / "state", world.pause, on_progress=listen).run()
    assert world.clock() < away.since + 2.0


def test_a_listener_ends_a_long_pause(world, tmp_path):
    slept = []

    def listen():
        if slept:
            raise Enough

    sides = waiting(world, tmp_path / "state", slept.append, listen=listen)._sides
    with pytest.raises(Enough):
        sides.pause(600.0)
    assert sum(slept) <= 1.0


def test_without_a_listener_a_pause_is_made_at_once(world, tmp_path):
    slept = []
    waiting(world, tmp_path / "state", slept.append)._sides.pause(600.0)
    assert slept == [600.0]


class Silent:
    """A client whose service does not answer until the call must end."""

    def __init__(self, world):
        self.asked, self.capabilities = 0, world.client.capabilities

    def read_changes(self, request, options):
        return self.answer(options)

    def lookup(self, address, keys, options, *, provider_options):
        return self.answer(options)

    def answer(self, options):
        for _ in range(1000):
            self.asked += 1
            if options.progress.must_stop():
                raise MulticloudDbError("ended", ErrorDetail(ErrorCategory.TRANSIENT_FAILURE))
        raise AssertionError("nobody has ended the call")


@pytest.mark.parametrize(
    "call",
    [
        lambda source: source.first_page(),
        lambda source: source.changes("token"),
        lambda source: next(source.scan("token")),
        lambda source: source.some_keys(),
        lambda source: source.answers([MulticloudDbKey({"id": 1})]),
        lambda source: list(source.look_up(['{"id":1}', '{"id":2}'], 1)),
    ],
    ids=["first page", "changes", "scan", "some keys", "answers", "look-up"],
)
def test_a_listener_ends_a_read_that_gets_no_answer(call, world):
    silent = Silent(world)

    def listen():
        if silent.asked == 3:
            raise Enough

    of = Verification(Source(silent, "main/orders"), world.target, "token", listen=listen)._sides
    with pytest.raises(Enough):
        call(of.source)
    assert silent.asked == 3
