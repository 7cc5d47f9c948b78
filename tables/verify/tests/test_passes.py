"""Passes that follow one another say of every row how old its proof is, beside a writer and whatever dies."""

import json
import sqlite3
from contextlib import closing
from datetime import timedelta
from itertools import islice

import attrs
import pytest

from multiclouddb_api import ErrorCategory, ErrorDetail, MulticloudDbError
from multiclouddb_verify import (
    DeltaTarget,
    DifferenceKind,
    sides,
    stored_position,
    verification,
    verify_every,
)
from multiclouddb_verify import (
    passes as the_passes,
)
from multiclouddb_verify.passes import Passes
from multiclouddb_verify.source import Source
from multiclouddb_verify.verification import Verification
from testing.seeds import seeds

from .tables import NAME, Busy, Shop, key_of, plant
from .test_lives import rough, smooth
from .test_resume import Steps, differing
from .worlds import Killed, World, found

SEEDS = seeds(6, 200)
PERIOD = 600.0


def in_snapshot(monkeypatch, answer):
    """Let the sink's position be inside a snapshot or not."""
    for module in (the_passes, sides, verification):
        monkeypatch.setattr(module, "is_in_snapshot", answer)


def passes(world, folder, **settings):
    settings = {"position": world.stored, "state": folder, "patience_seconds": 60.0, **settings}
    clock = {"pause": world.pause, "clock": world.clock}
    return Passes(world.source(), world.target, timedelta(seconds=PERIOD), **clock, **settings).run()


def times(standing):
    return None if standing.proved_at is None else standing.proved_at.timestamp()


class Watch:
    """Damages rows of keys that do not change, at any time, and judges what each pass says.

    Attributes:
        planted: The kind of each damage that was not reported yet, and when it was done, by key.
        known: The kind of each damage that was reported and is still there, by key.
        reported: How many were reported.
    """

    def __init__(self, world):
        self.world, self.planted, self.known, self.reported = world, {}, {}, 0
        self.budget, self._tick = 0, world.tick
        world.tick = world.target.tick = self.tick

    def tick(self):
        self._tick()
        if self.budget and self.world.moves and self.world.dice.random() < 0.02:
            self.damage()

    def damage(self):
        world = self.world
        right = {key_of(name) for name in world.reserved[:8]} - {*self.planted, *self.known}
        right &= {row.key for row in world.target.table if not row.deleted}
        if not right:
            return
        self.budget -= 1
        key = world.dice.choice(sorted(right))
        kind = world.dice.choice([DifferenceKind.MISSING, DifferenceKind.STALE, DifferenceKind.TOMBSTONE])
        [row] = [row for row in world.target.table if row.key == key]
        if kind is DifferenceKind.MISSING:
            world.target.table.remove(row)
        else:
            row.text, row.deleted = (
                (None, True) if kind is DifferenceKind.TOMBSTONE else ('{"v":"other"}', False)
            )
        self.planted[key] = kind, world.time

    def judge(self, standing):
        """Compare a standing with what was planted."""
        report, is_wrong = standing.report, differing(self.world)
        if report is not None:
            told = found(report) | {each.key: each.kind for each in report.repaired}
            for key, kind in told.items():
                if key not in self.known:
                    self.known[key], _ = self.planted.pop(key)  # otherwise it is a false alarm
                    self.reported += 1
                assert kind is self.known[key]
            # A change that the service delivers again makes a row that was lost.
            left = {*found(report), *is_wrong}
            self.known = {key: kind for key, kind in self.known.items() if key in left}
            assert standing.differences == len(found(report)) == len(self.known)
        # A damage that was not reported is not older than the proof: the age shows it.
        for key, (_, at) in self.planted.items():
            assert standing.proved_at is None or at >= times(standing) or key not in is_wrong


def live(world, folder, periods, **settings):
    """Let passes follow one another, with a damage in each period; return what was watched."""
    watch, run, ended = Watch(world), None, 0
    while ended < periods:
        watch.budget = max(watch.budget, 1)
        if run is None:
            run = passes(world, folder, **settings)
        try:
            standing = next(run)
        except Killed:
            run = None
            continue
        watch.judge(standing)
        ended += standing.report is not None
        world.left += 20
    run.close()
    return watch


