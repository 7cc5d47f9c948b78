"""Lives of a table and of the checkpoint that fills it, judged by a model that knows the collection.

Checkpoints are restored from copies, and copies run beside one another; the table is restored and dropped,
and the process is killed between two commits. A sink may refuse a batch only after such a change. Without a
refusal, the table equals the collection as soon as the query has delivered everything. If table and
checkpoint are put back together from copies of one moment, then nothing is missing, and no batch is refused.

In a life with declared columns, the declaration changes too: a new query begins with a snapshot that fills
the columns. The judge knows by itself what each column has of a document.
"""

from __future__ import annotations

import copy
import json
import random
import shutil
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa

from multiclouddb_api import MulticloudDbError, encode_json
from multiclouddb_conformance.sink_harness import Change, Death, rows
from multiclouddb_tables import Columns
from testing.history import History
from testing.model_lives import ModelRow
from testing.spark_checkpoint import make_checkpoint, write_offset

__all__ = ["LifeTable", "SinkLife"]

_KEYS: Final = 12
_LIKELY: Final = {
    "batch": 40, "death": 10, "save": 10, "restored": 8, "beside": 8, "restore": 8, "drop": 3, "check": 8,
    "copy both": 5, "put both back": 5,
}  # fmt: skip
_NAME: Final = {"name": {"key": "id", "type": "string"}}
_DECLARED: Final = (
    Columns({"n": "int64", "price": "decimal(9,2)", "mixed": "json", **_NAME}),
    Columns({"n": "string", "price": "decimal(9,2)", **_NAME}),
    Columns({"n": "decimal(9,2)", "mixed": "int64"}, misfits="rescue"),
    Columns({"price": "string", "mixed": "string"}, document=False),
)
"""The declarations of a life with columns."""


def _document(order: int) -> dict[str, Any]:
    return {"n": order}


def _mixed(order: int) -> dict[str, Any]:
    """Return a document for declared columns; no value is equal in two of them."""
    found: dict[str, Any] = {"n": order, "mixed": order if order % 3 else f"text {order}"}
    return found if order % 4 == 0 else found | {"price": Decimal(order * 10 + 5) / 100}


def _held(columns: Columns, key: str, document: Mapping[str, Any] | None) -> dict[str, str | None]:
    """Return the texts of what the declared columns have of a document, or of a tombstone."""
    found: dict[str, str | None] = {}
    rescued: str | None = None
    for each in columns.columns:
        if each.key is not None:
            found[each.name] = key
            continue
        value = None if document is None else document.get(each.name)
        if value is None:
            found[each.name] = None
        elif each.type == "json":
            found[each.name] = json.dumps(value)
        elif each.type.startswith("decimal"):
            found[each.name] = f"{value:.2f}"
        elif each.type == "int64" and isinstance(value, str):
            found[each.name] = None
            rescued = json.dumps({each.name: {"path": [each.name], "value": value}}, separators=(",", ":"))
        else:
            found[each.name] = str(value)
    return found if columns.misfits == "refuse" else found | {"_rescued": rescued}


class LifeTable(Protocol):
    """A table, its sink, and deaths of the sink."""

    @property
    def exists(self) -> bool:
        """Whether there is a table."""
        ...

    def merge(self, batch: pa.Table, number: int, checkpoint: Path, **options: Any) -> None:
        """Let the sink merge a batch of the query with this checkpoint."""

    def rows(self) -> Sequence[ModelRow]:
        """Return all rows, read with the table's own calls."""
        ...

    def values(self, names: Sequence[str]) -> Mapping[str, Sequence[Any]]:
        """Return the values of columns by key, read with the table's own calls."""
        ...

    def restore(self, dice: random.Random) -> bool:
        """Restore an earlier version; return False if there is none, or if the format has no such thing."""
        ...

    def copy(self, place: Path) -> bool:
        """Copy the table to a place that does not exist; return False if it is in no folder."""

    def put_back(self, place: Path) -> None:
        """Replace the table by such a copy."""

    def drop(self) -> None:
        """Remove the table."""

    def dies(self, dice: random.Random | None, chance: float = 0.0) -> None:
        """From now on, raise `Death` once, before or after a random step of a commit; None: never."""


