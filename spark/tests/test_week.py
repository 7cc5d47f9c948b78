"""A week of micro-batches over many partitions, on a clock that runs fast.

`tests/test_week.py` has the pages. The readers are called as Spark calls them,
with offsets that were JSON in between.
"""

import json
import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest

from multiclouddb_embedded import EmbeddedStore

from .micro_batches import Query

WEEK = timedelta(days=7)
CHANGES = 30
SLACK = {"memory": 24 << 20, "handles": 8, "threads": 8, "offset": 4_000}


class Place:
    """What a query reads."""

    def __init__(self, path):
        self._place = {"url": f"embedded://{path}", "collection": "orders"}

    def options(self, **more):
        return {**self._place, **more}


def sample(query):
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "memory": pages * os.sysconf("SC_PAGE_SIZE"),
        "handles": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "offset": len(json.dumps(query.log[-1])),
    }


@pytest.mark.soak
@pytest.mark.parametrize(("partitions", "rounds"), [(100, 36), (1000, 1008)], ids=["short", "week"])
def test_a_week_of_micro_batches_loses_nothing_and_nothing_grows(partitions, rounds, tmp_path, capsys):
    draw, written, found, samples, now = Random(41), {}, {}, [], [datetime.now(UTC)]
    with EmbeddedStore(tmp_path / "shop.db", clock=lambda: now[0], durable=False) as store:
        store.create_collection("orders", partitions=partitions, retention=timedelta(hours=24))
        query = Query(Place(store.path), startingPosition="beginning")
        for number in range(rounds):
            for each in range(CHANGES):
                key = f"o-{draw.randrange(500)}"
                written[key] = number * CHANGES + each
                store.put("orders", key, {"number": written[key]})
            if number % 3 == 0:
                there = store.partitions("orders")
                place = draw.randrange(len(there) - 1)
                store.merge("orders", there[place].partition_id, there[place + 1].partition_id)
                store.split("orders", there[place - 1 if place else -1].partition_id)
            if number % 7 == 2:
                query.restart()
            if number % 11 == 3:
                now[0] -= timedelta(seconds=90)
            for row in query.drain():
                key, change = json.loads(row["key"])["id"], (row["order_key"], row["new_item_state"])
                found[key] = max(found.get(key, ("", "")), change)
            assert {key: json.loads(state)["number"] for key, (_, state) in found.items()} == written, number
            samples.append(sample(query))
            now[0] += WEEK / rounds
    with capsys.disabled():
        print(f"\nSpark, {partitions} partitions, {rounds} rounds")  # noqa: T201
        for part in range(12):
            print(json.dumps(samples[len(samples) * part // 12]))  # noqa: T201
    for name, slack in SLACK.items():
        parts = [samples[rounds * start // 12 : rounds * end // 12] for start, end in ((3, 6), (9, 12))]
        before, after = (sorted(each[name] for each in part)[len(part) // 2] for part in parts)
        assert after <= before * 1.1 + slack, (name, before, after)
