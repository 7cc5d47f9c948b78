"""Kills the driver and its JVM with SIGKILL during a batch; then the sink must equal the source."""

import os
import random
import time
from itertools import repeat

import pytest

from .databases import EVENTS, KEYS
from .delta_lives import files
from .drivers import marks
from .tables import documents, tombstones

MOMENTS = ("planning", "planned", "task", "sink", "commit")
# The queries on other databases are killed at only one moment, after which a whole batch is repeated.
MOMENT_OF_OTHERS = "sink"
OTHERS = ("dynamo", "mongo")


def check_pending(queries, moment):
    """Check which batches are incomplete after a kill at the given moment."""
    for place in queries.places():
        pending = marks(place, "offsets") - marks(place, "commits")
        # A batch that was planned is incomplete. If the sink has committed the batch, its rows exist.
        assert len(pending) == (moment != "planning")
        kept = {number for number in pending if (place / "rows" / str(number)).exists()}
        assert kept == (pending if moment in ("sink", "commit") else set())


@pytest.mark.soak
def test_kills_at_every_moment_and_at_random_ones_give_the_same_rows(databases, start_queries, source):
    """One query is killed at each moment. A second query in the same driver is killed at an arbitrary point.

    Each start begins with the batches that the last kill interrupted.
    """
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    dice = random.Random(seed)
    queries = start_queries(list(databases("killed", "embedded", *OTHERS)))
    followed = source.options(maxRecordsPerTrigger="30")
    folder = queries.folder / "followed"
    further = int(os.environ.get("MULTICLOUDDB_KILLS", "20")) - len(MOMENTS)
    for number, moment in enumerate([*MOMENTS, *repeat(None, further)]):
        others = OTHERS if moment == MOMENT_OF_OTHERS else ()
        queries.start(moment or "none", ["embedded", *others] if moment else [], followed)
        if moment == "planning":
            queries.write(names=["embedded"])
        elif others:
            queries.write(names=others)
        queries.reach()
        before, more = files(folder), dice.randint(1, 12)
        source.write(150, seed=f"{seed} {number}")
        queries.wait(lambda _: files(folder) >= before + more)  # noqa: B023 - it is called here alone
        time.sleep(dice.random() / 10)
        queries.kill()
        check_pending(queries, moment)
    (queries.folder / "last").touch()
    queries.start(followed=followed)
    queries.end()
    queries.check()
    assert documents(queries.folder / "embedded" / "table") == {
        f"k{number % KEYS}": {"n": number} for number in range(EVENTS - KEYS, EVENTS)
    }
    assert documents(folder / "table") == source.documents
    assert (
        tombstones(folder / "table").keys() == {key for _, key, _ in source.truth} - source.documents.keys()
    )
