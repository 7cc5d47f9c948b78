"""Tests what a lineage refuses: for example a provider that breaks C1."""

import attrs
import pytest

from multiclouddb_api import ErrorCategory
from multiclouddb_conformance.explore.world import RULES, RULES_OF, ListingKind
from multiclouddb_spi import (
    Child,
    InvalidCursor,
    Partition,
    PartitionState,
    ProviderFault,
    Scan,
    Scanned,
    Seed,
    Survey,
)
from multiclouddb_spi.continuation.entry import Audited, Entry, NextSearch, Plan, Stage
from multiclouddb_spi.continuation.lineage import Lineage, Loss
from multiclouddb_spi.continuation.token import to_moment
from multiclouddb_spi.continuation.uncovered import NotProvableError

READ, ENDED = Entry.read("0", 5), Entry("0", Stage.END, (5,), children=("1",))
MERGED = Child("2", ("0", "9"), 5)
SCAN = Scan("f", to_moment(0), plan_id="plan")
PLAN = Plan(SCAN.partition_id, None, SCAN.floor, 0)


@pytest.mark.parametrize(
    ("entry", "child", "complete"),
    [
        pytest.param(READ, Child("2", ("9",), 5), True, id="the parent is not named"),
        pytest.param(READ, MERGED, False, id="more children may come"),
        pytest.param(ENDED, MERGED, True, id="it is named late"),
    ],
)
def test_a_provider_that_breaks_c1_is_refused(entry, child, complete):
    lineage = Lineage([entry], RULES)
    with pytest.raises(ProviderFault) as caught:
        lineage.ended("0", [child], complete=complete)
    assert caught.value.fault.category == ErrorCategory.PERMANENT_FAILURE
    assert list(lineage) == [entry]


def test_a_partition_that_is_listed_twice_is_refused():
    kept = Lineage([READ, Entry.read("1", 5)], RULES).to_json()
    kept["p"].append(kept["p"][0])
    with pytest.raises(InvalidCursor, match="listed twice"):
        Lineage.from_json(kept, RULES)


def test_a_child_of_an_end_that_is_gone_makes_the_search_due():
    bench = Lineage([Entry.read("1", 5), ENDED], RULES, Audited(None, 4711, NextSearch.REGULAR))
    late = Partition("2", ("0",), PartitionState.OPEN, 7)
    assert bench.looked(Survey((late,), {"0": None}), [], 14) == ([], [])
    assert (list(bench), bench.audited) == ([Entry.read("1", 5), ENDED], Audited(None, 0))


@pytest.mark.parametrize("listed", [True, False])
def test_a_search_is_due_soon_after_a_partition_leaves(listed):
    lineage = Lineage([Entry.read("0", 5, listed=listed)], RULES, Audited(None, 4711, NextSearch.REGULAR))
    lineage.ended("0", (), complete=True)
    assert lineage.audited == Audited(None, 4711, NextSearch.SOON if listed else NextSearch.REGULAR)


def test_an_end_that_is_final_is_not_lost():
    """Every record of it was read, and nothing follows it."""
    lineage = Lineage([Entry("0", Stage.END, (5,), final=True), Entry.read("1", 5)], RULES)
    assert lineage.lost(Survey((), {"0": None})) == []


@pytest.mark.parametrize(
    ("others", "over", "leaves"),
    [((), True, True), ((), False, False), ((Entry.read("1", 5),), True, False)],
    ids=["compared", "not compared", "more was found"],
)
def test_a_final_end_leaves_with_its_feed(others, over, leaves):
    """Before, the feed was compared with all that exists; without the end, it would look unread."""
    lineage = Lineage([Entry("0", Stage.END, (5,)), *others], RULES)
    assert lineage.close(["0"], over=over) == ["0"] * leaves
    kept = () if leaves else (Entry("0", Stage.END, (5,), final=True),)
    assert list(lineage) == [*kept, *others]


def test_only_a_final_end_with_a_child_leaves():
    other = Entry("2", Stage.END, (5,), children=("1",))
    lineage = Lineage([ENDED, other, Entry.read("1", 5)], RULES)
    assert lineage.close(["0"], over=False) == ["0"]
    assert list(lineage) == [other, Entry.read("1", 5)]


