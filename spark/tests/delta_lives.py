"""Runs `delta_life.py` on a database, and kills the program at a random commit to its table."""

import json
import random
import runpy
from pathlib import Path

from deltalake import DeltaTable

PROGRAM = Path(__file__).with_name("delta_life.py")
FOLLOWER = runpy.run_path(str(Path(__file__).with_name("following.py")))["Follower"]


def live(folder, options, put, delete):
    """Kill the program once and run it again; the table and its tombstones must match the collection.

    Args:
        folder: An empty folder.
        options: The options of the source.
        put: Writes a document with an id, from 0 to 39, and a number.
        delete: Deletes the document with an id.
    """
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    dice, documents, deleted = random.Random(seed), {}, set()

    def write(count):
        for _ in range(count):
            name = dice.randrange(40)
            # Only deletes after the start of the snapshot become tombstones.
            if started and name in documents and dice.random() < 0.4:
                delete(name)
                del documents[name]
                deleted.add(name)
            else:
                documents[name] = dice.randrange(1000)
                deleted.discard(name)
                put(name, documents[name])

    started = False
    write(60)
    follower = FOLLOWER(folder, json.dumps(options), PROGRAM)
    follower.wait_for("offsets/0")
    started = True
    write(25)
    follower.wait_for_files(dice.randint(1, 8))
    follower.kill()
    write(25)
    FOLLOWER(folder, json.dumps(options), PROGRAM).end(0)
    table = (
        DeltaTable(folder / "table").to_pyarrow_dataset().scanner(use_threads=False).to_table().to_pylist()
    )
    live = {_id(row): json.loads(row["new_item_state"])["n"] for row in table if row["_deleted_at"] is None}
    assert live == documents
    assert {_id(row) for row in table if row["_deleted_at"] is not None} == deleted
    assert len(table) == len(documents) + len(deleted)


def _id(row):
    [name] = json.loads(row["key"]).values()
    return int(name)
