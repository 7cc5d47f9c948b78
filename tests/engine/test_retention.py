"""Tests which partitions replace lost partitions, according to the service's listing."""

import pytest

from multiclouddb_spi import Child, Lineage, Partition, PartitionState, Seed
from multiclouddb_spi.continuation.lineage import Active, AwaitingChildren, Waiting
from multiclouddb_spi.continuation.retention import Retention


class Service:
    """A tree of partitions, some of which no longer exist."""

    def __init__(self, gone="", **parents):
        self.parents, self.gone, self.calls = parents, set(gone), 0

    def partitions(self):
        self.calls += 1
        listed = [name for name in self.parents if name not in self.gone]
        return [
            Partition(name, tuple(set(self.parents[name]) - self.gone), PartitionState.OPEN)
            for name in listed
        ]

    def oldest(self, names):
        self.calls += 1
        found, todo = {}, list(names)
        while todo:
            name = todo.pop()
            if name not in self.gone:
                found[name] = Seed(name, tuple(self.parents[name]), f"oldest of {name}")
                continue
            todo += [child for child, parents in self.parents.items() if name in parents]
        return [found[name] for name in self.parents if name in found]

    def lost(self, entries, name):
        """Return the partitions discovered later, and a map from waiting partitions to awaited ones."""
        seeds = self.oldest([name])
        return self.retention.after_loss(entries, name, seeds)

    def named(self, entries, name, children):
        """Return, for each child, the other parents for which the child waits."""
        said = [Child(child, tuple(self.parents[child]), f"said by {name}") for child in children]
        holds, lost = self.retention.after_end(entries, name, said)
        held = {child: {leader} for child, leader in holds.items()}
        return {
            child.partition_id: set(child.parents) - {name} - lost | held.get(child.partition_id, set())
            for child in said
            if child.partition_id not in entries
        }

    @property
    def retention(self):
        return Retention(self.partitions, self.oldest)


class Vague(Service):
    def oldest(self, names):
        return [Seed(partition.partition_id, partition.parents, "oldest") for partition in self.partitions()]


def lineage(*entries, **waiting):
    """Make a lineage of partitions that are read, and of children with the parents for which they wait."""
    read = [Active(name, name) for name in entries]
    held = [Waiting(name, (name,), tuple(parents)) for name, parents in waiting.items()]
    return Lineage([*read, *held], lambda child, said: said[0])


class TestLost:
    def test_partition_that_still_has_records_changes_nothing(self):
        service = Service("q", p="", q="", m="pq")
        assert service.lost(lineage("p", "q"), "p") == (set(), {})
        assert service.calls == 1, "only the questions of this test count"

    def test_whatever_follows_what_is_left_comes_later(self):
        service = Service("p", p="", l="p", r="p", x="l", y="x", q="", m="rq", z="q", k="", o="k")
        assert service.lost(lineage("p", "q"), "p") == (set("xymz"), {})

    def test_nothing_is_left(self):
        assert Service("p", p="").lost(lineage("p"), "p") == (set(), {})

    @pytest.mark.parametrize("rest", [{"c": "m"}, {"n": "m", "c": "n"}], ids=["of one", "of two generations"])
    def test_what_another_lost_one_leads_to_waits_for_it(self, rest):
        service = Service("pqmn", p="", q="", m="pq", d="c", **rest)
        parent = set(rest["c"])  # `q` may lead to it
        assert service.lost(lineage("p", "q"), "p") == ({"c", "d"} | parent, {"c": "q"})
        assert service.lost(lineage("p"), "p") == ({"d"}, {})

    def test_what_a_lost_child_that_waits_leads_to_waits_for_it(self):
        service = Service("pqm", p="", q="", m="pq", c="m")
        assert service.lost(lineage("p", "q", m="pq"), "p")[1] == {"c": "q"}
        assert service.lost(lineage("p", m="p"), "p")[1] == {"c": "m"}

    def test_what_waits_for_a_lost_parent_waits_for_what_leads_to_that(self):
        """The waiting child's grandparent is another lost partition."""
        service = Service("xpb", x="", p="", b="p", m="b", q="")
        assert service.lost(lineage("x", "p", "q", m="q"), "x")[1] == {"m": "p"}

    def test_nothing_waits_for_what_waits_for_it(self):
        """This service does not report parents, so every remaining partition may be a child of a lost
        partition.
        """
        service = Vague("pg", p="", c="p", g="c", d="g")
        assert service.lost(lineage("p", c="p", g="c"), "p")[1] == {"d": "g"}

    def test_nothing_waits_in_a_circle(self):
        """`a` and `c` are named at the same time. Either may be a child of `g`, but `g` waits for `c`."""
        service = Vague("pg", p="", a="p", c="a", g="c", d="g")
        made, seeds = lineage("p", g="c"), service.oldest(["p"])
        coming, holds = service.retention.after_loss(made, "p", seeds)
        assert holds == {"d": "g"}
        assert made.replace("p", seeds, coming, holds) == ["a"]
        assert made.retire("a", [Child("c", ("a",), "said")]) == ["c"]
        assert made.retire("c", [Child("g", ("c",), "said")]) == ["g"]
        assert made.retire("g", [Child("d", ("g",), "said")]) == ["d"]

    def test_what_is_read_already_is_not_held(self):
        service = Service("pq", p="", q="", c="pq")
        assert service.lost(lineage("p", "q", "c"), "p") == ({"c"}, {})

    def test_thousands_that_are_lost_ask_once(self):
        names = [f"p{number}" for number in range(2000)]
        service = Service(names, **dict.fromkeys(names, ""), c=names)
        made, retention = lineage(*names), service.retention
        for name in names[:-1]:
            coming, holds = retention.after_loss(made, name, [Seed("c", (), "oldest")])
            assert holds.keys() == {"c"}
            assert made.replace(name, [Seed("c", (), "oldest")], coming, holds) == []
        assert service.calls == 1 + len(names) - 1, "one listing for each, and one question for the oldest"
        coming, holds = retention.after_loss(made, names[-1], [Seed("c", (), "oldest")])
        assert made.replace(names[-1], [Seed("c", (), "oldest")], coming, holds) == ["c"]


