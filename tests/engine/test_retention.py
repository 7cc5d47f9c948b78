"""What takes the place of lost partitions, by what the service still lists."""

import pytest

from multiclouddb_spi import Child, Lineage, Partition, PartitionState, Seed
from multiclouddb_spi.retention import Retention


class Service:
    """A tree of partitions, of which some are gone."""

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

    def heirs(self, entries, name):
        found, coming = self.retention.heirs(lineage(entries), name, self.oldest([name]))
        return [seed.partition_id for seed in found], coming

    def named(self, entries, name, children):
        named = [Child(child, tuple(self.parents[child]), f"said by {name}") for child in children]
        taken, lost = self.retention.named(lineage(entries), name, named)
        return [child.partition_id for child in taken], lost

    @property
    def retention(self):
        return Retention(self.partitions, self.oldest)


def lineage(entries):
    return Lineage.from_seeds([Seed(name, (), name) for name in entries], lambda child, said: said[0])


class TestHeirs:
    def test_partition_that_still_has_records_goes_on_itself(self):
        service = Service(p="", q="", m="pq")
        assert service.heirs("pq", "p") == (["p"], set())
        assert service.calls == 1, "only what the test has asked"

    def test_whatever_follows_them_comes_later_through_splits_and_merges(self):
        service = Service("p", p="", l="p", r="p", x="l", y="x", q="", m="rq", z="q", k="", o="k")
        assert service.heirs("pq", "p") == (["l", "r"], set("xymz"))

    def test_nothing_is_left(self):
        assert Service("p", p="").heirs("p", "p") == ([], set())

    @pytest.mark.parametrize("rest", [{"c": "m"}, {"n": "m", "c": "n"}], ids=["of one", "of two generations"])
    def test_what_another_lost_one_leads_to_is_left_to_it(self, rest):
        service = Service("pqmn", p="", q="", m="pq", d="c", **rest)
        assert service.heirs("pq", "p") == ([], {"c", "d"})
        assert service.heirs("p", "p") == (["c"], {"d"})

    def test_what_a_lost_child_that_waits_leads_to_is_left_to_it(self):
        service = Service("pqm", p="", q="", m="pq", c="m")
        assert service.heirs("pqm", "p") == ([], {"c"})

    def test_what_another_one_names_is_left_to_it(self):
        service = Service("pa", p="", q="", a="p", m="aq")
        assert service.heirs("pq", "p") == ([], {"m"})


class TestNamed:
    def test_service_is_not_asked_when_every_parent_is_known(self):
        service = Service(p="", q="", l="p", m="pq")
        assert service.named("pq", "p", "lm") == (["l", "m"], set())
        assert not service.calls

    def test_parent_that_is_discovered_later_is_waited_for(self):
        service = Service(p="", q="", a="q", b="a", m="pb")
        assert service.named("pq", "p", "m") == (["m"], set())

    def test_parent_that_is_gone_is_not(self):
        service = Service("b", p="", b="", m="pb")
        assert service.named("p", "p", "m") == (["m"], {"b"})

    def test_parent_that_is_listed_and_that_nobody_leads_to_is_not(self):
        service = Service(p="", q="", b="", m="pb")
        assert service.named("pq", "p", "m") == (["m"], {"b"})

    def test_parent_that_comes_behind_a_lost_one_is_waited_for(self):
        service = Service("qa", p="", q="", a="q", b="a", m="pb")
        assert service.named("pq", "p", "m") == (["m"], set())

    def test_child_that_a_lost_one_leads_to_is_left_to_it(self):
        service = Service("qa", p="", q="", a="q", l="p", m="pa")
        assert service.named("pq", "p", "lm") == (["l"], {"a"})

    def test_child_that_waits_already_is_named_all_the_same(self):
        service = Service("qa", p="", q="", a="q", m="pa", n="pa")
        assert service.named("pqm", "p", "mn") == (["m"], {"a"})

    def test_parent_that_comes_behind_the_partition_itself_is_waited_for(self):
        for gone in ("", "p"):
            service = Service(gone, p="", l="p", x="l", m="px")
            assert service.named("p", "p", "lm") == (["l", "m"], set()), gone
