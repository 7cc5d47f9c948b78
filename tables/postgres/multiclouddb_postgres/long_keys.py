"""Defines what happens to a key that is too long for an index: it is refused, hashed, or left out.

A row of a B-tree may have 2,704 bytes, a third of a page of 8 kB, and 12 of them are headers. A longer key
fits if it can be compressed, so whether it fits depends on its content, and on the compression that the
server uses. The sink goes by the length alone, so that a key is always treated in the same way.

In a table that keeps hashes, the row of a long key has its SHA-256 in `key`, as `sha256:` and 64 digits, and
the whole key in `LONG_KEY`. In all other rows `LONG_KEY` is null. A row belongs to a key only if both columns
match, so two keys with one hash are never merged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from multiclouddb_api import ErrorReason, MulticloudDbError, invalid_request
from multiclouddb_spi.faults import key_digest

LongKeys: TypeAlias = Literal["refuse", "hash", "skip"]
"""What the sink does with a key of more than `MOST_KEY_BYTES`."""

LONG_KEY: Final = "_long_key"
"""The column with a key that is too long for the column `key`; null in all other rows."""

SKIPPED: Final = "multiclouddb-skipped"
"""The name of the mark with the number of changes that were left out, because their keys are too long."""

MOST_KEY_BYTES: Final = 2_600
"""The length up to which each key fits into an index, whatever it contains."""

_PREFIX: Final = "sha256:"
_STORED_LENGTH: Final = len(_PREFIX) + 64


def check_long_keys(value: object) -> None:
    """Refuse a value that the option `long_keys` does not have."""
    if value not in ("refuse", "hash", "skip"):
        raise invalid_request(
            "long_keys", f"is {value!r}, a {type(value).__name__}", 'pass "refuse", "hash" or "skip"'
        )


def is_long(key: str) -> bool:
    """Return True if a key may not fit into an index."""
    return len(key.encode(errors="surrogatepass")) > MOST_KEY_BYTES


def stored(key: str) -> str:
    """Return what the column `key` has for a key, in a table that keeps the hashes of long keys."""
    return _PREFIX + _digest(key) if is_long(key) else key


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()


def digest_of(text: str) -> str:
    """Return the name of a key in messages, from what the column `key` has for it."""
    is_hash = text.startswith(_PREFIX) and len(text) == _STORED_LENGTH
    return text[: len(key_digest(""))] if is_hash else key_digest(text)


def are_long(rows: pa.Table) -> pa.ChunkedArray:
    """Return for each row whether its key may not fit into an index."""
    return pc.greater(pc.binary_length(rows["key"]), MOST_KEY_BYTES)


def hashed(rows: pa.Table) -> pa.Table:
    """Return rows with the hashes of long keys in `key`, and the long keys in `LONG_KEY`.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if two of the keys have the same hash.
    """
    keys = rows["key"].to_pylist()
    whole = [key if is_long(key) else None for key in keys]
    if any(each is not None for each in whole):
        keys = [stored(key) for key in keys]
        if len(set(keys)) < len(keys):
            raise one_hash(next(key for key in keys if keys.count(key) > 1))
        rows = rows.set_column(rows.column_names.index("key"), "key", pa.array(keys, pa.string()))
    return rows.append_column(LONG_KEY, pa.array(whole, pa.string()))


def may_meet(rows: pa.Table) -> bool:
    """Return True if a key of the batch may be taken for the hash of another key."""
    return bool(pc.any(pc.starts_with(rows["key"], _PREFIX)).as_py())


def key_column() -> sql.Composed:
    """Return the key of a row, as an expression in SQL.

    A row whose hash is not that of its key was changed by hand, and does not count as the row of this key.
    """
    return sql.SQL(
        "CASE WHEN {long} IS NULL THEN key "
        "WHEN key = {prefix} || encode(sha256(convert_to({long}, 'UTF8')), 'hex') THEN {long} ELSE key END"
    ).format(long=sql.Identifier(LONG_KEY), prefix=sql.Literal(_PREFIX))


def is_row_of(keys: Sequence[str], *, hashes: bool) -> sql.Composed:
    """Return the condition in SQL of the rows of some keys.

    Args:
        keys: The keys.
        hashes: True if the table keeps the hashes of long keys.
    """
    chosen = [key for key in keys if hashes and is_long(key)]
    condition = sql.SQL("key = ANY({})").format([*keys, *map(stored, chosen)])
    if chosen:
        # A row with the hash of one of these keys may be that of another key.
        condition += sql.SQL(" AND {} = ANY({})").format(key_column(), list(keys))
    return condition


def key_too_long(key: str, *, hashes: bool = False) -> MulticloudDbError:
    """Make the error for a key that may not fit into an index.

    Args:
        key: The key.
        hashes: True if the table keeps the hashes of long keys.
    """
    if hashes:
        way_out = 'pass long_keys="hash", as before: this table has the SHA-256 of such keys'
    else:
        way_out = (
            'pass long_keys="hash" to store the SHA-256 of such keys in key and the whole key in the column '
            f'{LONG_KEY}, or long_keys="skip" to leave out their changes; or use a sink without this limit, '
            "for example merge_into_delta"
        )
    return invalid_request(
        "column key",
        f"has a key of {len(key.encode(errors='surrogatepass'))} bytes, and an index of PostgreSQL has room "
        f"for {MOST_KEY_BYTES}: the key {key_digest(key)}",
        way_out,
        ErrorReason.LONG_KEY,
    )


def one_hash(text: str) -> MulticloudDbError:
    """Make the error for two keys with one hash; `text` is what the column `key` has for both."""
    return invalid_request(
        "column key",
        f"has a key whose row belongs to another key: {LONG_KEY} of {digest_of(text)} differs, so the row "
        "was changed by hand, or two keys have one SHA-256",
        "restore the row, or delete it and run verify with repair",
    )


def told(count: int, digests: Sequence[str], where: str) -> str:
    """Return the message about changes that were left out.

    Args:
        count: The number of changes.
        digests: The names of some of their keys.
        where: The name of the table.
    """
    names = ", ".join(digests)
    more = f" and {count - len(digests):,} more" if count > len(digests) else ""
    return (
        f'long_keys="skip": {count:,} changes of keys of more than {MOST_KEY_BYTES:,} bytes were left out of '
        f"{where}: {names}{more}"
    )


SHOWN: Final = 20
"""The number of keys that one message names."""


def names_of(rows: pa.Table) -> list[str]:
    """Return the names of the first keys of rows, for `told`."""
    return [key_digest(key) for key in rows["key"].slice(0, SHOWN).to_pylist()]
