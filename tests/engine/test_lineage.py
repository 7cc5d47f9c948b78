"""Tests which partitions are read and which wait, with random splits and merges and a simple model."""

import json

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from multiclouddb_api import ErrorCategory, MulticloudDbError
from multiclouddb_spi import Child, InvalidCursor, Lineage, Seed
from multiclouddb_spi.continuation.entry import Active, Audited, AwaitingChildren, Waiting


def join(child_id, cursors):
    """Return the start of a merged child, as text that shows the position from each parent."""
    return f"{child_id} from {' '.join(sorted(cursors))}"


def lineage(*seeds):
    return Lineage.from_seeds([Seed(name, parents, f"seed-{name}") for name, *parents in seeds], join)


def child(name, *parents, said=None):
    return Child(name, parents, said or f"{name}@{parents[0]}")


def active(of):
    return [entry.partition_id for entry in of.active()]


class TestStart:
    def test_parent_that_is_no_seed_counts_as_drained(self):
        assert active(lineage(("a", "gone"), ("b",))) == ["a", "b"]

    def test_seed_waits_for_the_seed_that_is_its_parent(self):
        made = lineage(("child", "parent"), ("parent",))
        assert active(made) == ["parent"]
        assert made.retire("parent", [child("child", "parent")]) == ["child"]
        assert made.cursor("child") == "child from child@parent seed-child"

    def test_seed_that_names_itself_as_parent_does_not_wait_for_ever(self):
        assert active(lineage(("a", "a"))) == ["a"]


class TestSplit:
    def test_children_start_when_the_parent_is_drained(self):
        made = lineage(("p",))
        assert made.retire("p", [child("l", "p"), child("r", "p")]) == ["l", "r"]
        assert "p" not in made
        assert active(made) == ["l", "r"]

    def test_child_that_is_named_twice_starts_once(self):
        made = lineage(("p",))
        assert made.retire("p", [child("c", "p"), child("c", "p")]) == ["c"]
        assert len(made) == 1

    def test_child_of_a_drained_partition_starts_when_discovery_names_it(self):
        made = lineage(("p",))
        made.advance("p", "end")
        made.await_children("p")
        assert active(made) == []
        assert made.awaiting_children() == [AwaitingChildren("p", "end")]
        assert made.retire("p", [child("c", "p")]) == ["c"]
        assert made.awaiting_children() == []

    def test_child_that_already_runs_is_left_where_it_is(self):
        made = lineage(("p",), ("c",))
        made.advance("c", "far")
        assert made.retire("p", [child("c", "p")]) == []
        assert made.cursor("c") == "far"


class TestMerge:
    def test_child_starts_with_the_last_parent(self):
        made = lineage(("a",), ("b",))
        assert made.retire("a", [child("m", "a", "b")]) == []
        assert active(made) == ["b"]
        assert made.retire("b", [child("m", "b", "a")]) == ["m"]
        assert made.cursor("m") == "m from m@a m@b"

    def test_child_waits_for_a_parent_that_has_not_been_discovered(self):
        made = lineage(("a",), ("slow",))
        made.retire("a", [child("m", "a", "b")])
        assert active(made) == ["slow"]
        assert made.retire("slow", [child("b", "slow"), child("c", "slow")]) == ["b", "c"]
        assert made.retire("c") == []
        assert made.retire("b", [child("m", "b", "a")]) == ["m"]

    def test_what_two_parents_say_alike_is_joined_once(self):
        made = lineage(("a",), ("b",))
        made.retire("a", [child("m", "a", "b", said="here")])
        made.retire("b", [child("m", "a", "b", said="here")])
        assert made.cursor("m") == "m from here"


