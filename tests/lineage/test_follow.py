"""Tests when the engine asks about late children and uncovered partitions, and which ends it refuses."""

import math
from types import SimpleNamespace

import attrs
import pytest

from multiclouddb_api import Beginning, ErrorCategory, Fail, Gap, SkipToOldest
from multiclouddb_conformance.explore.world import RULES, RULES_OF, ListingKind
from multiclouddb_spi import (
    Awaiting,
    Child,
    Deadline,
    Drained,
    Partition,
    PartitionState,
    Position,
    ProviderFault,
    Seed,
    Survey,
)
from multiclouddb_spi.continuation import follow
from multiclouddb_spi.continuation.entry import Audited, Entry, NextSearch, Stage
from multiclouddb_spi.continuation.follow import (
    Follow,
    Found,
    Looks,
    apply_end,
    is_search_due,
    most_looks,
)
from multiclouddb_spi.continuation.lineage import Lineage, Loss
from multiclouddb_spi.continuation.state import begun
from multiclouddb_spi.continuation.uncovered import uncovered
from multiclouddb_spi.retry import directly

NOW, EVERY = 10_000.0, 600.0
OPEN = PartitionState.OPEN
FEED, OTHER = SimpleNamespace(identity="feed"), SimpleNamespace(identity="other")
LOST, NAMED = Entry("0", Stage.END, (5,)), Entry("0", Stage.END, (5,), children=("1",))


@pytest.fixture
def clock(monkeypatch):
    """Stand-in for both clocks of this machine; a test sets `now`."""
    made = SimpleNamespace(now=NOW)
    made.time = made.monotonic = lambda: made.now
    monkeypatch.setattr(follow, "time", made)
    return made


SKIPS = SkipToOldest()


def following(lineage, survey=None, on_expired=SKIPS):
    """Return a `Follow` whose service gives one answer, or what a function makes of the question."""
    feed = SimpleNamespace(
        identity="feed",
        spec=SimpleNamespace(address="items"),
        public_id=lambda name: f"<{name}>",
        describe=lambda cursor: Position(f"at {cursor}", None),
        survey=lambda asked, deadline, **wanted: survey(**wanted) if callable(survey) else survey,
    )
    feed.for_one_call = lambda: feed
    return Follow(feed, lineage, directly, Deadline.after(9.0), on_expired, Looks(), 600.0)


@pytest.mark.parametrize(
    ("ago", "left", "can", "due"),
    [
        (600, False, False, True),
        (599, False, True, False),
        (60, True, True, True),
        (60, True, False, False),
        (600, True, False, True),
        (59, True, True, False),
        (-60, True, True, False),
        (-60, False, True, False),
        (-61, False, False, True),
    ],
)
def test_a_search_is_due_after_some_time_and_sooner_after_an_end(clock, ago, left, can, due):
    """If the clock was set back, the search is due too. Only a search that can also wait needs the feed."""
    feed = SimpleNamespace(can_audit_early=lambda: can)
    audited = Audited(None, int(NOW) - ago, NextSearch.SOON if left else NextSearch.REGULAR)
    assert is_search_due(feed, audited, EVERY) is due
    assert not is_search_due(feed, None, EVERY)


@pytest.mark.parametrize(
    ("ago", "every", "can", "due"),
    [
        (60, math.inf, True, True),
        (59, math.inf, True, False),
        (-60, math.inf, True, True),
        (60, math.inf, False, False),
        (2, 20.0, True, True),
        (6000, 6000.0, False, True),
        (599, 600.0, False, False),
    ],
)
def test_the_search_that_concludes_comes_in_time(clock, ago, every, can, due):
    """Nothing is idle until then, even if somebody wants no searches."""
    feed = SimpleNamespace(can_audit_early=lambda: can)
    assert is_search_due(feed, Audited(None, int(NOW) - ago, NextSearch.UNCLEAR), every) is due


TIP = Partition("9", ("7",), PartitionState.CLOSED, 7)
"""An ended partition without a listed child, to which nothing leads."""


