"""Tests what a repair needs before it writes: a look-up's answer, and a judgement that says the same."""

import attrs
import pytest
from deltalake import DeltaTable

from multiclouddb_api import ErrorCategory, ErrorDetail, MulticloudDbError, MulticloudDbKey, NotKnown
from multiclouddb_conformance.table import TableRow
from multiclouddb_tables import layout
from multiclouddb_verify import DeltaTarget, DifferenceKind, Outcome, source
from multiclouddb_verify.source import Respelt, own_text

from .tables import Shop
from .test_lives import smooth
from .worlds import World, found, key_of


def refusal(category=ErrorCategory.AUTHENTICATION_FAILED, **more):
    return MulticloudDbError("check the credentials", ErrorDetail(category, **more))


def quiet(kinds, seed=1):
    """Make a world in which only the sink moves."""
    world = World(seed, behaviour=smooth(seed), kinds=kinds)
    world.left = 0
    return world


def answering(world, change):
    """Let a function change the answer of each look-up."""
    original = world.client.lookup

    def lookup(address, keys, options=None, **settings):
        return change(dict(original(address, keys, options, **settings)))

    world.client.lookup = lookup


def refusing_other_components(world):
    """Refuse each key that has the component `ID`, as the services do."""
    original = world.client.lookup

    def lookup(address, keys, *arguments, **settings):
        if any("ID" in key.components for key in keys):
            raise MulticloudDbError("the components", ErrorDetail(ErrorCategory.INVALID_REQUEST))
        return original(address, keys, *arguments, **settings)

    world.client.lookup = lookup


def rows(world):
    return sorted(map(attrs.astuple, world.target.table))


class TestLookUp:
    """What `verify` asks the source, and what counts as an answer."""

    def look_up(self, world, *texts):
        return {key: each for found in world.source().look_up(texts, 1) for key, each in found.items()}

    def test_each_answer_counts_for_the_text_that_was_asked(self):
        world = quiet([])
        name = world.reserved[0]
        spelt = key_of(name).replace(":", ": ")
        answers = self.look_up(world, key_of(name), spelt, key_of("absent"), '{"id": "absent"}')
        assert answers[key_of(name)].new_item_state == world.truth()[key_of(name)]
        assert answers[spelt] == Respelt(key_of(name), answers[key_of(name)])
        assert answers[key_of("absent")] is None
        assert answers['{"id": "absent"}'] == Respelt(key_of("absent"), None)

    @pytest.mark.parametrize(
        "text", ["", " ", "abc", "5", "null", "[]", "{}", '[["id","r0"]]', '{"id":"\\ud800"}', '{"id":1e400}']
    )
    def test_text_that_is_no_key_is_not_asked(self, text):
        world = quiet([])
        assert own_text(text) is None
        assert isinstance(self.look_up(world, text)[text], NotKnown)

    def test_refused_key_is_not_known_and_the_others_are_answered(self):
        world = quiet([])
        world.refused = {key_of("r3"), key_of("none")}
        answers = self.look_up(world, *(key_of(f"r{number}") for number in range(8)), key_of("none"))
        assert {key for key, each in answers.items() if isinstance(each, NotKnown)} == world.refused
        assert answers[key_of("r3")].reason == "check the credentials"

    def test_key_that_the_source_takes_for_none_of_its_own_tells_the_way_out(self):
        """Such as one with other components: nobody can be asked for it, so only a person can remove it."""
        world, text = quiet([]), '{"ID":"r0"}'
        refusing_other_components(world)
        answers = self.look_up(world, text, key_of("r0"))
        assert not isinstance(answers[key_of("r0")], NotKnown)
        assert isinstance(answers[text], NotKnown)
        assert "by hand" in answers[text].reason
        assert "the components" in answers[text].reason

    @pytest.mark.parametrize("texts", [(key_of("r1"), key_of("r2")), ('{"ID":"r0"}',)])
    def test_if_every_key_is_refused_that_is_the_error(self, texts):
        """And not that of a text of the table, which nobody could mend."""
        world = quiet([])
        world.refused = {key_of(name) for name in (*world.reserved, *world.lively)}
        refusing_other_components(world)
        with pytest.raises(MulticloudDbError, match="check the credentials") as caught:
            self.look_up(world, *texts)
        assert caught.value.category == ErrorCategory.AUTHENTICATION_FAILED

    def test_if_nothing_is_known_of_any_key_a_refused_text_is_not_known_either(self):
        world, text = quiet([]), '{"ID":"r0"}'
        answering(world, lambda answers: {each: NotKnown("it cannot be asked") for each in answers})
        refusing_other_components(world)
        answers = self.look_up(world, text, key_of("r0"))
        assert answers[key_of("r0")] == NotKnown("it cannot be asked")
        assert "by hand" in answers[text].reason

    def test_error_that_may_pass_is_no_refusal(self):
        world = quiet([])

        def fail(answers):
            raise refusal(ErrorCategory.TRANSIENT_FAILURE, retryable=True)

        answering(world, fail)
        with pytest.raises(MulticloudDbError) as caught:
            self.look_up(world, key_of("r1"))
        assert caught.value.retryable

    def test_keys_that_one_answer_has_made_unknown_are_asked_again_one_by_one(self):
        world = quiet([])
        unmatched = NotKnown("the row of another key")

        def one(answers):
            is_strange = MulticloudDbKey({"id": "strange"}) in answers
            return {key: each or unmatched for key, each in answers.items()} if is_strange else answers

        answering(world, one)
        answers = self.look_up(world, key_of("absent"), key_of("strange"), key_of("r1"))
        assert answers[key_of("absent")] is None
        assert answers[key_of("strange")] == unmatched