def test_a_lost_partition_stays_when_what_follows_another_is_proved():
    """Its second child may be listed later; without the lost one, its loss would be told again."""
    lost = Entry("0", Stage.END, (), children=("2",))
    lineage = Lineage([lost, Entry.read("1", 5), Entry.read("2", 5)], RULES)
    read, follows = (Partition(name, (above,), PartitionState.OPEN, 7) for name, above in ("20", "31"))
    assert len(lineage.lost(Survey((read, follows), {"0": None, "1": None}))) == 1
    assert lineage.ending("0") == lost


def test_one_that_follows_a_lost_partition_waits_for_all_above_it():
    above = (Partition(name, parents, PartitionState.CLOSED, 7) for name, parents in (("1", ()), ("2", "1")))
    merged = Partition("3", ("9", "2"), PartitionState.OPEN, 7)
    lineage = Lineage([READ, Entry.read("9", 5)], RULES_OF[ListingKind.LISTED])
    shown = Partition("0", (), PartitionState.OPEN, 5)
    (loss,) = lineage.lost(Survey((shown, *above, merged), {"9": None}))
    assert {seed.partition_id for seed in loss.left} == {"1", "3"}
    assert lineage.at("3") == Entry("3", Stage.WAIT, (7,), ("2",))


def test_one_lost_end_beside_others_leaves_a_doubt():
    ends = [Entry("0", Stage.END, (), children=("2",)), Entry("1", Stage.END, (5,))]
    assert Lineage([*ends, Entry.read("2", 5)], RULES, root="0").is_doubtful
    assert not Lineage([*ends, Entry.read("2", 5)], RULES).is_doubtful
    assert not Lineage([ends[1]], RULES, root="0").is_doubtful


@pytest.mark.parametrize(
    ("other", "leaves"),
    [
        (None, False),
        (Entry.read("1", 5), True),
        (Entry("1", Stage.END, (5,)), True),
        (Entry("1", Stage.END, ()), True),
        (Entry("1", Stage.END, (5,), children=("0",)), False),
    ],
    ids=["nothing", "one that is read", "an end without a child", "a lost one", "an end that will leave too"],
)
def test_a_lost_end_without_a_child_leaves_after_the_last_look_only_if_another_stays(other, leaves):
    """Else the feed would be over, or idle, although what follows the lost one may be listed soon."""
    lineage = Lineage([Entry("0", Stage.END, ()), *filter(None, [other])], RULES, root="0")
    assert lineage.looked(Survey(()), ["0"], 1) == ([], [])
    assert (lineage.ending("0") is None) is leaves


def test_a_child_that_comes_late_waits_for_the_scan():
    lineage = Lineage([Entry("0", Stage.END, (5,)), Entry.read("1", 5)], RULES)
    lineage.begin_scan(Plan("plan", None, "0", 0, holds=True))
    late = Partition("2", ("0",), PartitionState.OPEN, 7)
    assert lineage.looked(Survey((late,), {}), [], 14)[1] == []
    assert lineage.active() == []
    assert sorted(lineage.end_scan()) == ["1", "2"]


def test_a_piece_of_a_segment_that_has_the_id_of_another_entry_is_refused():
    segment, other = (Entry.read(SCAN.segment(name).segment_id, 5, listed=False) for name in "ab")
    piece = Scanned((SCAN.segment("b"),))
    lineage = Lineage([READ, segment, other], RULES)
    with pytest.raises(ProviderFault, match="cut twice"):
        lineage.check_end(segment.partition_id, piece)
    with pytest.raises(ProviderFault, match="0 is not a segment"):
        lineage.check_end("0", piece)
    Lineage([segment], RULES).check_end(segment.partition_id, piece)


