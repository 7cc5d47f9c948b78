"""Tests that an audit by parents finds every missed partition, and no partition that was read."""

import random
from collections import UserDict

import attrs
import pytest

from multiclouddb_spi import Partition, PartitionState, Tracked, missed_by_parents

OPEN, CLOSED = PartitionState.OPEN, PartitionState.CLOSED


def listing(**parents):
    """Make a listing; names in capitals are open partitions: `a="p"` is a closed child of `p`."""
    return [
        Partition(name.lower(), tuple(above.lower()), OPEN if name.isupper() else CLOSED)
        for name, above in parents.items()
    ]


def held(*names, drained=(), waiting=()):
    """Return a token that contains these partitions."""
    found = {name: Tracked(name, (1,)) for name in names}
    found |= {name: Tracked(name, (1,), drained=True, has_children=True) for name in drained}
    return found | {name: Tracked(name, (1,), parents) for name, parents in waiting}


class Counting(UserDict):
    """A mapping that counts how many of its items are visited by a loop over it."""

    def __init__(self, items):
        self.visited = 0
        super().__init__(items)

    def __iter__(self):
        for name in super().__iter__():
            self.visited += 1
            yield name


def never(name):
    raise AssertionError(f"{name} was asked for")


def gone(*names):
    return lambda name: name in names


class TestMissed:
    def test_nothing_is_asked_when_everything_is_covered(self):
        listed = listing(p="x", A="p", B="p", Q="y")
        assert missed_by_parents(held("a", "b", "q"), listed, never) == {}
        assert missed_by_parents(held("a", "q", drained="p"), listed, never) == {}

    @pytest.mark.parametrize("children", ["c", "d"])
    def test_the_work_grows_with_the_number_of_partitions_and_not_with_its_square(self, children):
        """An audit of 10,000 partitions once took eight seconds, in which no other thread ran."""
        names = [f"{number:03}" for number in range(300)]
        tracked = Counting(held(*(f"c{name}" for name in names)))
        listed = [Partition(f"p{name}", (), CLOSED) for name in names]
        listed += [
            Partition(f"{child}{name}", (f"p{name}",), OPEN) for child in "c" + children for name in names
        ]
        missed = {} if children == "c" else {f"d{name}": () for name in names}
        assert missed_by_parents(tracked, listed, never) == missed
        assert tracked.visited < 10 * len(names)

    def test_nor_for_one_that_was_read_and_is_listed_as_open_still(self):
        listed = listing(P="", C="p")
        assert missed_by_parents(held("c", drained="x"), listed, never) == {}

    def test_the_other_half_of_a_split(self):
        assert missed_by_parents(held("a"), iter(listing(p="", A="p", B="p")), never) == {"b": ()}

    def test_the_other_half_when_the_parent_is_gone(self):
        assert missed_by_parents(held("a"), listing(A="p", B="p"), gone("p")) == {"b": ()}

    def test_with_what_follows_it(self):
        listed = listing(p="", A="p", b="p", c="b", D="c", E="b")
        found = {"b": (), "c": ("b",), "d": ("c",), "e": ("b",)}
        assert missed_by_parents(held("a"), listed, never) == found

    def test_what_follows_one_that_is_not_listed_yet_is_not_judged(self):
        assert missed_by_parents(held("a"), listing(p="", A="p", D="b"), gone()) == {}

    def test_a_listing_without_a_partition_that_is_read_is_incomplete(self):
        assert missed_by_parents(held("a", "c"), listing(p="", A="p", B="p"), never) is None

    def test_a_hidden_generation_in_the_middle_makes_nothing_that_was_read_look_missed(self):
        """The service still lists `s`, its old partition, but not `c`, the child of `s` and parent of `d`."""
        assert missed_by_parents(held("d"), listing(S="", D="c"), gone()) is None

    def test_so_does_a_hidden_one_that_is_watched(self):
        assert missed_by_parents(held("d", drained="c"), listing(S="", D="c"), gone()) is None

    def test_and_one_that_waits(self):
        listed = listing(S="", C="s", X="")
        assert missed_by_parents(held("c", waiting=[("d", ("c",))]), listed, gone()) is None

    def test_what_a_lost_partition_may_lead_to_is_not_judged(self):
        """`p` is not read yet, or its children are not known yet. `c`, its child, no longer exists."""
        listed = listing(X="", D="c")
        ended = {"p": Tracked("p", (1,), drained=True)}
        assert missed_by_parents(held("x") | ended, listed, gone("p", "c")) is None
        waits = held("x", waiting=[("p", ("x",))])
        assert missed_by_parents(waits, listed, gone("p", "c")) is None
        assert missed_by_parents(held("x", drained="p"), listed, gone("p", "c")) == {"d": ()}

    def test_one_that_is_gone_hides_nothing(self):
        assert missed_by_parents(held("d"), listing(X="", D="c"), gone("c")) == {"x": ()}