class TestLargeDocuments:
    """What is in memory at once is bounded in bytes, whatever the number of rows is."""

    SIZE, COUNT = 100_000, 120
    ASKED, HELD = 4, 12

    @pytest.fixture
    def shop(self, tmp_path, monkeypatch):
        monkeypatch.setattr(layout, "GROUP_BYTES", self.ASKED * self.SIZE)
        monkeypatch.setattr(source, "_MOST_BYTES", self.HELD * self.SIZE)
        with Shop(tmp_path, 0) as shop:
            for number in range(self.COUNT):
                shop.store.put("orders", f"o-{number:03d}", {"n": number, "text": "x" * self.SIZE})
            shop.follow()
            yield shop

    def test_a_repair_asks_for_few_of_them_and_writes_few_of_them(self, shop, monkeypatch):
        damaged = DeltaTable(shop.table)
        damaged.update(updates={"new_item_state": "concat('{\"x\":1,', substr(new_item_state, 2))"})
        asked, written = [], []
        lookup, fix = shop.client.lookup, DeltaTarget.fix

        def looked_up(address, keys, *arguments, **settings):
            asked.append(len(keys := list(keys)))
            return lookup(address, keys, *arguments, **settings)

        def fixed(target, fixes, expected):
            written.append(sum(len(each.text) for each in fixes))
            return fix(target, fixes, expected)

        monkeypatch.setattr(shop.client, "lookup", looked_up)
        monkeypatch.setattr(DeltaTarget, "fix", fixed)
        report = shop.verify(repair=True, force=True)
        assert (report.equal, report.counts.repaired) == (True, self.COUNT)
        assert report.cost.looked_up >= self.COUNT
        # The size of a document is known when the first ones have come.
        assert max(asked) <= source._FIRST_ASKED
        assert sorted(asked)[len(asked) // 2] < self.ASKED
        assert max(written) <= (self.HELD + source._FIRST_ASKED) * (self.SIZE + 100)

    @pytest.mark.parametrize("own", [False, ("new_item_state",)])
    def test_a_table_is_read_in_batches_of_few_of_them(self, shop, own):
        sizes = [batch.num_rows for batch in DeltaTarget(shop.table).rows(own=own)]
        assert sum(sizes) == self.COUNT
        assert max(sizes) <= self.ASKED


class TestNothingIsWritten:
    """Where the answers do not agree, the key is unsettled, with the reason, and its row stays."""

    def repaired(self, world, tmp_path, key, reason):
        before = [row for row in rows(world) if row[0] == key]
        report = world.verify(tmp_path / "state", repair=True, patience_seconds=5.0)
        assert not report.equal
        assert report.unsettled == (key,)
        assert reason in report.reasons[key]
        assert [row for row in rows(world) if row[0] == key] == before
        assert report.to_dict()["reasons"] == report.reasons
        world.close()
        return report

    @pytest.mark.parametrize("kind", [kind for kind in DifferenceKind if kind is not DifferenceKind.FOREIGN])
    def test_if_the_service_cannot_be_asked(self, kind, tmp_path):
        world = quiet([kind])
        [key] = world.faults
        answering(world, lambda answers: {each: NotKnown("it cannot be asked") for each in answers})
        self.repaired(world, tmp_path, key, "it cannot be asked")

    @pytest.mark.parametrize(
        "kind",
        [DifferenceKind.STALE, DifferenceKind.MISSING, DifferenceKind.DUPLICATE, DifferenceKind.UNREADABLE],
    )
    def test_if_only_the_look_up_finds_no_row(self, kind, tmp_path):
        world = quiet([kind])
        [key] = world.faults
        answering(world, lambda answers: dict.fromkeys(answers))
        self.repaired(world, tmp_path, key, "do not say the same")

    def test_if_only_the_scan_finds_no_row(self, tmp_path):
        world = quiet([DifferenceKind.GHOST])
        [key] = world.faults
        row = next(iter(world.client.lookup(world.sim.address, [MulticloudDbKey({"id": "r0"})]).values()))

        def found_after_all(answers):
            return {each: attrs.evolve(row, key=each) for each in answers}

        answering(world, found_after_all)
        self.repaired(world, tmp_path, key, "do not say the same")

    def test_if_another_document_is_found(self, tmp_path):
        world = quiet([DifferenceKind.STALE])
        [key] = world.faults
        answering(
            world,
            lambda answers: {
                each: row and attrs.evolve(row, new_item_state={"v": "of another replica"})
                for each, row in answers.items()
            },
        )
        self.repaired(world, tmp_path, key, "do not say the same")

    @pytest.mark.parametrize("kind", [DifferenceKind.BLOCKED, DifferenceKind.DUPLICATE])
    def test_if_the_source_changes_before_each_repair(self, kind, tmp_path):
        """The sink does not make the row right: it is above the changes, or there are two."""
        world = quiet([kind])
        [key] = world.faults
        [name] = [name for name in world.reserved if key_of(name) == key]

        def move(answers):
            world.put(name)
            return answers

        answering(world, move)
        world.target.merge = lambda events: None
        report = self.repaired(world, tmp_path, key, "the source changed it")
        assert (report.outcome, report.exit_code, report.differences) == (Outcome.UNSETTLED, 12, ())

    def test_if_the_row_beside_a_foreign_one_is_not_right(self, tmp_path):
        world = quiet([])
        name = world.reserved[0]
        spelt = key_of(name).replace(":", ": ")
        world.target.table.append(TableRow(spelt, "", '{"v": 1}'))

        def move(answers):
            world.put(name)
            return answers

        answering(world, move)
        report = world.verify(tmp_path / "state", repair=True, patience_seconds=5.0)
        notes = {each.key: (each.kind, each.note) for each in report.differences}
        assert notes[spelt] == (
            DifferenceKind.FOREIGN,
            "the row with the sink's own text of this key does not equal the source yet",
        )
        assert [row.text for row in world.target.table if row.key == spelt] == ['{"v": 1}']
        world.close()

    @pytest.mark.parametrize("text", ["", "abc", "5", '{"id":1e400}', f'{{"id":{"[" * 500}{"]" * 500}}}'])
    def test_if_the_row_has_no_key_at_all(self, text, tmp_path):
        world = quiet([])
        world.target.table.append(TableRow(text, "", '{"v": 1}'))
        self.repaired(world, tmp_path, text, "no key")


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_text_that_only_the_source_takes_for_a_key_is_named_without_a_repair(is_refused, tmp_path):
    """As MongoDB takes 1.0 and 1.00 for one key. What cannot be asked for stays a ghost."""
    world = quiet([])
    world.target.table.append(TableRow(key_of("spelt otherwise"), "", '{"v": 1}'))
    real = MulticloudDbKey({"id": world.reserved[0]})
    event = world.client.lookup(world.sim.address, [real])[real]

    def spelt(answers):
        if is_refused:
            raise refusal()
        return {key: event if key["id"] == "spelt otherwise" else each for key, each in answers.items()}

    answering(world, spelt)
    before = rows(world)
    report = world.verify(tmp_path / "state")
    kind = DifferenceKind.GHOST if is_refused else DifferenceKind.FOREIGN
    assert (found(report), report.counts.differences) == ({key_of("spelt otherwise"): kind}, {kind: 1})
    assert rows(world) == before
    world.close()


def test_a_key_that_moves_before_it_is_written_is_judged_again(tmp_path):
    """The look-up shows the document before it is in the stream, and the sink has not merged it."""
    world = quiet([DifferenceKind.STALE])
    [key] = world.faults
    [name] = [name for name in world.reserved if key_of(name) == key]
    asked = []

    def move(answers):
        asked.append(1)
        if len(asked) == 1:
            world.put(name)
        return answers

    answering(world, move)
    written = []
    original = world.target.fix
    world.target.fix = lambda fixes, expected: (
        written.extend(each.key for each in fixes) or original(fixes, expected)
    )
    report = world.verify(tmp_path / "state", repair=True)
    # The sink's own change has made the row right, or a second look-up has.
    assert report.equal
    assert len(written) <= 1
    world.settle()
    assert world.target.documents() == world.truth()
    world.close()


class TestRowAboveItsLastChange:
    """The row's `order_key` is higher than that of each change of its key since the position of the sink.

    It is damaged, or it is the floor of a snapshot or of a repair, which sorts above the changes before it.
    """

    def changed(self, document, order):
        """Make a world in which a key has changed after the position that is read first."""
        world = quiet([])
        positions = [world.token]
        world.put("r0")
        world.drain()
        [row] = [row for row in world.target.table if row.key == key_of("r0")]
        row.order_key = order or row.order_key + "~"
        row.text = document or row.text
        world.stored = lambda: positions.pop() if positions else world.token
        return world, row

    @pytest.mark.parametrize(
        ("document", "order", "kind"),
        [
            (None, "~", DifferenceKind.BLOCKED),
            ("{}", "~", DifferenceKind.BLOCKED),
            ("{}", None, DifferenceKind.STALE),
        ],
    )
    def test_is_repaired(self, document, order, kind, tmp_path):
        world, _ = self.changed(document, order)
        report = world.verify(tmp_path / "state", repair=True, patience_seconds=5.0)
        assert (report.equal, {each.key: each.kind for each in report.repaired}) == (
            True,
            {key_of("r0"): kind},
        )
        world.put("r0")
        world.settle()
        assert world.target.documents() == world.truth()
        world.close()

    def test_is_not_written_if_the_last_change_that_was_read_does_not_say_what_the_look_up_says(
        self, tmp_path
    ):
        """Two look-ups are one answer: both may come from another replica."""
        world, row = self.changed("{}", None)

        def other(answers):
            return {
                key: each and attrs.evolve(each, new_item_state={"v": "of another replica"})
                for key, each in answers.items()
            }

        answering(world, other)
        before = rows(world)
        report = world.verify(tmp_path / "state", repair=True, patience_seconds=5.0)
        assert rows(world) == before
        assert (report.equal, report.unsettled) == (False, (row.key,))
        assert "do not say the same" in report.reasons[row.key]
        world.close()


def test_a_row_that_somebody_damages_after_each_repair_is_different_with_the_reason(tmp_path):
    world = quiet([DifferenceKind.STALE])
    [key] = world.faults
    fix = world.target.fix

    def fix_in_vain(fixes, expected):
        written = fix(fixes, expected)
        world.mark(lambda row: row.key == key, text="{}")
        return written

    world.target.fix = fix_in_vain
    report = world.verify(tmp_path / "state", repair=True)
    assert (report.equal, report.unsettled) == (False, ())
    assert [(each.key, "differs after" in each.note) for each in report.differences] == [(key, True)]
    world.close()


def test_report_says_which_answers_have_agreed(tmp_path):
    world = quiet(list(DifferenceKind))
    report = world.verify(tmp_path / "state", repair=True)
    notes = {each.kind: each.note for each in report.repaired}
    assert notes[DifferenceKind.STALE] in {
        f"the look-up and the {name} say: this document" for name in ("scan", "changes")
    }
    assert notes[DifferenceKind.GHOST].endswith("no item")
    assert notes[DifferenceKind.FOREIGN].endswith("the document that the row with the sink's own key has")
    world.close()


class TestForeign:
    def test_of_a_deleted_document_is_removed(self, tmp_path):
        world = quiet([])
        spelt = key_of(world.reserved[-1]).replace(":", ": ")
        world.target.table.append(TableRow(spelt, "", '{"v": 1}'))
        assert found(world.verify(tmp_path / "state")) == {spelt: DifferenceKind.FOREIGN}
        report = world.verify(tmp_path / "state", repair=True)
        assert (report.equal, report.counts.repaired) == (True, 1)
        assert spelt not in {row.key for row in world.target.table}
        world.close()

    def test_that_only_the_source_knows_as_another_text_is_found_by_the_look_up(self, tmp_path):
        """The service takes both for one item, and its events have one of the texts."""
        world = quiet([])
        name = world.reserved[0]
        other = key_of(name.upper())
        world.target.table.append(TableRow(other, "", '{"v": 1}'))
        original = world.client.lookup

        def lookup(address, keys, options=None, **settings):
            asked = {key: MulticloudDbKey({"id": key["id"].lower()}) for key in keys}
            answers = original(address, list(asked.values()), options, **settings)
            return {key: answers[each] for key, each in asked.items()}

        world.client.lookup = lookup
        report = world.verify(tmp_path / "state", repair=True)
        assert (report.equal, {each.key: each.kind for each in report.repaired}) == (
            True,
            {other: DifferenceKind.FOREIGN},
        )
        assert world.target.documents() == world.truth()
        world.close()

    def test_tombstone_is_no_difference(self, tmp_path):
        world = quiet([])
        world.target.table.append(TableRow('{"id": "gone"}', "", None, True))
        assert world.verify(tmp_path / "state").equal
        world.close()


def test_a_row_that_is_marked_as_deleted_but_has_a_document_is_a_difference(tmp_path):
    """A right document that no reader sees, and a deleted one that is still there."""
    world = quiet([])
    hidden = next(row for row in world.target.table if not row.deleted)
    hidden.deleted = True
    world.target.table.append(TableRow('{"id":"gone"}', "", '{"v":1}', True))
    report = world.verify(tmp_path / "state", repair=True)
    assert {each.key: each.kind for each in report.repaired} == {
        hidden.key: DifferenceKind.TOMBSTONE,
        '{"id":"gone"}': DifferenceKind.GHOST,
    }
    assert report.equal
    assert world.target.documents() == world.truth()
    assert not any(row.deleted and row.text is not None for row in world.target.table)
    world.close()


def test_nothing_is_written_if_the_collection_is_created_again_while_it_is_looked_up(tmp_path):
    world = quiet([DifferenceKind.STALE, DifferenceKind.GHOST])
    before = rows(world)

    def recreate(answers):
        world.sim.recreate()
        world.moves = False
        return answers

    answering(world, recreate)
    with pytest.raises(MulticloudDbError, match="recreated"):
        world.verify(tmp_path / "state", repair=True)
    assert rows(world) == before
    world.close()


class TestRefusedByTheTable:
    def fixing(self, world, refused, category=ErrorCategory.INVALID_REQUEST, **more):
        original = world.target.fix

        def fix(fixes, expected):
            if any(refused(each) for each in fixes):
                raise MulticloudDbError("a CHECK constraint refuses a row", ErrorDetail(category, **more))
            return original(fixes, expected)

        world.target.fix = fix

    def test_one_row_does_not_stop_the_others(self, tmp_path):
        world = quiet(
            [DifferenceKind.STALE, DifferenceKind.MISSING, DifferenceKind.TOMBSTONE, DifferenceKind.BLOCKED]
        )
        chosen = sorted(world.faults)[1]
        self.fixing(world, lambda each: each.key == chosen)
        report = world.verify(tmp_path / "state", repair=True)
        assert found(report) == {chosen: world.faults[chosen]}
        assert [each.note for each in report.differences] == ["a CHECK constraint refuses a row"]
        assert {each.key for each in report.repaired} == world.faults.keys() - {chosen}
        world.close()

    def test_if_it_refuses_all_that_is_the_error(self, tmp_path, monkeypatch):
        monkeypatch.setattr("multiclouddb_verify.repair._MOST_REFUSED", 2)
        world = quiet([DifferenceKind.STALE, DifferenceKind.MISSING])
        self.fixing(world, bool)
        with pytest.raises(MulticloudDbError, match="CHECK"):
            world.verify(tmp_path / "state", repair=True)
        world.close()

    def test_an_error_of_the_whole_table_ends_the_repair(self, tmp_path):
        world = quiet([DifferenceKind.STALE, DifferenceKind.MISSING])
        self.fixing(world, bool, ErrorCategory.AUTHORIZATION_FAILED)
        with pytest.raises(MulticloudDbError) as caught:
            world.verify(tmp_path / "state", repair=True)
        assert caught.value.category == ErrorCategory.AUTHORIZATION_FAILED
        world.close()