@pytest.mark.parametrize("changed", [{"plan_id": "other"}, {"floor": "g"}, {"shared": 1}])
def test_a_segment_of_another_scan_is_refused(changed):
    lineage, other = Lineage([READ], RULES), attrs.evolve(SCAN, **changed)
    lineage.begin_scan(PLAN)
    with pytest.raises(ProviderFault, match="belongs to another scan"):
        lineage.check_cut([other.segment("a")])
    (name,) = lineage.cut([SCAN.segment("a")], None)
    lineage.check_end(name, Scanned((SCAN.segment("b"),)))
    with pytest.raises(ProviderFault, match="belongs to another scan"):
        lineage.check_end(name, Scanned((other.segment("b"),)))


def test_a_token_with_a_segment_of_another_scan_is_refused():
    entries = [PLAN, Entry.read("snapshot:other:a", 5, listed=False)]
    with pytest.raises(InvalidCursor, match="belongs to another snapshot"):
        Lineage.from_json(Lineage(entries, RULES).to_json(), RULES)


def test_without_a_scan_nothing_waits_for_one():
    lineage = Lineage([READ], RULES)
    assert lineage.release_stream() == lineage.end_scan() == []
    assert list(lineage) == [READ]


def test_a_segment_without_a_scan_is_read_to_its_end():
    """A token may have no more than some segments."""
    lineage, piece = Lineage([Entry.read("a", 5, listed=False)], RULES), SCAN.segment("b")
    assert lineage.scanned("a", [piece]) == [piece.segment_id]
    assert list(lineage) == [Entry.read(piece.segment_id, piece.cursor, listed=False)]
    assert lineage.scanned(piece.segment_id, ()) == list(lineage) == []


def test_a_child_waits_for_a_parent_that_is_read_also_if_nobody_has_named_the_other():
    lineage = Lineage(
        [Entry.read("0", 9), Entry("2", Stage.WAIT, (5,), ("0", "7"))], RULES_OF[ListingKind.ALIVE]
    )
    assert lineage.start_passed() == []
    lineage.ended("0", (), complete=True)
    assert lineage.start_passed() == ["2"]


def test_the_only_partition_does_not_wait_for_a_parent_that_nobody_names():
    lineage = Lineage([Entry("2", Stage.WAIT, (5,), ("7",))], RULES)
    assert lineage.start_passed() == ["2"]
    two = Lineage([Entry("2", Stage.WAIT, (5,), ("7",)), READ], RULES)
    assert two.start_passed() == []


def test_a_child_that_comes_late_begins_the_watch_for_its_siblings():
    first, second = (Partition(name, ("0",), PartitionState.OPEN, 7) for name in "12")
    lineage = Lineage([Entry("0", Stage.END, (5,), looks=15), Entry.read("9", 5)], RULES)
    for present in ((first,), (first,), (first, second)):
        lineage.looked(Survey(present, {}), ["0"], 14)
    assert sorted(entry.partition_id for entry in lineage) == ["0", "1", "2", "9"]
    assert lineage.ending("0").looks == 0


def test_a_partition_that_ended_before_the_start_is_asked_for_more_children():
    lineage = Lineage.from_seeds([Seed("0", (), 5, ended=True), Seed("1", ("0",), 5)], RULES)
    assert list(lineage) == [Entry("0", Stage.END, (5,), children=("1",)), Entry.read("1", 5)]


@pytest.mark.parametrize(("looks", "leaves"), [(12, False), (13, True)])
def test_an_end_leaves_with_the_last_of_its_looks(looks, leaves):
    end = Entry("0", Stage.END, (5,), children=("9",), looks=looks)
    lineage = Lineage([end, Entry.read("9", 5)], RULES)
    nowhere = Partition("2", ("0",), PartitionState.CLOSED, None)
    assert lineage.looked(Survey((nowhere,)), ["0"], 14) == ([], [])
    assert ("0" not in lineage) is leaves


def test_a_feed_of_one_partition_waits_for_the_listing_of_what_may_follow_a_lost_one():
    late = Partition("5", ("4",), PartitionState.OPEN, 7)
    lineage = Lineage([READ], RULES_OF[ListingKind.LATE], root="0")
    assert lineage.lost(Survey((late,), {"0": None})) == []
    assert list(lineage) == [READ]
    with pytest.raises(NotProvableError):
        lineage.lost(Survey((attrs.evolve(late, parents=()),), {"0": None}))