class TestNamed:
    def test_service_is_not_asked_when_every_parent_is_known(self):
        service = Service(p="", q="", l="p", m="pq")
        assert service.named(lineage("p", "q"), "p", "lm") == {"l": set(), "m": {"q"}}
        assert not service.calls

    def test_parent_that_is_discovered_later_is_waited_for(self):
        service = Service(p="", q="", a="q", b="a", m="pb")
        assert service.named(lineage("p", "q"), "p", "m") == {"m": {"b"}}

    def test_parent_that_is_gone_is_not(self):
        service = Service("b", p="", b="", m="pb")
        assert service.named(lineage("p"), "p", "m") == {"m": set()}

    def test_parent_that_is_listed_and_that_nobody_leads_to_is_not(self):
        service = Service(p="", q="", b="", m="pb")
        assert service.named(lineage("p", "q"), "p", "m") == {"m": set()}

    def test_parent_that_comes_behind_a_lost_one_is_waited_for(self):
        service = Service("qa", p="", q="", a="q", b="a", m="pb")
        assert service.named(lineage("p", "q"), "p", "m") == {"m": {"b"}}

    def test_child_that_a_lost_one_leads_to_waits_for_it(self):
        service = Service("qa", p="", q="", a="q", l="p", m="pa")
        assert service.named(lineage("p", "q"), "p", "lm") == {"l": set(), "m": {"q", "a"}}

    def test_child_that_no_longer_exists_waits_for_a_lost_one_too(self):
        service = Service("qam", p="", q="", a="q", m="pa", n="m")
        assert service.named(lineage("p", "q"), "p", "m") == {"m": {"q", "a"}}

    def test_child_that_waits_already_is_named_as_it_is(self):
        service = Service("qa", p="", q="", a="q", m="pa", n="pa")
        made = lineage("p", "q", m="pq")
        assert service.named(made, "p", "mn") == {"n": {"q", "a"}}

    def test_child_that_waited_for_this_partition_waits_for_the_next_lost_one(self):
        service = Service("pqka", p="", q="", k="", a="q", m="ka")
        made = lineage("p", "q", m="pa")
        assert service.retention.after_end(made, "p", []) == ({"m": "q"}, set())
        assert made.retire("p", (), set(), {"m": "q"}) == []
        assert service.retention.after_end(made, "q", []) == ({}, {"a"}), "no other partition leads to it"
        assert made.retire("q", (), {"a"}) == ["m"]

    def test_child_waits_for_a_lost_parent_that_is_found_after_all(self):
        service = Service("qxa", p="", q="", x="q", a="x", m="pa")
        made = lineage("q", m="qa")
        first = [Child("x", ("q",), "x")]
        assert service.retention.after_end(made, "q", first) == ({"m": "x"}, set())
        assert made.retire("q", first, (), {"m": "x"}) == ["x"]
        second = [Child("a", ("x",), "a")]
        assert service.retention.after_end(made, "x", second) == ({"m": "a"}, set()), (
            "it waits for that already"
        )
        assert made.retire("x", second) == ["a"]
        assert made.retire("a", [Child("m", ("p", "a"), "m")]) == ["m"]

    def test_child_without_known_parents_waits_for_the_lost_child_of_an_ended_partition(self):
        """The service names no parents in its listing, so `m` may be a child of `a`."""
        service = Vague("pa", p="", a="p", m="a")
        assert service.retention.after_end(lineage("p", m="p"), "p", [Child("a", ("p",), "a")]) == (
            {"m": "a"},
            set(),
        )

    def test_nothing_waits_for_a_lost_partition_that_was_read_to_its_end(self):
        """Its children are known, and the service cannot name more of them."""
        service = Service("wqa", p="", w="", q="w", a="w", m="pa")
        made = Lineage([*lineage("p"), AwaitingChildren("w", 1, ("q",))], lambda child, said: said[0])
        assert service.named(made, "p", "m") == {"m": set()}
        made = Lineage([*lineage("p"), AwaitingChildren("w", 1)], lambda child, said: said[0])
        assert service.named(made, "p", "m") == {"m": {"w", "a"}}

    def test_parent_that_comes_behind_the_partition_itself_is_waited_for(self):
        for gone in ("", "p"):
            service = Service(gone, p="", l="p", x="l", m="px")
            assert service.named(lineage("p"), "p", "lm") == {"l": set(), "m": {"x"}}, gone
