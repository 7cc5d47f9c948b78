"""Defines the rows of both sides as the files of a comparison have them, sorted by the hash of their keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from multiclouddb_verify.state_folder import broken, translated
from multiclouddb_verify.texts import Integers

RANGES: Final = 1024
BOUNDS: Final = np.array([-(2**63) + number * 2**54 for number in range(RANGES)], dtype=np.int64)
ROW: Final = np.dtype([("hash", "<i8"), ("digest", "<i8"), ("order", "<i4")])
ORDER_BITS: Final = 31
"""The bits of a digest of an `order_key`; the next bit marks a row that has to be looked at."""
Rows: TypeAlias = npt.NDArray[Any]
"""Rows of a run: `hash` of the key, `digest` of the document, and `order` (see `ORDER_BITS`)."""


def rows_of(
    hashes: Integers, digests: Integers | Sequence[int], orders: npt.NDArray[Any] | Sequence[int] | int = 0
) -> Rows:
    """Make rows of columns."""
    rows = np.empty(len(hashes), dtype=ROW)
    rows["hash"], rows["digest"], rows["order"] = hashes, digests, orders
    return rows


class HashRange:
    """The rows of both sides whose hashes are in one range."""

    def __init__(
        self,
        keys_of: Callable[[int, bytes, int, Sequence[int]], list[str]],
        folder: Path,
        runs: Sequence[tuple[int, str, int, bytes, bytes]],
        starts: Mapping[int, Integers],
        first: int,
        last: int,
    ) -> None:
        self.low = int(BOUNDS[first])
        self.high = int(BOUNDS[last]) - 1 if last < RANGES else 2**63 - 1
        self._keys_of = keys_of
        self._keys: list[tuple[int, int, bytes, int, int, int]] = []
        sides: dict[str, list[Rows]] = {"source": [], "target": []}
        read = 0
        for number, side, count, _, blocks in runs:
            start, end = int(starts[number][first]), int(starts[number][last])
            with translated(folder), (folder / f"{number:06d}.run").open("rb") as file:
                file.seek(start * ROW.itemsize)
                rows = np.fromfile(file, dtype=ROW, count=end - start)
            if len(rows) != end - start:
                raise broken(folder, f"{number:06d}.run is too short")
            sides[side].append(rows)
            if side == "source":
                self._keys.append((number, count, blocks, start, read, read + end - start))
                read += end - start
        empty = np.empty(0, dtype=ROW)
        self.source: Rows = np.concatenate([empty, *sides["source"]])
        self.target: Rows = np.concatenate([empty, *sides["target"]])

    def source_keys(self, places: Integers) -> list[str]:
        """Return the keys of some of the source's rows, given by their ascending places."""
        found: list[str] = []
        for number, count, blocks, start, first, last in self._keys:
            inside = places[(places >= first) & (places < last)] - first + start
            if len(inside):
                found += self._keys_of(number, blocks, count, inside.tolist())
        return found
