"""A query runs each night until nothing is left, and retention removes what lies before the night before.

Everything is delivered once. No position that a night leaves is older than its beginning: the next night
would find that it has expired, although nothing was lost.
"""

import random
import time

import pytest

from multiclouddb_conformance.simulation import (
    ServiceBehaviour,
    Simulation,
    SimulationFeed,
    SimulationProvider,
)
from multiclouddb_conformance.simulation.reader import SimulationReader
from multiclouddb_conformance.simulation.service_behaviour import CaughtUp
from testing.seeds import seeds

from .micro_batches import Query

TURN = 0.003
"""For how long a step waits for a slow partition, in seconds."""


def act(sim, dice, shapes):
    """Write one of a few keys, or beside the collection, or split or merge partitions."""
    chance, names = dice.random(), sim.open_partitions
    if chance < shapes and len(names) < 8:
        sim.split(dice.choice(names))
    elif chance < 2 * shapes and len(names) > 1:
        sim.merge(*dice.sample(names, 2))
    elif chance < 0.7:
        sim.write(f"k{dice.randrange(4)}", {"n": sim.head})
    else:
        sim.commit_elsewhere()


def night(query, sim, dice):
    """Run until nothing is left, while the application goes on; return the rows."""
    query.restart().reader.prepareForTriggerAvailableNow()
    rows = []
    while (found := query.step()) is not None:
        rows += found
        if dice.random() < 0.2:
            act(sim, dice, 0.2)
    return rows


@pytest.mark.parametrize(
    ("start", "seed"), [each for start in ("now", "beginning", "snapshot") for each in seeds(20, 200, start)]
)
def test_each_night_delivers_everything_and_leaves_no_old_position(simulation, monkeypatch, start, seed):
    dice, slow, fetch = random.Random(seed), random.Random(seed + 1), SimulationReader.fetch
    for module in ("planning.heads", "fetching.queue"):
        monkeypatch.setattr(f"multiclouddb_spi.{module}.TURN_SECONDS", TURN)
    if dice.random() < 0.5:
        monkeypatch.setattr(SimulationFeed, "heads", lambda self, *_: {})
    behaviour = ServiceBehaviour(
        caught_up=dice.choice([CaughtUp.EXACT, CaughtUp.WHEN_EMPTY]), page_limit=dice.choice([1, 3, 1000]),
        separate_end=dice.choice([0.0, 1.0]), scan_limit=dice.choice([None, 2]), seed=seed,
    )  # fmt: skip
    sim = Simulation(partitions=dice.choice([2, 3, 5]), behaviour=behaviour)
    monkeypatch.setattr(simulation, "provider", SimulationProvider(sim))

    def sometimes_late(reader, *wanted):
        if slow.random() < 0.1:
            time.sleep(2 * TURN)  # a service that answers late
        return fetch(reader, *wanted)

    monkeypatch.setattr(SimulationReader, "fetch", sometimes_late)
    limit = {"maxRecordsPerTrigger": dice.choice("13")} if dice.random() < 0.4 else {}
    options = {"startingPosition": start, "idleCheckpointInterval": "5 minutes", **limit}
    for _ in range(0 if start == "now" else dice.randrange(25)):
        act(sim, dice, 0.15)
    query, rows, first = Query(simulation, **options), [], sim.head
    for _ in range(4):
        began = sim.head
        rows += night(query, sim, dice)
        sim.trim(upto=began)
        for _ in range(dice.randrange(25)):
            act(sim, dice, 0.15)
    rows += night(query, sim, dice)
    rows += query.restart().drain()  # what was written during the last night
    delivered = [row["event_id"] for row in rows if not row["backfilled"]]
    wanted = {item.event_id for item in sim.truth if start == "beginning" or item.commit > first}
    assert len(set(delivered)) == len(delivered)
    assert wanted <= set(delivered)