@pytest.mark.parametrize(
    ("partition", "unclear"),
    [
        (TIP, True),
        (attrs.evolve(TIP, partition_id="0"), False),
        (attrs.evolve(TIP, parents=("0",)), False),
        (attrs.evolve(TIP, state=OPEN), False),
        (attrs.evolve(TIP, state=OPEN, parents=("8",)), True),
    ],
    ids=["ended", "an entry", "an entry leads to it", "open", "its parent is not listed"],
)
def test_the_first_search_without_the_children_of_a_partition_does_not_conclude(clock, partition, unclear):
    """So nothing is idle; the second one concludes, because some service may never list a child."""
    lineage = Lineage([Entry.read("0", 5)], RULES, Audited())
    listed = {each.partition_id: each for each in (Partition("0", (), OPEN), partition)}
    service = following(lineage, Survey(tuple(listed.values()), {"7": None}))
    searches = []
    for _ in range(2):
        service.search(Deadline.after(9.0))
        searches.append(lineage.audited)
        assert lineage.is_quiet({"0", "9"}) is not lineage.audited.is_unclear
    first = NextSearch.UNCLEAR if unclear else NextSearch.REGULAR
    assert searches == [Audited(None, int(NOW), each) for each in (first, NextSearch.REGULAR)]


def test_an_end_stays_until_a_search_concludes(clock):
    lineage = Lineage([NAMED, Entry.read("1", 5)], RULES, Audited())
    there = (Partition("1", ("0",), OPEN, 5), TIP)
    service = following(lineage, Survey(there, {"0": None, "7": None}))
    stays = []
    for _ in range(2):
        service.search(Deadline.after(9.0))
        stays.append(lineage.ending("0") is not None)
    assert stays == [True, False]


def test_a_loss_does_not_conclude_without_the_children_of_a_partition(clock):
    """Nor does a look for the children of a partition that is gone bring the next search forward."""
    lineage = Lineage([Entry.read("0", 5), Entry.read("1", 5)], RULES, Audited(None, 0, NextSearch.REGULAR))
    there = (Partition("1", (), OPEN), attrs.evolve(TIP, parents=("0",)))
    service = following(lineage, Survey(there, {"0": None}))
    assert service.lost({"0"})
    unclear = Audited(None, int(NOW), NextSearch.UNCLEAR)
    assert lineage.audited == unclear
    clock.now += 50.0
    there = (attrs.evolve(TIP, partition_id="8", parents=("1",)), TIP)
    assert following(lineage, Survey(there, {"1": None, "7": None})).lost({"1"})
    assert lineage.audited == unclear
    lineage.looked(Survey((Partition("2", ("0",), OPEN, 7),), {"0": None}), {"0"}, 1)
    assert lineage.audited == unclear


def test_nothing_is_searched_for_where_nothing_is_named_late():
    assert begun(SimpleNamespace(names_late=False), Beginning(), None) is None


@pytest.mark.parametrize(
    ("name", "due"),
    [("0", NextSearch.REGULAR), ("1", NextSearch.SOON)],
    ids=["shown", "lacking"],
)
def test_a_search_is_due_soon_only_after_a_listing_without_an_entry(clock, name, due):
    lineage = Lineage([Entry.read("0", 5)], RULES, Audited())
    found = following(lineage, Survey((Partition(name, (), OPEN, 7),))).search(Deadline.after(9.0))
    assert lineage.audited == Audited(None, int(NOW), due)
    assert (found, list(lineage)) == (Found(), [Entry.read("0", 5)])


def test_a_feed_of_one_partition_leaves_out_what_descends_from_its_parent():
    above = Partition("x", (), PartitionState.CLOSED)
    mine, other = (Partition(name, ("x",), OPEN, 7) for name in ("0", "y"))
    found = uncovered(Survey((above, mine, other)), {"0": Entry.read("0", 5)}, {}, "0")
    assert found.seeds == []


def test_a_feed_of_one_partition_finds_what_descends_from_what_it_has_read_after_its_root_is_gone():
    """Its root and the child of the root are gone, and the service does not tell their parents any more."""
    middle = Partition("1", ("gone",), PartitionState.CLOSED)
    held, late = (Partition(name, ("1",), OPEN, 7) for name in ("2", "3"))
    found = uncovered(Survey((middle, held, late), {"gone": None}), {"2": Entry.read("2", 5)}, {}, "0")
    assert [seed.partition_id for seed in found.seeds] == ["3"]