def test_what_follows_is_found_below_a_waiting_child():
    """Both are gone, and the service does not tell the child's parents any more."""
    lineage = Lineage([READ, Entry("1", Stage.WAIT, (5,), ("0",))], RULES, root="0")
    follows = Partition("2", ("1",), PartitionState.OPEN, 7)
    losses = lineage.lost(Survey((follows,), dict.fromkeys("01")))
    assert [(loss.partition_id, loss.left) for loss in losses] == [
        (name, (Seed("2", ("1",), 7),)) for name in "01"
    ]
    assert all("2" in end.children for end in lineage.ends())


def test_only_what_was_removed_or_refused_moves():
    moved, later, refused = (Entry(name, Stage.READ, (5,), failed_last=True) for name in "012")
    segment = Entry.read("s", 5, listed=False)
    lineage = Lineage([later, moved, refused, segment], RULES_OF[ListingKind.ALIVE])
    oldest = {"0": 7, "1": 3, "2": 5, "s": 7, "9": 7}
    present = tuple(Partition(name, (), PartitionState.OPEN, at) for name, at in oldest.items())
    losses = lineage.lost(Survey(present), {"2"})
    assert losses == [Loss("0", 5, (Seed("0", (), 7),)), Loss("2", 5, (Seed("2", (), 5),))]
    assert list(lineage) == [later, Entry.read("0", 7), Entry.read("2", 5), segment]


@pytest.mark.parametrize(
    ("kind", "kept", "moved"), [(ListingKind.ALIVE, 8, ["2"]), (ListingKind.LATE, 6, [])]
)
def test_heirs_begin_where_they_stand_or_later(kind, kept, moved):
    """If the order of two positions is not known, the heir's own decides, because nothing lies before it."""
    lineage = Lineage(map(Entry.read, "012", (5, 8, 3)), RULES_OF[kind])
    heirs = tuple(Seed(name, (), 6) for name in "123")
    losses = lineage.lost(Survey(gone={"0": None}, heirs=heirs))
    assert losses[0] == Loss("0", 5, heirs, everything=True)
    assert losses[1:] == [Loss(name, 3, (Seed(name, (), 6),)) for name in moved]
    assert list(lineage) == list(map(Entry.read, "123", (kept, 6, 6)))


@pytest.mark.parametrize(
    ("above", "root", "told", "children"),
    [("0", None, "", ("2",)), ("7", None, "7", None), ("7", "0", "7", ("2",))],
    ids=["its child", "another", "another, in a feed of one partition"],
)
def test_a_lost_partition_stays_until_something_follows(above, root, told, children):
    """What is found below a partition that was never listed may follow any of a whole feed."""
    lineage = Lineage([Entry("0", Stage.END, ()), Entry.read("1", 5)], RULES, root=root)
    present = (Partition("1", (), PartitionState.OPEN, 5), Partition("2", (above,), PartitionState.OPEN, 7))
    added, losses = lineage.found(Survey(present, {"0": None, "7": ("0",)}), skips=True)
    assert added == [Seed("2", (above,), 7)]
    assert lineage.at("2") == Entry.read("2", 7)
    assert losses == [Loss(name, None, (added[0],)) for name in told]
    end = lineage.ending("0")
    assert (end and end.children) == children


@pytest.mark.parametrize(
    ("other", "alike"),
    [
        ([attrs.evolve(ENDED, looks=3), Entry.read("1", 5)], True),
        ([Entry.read("1", 5), ENDED], True),
        ([ENDED, Entry.read("1", 6)], False),
        ([ENDED, Entry.read("2", 5)], False),
        ([ENDED], False),
        ([ENDED, Entry.read("1", 5), Entry.read("2", 5)], False),
    ],
)
def test_a_lineage_stands_where_its_positions_are(other, alike):
    """How often the service was asked, and who is read next, is no progress."""
    lineage = Lineage([ENDED, Entry.read("1", 5)], RULES)
    assert lineage.stands_like(Lineage(other, RULES)) is alike