class _Filling:
    """A query with its checkpoint, as the process knows it; a copy has a folder of its own."""

    def __init__(self, life: SinkLife, folder: Path, *, is_snapshot: bool) -> None:
        self.folder, self.number, self.delivered = folder, 0, False
        self.pending: pa.Table | None = None
        make_checkpoint(folder, f"{life.told.seed} {folder.name}")
        self.position = len(life.history) if is_snapshot else 0
        self.scan = dict(life.source) if is_snapshot else None
        self.left = sorted(self.scan or ())
        self.plan, self.floor = folder.name, f"{self.position:06d}~"

    def copied(self, folder: Path) -> _Filling:
        found = copy.copy(self)
        found.left = list(self.left)
        found.folder = Path(shutil.copytree(self.folder, folder))
        return found

    def is_done(self, history: Sequence[Change]) -> bool:
        is_scanned = self.scan is None or (self.number and not self.left)
        return bool(is_scanned) and self.pending is None and self.position == len(history)

    def plan_batch(self, history: Sequence[Change], count: int) -> pa.Table:
        """Plan the next batch as the planner does: its end is stored before it is read."""
        if self.scan is not None and (self.left or not self.number):
            taken, self.left = self.left[:count], self.left[count:]
            batch = rows(
                *((key, 0, self.scan[key]) for key in taken),
                floor=self.floor, backfilled=True, mark=f"snapshot:{self.plan}:",
            )  # fmt: skip
        else:
            batch = rows(*history[self.position : self.position + count])
            self.position = min(len(history), self.position + count)
        self.delivered |= batch.num_rows > 0
        offset: dict[str, Any] = {
            "c": {"p": [self.position, len(self.left)]},
            "fresh": not self.delivered,
            "feed": ["provider", "main", "orders"],
            "inc": "first",
        }
        if self.scan is not None:
            offset["s"] = {"plan": self.plan, "floor": self.floor, "over": not self.left, "whole": True}
        write_offset(self.folder, self.number, **offset)
        self.pending = batch
        return batch