def listed(name, *parents, state=OPEN):
    return Partition(name, parents, state, 7)


@pytest.mark.parametrize(
    ("present", "gone", "entries", "root", "found"),
    [
        pytest.param([listed("1")], {}, [], None, ["1"], id="without parents"),
        pytest.param(
            [listed("1", state=PartitionState.CLOSED), listed("2", "0", "1")],
            {},
            [Entry("2", Stage.WAIT, (5,), ("0", "1"))],
            None,
            ["1"],
            id="a parent for which an entry waits",
        ),
        pytest.param(
            [listed("2"), listed("1", "x", "y")], {"x": None}, [], None, ["2"], id="beside an undecided one"
        ),
        pytest.param(
            [listed("1", "p", "q")],
            {"p": ("x",), "q": ("v", "w"), "v": ("y",), "w": ("y",), "y": ()},
            [],
            "x",
            ["1"],
            id="below the root and others",
        ),
    ],
)
def test_each_that_no_entry_leads_to_is_found(present, gone, entries, root, found):
    held = {entry.partition_id: entry for entry in (Entry.read("0", 5), *entries)}
    tops = uncovered(Survey((listed("0"), *present), gone), held, {}, root)
    assert [seed.partition_id for seed in tops.seeds] == found


def test_a_search_finds_nothing_while_a_lost_partition_may_not_be_skipped(clock):
    lineage = Lineage([Entry.read("0", 5)], RULES, Audited())
    survey = Survey((Partition("1", (), OPEN, 7),), {"0": None})
    assert following(lineage, survey, Fail()).search(Deadline.after(9.0)) == Found()
    assert list(lineage) == [Entry.read("0", 5)]


def test_a_look_counts_only_if_the_pause_before_it_was_seen(clock):
    looks = Looks()
    assert looks.is_due(FEED, NAMED)
    assert not looks.asked(FEED, NAMED)
    assert not looks.is_due(FEED, NAMED)
    clock.now += 0.0625
    assert not looks.asked(FEED, NAMED)  # the first look of the two begins the pause
    clock.now += 0.0625
    assert looks.is_due(FEED, NAMED)
    assert looks.asked(FEED, NAMED)
    once = Entry("0", Stage.END, (5,), children=("1",), looks=1)
    clock.now += 0.19
    assert not looks.is_due(FEED, once)
    clock.now += 0.02
    assert looks.is_due(FEED, once)
    assert looks.is_due(OTHER, once)


def test_an_end_of_which_no_child_is_known_is_always_looked_for(clock):
    looks = Looks()
    looks.asked(FEED, LOST)
    assert looks.is_due(FEED, LOST)


def test_a_late_child_begins_the_search_anew():
    looked_for = Entry("0", Stage.END, (5,), children=("1",), looks=1)
    lineage = Lineage([looked_for, Entry.read("1", 5)], RULES)
    there = Survey(tuple(Partition(name, ("0",), OPEN, 7) for name in "12"))
    found = [lineage.looked(there, {"0"}, 2)[0] for _ in range(2)]
    assert [[child.partition_id for child in each] for each in found] == [["2"], []]
    assert lineage.ending("0") is not None
    lineage.looked(there, {"0"}, 2)
    assert lineage.ending("0") is None


def test_an_end_that_is_gone_is_searched_for_as_often_as_it_is_looked_for(clock):
    """A call in which no look counts lists nothing; and the end stays, however often it is looked for."""
    done = Audited(None, int(NOW), NextSearch.REGULAR)
    lineage = Lineage([NAMED, Entry.read("1", 5)], RULES, done)
    there = Survey((Partition("1", ("0",), OPEN),), {"0": None})
    searches = []
    for asked in ((), {"0"}, (), {"0"}, {"0"}):
        lineage.looked(there, asked, 2)
        searches.append(is_search_due(SimpleNamespace(can_audit_early=lambda: False), lineage.audited, EVERY))
        lineage.audited = done
        assert lineage.ending("0") is not None
    assert searches == [False, True, False, True, True]


