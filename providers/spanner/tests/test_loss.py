"""Tests that each change arrives exactly once during writes, while partitions move, split and merge.

MULTICLOUDDB_SPANNER_SECONDS sets how many seconds the test writes.
"""

import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from google.cloud import spanner

from multiclouddb_api import Beginning, ChangeFeedRequest, FromContinuationToken, ResourceAddress, connect

from .servers.emulator import HASTY

pytestmark = pytest.mark.emulator(*HASTY)

SECONDS = float(os.environ.get("MULTICLOUDDB_SPANNER_SECONDS", "10"))


def write(table, until, pause=0.005):
    """Insert, update and delete rows, one by one and several at once; record every committed change."""
    dice, truth, there = random.Random(5), Counter(), set()
    for number in itertools.count():
        if time.monotonic() > until:
            return truth
        keys = dice.sample(range(60), dice.choice([1, 1, 1, 3, 12]))
        gone = [key for key in keys if key in there and dice.random() < 0.3]
        kept = [key for key in keys if key not in gone]
        with table.database.batch() as batch:
            if gone:
                batch.delete(table.name, spanner.KeySet(keys=[[f"k{key}"] for key in gone]))
            if kept:
                rows = [[f"k{key}", number, "x" * dice.randrange(40)] for key in kept]
                batch.insert_or_update(table.name, ("id", "n", "text"), rows)
        at = batch.committed.isoformat()
        for key in gone:
            truth[f"k{key}", at, "DELETE"] += 1
        for key in kept:
            truth[f"k{key}", at, "UPDATE" if key in there else "CREATE"] += 1
        there = (there - set(gone)) | set(kept)
        time.sleep(pause)
    return truth


def read_events(folder):
    return [json.loads(line) for line in (folder / "events").read_text().splitlines()]


def check(truth, events):
    told = Counter((key, at, kind) for _, key, at, kind, _, _ in events)
    assert truth - told == Counter(), "lost"
    assert told - truth == Counter(), "came twice, or was never written"
    assert len({event_id for event_id, *_ in events}) == len(events)
    by_partition = {}
    for *_, order_key, partition in events:
        by_partition.setdefault(partition, []).append(order_key)
    assert all(keys == sorted(keys) for keys in by_partition.values())
    return len(by_partition)


def test_a_new_process_every_ten_pages_of_five_loses_nothing(items, tmp_path):
    folder, host = tmp_path, items.emulator.url
    where = (host, items.database.database_id, items.name, str(folder), "10", "5")
    lives = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("lives.py"), *where],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        truth = write(items, time.monotonic() + SECONDS)
        (folder / "stop").touch()
        out, err = lives.communicate(timeout=30 * SECONDS)
    finally:
        lives.kill()
    assert lives.returncode == 0, err
    events = read_events(folder)
    partitions = check(truth, events)
    assert partitions >= 2
    assert int(out) >= len(events) / 50
    print(f"{len(events)} events, {partitions} partitions, {out.strip()} processes")  # noqa: T201


@pytest.mark.parametrize("size", [0, 1, 7])
def test_a_reader_beside_the_writer_gets_everything(items, size):
    truth, here = Counter(), ResourceAddress(items.database.database_id, items.name)
    until = time.monotonic() + SECONDS / 2
    writer = threading.Thread(target=lambda: truth.update(write(items, until, 0.02)))
    writer.start()
    start, events = Beginning(), []
    with connect(items.emulator.url) as client:
        while True:
            over = not writer.is_alive()
            page = client.read_changes(ChangeFeedRequest(here, start, max_page_size=size))
            start = FromContinuationToken(page.continuation_token)
            events += [
                (
                    event.event_id, event.key.components["id"], event.timestamp.isoformat(), event.type.value,
                    event.order_key, event.partition_id,
                )
                for event in page.events
            ]  # fmt: skip
            if over and page.idle:
                break
    check(truth, events)
