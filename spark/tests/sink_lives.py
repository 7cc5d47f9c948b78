"""Lives of a Delta table and of the checkpoint that fills it, judged by a model that knows the collection.

Checkpoints are restored from copies, and copies run beside one another; the table is restored and dropped,
and the process is killed between two commits. A sink may refuse a batch only after such a change. Without a
refusal, the table equals the collection as soon as the query has delivered everything.
"""

import copy
import shutil
import uuid

import pyarrow as pa
from deltalake import DeltaTable

from multiclouddb_api import MulticloudDbError
from pyspark_multiclouddb import merge_into_delta

from .micro_batches import Killed, documents, make_checkpoint, rows, table_of, with_columns, write_offset

KEYS = 12


class Filling:
    """A query with its checkpoint, as the process knows it; a copy has a folder of its own."""

    def __init__(self, life, folder, *, is_snapshot):
        self.folder, self.number, self.delivered, self.pending = folder, 0, False, None
        make_checkpoint(folder, uuid.uuid4().hex)
        self.position = len(life.history) if is_snapshot else 0
        self.scan = dict(life.source) if is_snapshot else None
        self.left = sorted(self.scan or ())
        self.plan, self.floor = folder.name, f"{self.position:06d}~"

    def copied(self, folder):
        found = copy.copy(self)
        found.left = list(self.left)
        found.folder = shutil.copytree(self.folder, folder)
        return found

    def is_done(self, history):
        is_scanned = self.scan is None or (self.number and not self.left)
        return is_scanned and self.pending is None and self.position == len(history)

    def plan_batch(self, history, count):
        """Plan the next batch as the planner does: its end is stored before it is read."""
        if self.left or (self.scan is not None and not self.number):
            taken, self.left = self.left[:count], self.left[count:]
            batch = rows(*((key, 0, self.scan[key]) for key in taken))
            many, names = len(taken), [f"snapshot:{self.plan}:{key}" for key in taken]
            batch = with_columns(
                batch,
                order_key=pa.array([self.floor] * many, pa.string()),
                event_id=pa.array(names, pa.string()),
                backfilled=pa.array([True] * many, pa.bool_()),
            )
        else:
            batch = rows(*history[self.position : self.position + count])
            self.position = min(len(history), self.position + count)
        self.delivered |= batch.num_rows > 0
        offset = {"c": {"p": [self.position, len(self.left)]}, "fresh": not self.delivered}
        if self.scan is not None:
            offset["s"] = {"plan": self.plan, "floor": self.floor, "over": not self.left, "whole": True}
        write_offset(self.folder, self.number, **offset)
        self.pending = batch


class Life:
    """One life; the names of its queries are unique, and nothing depends on the time."""

    def __init__(self, dice, folder, kills):
        self.dice, self.folder, self.kills, self.path = dice, folder, kills, folder / "table"
        self.history, self.source, self.folders = [], {}, 0
        self.is_harmed = self.is_restored = False
        self.saved, self.refused, self.compared = [], 0, 0
        self.write(8)
        self.query = Filling(self, self.new_folder(), is_snapshot=dice.random() < 0.5)

    def new_folder(self):
        self.folders += 1
        return self.folder / f"c{self.folders}"

    def write(self, count):
        for _ in range(count):
            key, order = f"k{self.dice.randrange(KEYS)}", len(self.history) + 1
            document = {"n": order} if self.dice.random() < 0.75 else None
            self.history.append((key, order, document))
            if document is None:
                self.source.pop(key, None)
            else:
                self.source[key] = document

    def batch(self):
        """Merge the pending batch, or the next one."""
        query = self.query
        if query.pending is None:
            query.plan_batch(self.history, self.dice.choice([0, 1, 2, 5]))
        try:
            merge_into_delta(query.pending, query.number, self.path, "app", checkpoint=query.folder)
        except Killed:
            return
        except MulticloudDbError:
            if not self.is_harmed:
                raise
            self.refused += 1
            self.begin_again()
            return
        finally:
            self.kills(dice=None)
        query.number, query.pending = query.number + 1, None
        if self.is_restored:
            # After RESTORE, a query goes on from one copy of its checkpoint. The sink cannot tell another
            # copy, which has delivered more, from the one that goes on.
            self.saved.clear()
            self.is_restored = False

    def begin_again(self):
        """Do what the message says."""
        self.saved.clear()
        self.is_harmed = False
        self.query = Filling(self, self.new_folder(), is_snapshot=True)

    def check(self):
        if self.is_restored:
            self.write(1)  # the sink sees a table only with a batch
        while not self.query.is_done(self.history):
            self.batch()
        if not self.path.exists():
            # A batch without rows touches no table.
            return
        assert documents(self.path) == self.source
        assert all(row["order_key"] for row in table_of(self.path).values())
        self.compared += 1

    def step(self):
        dice = self.dice
        match dice.choices(
            ["batch", "death", "save", "restored", "beside", "RESTORE", "drop", "check"],
            [40, 10, 10, 8, 8, 8, 3, 8],
        )[0]:
            case "batch":
                self.write(dice.choice([0, 1, 4]))
                self.batch()
            case "death":
                self.kills(dice=dice, chance=0.4)
                self.batch()
            case "save":
                self.saved.append(self.query.copied(self.new_folder()))
            case "restored" if self.saved:
                self.query = dice.choice(self.saved).copied(self.new_folder())
            case "beside" if self.saved:
                which = dice.randrange(len(self.saved))
                self.saved[which], self.query = self.query, self.saved[which]
            case "RESTORE" if self.path.exists():
                table = DeltaTable(self.path)
                if version := table.version():
                    table.restore(dice.randint(max(0, version - 8), version - 1))
                    self.is_harmed = self.is_restored = True
            case "drop" if self.path.exists():
                shutil.rmtree(self.path)
                self.is_harmed = True
            case "check":
                self.check()

    def live(self, steps=40):
        for _ in range(steps):
            self.step()
        self.write(3)
        self.check()
        return self