def test_an_end_that_is_gone_leaves_with_the_search(clock):
    """Whoever reads for a minute each night never waits long enough for a look to count."""
    lineage = Lineage([NAMED, Entry.read("1", 5)], RULES, Audited(None, 0))
    following(lineage, Survey((Partition("1", ("0",), OPEN, 5),), {"0": None})).search(Deadline.after(60))
    assert list(lineage) == [Entry.read("1", 5)]
    assert lineage.audited == Audited(None, int(NOW), NextSearch.REGULAR)


def test_the_search_with_which_an_end_leaves_finds_its_other_child(clock):
    """A later one would find it too, but by then nothing may show that the end was read."""
    lineage = Lineage([NAMED, Entry.read("1", 5)], RULES, Audited(None, 0))
    late = Survey((Partition("1", ("0",), OPEN, 5), Partition("2", ("0",), OPEN, 5)), {"0": None})
    assert following(lineage, late).search(Deadline.after(60)).started == ("2",)
    assert [each.partition_id for each in lineage] == ["1", "2"]


@pytest.mark.parametrize(
    ("end", "gone"),
    [
        (NAMED, {}),
        (Entry("0", Stage.END, (5,), final=True), {"0": None}),
        (Entry("0", Stage.END, (), children=("1",)), {"0": None}),
    ],
    ids=["it exists", "without a child", "lost"],
)
def test_another_end_stays_after_a_search(clock, end, gone):
    lineage = Lineage([end, Entry.read("1", 5)], RULES, Audited(None, 0))
    there = () if gone else (Partition("0", (), PartitionState.CLOSED, 5),)
    following(lineage, Survey((*there, Partition("1", ("0",), OPEN, 5)), gone)).search(Deadline.after(60))
    assert lineage.ending("0") == end


def test_an_end_that_is_gone_and_final_is_not_searched_for(clock):
    done = Audited(None, int(NOW), NextSearch.REGULAR)
    final = Entry("0", Stage.END, (5,), final=True)
    lineage = Lineage([final, Entry.read("1", 5)], RULES, done)
    lineage.looked(Survey((), {"0": None}), {"0"}, 2)
    assert lineage.audited == done


def after_an_end_that_is_gone(policy):
    """Its known child is gone too, after it was read: only the end shows that its changes were delivered."""
    lineage = Lineage([NAMED, Entry.read("2", 5)], RULES, Audited(None, int(NOW), NextSearch.REGULAR))
    present = (Partition("2", ("1",), OPEN), Partition("3", ("0",), OPEN, 7))
    lineage.looked(Survey((), {"0": None}), {"0"}, 1)
    return lineage, following(lineage, Survey(present, {"0": None, "1": None}), policy)


def test_a_child_that_is_found_after_its_parent_has_gone_may_have_lost_its_first_records():
    """Its parent, of which everything was read, isn't told as lost."""
    lineage, service = after_an_end_that_is_gone(SKIPS)
    found = service.search(Deadline.after(9.0))
    ((gap, started),) = found.gaps
    assert (gap.lost_from, gap.resumed_at) == ("its first record (the service listed it too late)", "at 7")
    assert (found.started, started, lineage.at("3")) == (("3",), ("3",), Entry.read("3", 7))
    assert lineage.ends() == []


def test_a_child_that_is_found_after_its_parent_has_gone_is_refused_by_default():
    lineage, service = after_an_end_that_is_gone(Fail())
    before = list(lineage)
    with pytest.raises(ProviderFault, match="<3> was listed only after retention had removed its parent"):
        service.search(Deadline.after(9.0))
    assert list(lineage) == before


@pytest.mark.parametrize("complete", [True, False])
def test_a_provider_that_names_late_and_merges_is_refused(complete):
    """A child may wait for ever for a parent that retention removes before anybody has named it."""
    lineage = Lineage([Entry.read("0", 5), Entry.read("1", 5)], RULES)
    with pytest.raises(ProviderFault, match=r"2 has several parents, but the feed says .* \(C1\)"):
        lineage.ended("0", [Child("2", ("0", "1"), 5)], complete=complete)