class TestReplace:
    """Tests a branch whose records were lost to retention."""

    def test_partition_goes_on_at_its_oldest_record(self):
        made = lineage(("p",), ("q",))
        assert made.replace("p", [Seed("p", (), "oldest")]) == ["p"]
        assert made.cursor("p") == "oldest"
        assert active(made) == ["q", "p"]

    def test_descendants_take_the_place_of_one_that_is_gone(self):
        made = lineage(("p",))
        assert made.replace("p", [Seed("l", ("p",), 1), Seed("r", ("p",), 2)]) == ["l", "r"]

    def test_descendants_keep_waiting_for_each_other(self):
        made = lineage(("p",))
        assert made.replace("p", [Seed("c", ("p",), 1), Seed("d", ("c",), 2)]) == ["c"]
        assert active(made) == ["c"]

    def test_nothing_left_leaves_nothing(self):
        made = lineage(("p",))
        assert made.replace("p", []) == []
        assert len(made) == 0

    def test_merge_no_longer_waits_for_the_lost_parent(self):
        made = lineage(("a",), ("b",))
        made.retire("a", [child("m", "a", "b")])
        assert made.replace("b", [Seed("m", ("a", "b"), "seed")]) == ["m"]

    def test_merge_still_waits_for_the_parent_that_is_left(self):
        made = lineage(("a",), ("b",))
        assert made.replace("b", [Seed("m", ("a", "b"), "seed")]) == []
        assert active(made) == ["a"]
        assert made.retire("a", [child("m", "a", "b")]) == ["m"]

    def test_child_elsewhere_keeps_waiting_for_a_parent_that_is_only_undiscovered(self):
        """`m` waits for `b`, a child of `slow`. The loss of `lost` does not end this wait."""
        made = lineage(("a",), ("slow",), ("lost",))
        made.retire("a", [child("m", "a", "b")])
        started = made.replace("lost", [Seed("lost", (), "oldest")], coming={"b", "m"})
        assert started == ["lost"]
        assert active(made) == ["slow", "lost"]
        made.retire("slow", [child("b", "slow")])
        assert made.retire("b", [child("m", "a", "b")]) == ["m"]

    def test_descendant_of_a_lost_partition_waits_for_an_undiscovered_parent_elsewhere(self):
        made = lineage(("slow",), ("lost",))
        assert made.replace("lost", [Seed("m", ("b", "lost"), "seed")], coming={"b", "m"}) == []
        assert active(made) == ["slow"]
        made.retire("slow", [child("b", "slow")])
        assert made.retire("b", [child("m", "b", "lost")]) == ["m"]


class TestStrangers:
    """Tests parents that are unknown when a child is named, because they are lost or discovered late."""

    def test_parent_that_is_not_known_is_a_stranger(self):
        made = lineage(("a",), ("slow",))
        assert made.undiscovered("a", [child("m", "a", "b", "slow"), child("n", "a")]) == {"b"}

    def test_parents_of_a_child_that_was_named_before_are_none(self):
        made = lineage(("a",), ("b",))
        made.retire("a", [child("m", "a", "b", "c")])
        assert made.undiscovered("b", [child("m", "b", "a", "c")]) == set()

    def test_lost_stranger_is_not_waited_for(self):
        made = lineage(("a",))
        assert made.retire("a", [child("m", "a", "b")], {"b"}) == ["m"]

    def test_late_stranger_is_waited_for_beside_a_lost_one(self):
        made = lineage(("a",), ("slow",))
        assert made.retire("a", [child("m", "a", "b", "c")], {"c"}) == []
        made.retire("slow", [child("b", "slow")])
        assert made.retire("b", [child("m", "b", "a", "c")]) == ["m"]


class TestQueue:
    def test_turn_goes_to_the_back_in_the_order_served(self):
        made = lineage(("a",), ("b",), ("c",))
        made.rotate(["b", "a", "unknown"])
        assert active(made) == ["c", "b", "a"]

    def test_advancing_keeps_the_place_in_the_queue(self):
        made = lineage(("a",), ("b",))
        made.advance("a", 5)
        assert active(made) == ["a", "b"]
        assert made.cursor("a") == 5

    def test_suspicion_ends_with_the_next_delivery(self):
        made = lineage(("a",))
        made.failed_last("a")
        assert made.active() == [Active("a", "seed-a", failed_last=True)]
        made.advance("a", 1)
        assert made.active() == [Active("a", 1)]