@pytest.fixture
def paged(monkeypatch):
    """Let a scan have several pages."""
    original = Source.scan
    monkeypatch.setattr(Source, "scan", lambda source, token, size=5: original(source, token, size))


@pytest.fixture
def small(paged, monkeypatch):
    """Keep each page of a scan at once."""
    monkeypatch.setattr("multiclouddb_verify.sides._RUN", 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_damage_is_reported_by_the_pass_after_it_and_nothing_else_is(seed, small, tmp_path, monkeypatch):
    monkeypatch.setattr("multiclouddb_verify.sides._FOLD", [4, 1_000_000][seed % 2])
    world = World(seed, behaviour=[smooth, rough][seed // 2 % 2](seed), kinds=[], kills=3 * (seed % 3))
    world.left = 60
    watch = live(world, tmp_path / "state", 4, repair=seed % 4 > 1)
    world.close()
    assert watch.reported


@pytest.fixture
def world():
    world = World(3, behaviour=smooth(3), kinds=[])
    world.left = 0
    yield world
    world.close()


def spoil(world, name="r2"):
    """Change a row of the table alone."""
    [row] = [row for row in world.target.table if row.key == key_of(name)]
    row.text = '{"v":"other"}'


def second(world, run):
    """Return the first standing with a report."""
    return next(each for each in run if each.report is not None)


@pytest.mark.parametrize("every", [41, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("is_proved", [False, True])
def test_whenever_it_is_killed_an_age_counts_from_a_pass_that_has_ended(is_proved, every, tmp_path):
    last, is_complete = 1, False
    while not is_complete:
        world = World(3, behaviour=smooth(3), kinds=[])
        world.left, folder, proved = 0, tmp_path / f"{is_proved} {last}", None
        if is_proved:
            run = passes(world, folder)
            proved = times(second(world, run))
            run.close()
            world.time += PERIOD
        with pytest.MonkeyPatch.context() as patch:
            steps, reports = Steps(patch, world, last), []
            patch.setattr(Verification, "run", recorded(reports, Verification.run))
            for name in ("_keep", "_proof"):
                patch.setattr(Passes, name, between(steps, getattr(Passes, name)))
            run = passes(world, folder)
            try:
                ended = second(world, run)
            except Killed:
                ended = None
            is_complete = ended is not None
            steps.last = None
            run.close()
            spoil(world)
            expected = differing(world)
            at, run = world.time, passes(world, folder)
            first = next(run)
            # A process may die after the pass has ended, and before or after it has stored the proof.
            assert times(first) == proved or reports
            assert not ended or times(first) == times(ended)
            assert times(first) is None or times(first) < at
            if is_complete:
                world.time += PERIOD
            told = next(run)
            assert set(found(told.report)) == expected
            assert times(told) > at
            run.close()
        world.close()
        last += every
    assert last > 100


def recorded(results, function):
    """Keep what a function returns."""

    def kept(*arguments):
        results.append(function(*arguments))
        return results[-1]

    return kept


def between(steps, function):
    """Make two steps of a function: the process may die before and after it."""

    def counted(*arguments):
        steps.take()
        result = function(*arguments)
        steps.take()
        return result

    return counted


def test_a_row_that_lost_a_change_of_the_same_pass_is_found(world, small, tmp_path):
    """However long the scan takes, the table has to contain what the sink had read at its end."""
    moments = []

    def during(progress):
        if progress.phase == "scan" and not moments and progress.rows > 5:
            moments.append(world.time)
            world.put("r2")
            world.drain()
            [before] = [attrs.evolve(each) for each in world.target.table if each.key == key_of("r2")]
            world.put("r2")
            world.drain()
            world.target.table = [each for each in world.target.table if each.key != key_of("r2")] + [before]

    standing = second(world, passes(world, tmp_path / "state", on_progress=during))
    assert moments
    assert found(standing.report) == {key_of("r2"): DifferenceKind.STALE}
    assert times(standing) > moments[0]


def test_changes_that_later_ones_have_replaced_are_not_kept(world, small, tmp_path, monkeypatch):
    monkeypatch.setattr("multiclouddb_verify.sides._FOLD", 4)
    kept = []

    def during(progress):
        if progress.phase == "scan":
            for name in ("r1", "r2", "r2", "r3"):
                world.put(name)
            world.drain()
            world.pause(2)
            with closing(sqlite3.connect(tmp_path / "state" / "run" / "state.db")) as state:
                kept.append(state.execute("SELECT count(*) FROM change").fetchone()[0])

    standing = second(world, passes(world, tmp_path / "state", on_progress=during))
    assert standing.report.equal
    assert standing.report.cost.changes > 25
    assert max(kept) < 12


def test_every_page_is_charged(world, paged, tmp_path, monkeypatch):
    charged, scan, changes = [], Source.scan, Source.changes

    def charges(page):
        charged.append(page.diagnostics.native_charge or 0)
        return page

    monkeypatch.setattr(Source, "scan", lambda *given: map(charges, scan(*given)))
    monkeypatch.setattr(Source, "changes", lambda *given: charges(changes(*given)))
    report = world.compare(tmp_path / "state")
    looks = charged[0]  # whether the position is still kept, before there is a folder
    assert report.cost.native_charge == sum(charged) - looks > 0


class TestThrottled:
    """A service that throttles makes a pass longer."""

    def throttled(self, world, monkeypatch, failing):
        original, calls, waits, pause = Source.scan, [], [], world.pause

        def scan(self, token, *size):
            for page in original(self, token, *size):
                calls.append(len(page.events))
                yield page
                if len(calls) % 2 == 0:
                    raise MulticloudDbError("too many requests", attrs.evolve(failing, retryable=True))

        def waited(seconds):
            waits.append(seconds)
            assert len(waits) < 100, "the scan gets nowhere"
            pause(seconds)

        monkeypatch.setattr(Source, "scan", scan)
        monkeypatch.setattr(world, "pause", waited)
        return calls, waits

    def test_no_row_is_read_twice_and_the_waits_grow(self, world, paged, tmp_path, monkeypatch, caplog):
        calls, waits = self.throttled(world, monkeypatch, ErrorDetail(ErrorCategory.THROTTLED))
        spoil(world)
        standing = second(world, passes(world, tmp_path / "state"))
        assert found(standing.report) == {key_of("r2"): DifferenceKind.STALE}
        assert sum(calls) == len(world.truth()) == standing.report.cost.rows
        assert [each for each in waits if each >= 1][:3] == [1.0, 2.0, 4.0]
        assert "trying again in 2 seconds" in caplog.text

    def test_a_try_that_has_got_on_is_followed_by_a_short_wait(self, world, paged, tmp_path, monkeypatch):
        calls, waits = self.throttled(world, monkeypatch, ErrorDetail(ErrorCategory.THROTTLED))
        second(world, passes(world, tmp_path / "state", on_progress=lambda progress: world.pause(9)))
        assert len(calls) > 5
        assert {each for each in waits if each >= 1} == {1.0, 9}

    def test_an_error_that_does_not_pass_ends_it(self, world, tmp_path, monkeypatch):
        def refuse(*_):
            raise MulticloudDbError("no", ErrorDetail(ErrorCategory.AUTHENTICATION_FAILED))

        monkeypatch.setattr(Source, "changes", refuse)
        with pytest.raises(MulticloudDbError, match="no"):
            next(passes(world, tmp_path / "state"))


DAMAGES = {
    "another comparison": lambda told: told["identity"].update(incarnation="other"),
    "no number": lambda told: told["proof"].update(proved_at="now"),
    "a field too few": lambda told: told["proof"].pop("healed"),
    "a field too many": lambda told: told["proof"].update(more=1),
    "no proof": lambda told: told.pop("proof"),
    "the future": lambda told: told["proof"].update(proved_at=9e9),
}


class TestAge:
    def test_does_not_count_from_a_pass_that_has_not_compared_every_row(self, world, tmp_path):
        run = passes(world, tmp_path / "state", patience_seconds=5.0)
        proved = times(second(world, run))
        world.step = lambda **_: None  # the sink stands still
        world.put("k1")
        standing = next(run)
        assert (standing.report.counts.behind, times(standing)) == (1, proved)
        del world.step
        standing = next(run)
        assert standing.report.equal
        assert times(standing) > proved

    def test_does_not_count_while_the_sink_is_inside_a_snapshot(self, world, small, tmp_path, monkeypatch):
        """What was proved is the position before the snapshot, so the age is that of the pass's begin."""
        began = []

        def during(progress):
            began.append(world.time)
            world.pause(50)

        in_snapshot(monkeypatch, lambda token: len(began) > 1)
        standing = second(world, passes(world, tmp_path / "state", on_progress=during))
        assert standing.report.equal
        assert times(standing) <= began[0]

    def test_grows_until_the_sink_has_ended_a_snapshot_of_its_own(self, world, tmp_path, monkeypatch, caplog):
        answers, before = iter([True, True]), world.time
        in_snapshot(monkeypatch, lambda token: next(answers, False))
        standing = second(world, passes(world, tmp_path / "state"))
        assert standing.report.equal
        assert times(standing) >= before + 3
        assert caplog.text.count("inside the sink's own snapshot") == 2

    def test_counts_from_the_begin_of_a_pass_without_deletes(self, tmp_path, small):
        world = World(3, behaviour=smooth(3), kinds=[], latest=True)
        world.left, began = 0, []

        def during(progress):
            began.append(world.time)
            world.pause(50)

        standing = second(world, passes(world, tmp_path / "state", on_progress=during))
        assert times(standing) <= began[0]
        world.close()

    @pytest.mark.parametrize("share", [0.0, 0.3, 0.6])
    def test_is_at_most_a_period_if_a_pass_takes_as_long_as_the_one_before(self, share, world, tmp_path):
        begins = set()

        def during(progress):
            if progress.phase == "scan" and progress.rows == 0:
                begins.add(world.time)
                world.pause(share * PERIOD)

        run, before = passes(world, tmp_path / "state", on_progress=during), None
        for standing in (each for each in run if each.report is not None):
            if before is not None:
                assert times(standing) - before <= PERIOD
                assert times(standing) - before >= 0.8 * PERIOD
            before = times(standing)
            if len(begins) > 4:
                return

    def test_of_a_pass_that_takes_longer_than_the_period_is_told_and_the_next_one_begins_at_once(
        self, world, tmp_path
    ):
        def during(progress):
            if progress.phase == "scan" and progress.rows == 0:
                world.pause(2 * PERIOD)

        standing = second(world, passes(world, tmp_path / "state", on_progress=during))
        assert standing.next_at.timestamp() <= world.time

    @pytest.mark.parametrize("damage", [*DAMAGES, "no json", "an empty file"])
    def test_is_not_known_from_a_file_that_says_something_else(self, damage, world, tmp_path):
        run = passes(world, tmp_path / "state")
        assert times(second(world, run)) is not None
        run.close()
        path = tmp_path / "state" / "proof.json"
        if damage in DAMAGES:
            told = json.loads(path.read_text())
            DAMAGES[damage](told)
            path.write_text(json.dumps(told))
        else:
            path.write_text("{" if damage == "no json" else "")
        run = passes(world, tmp_path / "state")
        assert times(next(run)) is None
        world.time += PERIOD
        assert times(second(world, run)) is not None

    def test_is_still_known_after_the_process_has_died_and_the_next_pass_keeps_its_time(
        self, world, tmp_path
    ):
        run = passes(world, tmp_path / "state")
        before = second(world, run)
        run.close()
        rows, run = world.rows, passes(world, tmp_path / "state")
        first = next(run)
        assert (first.proved_at, first.next_at, first.report) == (before.proved_at, before.next_at, None)
        assert world.rows == rows
        assert next(run).report.cost.rows
        assert world.time >= before.next_at.timestamp()

    @pytest.mark.parametrize("moved", ["while it waits", "during a pass", "before it is opened"])
    def test_does_not_wait_for_a_clock_that_was_set_back_to_get_there_again(self, moved, world, tmp_path):
        back, pauses = 100 * PERIOD, []

        def during(progress):
            if moved == "during a pass" and progress.phase != "scan" and not pauses:
                set_back()

        def set_back():
            pauses.append(None)
            world.time -= back

        run = passes(world, tmp_path / "state", on_progress=during)
        standing = second(world, run)
        if moved == "during a pass":
            assert standing.proved_at is None or times(standing) <= world.time
        elif moved == "before it is opened":
            run.close()
            set_back()
            run = passes(world, tmp_path / "state")
            assert times(next(run)) is None
        else:
            pause = world.pause

            def waits(seconds):
                pause(seconds)
                if not pauses:
                    set_back()

            world.pause = waits
            run.close()
            run = passes(world, tmp_path / "state")
            next(run)
        began = world.time
        standing = second(world, run)
        assert standing.report.equal
        assert times(standing) is not None
        assert world.time <= (began if moved != "while it waits" else began - back) + 3 * PERIOD

    def test_is_at_most_a_shorter_period_that_is_given_later(self, world, tmp_path, monkeypatch):
        monkeypatch.setattr(f"{__name__}.PERIOD", 100 * PERIOD)
        run = passes(world, tmp_path / "state")
        second(world, run)
        run.close()
        monkeypatch.undo()
        began = world.time
        assert second(world, passes(world, tmp_path / "state")).report.equal
        assert world.time <= began + 2 * PERIOD


class TestTable:
    """On a Delta table and the embedded store."""

    @pytest.fixture
    def shop(self, tmp_path):
        with Shop(tmp_path) as shop:
            yield shop

    @staticmethod
    def run(shop, **settings):
        position = stored_position(shop.checkpoints, NAME)
        settings = {"state": shop.folder / "state", "position": position, **settings}
        every = settings.pop("every", timedelta(seconds=0.5))
        return verify_every(shop.client, shop.address, DeltaTarget(shop.table), every, **settings)

    def test_what_is_damaged_between_two_passes_is_found_and_healed_beside_a_writer(self, shop):
        run = self.run(shop, repair=True, patience_seconds=30.0)
        assert next(run).proved_at is None
        with Busy(shop, shop.names[20:]):
            before = next(run)
            for count in (1, 2):
                key = key_of(shop.names[count])
                plant(shop.table, key, DifferenceKind.STALE)
                standing = next(run)
                assert [each.key for each in standing.report.repaired] == [key]
                assert (standing.differences, standing.healed) == (0, count)
                assert standing.proved_at > before.proved_at
        run.close()
        assert sorted(each.name for each in (shop.folder / "state").iterdir()) == ["lock", "proof.json"]
        shop.follow()
        shop.check_equal()

    def test_a_standing_is_json_and_tells_its_age(self, shop):
        first, standing = islice(self.run(shop), 2)
        assert (first.age_seconds(), first.to_dict()["report"]) == (None, None)
        told = json.loads(json.dumps(standing.to_dict()))
        assert (told["differences"], told["report"]["equal"]) == (0, True)
        assert 0 <= told["age_seconds"] <= standing.age_seconds() < 60

    def test_a_folder_is_used_by_one(self, shop):
        run = self.run(shop)
        next(run)
        with pytest.raises(MulticloudDbError, match="in use") as caught:
            next(self.run(shop))
        assert caught.value.category is ErrorCategory.CONFLICT

    @pytest.mark.parametrize(
        ("name", "settings"),
        [
            ("state", {"state": None}),
            ("position", {"position": "a token"}),
            ("sample", {"sample": 2}),
            ("transform_name", {"transform": dict}),
            ("transform_name", {"transform_name": "mine"}),
            ("every", {"every": timedelta()}),
            ("every", {"every": 86400}),
            ("repairs", {"repairs": True}),
        ],
    )
    def test_a_setting_that_does_not_fit_is_refused_at_once(self, name, settings, shop):
        with pytest.raises(MulticloudDbError, match=name) as caught:
            self.run(shop, **settings)
        assert caught.value.category is ErrorCategory.INVALID_REQUEST
        assert not (shop.folder / "state").exists()