def test_a_start_that_names_late_and_merges_is_refused():
    with pytest.raises(ProviderFault, match=r"2 has several parents, but the feed says .* \(C1\)"):
        Lineage.from_seeds([Seed("0", (), 5), Seed("1", (), 5), Seed("2", ("0", "1"), 5)], RULES)


@pytest.mark.parametrize("said", [(3, 8), (8, 3)])
def test_a_merged_child_starts_where_parents_join(said):
    rules, parents = RULES_OF[ListingKind.LISTED], ("0", "1")
    lineage = Lineage([Entry.read(name, 5) for name in parents], rules)
    for name, position in zip(parents, said, strict=True):
        lineage.ended(name, [Child("2", parents, position)], complete=True)
    assert list(lineage) == [Entry.read("2", rules.join("2", said))]


def test_the_pauses_stay_below_two_minutes(clock):
    looks, often = Looks(), Entry("0", Stage.END, (5,), children=("1",), looks=2000)
    looks.asked(FEED, often)
    clock.now += 119.0
    assert not looks.is_due(FEED, often)
    clock.now += 1.0
    assert looks.is_due(FEED, often)


def test_of_many_looks_the_latest_are_kept(clock, monkeypatch):
    monkeypatch.setattr(follow, "_MOST_KEPT", 2)
    looks = Looks()
    ends = [Entry(name, Stage.END, (5,), children=("9",)) for name in "abc"]
    for each in (ends[0], ends[1], ends[0], ends[2]):
        looks.asked(FEED, each)
    assert [looks.is_due(FEED, each) for each in ends] == [False, True, False]


def test_the_first_search_of_a_new_feed_is_due_soon():
    first = begun(SimpleNamespace(names_late=True), Beginning(), None)
    assert first is not None
    assert first.next is NextSearch.SOON


@pytest.mark.parametrize(
    ("seconds", "looks"), [(0.1, 1), (0.2, 2), (0.3, 2), (0.4, 3), (564.0, 14), (600.0, 15)]
)
def test_a_search_lasts_at_least_the_given_time(seconds, looks):
    assert most_looks(seconds) == looks


@pytest.mark.parametrize(
    "outcome", [Awaiting(), Drained((Child("1", ("0",), 5),), complete=False)], ids=["unnamed", "incomplete"]
)
def test_a_provider_that_names_late_although_it_says_that_it_does_not_is_refused(outcome):
    lineage = Lineage([Entry.read("0", 5)], RULES)
    with pytest.raises(ProviderFault) as caught:
        apply_end(lineage, "0", outcome, names_late=False)
    assert caught.value.fault.category == ErrorCategory.PERMANENT_FAILURE
    assert list(lineage) == [Entry.read("0", 5)]


def test_an_end_with_children_but_without_a_child_is_refused():
    lineage = Lineage([Entry.read("0", 5)], RULES)
    with pytest.raises(ProviderFault, match="0 has ended with Drained, but without a child"):
        apply_end(lineage, "0", Drained(()), names_late=True)
    assert list(lineage) == [Entry.read("0", 5)]


def test_a_loss_of_which_nothing_is_proved_names_three_partitions():
    lineage = Lineage(map(Entry.read, "0123", "5555"), RULES, root="0")
    survey = Survey((), dict.fromkeys("0123"), heirs=(Seed("9", (), 7),))
    with pytest.raises(ProviderFault) as caught:
        following(lineage, survey).lost(tuple("3210"))
    assert caught.value.fault.category == ErrorCategory.CHECKPOINT_EXPIRED
    message = caught.value.fault.message
    assert [name in message for name in ("<0>", "<1>", "<2>", "<3>")] == [True, True, True, False]


@pytest.mark.parametrize("on_expired", [SKIPS, Fail()], ids=["skips", "fails"])
def test_a_look_raises_without_a_proof(on_expired):
    """A partition that may follow the lost one has been listed, but the service does not tell its parents."""
    lineage = Lineage([Entry("0", Stage.END, ())], RULES, root="0")
    survey = Survey((Partition("5", ("4",), OPEN, 7),), {"4": None})
    with pytest.raises(ProviderFault, match="<0> no longer exists") as caught:
        following(lineage, survey, on_expired).look(lineage.ends())
    assert caught.value.fault.category == ErrorCategory.CHECKPOINT_EXPIRED
    assert list(lineage) == [Entry("0", Stage.END, ())]