class TestJson:
    def test_every_kind_of_entry_comes_back(self):
        entries = [
            Active("a", {"any": ["json", None]}),
            Active("s", 1, failed_last=True),
            AwaitingChildren("d", "end"),
            AwaitingChildren("k", "end", ("known", "children"), 17),
            Waiting("w", ("said", [1]), ("p", "q")),
        ]
        text = json.dumps(Lineage(entries, join).to_json())
        assert list(Lineage.from_json(json.loads(text), join)) == entries

    def test_waiting_child_starts_after_a_restart_too(self):
        made = lineage(("a",), ("b",))
        made.retire("a", [child("m", "a", "b")])
        made = Lineage.from_json(made.to_json(), join)
        assert made.retire("b", [child("m", "a", "b", said="late")]) == ["m"]
        assert made.cursor("m") == "m from late m@a"

    @pytest.mark.parametrize(
        "value",
        [
            ["a"],
            [[1, 2]],
            [["a", 1, 7]],
            [["a", 1, 0]],
            [["a", 1, True]],
            [["a", 1, "drained"]],
            [["a", [], 4, ["p"]]],
            [["a", ["said"], 4, []]],
            [["a", ["said"], 4, [1]]],
            [["a", ["said"], 4]],
            [["a", 1, 1, ["child"]]],
            [["a", 1, 1, [1], 0]],
            [["a", 1, 1, [], -1]],
            [["a", 1, 1, [], True]],
            [["a", 1, 2, 3]],
            [["a", 1], ["a", 2]],
        ],
        ids=repr,
    )
    def test_any_other_partition_is_refused(self, value):
        with pytest.raises(InvalidCursor):
            Lineage.from_json({"p": value}, join)

    @pytest.mark.parametrize("value", [None, {}, "a", [], {"p": "a"}, {"p": {}}], ids=repr)
    def test_anything_but_partitions_is_refused(self, value):
        with pytest.raises(InvalidCursor):
            Lineage.from_json(value, join)

    @pytest.mark.parametrize(
        "value", [None, [], [1, 2], ["a", 2, 1], [1, -2, 1], [1, 2, 2], [1, True, 1], [1, 2, 1, 0]], ids=repr
    )
    def test_any_other_time_of_an_audit_is_refused(self, value):
        with pytest.raises(InvalidCursor):
            Lineage.from_json({"p": [], "a": value}, join)

    @pytest.mark.parametrize("audited", [None, Audited(), Audited(-1, 2, retired=False), Audited(3, 4)])
    def test_what_is_kept_for_audits_comes_back(self, audited):
        made = Lineage([Active("a", 1)], join, audited)
        assert Lineage.from_json(json.loads(json.dumps(made.to_json())), join).audited == audited

    @pytest.mark.parametrize("rest", [[], [["child"]], [1, 2, 3]], ids=repr)
    @pytest.mark.parametrize("flags", [17, 32, 256, 272, 1024])
    def test_a_flag_of_a_newer_version_asks_for_it(self, flags, rest):
        with pytest.raises(MulticloudDbError, match=r"newer version.*upgrade multiclouddb") as raised:
            Lineage.from_json({"p": [["a", 1, flags, *rest]]}, join)
        assert raised.value.category == ErrorCategory.INVALID_REQUEST