class SinkLife:
    """One life; its choices depend on its seed alone.

    Args:
        seed: The seed of what happens.
        folder: A folder for the checkpoints.
        table: The table, which does not exist yet.
        steps: How much happens.
        declares: True for a table with declared columns.

    Attributes:
        compared: How often the table was compared with the collection.
        refused: How often the sink refused a batch.
    """

    def __init__(
        self, seed: int, folder: Path, table: LifeTable, *, steps: int = 40, declares: bool = False
    ) -> None:
        self.dice, self.told = random.Random(f"sink {seed}"), History(seed)
        self.columns = self.dice.choice(_DECLARED) if declares else None
        self._likely = {**_LIKELY, "declare": 6} if declares else _LIKELY
        self.folder, self.table, self._steps = folder, table, steps
        self.history, self.source = list[Change](), dict[str, Any]()
        self.folders = self.refused = self.compared = 0
        self._is_harmed = self._is_restored = self._is_dropped = False
        self._saved = list[_Filling]()
        self._both = list[tuple[_Filling, Path, Columns | None]]()
        self._write(8)
        self._query = _Filling(self, self._new_folder(), is_snapshot=self.dice.random() < 0.5)

    def live(self) -> SinkLife:
        """Let things happen, and judge the table."""
        with self.told.told():
            for _ in range(self._steps):
                self._step()
            self._write(3)
            self._check()
        return self

    def _new_folder(self) -> Path:
        self.folders += 1
        return self.folder / f"c{self.folders}"

    def _write(self, count: int) -> None:
        for _ in range(count):
            key, order = f"k{self.dice.randrange(_KEYS)}", len(self.history) + 1
            made = _document if self.columns is None else _mixed
            document = made(order) if self.dice.random() < 0.75 else None
            self.history.append((key, order, document))
            if document is None:
                self.source.pop(key, None)
            else:
                self.source[key] = document

    def _batch(self) -> None:
        """Merge the pending batch, or the next one."""
        query = self._query
        batch = query.pending
        if batch is None:
            batch = query.plan_batch(self.history, self.dice.choice([0, 1, 2, 5]))
        what = f"batch {query.number} of {query.folder.name}, {batch.num_rows} rows"
        try:
            declared = {} if self.columns is None else {"columns": self.columns, "refill": True}
            self.table.merge(batch, query.number, query.folder, **declared)
        except Death:
            self.told.add(f"{what}: killed")
            return
        except MulticloudDbError as error:
            self.told.add(f"{what}: refused ({error.category})")
            if not self._is_harmed:
                raise AssertionError(
                    f"nothing has happened to the table, but it is refused: {error}"
                ) from error
            self.refused += 1
            self._begin_again()
            return
        finally:
            self.table.dies(None)
            if self._is_dropped and self.table.exists:
                # It was made again by a copy that had delivered nothing. The sink cannot tell it from another
                # copy of the query, which has delivered more.
                self._saved.clear()
                self._is_dropped = False
        self.told.add(f"{what}: merged")
        query.number, query.pending = query.number + 1, None
        if self._is_restored:
            # After a restore, a query goes on from one copy of its checkpoint. The sink cannot tell another
            # copy, which has delivered more, from the one that goes on.
            self._saved.clear()
            self._is_restored = False

    def _begin_again(self) -> None:
        self._saved.clear()
        self._is_harmed = self._is_dropped = False
        self._query = _Filling(self, self._new_folder(), is_snapshot=True)

    def _check(self) -> None:
        """Let the query deliver everything, and compare the table with the collection."""
        if self._is_restored:
            self._write(1)  # the sink sees a table only with a batch
        while not self._query.is_done(self.history):
            self._batch()
        if not self.table.exists:
            # A batch without rows touches no table.
            return
        found = self.table.rows()
        wanted = {encode_json({"id": key}).decode(): each for key, each in self.source.items()}
        live = {row.key: row.text for row in found if not row.deleted}
        assert len({row.key for row in found}) == len(found), "a key has several rows"
        if self.columns is None or self.columns.document:
            assert {key: json.loads(text or "null") for key, text in live.items()} == {
                key: json.loads(encode_json(each)) for key, each in wanted.items()
            }
        else:
            assert live == dict.fromkeys(wanted)
        if self.columns is not None:
            self._check_columns(self.columns, found, wanted)
        assert all(row.order_key for row in found), "a row waits for a snapshot that is over"
        self.compared += 1

    def _check_columns(
        self, columns: Columns, rows: Sequence[ModelRow], documents: Mapping[str, Mapping[str, Any]]
    ) -> None:
        names, keyed = columns.names, set(columns.key_names)
        stored = self.table.values(names)
        for row in rows:
            values = dict(zip(names, stored[row.key], strict=True))
            texts = {name: None if value is None else str(value) for name, value in values.items()}
            wanted = _held(columns, json.loads(row.key)["id"], documents.get(row.key))
            if row.deleted:
                # Where a column of the key was declared later, it is null in a tombstone.
                wanted |= {name: texts[name] for name in keyed if texts[name] is None}
            assert texts == wanted, row.key

    def _step(self) -> None:
        dice = self.dice
        action = dice.choices([*self._likely], [*self._likely.values()])[0]
        match action:
            case "batch":
                self._write(dice.choice([0, 1, 4]))
                self._batch()
            case "death":
                self.table.dies(dice, 0.4)
                self._batch()
            case "save":
                self.told.add(f"save {self._query.folder.name}")
                self._saved.append(self._query.copied(self._new_folder()))
            case "restored" if self._saved:
                saved = dice.choice(self._saved)
                self._query = saved.copied(self._new_folder())
                self.told.add(f"the checkpoint {saved.folder.name} goes on as {self._query.folder.name}")
            case "beside" if self._saved:
                which = dice.randrange(len(self._saved))
                self._saved[which], self._query = self._query, self._saved[which]
                self.told.add(f"{self._query.folder.name} runs beside")
            case "restore" if self.table.exists and self.table.restore(dice):
                self.told.add("the table is restored")
                self._is_harmed = self._is_restored = True
            case "drop" if self.table.exists:
                self.told.add("the table is dropped")
                self.table.drop()
                self._is_harmed = self._is_dropped = True
            case "copy both" if self.table.exists and not self._is_harmed:
                place = self._new_folder()
                if self.table.copy(place):
                    self.told.add(f"save {self._query.folder.name} together with the table")
                    self._both.append((self._query.copied(self._new_folder()), place, self.columns))
            case "put both back" if self._both:
                saved, place, self.columns = dice.choice(self._both)
                self._query = saved.copied(self._new_folder())
                self.told.add(f"{saved.folder.name} goes on as {self._query.folder.name}, with its table")
                self.table.put_back(place)
                self._is_harmed = self._is_restored = self._is_dropped = False
                # The sink cannot tell a copy of the checkpoint that has delivered more.
                self._saved.clear()
            case "declare":
                self.columns = dice.choice(_DECLARED)
                self.told.add(f"another declaration: {', '.join(self.columns.names)}")
                is_harmed = self._is_harmed
                self._begin_again()
                # A table that was emptied or made again is refused also by a snapshot that has begun.
                self._is_harmed = is_harmed
            case "check":
                self._check()
            case _:
                pass  # there is nothing to do it with