@attrs.define
class Shard:
    """One partition: its start, its end, and how far it has been read."""

    parent: int | None
    began: int
    ended: int | None = None
    drained: int | None = None
    missed: bool = False


class Life:
    """Simulates a feed whose partitions split and roll over.

    The simulated reader misses some children of splits.
    """

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.shards = [Shard(None, 0) for _ in range(self.random.randint(1, 3))]
        for now in range(1, 25):
            self.step(now)

    def step(self, now):
        for name, shard in list(enumerate(self.shards)):
            if shard.ended is None and self.random.random() < 0.15:
                shard.ended = now
                self.shards += [Shard(name, now) for _ in range(self.random.randint(1, 2))]
            elif shard.ended is not None and shard.drained is None and self.random.random() < 0.6:
                self.drain(name, now)

    def drain(self, name, now):
        shard = self.shards[name]
        above = None if shard.parent is None else self.shards[shard.parent]
        if shard.missed or (above is not None and (above.drained is None or above.missed)):
            return
        shard.drained = now
        children = [child for child in self.shards if child.parent == name]
        if len(children) == 2 and self.random.random() < 0.4:
            self.random.choice(children).missed = True

    def was_missed(self, name):
        shard = self.shards[name]
        return shard.missed or (shard.parent is not None and self.was_missed(shard.parent))

    def token(self, now):
        """Return the partitions that the reader knows at a given time and has not read to the end."""
        found = {}
        for name, shard in enumerate(self.shards):
            above = None if shard.parent is None else self.shards[shard.parent]
            begun = shard.began <= now and (
                above is None or (above.drained is not None and above.drained <= now)
            )
            read = shard.drained is not None and shard.drained <= now
            if begun and not read and not self.was_missed(name):
                found[str(name)] = Tracked(str(name), (1,))
        return found

    def listing(self, moments, hidden):
        """Return a listing whose pages show the shards at different times."""
        found = []
        for name, shard in enumerate(self.shards):
            moment = moments[name % len(moments)]
            if shard.began <= moment and name not in hidden:
                state = OPEN if shard.ended is None or shard.ended > moment else CLOSED
                parents = () if shard.parent is None else (str(shard.parent),)
                found.append(Partition(str(name), parents, state))
        return found


@pytest.mark.parametrize("first", range(0, 2000, 500))
def test_nothing_that_was_read_is_ever_found(first):
    """Each page of a listing shows the state at a different time, which may be earlier than the token. Some
    partitions are not listed.
    """
    found_any = 0
    for seed in range(first, first + 500):
        life = Life(seed)
        now = life.random.randint(5, 24)
        moments = [min(24, max(0, now + life.random.randint(-6, 3))) for _ in range(3)]
        hidden = {name for name in range(len(life.shards)) if life.random.random() < 0.1}
        token = life.token(now)
        if not token:
            continue
        found = missed_by_parents(token, life.listing(moments, hidden), gone()) or {}
        wrong = [name for name in found if not life.was_missed(int(name))]
        assert not wrong, f"seed {seed}: {wrong} of {found} were read, or are led to"
        found_any += bool(found)
    assert found_any > 10


@pytest.mark.parametrize("seed", range(200))
def test_everything_that_was_missed_is_found_when_all_is_listed(seed):
    life = Life(seed)
    token = life.token(24)
    if not token:
        return
    found = missed_by_parents(token, life.listing([24], set()), gone())
    missed_and_open = {
        str(name) for name, shard in enumerate(life.shards) if life.was_missed(name) and shard.ended is None
    }
    assert missed_and_open <= found.keys()
    assert all(life.was_missed(int(name)) for name in found)
