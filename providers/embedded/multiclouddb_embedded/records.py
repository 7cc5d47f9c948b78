"""Stores rows of the log by column, as SQLite returns them.

For each column, SQLite returns one text that contains the values of a whole batch. If rows were
read one by one, each row would acquire and release the interpreter's lock. Reading row by row would
make a reader about a hundred times slower while another thread is busy.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import orjson

if TYPE_CHECKING:
    import pyarrow as pa

SEPARATOR: Final = "\x1e"
"""The character between the rows in a column of JSON texts.

The texts contain this character only in escaped form.
"""

ORDER_DIGITS: Final = 19
"""The number of digits in the highest possible sequence number. If numbers are padded to this length, their
texts sort like the numbers."""

Column: TypeAlias = Literal["keys", "docs", "olds"]


class Records:
    """Rows of one partition, stored by column."""

    # Numbers are parsed only when they are needed.

    def __init__(
        self,
        count: int,
        seqs: str,
        times: str,
        types: str,
        keys: bytes,
        docs: bytes | None,
        olds: bytes | None,
    ) -> None:
        self.count = count
        self.seqs_text, self.times_text, self.types_text = seqs, times, types
        self.keys, self.docs, self.olds = keys, docs, olds
        self._texts: dict[Column, list[bytes]] = {}
        self.arrow: pa.RecordBatch | None = None

    def __len__(self) -> int:
        return self.count

    @cached_property
    def seqs(self) -> list[int]:
        """Return the sequence numbers."""
        return _numbers(self.seqs_text)

    @cached_property
    def orders(self) -> list[str]:
        """Return the sequence numbers as texts that sort like the numbers."""
        first, last = self.seqs_text.partition(",")[0], self.seqs_text.rpartition(",")[2]
        if len(first) < len(last):
            return [text.zfill(ORDER_DIGITS) for text in self.seqs_text.split(",")]
        zeros = "0" * (ORDER_DIGITS - len(first))  # the numbers ascend, so all texts have the same length
        return (zeros + self.seqs_text.replace(",", f",{zeros}")).split(",")

    @cached_property
    def times(self) -> list[int]:
        """Return the commit times in microseconds since 1970."""
        return _numbers(self.times_text)

    @cached_property
    def types(self) -> list[int]:
        """Return the numbers of the change types."""
        return _numbers(self.types_text)

    @property
    def nbytes(self) -> int:
        """Return the approximate memory that the rows occupy, including Python objects for numbers."""
        return len(self.keys) + len(self.docs or b"") + len(self.olds or b"") + 128 * self.count

    def column(self, name: Column) -> bytes | None:
        """Return a column of JSON texts, or None if the column was not read."""
        text: bytes | None = getattr(self, name)
        return text

    def texts(self, name: Column, start: int, stop: int) -> list[bytes]:
        """Return the JSON texts of the rows from `start` to `stop`, for a column that was read."""
        texts = self._texts.get(name)
        if texts is None:
            texts = (self.column(name) or b"").split(SEPARATOR.encode())
            if len(texts) != self.count:
                raise ValueError("a row contains a control character")
            self._texts[name] = texts
        return texts[start:stop]

    def select(self, indexes: Iterable[int]) -> Records:
        """Return some of the rows."""
        chosen = list(indexes)

        def numbers(values: list[int]) -> str:
            return ",".join([str(values[index]) for index in chosen])

        def picked(name: Column) -> bytes | None:
            if self.column(name) is None:
                return None
            texts = self.texts(name, 0, self.count)
            return SEPARATOR.encode().join([texts[index] for index in chosen])

        return Records(
            len(chosen), numbers(self.seqs), numbers(self.times), numbers(self.types),
            picked("keys") or b"", picked("docs"), picked("olds"),
        )  # fmt: skip


def _numbers(text: str) -> list[int]:
    values: list[int] = orjson.loads(f"[{text}]")
    return values
