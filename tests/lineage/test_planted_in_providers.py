"""Plants one defect at a time in what a provider states about its partitions; the explorer has to find it.

Each defect has a history that shows it; without the defect, the history keeps every promise.
"""

import attrs
import pytest

from multiclouddb_conformance.explore.levels import READERS, Level
from multiclouddb_conformance.explore.world import Bounds, BrokenError
from multiclouddb_dynamo import survey as dynamo_survey
from multiclouddb_dynamo.feed import DynamoFeed
from multiclouddb_dynamo.shards import ShardMap
from multiclouddb_spanner.feed import SpannerFeed
from multiclouddb_spi import PartitionState
from multiclouddb_spi.continuation.lineage import Lineage, Loss

from .services import SERVICES


def stating(feed, *, whole=None, **changes):
    """Return a `survey` that states something else in the given fields."""
    right = feed.survey

    def survey(self, asked, deadline, **wanted):
        stated = right(self, asked, deadline, **wanted)
        if not asked or whole not in (None, wanted.get("whole", True)):
            return stated
        return attrs.evolve(stated, **{name: change(stated) for name, change in changes.items()})

    return feed, "survey", survey


def of_dynamo(name, change):
    right = getattr(dynamo_survey, name)
    return dynamo_survey, name, lambda *given: change(right, *given)


def begins_beside_what_is_read(self, gone, heirs):
    """Add what may descend from lost partitions, and keep the rest: children come before their parents."""
    losses = [Loss(name, each.cursor, tuple(heirs), everything=True) for name, each in gone.items()]
    for name in gone:
        self._remove(name)
    self._add(heirs)
    return losses


def without_closed(stated):
    return tuple(each for each in stated.present if each.state is PartitionState.OPEN)


def without_positions(stated):
    return tuple(attrs.evolve(each, oldest=None) for each in stated.present)


LOST, TWO, ONE = "roll 0 | trim | roll 2 | read 0", "roll 0 | roll 1 | trim", "roll 0 | roll 1 | trim one"
SPANNER = {
    "nothing follows what is gone": (LOST, stating(SpannerFeed, heirs=lambda stated: None)),
    "what follows is empty": (LOST, stating(SpannerFeed, heirs=lambda stated: () if stated.gone else None)),
    "one partition does not follow": (
        LOST,
        stating(SpannerFeed, heirs=lambda stated: stated.heirs and stated.heirs[:-1]),
    ),
    "nothing is gone": (
        "roll 0 | trim",
        stating(SpannerFeed, gone=lambda stated: {}, heirs=lambda stated: None),
    ),
    "a lost position stays": ("trim", stating(SpannerFeed, present=without_positions)),
    "nothing exists": ("trim", stating(SpannerFeed, present=lambda stated: ())),
    # Spark's planner brought a child's rows before its parent's, both in one batch.
    "a loss adds what follows": (
        "roll 0 | plan only 1 | trim one | split 1 | plan only 1 | plan only 0 | plan",
        (Lineage, "_cut", begins_beside_what_is_read),
        "planner",
    ),
}
DYNAMO = {
    "what a listing lacks is gone": (
        "split 0 hide | roll 1 | roll 2 | next",
        (ShardMap, "gone", lambda self, names, deadline: set(names)),
    ),
    "nothing is gone": (TWO, (ShardMap, "gone", lambda self, names, deadline: set())),
    "everything is covered": (TWO, of_dynamo("_uncovered", lambda right, shards, held, settled: {})),
    "nothing is covered": (
        TWO,
        of_dynamo("_uncovered", lambda right, shards, held, settled: dict.fromkeys(shards, 0)),
    ),
    "nothing has an oldest record": (TWO, of_dynamo("_oldest", lambda right, *given: {})),
    "no shard has a parent": (
        ONE,
        of_dynamo("_partition", lambda right, *given: attrs.evolve(right(*given), parents=())),
    ),
    "open shards are closed": (
        TWO,
        of_dynamo(
            "_partition", lambda right, *given: attrs.evolve(right(*given), state=PartitionState.CLOSED)
        ),
    ),
    "a child is not named": (
        "roll 0 hide | read 0 | read 0",
        stating(DynamoFeed, whole=False, present=lambda stated: stated.present[1:]),
    ),
    "closed shards are not listed": (
        "roll 0 | roll 1 | read 0 | trim | split 2 hide",
        stating(DynamoFeed, whole=True, present=without_closed),
    ),
}
PLANTED = [
    pytest.param(service, history, planted, *(reader or ["answers"]), id=f"{service}-{name}")
    for service, table in (("spanner", SPANNER), ("dynamo", DYNAMO))
    for name, (history, planted, *reader) in table.items()
]


@pytest.fixture(scope="module")
def levels():
    """Make a level by service and reader; one server serves all of them."""
    made = {}

    def level(name, reader):
        if name not in made:
            made[name] = SERVICES[name]()
        return Level(made[name], READERS[reader](), Bounds(made[name].kind))

    yield level
    for each in made.values():
        each.close()


@pytest.mark.parametrize(("service", "history", "planted", "reader"), PLANTED)
def test_a_planted_defect_is_found(levels, service, history, planted, reader, monkeypatch):
    level, steps = levels(service, reader), history.split(" | ")
    level.replay(steps)
    monkeypatch.setattr(*planted)
    with pytest.raises(BrokenError):
        level.replay(steps)
