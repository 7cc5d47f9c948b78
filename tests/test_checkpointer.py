"""Tests two workers with one checkpoint: after a failed save, neither overwrites what the other has saved."""

from contextlib import suppress

import pytest

from multiclouddb_api import Checkpoint, ErrorCategory, ErrorDetail, FileCheckpointStore, MulticloudDbError
from multiclouddb_api.checkpoint import Checkpointer
from multiclouddb_api.steps import pages_of
from multiclouddb_embedded import SqliteCheckpointStore


class Clock:
    """A clock that stands still."""

    def now(self):
        return 0.0


class Unsure:
    """A store over a network; a save may fail before or after the data is stored, or long before it.

    A late save is stored between the next load after `arrive` and the answer to what follows it.
    """

    def __init__(self, inner):
        self.inner, self.failure = inner, None
        self.late, self.arriving = [], False

    def arrive(self):
        """Let the late saves arrive after the next load."""
        self.arriving = True

    def load(self, name):
        found = self.inner.load(name)
        if self.arriving:
            for arguments in self.late:
                with suppress(MulticloudDbError):  # the first of them wins
                    self.inner.save(*arguments)
            self.late, self.arriving = [], False
        return found

    def save(self, name, token, expected):
        failure, self.failure = self.failure, None
        if failure == "late":
            self.late.append((name, token, expected))
        saved = None if failure in ("lost", "late") else self.inner.save(name, token, expected)
        if failure is not None:
            raise MulticloudDbError("no answer", ErrorDetail(ErrorCategory.TRANSIENT_FAILURE))
        return saved


@pytest.fixture(params=[FileCheckpointStore, SqliteCheckpointStore], ids=["files", "sqlite"])
def store(request, tmp_path):
    return Unsure(request.param(tmp_path / "checkpoints"))


def run(steps):
    with pytest.raises(StopIteration) as ended:
        next(pages_of(steps, lambda seconds: True))
    return ended.value.value


def worker(store):
    made = Checkpointer(store, "w", 0.0, Clock().now)
    run(made.load())
    return made


def conflict(call, *arguments, **options):
    with pytest.raises(MulticloudDbError) as caught:
        call(*arguments, **options)
    assert caught.value.category == ErrorCategory.CONFLICT


def failed_save(mine, store, failure, token="2"):
    """Save another token, with a failure before or after the data is stored."""
    store.failure = failure
    with pytest.raises(MulticloudDbError, match="no answer"):
        run(mine.done(token, at_once=True))


@pytest.mark.parametrize("failure", ["lost", "done"])
@pytest.mark.parametrize("first", [None, "1"])
def test_what_another_worker_saved_meanwhile_stays(store, first, failure):
    if first:
        store.save("w", first, None)
    mine = worker(store)
    failed_save(mine, store, failure)
    found = store.load("w")
    store.save("w", "3", found and found.version)
    for _ in range(2):
        conflict(lambda: run(mine.flush()))
        conflict(lambda: run(mine.done("4", at_once=True)))
        assert store.load("w").token == "3"


def test_equal_first_saves_of_two_workers_conflict(store):
    mine, other = worker(store), worker(store)
    run(mine.done("1", at_once=True))
    conflict(lambda: run(other.done("1", at_once=True)))
    run(mine.done("2", at_once=True))


@pytest.mark.parametrize("failure", ["lost", "done"])
def test_a_worker_alone_goes_on(store, failure):
    mine = worker(store)
    failed_save(mine, store, failure)
    run(mine.flush())
    run(mine.done("3", at_once=True))
    assert store.load("w").token == "3"


@pytest.mark.parametrize("failures", [["late"], ["late", "late"], ["late", "lost", "lost"]])
@pytest.mark.parametrize("first", [None, "1"])
def test_a_worker_does_not_conflict_with_its_own_late_save(store, first, failures):
    """A write that timed out may arrive at any time before the next one."""
    if first:
        store.save("w", first, None)
    mine = worker(store)
    for number, failure in enumerate(failures):
        failed_save(mine, store, failure, f"2.{number}")
    store.arrive()
    run(mine.done("3", at_once=True))
    assert store.load("w").token == "3"


def test_a_late_save_does_not_hide_another_worker(store):
    store.save("w", "1", None)
    mine = worker(store)
    failed_save(mine, store, "late")
    store.arrive()
    found = store.load("w")
    conflict(store.save, "w", "other", found.version)
    other = store.save("w", "other", store.load("w").version)
    for _ in range(2):
        conflict(lambda: run(mine.done("3", at_once=True)))
    assert store.load("w") == other


@pytest.mark.parametrize("expected", [None, "0", "1-00000000", "x"])
def test_a_store_takes_no_version_but_its_own(store, expected):
    first = store.save("w", "1", None)
    conflict(store.save, "w", "2", expected)
    conflict(store.save, "w", "1", expected)
    assert store.load("w") == Checkpoint("1", first.version)


def test_a_store_with_nothing_takes_none_at_all(store):
    conflict(store.save, "w", "1", "1-00000000")
    assert store.load("w") is None