def test_a_notice_of_a_loss_says_from_where_to_where():
    seeds = tuple(Seed(name, (), position) for name, position in zip("abcd", (6, 7, 8, 9), strict=True))
    told = following(Lineage([Entry.read("a", 6)], RULES)).told([Loss("0", 5, seeds), Loss("1", None)])
    (known, started), (unseen, nothing) = told
    assert (known.partition_id, known.lost_from, known.resumed_at) == ("<0>", "at 5", "at 6, at 7, at 8")
    assert started == tuple("abcd")
    assert (unseen.partition_id, nothing) == ("<1>", ())
    assert unseen.resumed_at != following(Lineage((), RULES)).told([Loss("1", None)])[0][0].resumed_at


def test_a_feed_that_begins_again_has_one_notice():
    seed = Seed("a", (), 6)
    losses = [Loss(name, 5, (seed,), everything=name != "2") for name in "012"]
    told = following(Lineage([Entry.read("a", 6)], RULES)).told(losses)
    assert told == tuple((Gap(name, "at 5", "at 6"), ("a",)) for name in ("<2>", "items"))


def test_an_end_that_is_lost_raises_or_is_skipped():
    survey = Survey((Partition("1", (), OPEN, 5), Partition("2", ("0",), OPEN, 7)), {"0": None})
    lineage = Lineage([LOST, Entry.read("1", 5)], RULES)
    with pytest.raises(
        ProviderFault, match=r"<0> was lost .* before the service named its children"
    ) as caught:
        following(lineage, survey, Fail()).look([LOST])
    assert caught.value.fault.category == ErrorCategory.CHECKPOINT_EXPIRED
    assert list(lineage) == [LOST, Entry.read("1", 5)]
    found = following(lineage, survey).look([LOST])
    gap = (Gap("<0>", "at 5", "at 7"), ("2",))
    assert found == Found(("2",), gaps=(gap,), left=(Seed("2", ("0",), 7),))


def test_only_what_the_service_has_answered_was_asked(clock):
    ends = [Entry(name, Stage.END, (5,), children=("9",)) for name in "01"]
    lineage = Lineage([*ends, Entry("2", Stage.END, (5,), children=("9",), final=True)], RULES)
    follow = following(lineage, Survey(answered=["1", "9"]))
    assert follow.due() == ends
    assert follow.look(ends) == Found()
    assert follow.due() == ends[:1]
    following(lineage, Survey()).look(ends)
    clock.now += 1.0
    assert [end.looks for end in lineage.ends()] == [0, 0, 0]


def test_a_loss_that_no_listing_has_shown_ends_a_feed_that_does_not_skip():
    lineage = Lineage([Entry.read("0", 5)], RULES, Audited(None, 4711, NextSearch.REGULAR))
    there = (Partition("0", (), OPEN), Partition("3", ("2",), OPEN, 7))
    with pytest.raises(ProviderFault, match=r"<2> was lost .* its changes were never read") as caught:
        following(lineage, Survey(there, {"2": None}), Fail()).search(Deadline.after(9.0))
    assert caught.value.fault.category == ErrorCategory.CHECKPOINT_EXPIRED
    assert list(lineage) == [Entry.read("0", 5)]


@pytest.mark.parametrize("others", [(), (Entry.read("1", 5),)])
def test_a_final_end_is_compared_with_all_that_exists_only_when_the_feed_ends(others):
    lineage = Lineage([LOST, *others], RULES, Audited(None, 4711, NextSearch.REGULAR))
    asked, there = [], [Partition(each.partition_id, (), OPEN) for each in others]

    def survey(*, whole, **_):
        asked.append(whole)
        return Survey(tuple(there), final={"0": None})

    following(lineage, survey).look([LOST])
    assert asked == ([False] if others else [False, True])