class Forest(RuleBasedStateMachine):
    """A random history in which partitions split, merge, roll and are lost.

    The choice of the partitions to read must depend only on which partitions are finished.
    """

    @initialize(count=st.integers(1, 3))
    def begin(self, count):
        self.parents = {f"p{number}": () for number in range(count)}
        self.children = {}
        self.done, self.lost, self.named = set(), set(), {}
        seeds = [Seed(name, (), f"seed {name}") for name in self.parents]
        self.named = {seed.partition_id: {seed.cursor} for seed in seeds}
        self.lineage = Lineage.from_seeds(seeds, self.join)

    def join(self, child_id, cursors):
        assert len(set(cursors)) == len(cursors)
        assert set(cursors) == self.named[child_id]
        return f"start {child_id}"

    def open(self):
        return [name for name in self.parents if name not in self.children]

    def add(self, parents, count):
        names = [f"p{len(self.parents) + number}" for number in range(count)]
        for name in names:
            self.parents[name] = tuple(parents)
        for parent in parents:
            self.children[parent] = names

    @precondition(lambda self: len(self.parents) < 60)
    @rule(which=st.integers(0, 99), into=st.integers(1, 3))
    def split(self, which, into):
        names = self.open()
        self.add([names[which % len(names)]], into)

    @precondition(lambda self: len(self.parents) < 60 and len(self.open()) > 1)
    @rule(data=st.data(), into=st.integers(1, 2))
    def merge(self, data, into):
        parents = data.draw(st.lists(st.sampled_from(self.open()), min_size=2, max_size=3, unique=True))
        self.add(parents, into)

    @precondition(lambda self: self.ended())
    @rule(data=st.data(), late=st.booleans())
    def drain(self, data, late):
        """Read an ended partition to its end.

        The partition names some or all of its children, now or later.
        """
        name = data.draw(st.sampled_from(self.ended()))
        if late and self.lineage.ending(name) is None:
            self.lineage.await_children(name)
        else:
            told = data.draw(st.permutations(self.children[name]))
            told = told[: data.draw(st.integers(1, len(told)))]
            self.retire(
                name, told, complete=len(told) == len(self.children[name]) and data.draw(st.booleans())
            )

    def retire(self, name, children, complete=True):
        told = [Child(child, self.parents[child], f"{name} names {child}") for child in children]
        for item in self.lineage.fresh_children(name, told):
            self.named.setdefault(item.partition_id, set()).add(item.cursor)
        before = {entry.partition_id for entry in self.lineage.active()}
        started = self.lineage.retire(name, [*told, *told[:1]], complete=complete)
        self.done.add(name)
        now = {entry.partition_id for entry in self.lineage.active()}
        assert set(started) == now - before
        assert (name in self.lineage) != complete
        if not complete:
            assert set(self.lineage.ending(name).children) >= set(children)

    @precondition(lambda self: self.told_all())
    @rule(data=st.data())
    def forget(self, data):
        """End the watch of a partition that has named every child."""
        name = data.draw(st.sampled_from(self.told_all()))
        before = {entry.partition_id for entry in self.lineage.active()}
        started = self.lineage.forget(name)
        assert {entry.partition_id for entry in self.lineage.active()} == before | set(started)

    def told_all(self):
        return [
            entry.partition_id
            for entry in self.lineage.awaiting_children()
            if set(self.children[entry.partition_id]) <= set(entry.children)
        ]

    @rule(data=st.data())
    def look(self, data):
        """Search for children and find none, so that only the time in the token changes."""
        ends = self.lineage.awaiting_children()
        if ends:
            entry = data.draw(st.sampled_from(ends))
            before = self.lineage.copy()
            self.lineage.watch(entry.partition_id, entry.watched + 3)
            assert self.lineage.stands_like(before)

    @precondition(lambda self: self.lineage.active())
    @rule(data=st.data())
    def lose(self, data):
        """Retention removes a partition and some of its descendants."""
        name = data.draw(st.sampled_from([entry.partition_id for entry in self.lineage.active()]))
        gone = {name} if name in self.children and data.draw(st.booleans()) else set()
        pending = list(self.children[name]) if gone else []
        while pending:
            item = pending.pop()
            over = self.done | self.lost | gone
            may = item in self.children and item not in self.lineage and over.issuperset(self.parents[item])
            # If a watched partition names a child only later, reading this child shows that the child is
            # lost.
            watched = any(self.lineage.ending(parent) is not None for parent in self.parents[item])
            if may and not watched and data.draw(st.booleans()):
                gone.add(item)
                pending += self.children[item]
        self.lost |= gone
        left = self.oldest(name)
        seeds = [Seed(item, self.parents[item], f"oldest of {item}") for item in left]
        fresh = [seed for seed in seeds if seed.partition_id not in self.lineage or seed.partition_id == name]
        for seed in fresh:
            self.named.setdefault(seed.partition_id, set()).add(seed.cursor)
        self.lineage.replace(name, seeds, coming=self.parents.keys() - self.lost - self.done)

    def oldest(self, name):
        """Return the partition, or the oldest of its descendants that are not lost."""
        found, pending = [], [name]
        while pending:
            item = pending.pop()
            if item not in self.lost:
                found.append(item)
            else:
                pending += self.children.get(item, [])
        return list(dict.fromkeys(found))

    @rule(data=st.data())
    def serve(self, data):
        """Read a page, after which some partitions have advanced and are at the end of the queue."""
        names = [entry.partition_id for entry in self.lineage.active()]
        if names:
            served = data.draw(st.lists(st.sampled_from(names), unique=True))
            for name in served:
                self.lineage.advance(name, f"read {name}")
            self.lineage.rotate(served)
            assert active(self.lineage)[len(names) - len(served) :] == served

    @rule()
    def restart(self):
        value = json.loads(json.dumps(self.lineage.to_json()))
        self.lineage = Lineage.from_json(value, self.join)

    def reading(self):
        """Return the partitions that are being read, or that have ended without naming a child."""
        entries = [entry for entry in self.lineage if not isinstance(entry, Waiting)]
        return [
            entry.partition_id
            for entry in entries
            if not (isinstance(entry, AwaitingChildren) and entry.children)
        ]

    def ended(self):
        """Return the ended partitions that may still name children."""
        watched = [entry.partition_id for entry in self.lineage.awaiting_children()]
        return list(dict.fromkeys([name for name in self.reading() if name in self.children] + watched))

    def known(self):
        """Return the partitions that a seed or an ended partition has named and that are not finished."""
        over = self.done | self.lost
        return {name for name in self.parents if name in self.named and name not in over}

    @invariant()
    def is_read_exactly_when_all_parents_are_done(self):
        if not hasattr(self, "lineage"):
            return
        over = self.done | self.lost
        ready = {name for name in self.known() if over.issuperset(self.parents[name])}
        assert set(self.reading()) == ready
        waiting = {entry.partition_id for entry in self.lineage if isinstance(entry, Waiting)}
        assert waiting == self.known() - ready

    @invariant()
    def json_round_trip_changes_nothing(self):
        if hasattr(self, "lineage"):
            value = self.lineage.to_json()
            assert Lineage.from_json(value, self.join).to_json() == value

    def teardown(self):
        """Check that, after all reads, every partition that was not lost has been read."""
        if not hasattr(self, "lineage"):
            return
        while ready := self.ended():
            self.retire(ready[0], self.children[ready[0]])
        assert set(self.reading()) == set(self.open()), "a branch is never read"


Forest.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestForest = Forest.TestCase
