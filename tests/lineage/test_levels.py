"""Explores the small histories of the simulation and of each provider; `make explore` goes further.

One server serves all readers of a service.
"""

from itertools import product

import pytest

from multiclouddb_conformance.explore.__main__ import main
from multiclouddb_conformance.explore.levels import LEVEL_GROUPS, READERS, Level, can_explore
from multiclouddb_conformance.explore.search import bounds_of
from testing.seeds import tonight

from .services import SERVICES

# The two minutes take turns. The number has no factor in common with those of readers and groups, so
# that each night has several of them.
NIGHTS = 19
SIMULATIONS = ("listed", "alive", "late")
# The depth, by service and reader. Those with a server run in the soak.
DEPTHS = {
    **{(kind, reader): 2 for kind in SIMULATIONS for reader in READERS},
    ("late", "pages"): 1,
    ("late", "kept"): 1,
    ("embedded", "answers"): 2,
    ("embedded", "pages"): 1,
    ("embedded", "planner"): 3,
    ("cosmos", "answers"): 1,
    ("cosmos", "pages"): 1,
    ("cosmos", "planner"): 1,
    ("dynamo", "answers"): 1,
    ("spanner", "answers"): 1,
}
WITH_SERVER = ("cosmos", "dynamo", "spanner")


@pytest.fixture(scope="module")
def service():
    """Make a service by name; the same one is used again."""
    made = {}

    def make(name):
        if name not in made:
            made[name] = SERVICES[name]()
        return made[name]

    yield make
    for each in made.values():
        each.close()


def told(violations):
    return "\n".join(f"{each.problem}: {' | '.join(each.history)}" for each in violations)


@pytest.mark.parametrize("group", LEVEL_GROUPS)
@pytest.mark.parametrize(
    ("name", "reader"),
    [
        pytest.param(*each, id="-".join(each), marks=[pytest.mark.soak] * (each[0] in WITH_SERVER))
        for each in DEPTHS
    ],
)
def test_every_small_history_keeps_every_promise(service, name, reader, group):
    made = service(name)
    if not can_explore(made, reader, group):
        return
    level = Level(made, READERS[reader](), bounds_of(made.kind, group))
    result = level.explore(DEPTHS[name, reader])
    assert not result.violations, told(result.violations)
    assert result.complete
    assert result.states > 2


# A range's loss was told by the notices of its halves; the planner went past a position that had expired; a
# loop did not wait while a merged child waited for a partition that rested; the planner asked for the end of
# a partition that a loss had removed in the same step.
KEPT = [
    ("listed", "polls", "poll without 0 | merge 0 1 | next"),
    ("cosmos", "pages", "split 0 | trim"),
    ("cosmos", "pages", "split 0 | page of one | page of one | trim"),
    ("cosmos", "planner", "trim"),
    ("embedded", "planner", "plan only 0 | split 0 | trim"),
]
# Depth 4, which only `make explore` reaches. What is read goes on beside its ended parent's loss, and a page
# that tells a loss has not looked for the other children, so it is not idle.
DESCENDED = [
    ("late", reader, history)
    for reader in ("pages", "kept")
    for history in (
        "split 0 | page | roll 1 hide | trim",
        "roll 0 | page | split 2 hide | trim",
        "roll 0 | split 2 hide | page | trim",
    )
]


@pytest.mark.parametrize(
    ("name", "reader", "history", "group"),
    [(*each, "base") for each in KEPT] + [(*each, "descendants") for each in DESCENDED],
)
def test_a_kept_history_keeps_every_promise(service, name, reader, history, group):
    made = service(name)
    Level(made, READERS[reader](), bounds_of(made.kind, group)).replay(history.split(" | "))


def test_the_command_prints_what_was_explored(capsys):
    assert main(["--level", "alive", "--reader", "planner", "--reader", "pages", "--depth=1"], SERVICES) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0][6:] for line in printed] == [
        "planner",
        "planner chained",
        "pages",
        "pages descendants",
    ]
    assert "all histories of at most 1 steps over at most 9 partitions" in printed[0]


def test_the_command_refuses_a_group_that_no_level_has(capsys):
    with pytest.raises(SystemExit):
        main(["--level", "alive", "--group", "scan"], SERVICES)
    assert "descendants" in capsys.readouterr().err


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "reader", "group"), tonight([*product(SERVICES, READERS, LEVEL_GROUPS)], NIGHTS)
)
def test_every_history_of_two_minutes_keeps_every_promise(service, name, reader, group):
    made = service(name)
    if not can_explore(made, reader, group):
        return
    result = Level(made, READERS[reader](), bounds_of(made.kind, group)).explore(99, seconds=120.0)
    assert not result.violations, told(result.violations)
