"""Reads the rows of one version of a Delta table, from all of its files or from some."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import attrs
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.parquet import ParquetFile

from multiclouddb_api import invalid_request
from multiclouddb_api.redaction import redact_url
from multiclouddb_tables.contract import Own
from multiclouddb_tables.delta_log import INT96, dataset_of, opened, unread
from multiclouddb_tables.delta_refusals import damaged, missing, unreadable
from multiclouddb_tables.layout import NO_ORDER, own_names, read_rows, rows_at_once, state_of
from multiclouddb_tables.rules import DELETED_AT, DOCUMENT

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyarrow.dataset import FileSystemDataset
    from pyarrow.parquet import FileMetaData

__all__ = ["DeltaPart", "batches_of", "file_groups", "names_of", "orders_of", "rows_of"]

_OURS: Final = ("key", "order_key", DELETED_AT)
_BATCH: Final = 8192
_BUFFER: Final = 1 << 20
_PART_BYTES: Final = 128 << 20


def names_of(table: DeltaTable) -> list[str]:
    """Return the names of the columns."""
    return [field.name for field in table.schema().fields]


def rows_of(
    table: DeltaTable, where: str, keys: Sequence[str] | None, *, own: Own, paths: Set[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Read rows of the version that the table object has loaded; see `Target.rows`.

    Args:
        table: The table.
        where: Its path or URL.
        keys: The keys to read; None for all rows.
        own: The table's own columns to read instead of `new_item_state`.
        paths: The files to read; None for all.
    """
    extra = [DOCUMENT]
    if own:
        extra = own_names(names_of(table)) if own is True else sorted(own)
    wanted = None if keys is None else pa.array(keys, pa.string())
    try:
        dataset = dataset_of(table, where)
        is_plain = not own and not table.metadata().partition_columns
        for batch in batches_of(dataset, [*dict.fromkeys((*_OURS, *extra))], paths, is_plain=is_plain):
            if wanted is not None:
                batch = batch.filter(pc.is_in(batch["key"].cast(pa.string()), value_set=wanted))
            if batch.num_rows:
                if batch["key"].null_count:
                    raise invalid_request(
                        "table_path",
                        f"{where} has rows without key, which no sink writes",
                        "delete the rows whose key is null",
                    )
                yield _as_rows(batch, extra if own else None)
    except pa.ArrowInvalid as error:
        raise damaged(where, error) from error
    except OSError as error:
        raise unread(table, where, error) from error


def orders_of(table: DeltaTable, where: str, keys: Sequence[str]) -> dict[str, list[str]]:
    """Return the order keys of the rows of some keys, in the version that the table object has loaded."""
    if not keys:
        return {}
    found: dict[str, list[str]] = {}
    wanted = pa.array(keys, pa.string())
    scanner = dataset_of(table, where).scanner(columns=["key", "order_key"], use_threads=False)
    for batch in scanner.to_batches():
        batch = batch.filter(pc.is_in(batch["key"].cast(pa.string()), value_set=wanted))
        orders = batch["order_key"].fill_null(NO_ORDER)
        for key, order in zip(batch["key"].to_pylist(), orders.to_pylist(), strict=True):
            found.setdefault(key, []).append(order)
    return {key: sorted(orders) for key, orders in found.items()}


def file_groups(table: DeltaTable, where: str) -> list[list[str]]:
    """Divide the files of the version that the table object has loaded into groups of about one size."""
    actions = pa.table(table.get_add_actions(flatten=True)).select(["path", "size_bytes"])
    sizes = dict(zip(*(column.to_pylist() for column in actions.columns), strict=True))
    groups, size = list[list[str]](), _PART_BYTES
    for path in dataset_of(table, where).files:
        if size >= _PART_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(path)
        size += sizes.get(path, _PART_BYTES)
    return groups


def _frozen(own: Own) -> Own:
    """Return the columns in a form that can be hashed and pickled."""
    return own if isinstance(own, bool) else tuple(sorted(own))


@attrs.frozen
class DeltaPart:
    """Some files of one version of a Delta table; see `Part`."""

    where: str = attrs.field(repr=redact_url)
    table_id: str
    version: int
    own: Own = attrs.field(converter=_frozen)
    paths: frozenset[str]

    def rows(self, keys: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Read the rows of the files."""
        table = _at_version(self.where, self.table_id, self.version)
        return rows_of(table, self.where, keys, own=self.own, paths=self.paths)


@lru_cache(4)
def _at_version(where: str, table_id: str, version: int) -> DeltaTable:
    """Return a version of a table; the log of a large table is not read again for each part.

    A process lives on when a table is made again at its path, so a table is known by its id.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        table = DeltaTable(where, version=version)
    except (DeltaError, OSError) as error:
        raise (missing(where) if opened(where) is None else unreadable(where, error)) from error
    if str(table.metadata().id) != table_id:
        raise unreadable(where, RuntimeError("the table was made again"))
    return table


def batches_of(
    dataset: FileSystemDataset, names: Sequence[str], paths: Set[str] | None, *, is_plain: bool
) -> Iterator[pa.RecordBatch]:
    """Read columns of some files, or of all; `is_plain` if they are texts and times, and in the files."""
    if not is_plain:
        for fragment in dataset.get_fragments():
            if paths is None or fragment.path in paths:
                yield from fragment.to_batches(
                    schema=dataset.schema, columns=list(names), use_threads=False, batch_readahead=1,
                    batch_size=_rows_at_once(fragment.metadata),
                )  # fmt: skip
        return
    # A scanner of the dataset costs three times as much, and it keeps whole row groups.
    fields = [dataset.schema.field(name) for name in names]
    for path in dataset.files if paths is None else [each for each in dataset.files if each in paths]:
        with dataset.filesystem.open_input_file(path) as stream:
            file = ParquetFile(stream, buffer_size=_BUFFER, coerce_int96_timestamp_unit=INT96)
            there = set(file.schema_arrow.names).intersection(names)
            count = _rows_at_once(file.metadata)
            for batch in file.iter_batches(count, columns=list(there), use_threads=False):
                columns = [
                    batch[field.name].cast(field.type)
                    if field.name in there
                    else pa.nulls(batch.num_rows, field.type)
                    for field in fields
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _rows_at_once(file: FileMetaData) -> int:
    """Return how many rows of a file to read at once, where they have their average size."""
    size = sum(file.row_group(number).total_byte_size for number in range(file.num_row_groups))
    return rows_at_once(_BATCH, size // max(1, file.num_rows))


def _as_rows(batch: pa.RecordBatch, own: Sequence[str] | None) -> pa.RecordBatch:
    """Return the columns that `Target.rows` promises."""
    text = pa.string()
    state: Any = batch[DOCUMENT].cast(text) if own is None else None
    if own is not None:
        nested = {field.name: field.type for field in batch.schema if pa.types.is_nested(field.type)}
        state = [state_of(each, nested) for each in batch.select(own).to_pylist()]
    orders = batch["order_key"].cast(text).fill_null(NO_ORDER)
    return read_rows(batch["key"].cast(text), orders, state, pc.is_valid(batch[DELETED_AT]))