def test_only_what_is_read_is_marked_as_failed():
    entries = [ENDED, Entry("1", Stage.WAIT, (5,), ("plan",)), Plan("plan", None, "0", 0), Entry.read("2", 5)]
    lineage = Lineage(entries, RULES)
    for entry in entries:
        lineage.failed_last(entry.partition_id)
    assert list(lineage) == [*entries[:3], attrs.evolve(entries[3], failed_last=True)]


def test_a_merged_child_starts_where_its_parents_say():
    lineage = Lineage(map(Entry.read, "018", (5, 5, 5)), RULES_OF[ListingKind.ALIVE])
    assert lineage.ended("0", [Child("2", ("0", "1"), 9)], complete=True) == []
    assert lineage.at("2") == Entry("2", Stage.WAIT, (9,), ("1",))
    assert lineage.ended("1", [Child("2", ("0", "1"), 7)], complete=True) == ["2"]
    assert list(lineage) == [Entry.read("8", 5), Entry.read("2", 7)]


def test_only_the_first_in_time_starts_without_its_parents():
    waits = [Entry(name, Stage.WAIT, said, ("7",)) for name, said in zip("23", ((9, 6), (7,)), strict=True)]
    lineage = Lineage([Entry.read("0", 8), *reversed(waits)], RULES_OF[ListingKind.ALIVE])
    assert lineage.start_passed() == ["2"]
    assert list(lineage) == [Entry.read("0", 8), waits[1], Entry.read("2", 6)]


def test_a_scan_ends_with_its_last_segment():
    ended = Seed("0", (), 5, ended=True)
    lineage = Lineage.from_seeds([ended, Seed("1", ("0",), 5)], RULES)
    before = list(lineage)
    lineage.begin_scan(attrs.evolve(PLAN, cursor=[1], holds=True))
    assert (lineage.ends(), lineage.active()) == (before[:1], [])
    segments = [SCAN.segment(name) for name in "abcd"]
    a, b, c, d = (segment.segment_id for segment in segments)
    assert lineage.cut(segments[:2], [2]) == [a, b]
    lineage.took(a, 2)
    assert lineage.at(a) == Entry.read(a, 2, listed=False)
    assert lineage.scanned(a, segments[2:3]) == [c]
    assert lineage.scanned(b, ()) == lineage.scanned(c, ()) == []
    assert (lineage.plan.cursor, lineage.plan.done, lineage.is_scanned()) == ([2], 2, False)
    assert lineage.cut(segments[3:], None) == [d]
    assert not lineage.is_scanned()
    assert lineage.scanned(d, ()) == []
    assert lineage.is_scanned()
    assert lineage.end_scan() == ["1"]
    assert (list(lineage), lineage.plan) == (before, None)


def test_changes_are_read_after_the_scan_or_its_release():
    for end, left in ((Lineage.release_stream, ["snapshot:plan:a"]), (Lineage.end_scan, [])):
        lineage = Lineage([READ], RULES)
        lineage.begin_scan(attrs.evolve(PLAN, holds=True))
        lineage.cut([SCAN.segment("a")], None)
        assert (end(lineage), end(lineage)) == (["0"], [])
        assert sorted(one.partition_id for one in lineage.active()) == ["0", *left]
        assert (lineage.plan is not None, lineage.segment_count) == (bool(left), len(left))


@pytest.mark.parametrize(("above", "stays"), [("0", True), ("4", False)], ids=["its child", "another"])
def test_a_lost_one_stays_only_with_its_own_children(above, stays):
    """What follows one that was never listed may follow any: an end without a child would never rest."""
    lineage = Lineage([READ, Entry.read("1", 5)], RULES)
    present = (Partition("1", (), PartitionState.OPEN, 5), Partition("2", (above,), PartitionState.OPEN, 7))
    losses = lineage.lost(Survey(present, dict.fromkeys("04")))
    assert losses[-1] == Loss("0", 5, (Seed("2", (above,), 7),))
    ends = [Entry("0", Stage.END, (), children=("2",))] if stays else []
    assert list(lineage) == [Entry.read("1", 5), Entry.read("2", 7), *ends]
