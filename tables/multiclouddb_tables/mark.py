"""Defines the mark that a sink leaves with its table: whose changes the table contains.

A table is filled from one feed. The mark names it, so that neither a batch of another feed nor a repair
against another collection is ever written into the table:

    {"v": 1, "provider": "mongo", "address": ["shop", "orders"], "incarnation": "77e01d5c",
     "columns": ["key", …], "incomplete_since": null}

With a declaration of columns, it has the form 2, and also `"declared"`, the declaration, `"unfilled"`, the
columns that a refill has not filled yet, `"changing"`, those that are to be added, emptied or made anew
before rows are merged, and `"refills"`, the number of refills so far.

Each kind of table stores it so that it goes with the table:

- Delta: the table property `multiclouddb.mark`. It is in every checkpoint of the log, so it outlives the
  clean-up of the log, and `RESTORE` brings back the mark of its version together with its rows.
- PostgreSQL: a row of `multiclouddb_marks` by the table's object id, in the transaction of the rows. A table
  that was dropped and made again has another id, and so no mark.
- Spark's catalog: the table property `multiclouddb.mark`. A user who may not alter the table gets the
  statement that somebody else has to run once.

A mark alone does not tell a table from one that was made again under its name, nor from its own earlier
version. So `FoundTable` describes the table that was found under the name at one moment, and `Expected` the
only one into which something may be written; the step that writes compares the two.

An *incarnation* is stored as the digest that partition ids contain, because rows contain nothing else. It is
None if the service has none (a database, a cluster, Spanner) or if it is not known; then it does not tell two
feeds apart.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

import attrs

from multiclouddb_api import (
    ChangeFeedPage,
    ErrorCategory,
    ErrorDetail,
    ErrorReason,
    MulticloudDbError,
    ResourceAddress,
    invalid_request,
)
from multiclouddb_api.validators import check_type
from multiclouddb_spi.continuation.token import Envelope, decode_token
from multiclouddb_spi.partition import address_digest, incarnation_digest
from multiclouddb_tables.columns import LONG_KEY, Columns
from multiclouddb_tables.rules import DELETED_AT, STALE_SINCE

_VERSION: Final = 2
"""The latest form. A mark without a declaration of columns has the first one, which earlier versions read."""
_NO_INCARNATION: Final = incarnation_digest(None)


@attrs.frozen
class FeedSource:
    """The feed that fills a table."""

    provider: str
    """The provider's id."""
    address: ResourceAddress
    """The collection; or the database or the cluster, for a feed of all its collections."""
    incarnation: str | None = None
    """A digest that distinguishes the collection from one that is created again under its name; None if the
    service has no such id, or if it is not known."""
    collection: ResourceAddress | None = None
    """Of a feed of a database or a cluster, the one collection whose rows are meant; None if it is not known.
    A sink goes by key, and documents of two collections may have the same one."""

    def __str__(self) -> str:
        return f"{self.provider} {self.address}" if self.address != ResourceAddress() else self.provider

    def may_be(self, other: FeedSource) -> bool:
        """Return whether the other feed may be this one, because nothing that is known of both differs.

        Args:
            other: The other feed.
        """
        if (self.provider, self.address) != (other.provider, other.address):
            return False
        if None not in (self.collection, other.collection) and self.collection != other.collection:
            return False
        return None in (self.incarnation, other.incarnation) or self.incarnation == other.incarnation

    @classmethod
    def made(cls, provider: str, address: ResourceAddress, incarnation: str | None) -> FeedSource:
        """Return the feed, from the incarnation itself instead of its digest.

        Args:
            provider: The provider's id.
            address: The resource.
            incarnation: The incarnation, as the service names it, or None.
        """
        digest = incarnation_digest(incarnation)
        return cls(provider, address, None if digest == _NO_INCARNATION else digest)

    @classmethod
    def of_envelope(cls, envelope: Envelope) -> FeedSource:
        """Return the feed of a decoded token.

        Args:
            envelope: What the token contains.
        """
        return cls.made(envelope.provider_id, envelope.address, envelope.incarnation)

    @classmethod
    def of_token(cls, token: str) -> FeedSource:
        """Return the feed that made a token.

        Args:
            token: The token.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if the text is no token.
        """
        return cls.of_envelope(decode_token(token))

    @classmethod
    def of_page(cls, page: ChangeFeedPage) -> FeedSource | None:
        """Return the feed of a page, or None if neither its events nor its token show it.

        Args:
            page: The page.
        """
        for event in page.events[:1]:
            if (found := cls.of_row(event.partition_id, event.address)) is not None:
                return found
        try:
            return cls.of_token(page.continuation_token)
        except MulticloudDbError:
            return None

    @classmethod
    def of_row(cls, partition_id: str | None, address: ResourceAddress) -> FeedSource | None:
        """Return the feed of a row, or None if its columns do not show it.

        Args:
            partition_id: The public id of the row's partition, or its beginning up to the second colon.
            address: The address of the row's document.
        """
        # The id has only a digest of the feed's address. The feed is that of the row's collection, of its
        # database, or of the cluster; each has another digest.
        provider, _, rest = (partition_id or "").partition(":")
        place, _, which = rest.partition(":")[0].partition(".")
        wider = (address, ResourceAddress(address.database, None), ResourceAddress())
        for each in wider:
            if provider and which and address_digest(each) == place:
                collection = None if each == address else address
                return cls(provider, each, None if which == _NO_INCARNATION else which, collection)
        return None

    @classmethod
    def of_text(cls, text: str) -> FeedSource:
        """Return the feed of a sink's option `source`, such as `mongo:shop/orders`.

        Args:
            text: The value of the option.
        """
        check_type("source", text, str)
        provider, _, address = text.partition(":")
        if not provider or not address:
            raise invalid_request(
                "source", f"is {text[:200]!r}, which names no feed", 'pass "provider:database/collection"'
            )
        return cls(provider, ResourceAddress.parse(address))


@attrs.frozen
class TableMark:
    """What a sink stores with its table, so that only changes of the same feed are merged into it."""

    source: FeedSource
    """The feed that fills the table."""
    columns: tuple[str, ...] = ()
    """The columns that the sink has written, in the table's spelling; it leaves all others alone."""
    incomplete_since: str | None = None
    """The time, as RFC 3339, of the last gap whose lost changes the user has chosen to skip; None if no such
    gap is known. It is removed only by a whole snapshot that began later, or by a proof that the table equals
    the collection."""
    declared: Columns | None = None
    """The declaration of the table's columns; None if the sink was called without one."""
    unfilled: tuple[str, ...] = ()
    """The columns that a refill has to fill or to empty, and has not yet; empty without a refill."""
    changing: tuple[str, ...] = ()
    """The columns that are added, emptied or made anew before the next rows are merged."""
    refills: int = 0
    """The number of refills that have begun in the table."""

    def learned(self, source: FeedSource) -> TableMark:
        """Return the mark with the incarnation of its feed, if it did not have it before.

        Args:
            source: The feed of the batch.
        """
        if source.collection is None:
            source = attrs.evolve(source, collection=self.source.collection)
        return attrs.evolve(self, source=source) if self.incarnation is None else self

    @property
    def provider(self) -> str:
        """The provider's id."""
        return self.source.provider

    @property
    def address(self) -> ResourceAddress:
        """The resource; without a collection for the feed of a database or of a cluster."""
        return self.source.address

    @property
    def incarnation(self) -> str | None:
        """The digest of the incarnation, or None if there is none, or if it is not known."""
        return self.source.incarnation

    def with_columns(self, names: tuple[str, ...]) -> TableMark:
        """Return the mark of a table into which the sink also writes these columns.

        Args:
            names: The columns.
        """
        return attrs.evolve(self, columns=tuple(dict.fromkeys((*self.columns, *names))))

    def to_json(self) -> str:
        """Return the mark as a table stores it."""
        value: dict[str, Any] = {
            "v": 1,
            "provider": self.provider,
            "address": [self.address.database, self.address.collection],
            "incarnation": self.incarnation,
            "columns": self.columns,
            "incomplete_since": self.incomplete_since,
        }
        if (one := self.source.collection) is not None:
            value["collection"] = [one.database, one.collection]
        if self.declared is not None:
            value |= {
                "v": 2,
                "declared": self.declared.to_dict(),
                "unfilled": self.unfilled,
                "changing": self.changing,
                "refills": self.refills,
            }
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str, where: str) -> TableMark:
        """Return the mark that a table stores.

        Args:
            text: What `to_json` has returned.
            where: The name of the table, for the message.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if the text is no mark, or was written by a later version.
        """
        try:
            value: Any = json.loads(text)
        except ValueError:
            value = None
        match value:
            case {"v": int(version)} if version > _VERSION:
                raise invalid_request(
                    "table",
                    f"{where} has a mark of a later version of this sink (form {version})",
                    "update multiclouddb",
                    ErrorReason.UNKNOWN_VERSION,
                )
            case {
                "v": 1 | 2 as version,
                "provider": str(provider),
                "address": [str() | None as database, str() | None as collection],
                "incarnation": str() | None as incarnation,
                "columns": [*columns],
                "incomplete_since": str() | None as since,
            } if all(isinstance(each, str) for each in columns):
                one: ResourceAddress | None = None
                match value.get("collection"):
                    case [str() | None as its_database, str() as its_name]:
                        one = ResourceAddress(its_database, its_name)
                    case _:
                        pass  # the mark of an earlier version, or of a feed of one collection
                source = FeedSource(provider, ResourceAddress(database, collection), incarnation, one)
                mark = cls(source, tuple(columns), since)
                return mark if version == 1 else _declared(mark, value, where)
            case _:
                raise _damaged(where)


def _declared(mark: TableMark, value: dict[str, Any], where: str) -> TableMark:
    """Return a mark with the declaration that its second form has."""
    match value:
        case {
            "declared": dict(declared),
            "unfilled": [*unfilled],
            "changing": [*changing],
            "refills": int(refills),
        }:
            try:
                columns = Columns.from_dict(declared)
            except MulticloudDbError as error:
                raise _damaged(where) from error
            return attrs.evolve(
                mark,
                declared=columns,
                unfilled=tuple(map(str, unfilled)),
                changing=tuple(map(str, changing)),
                refills=refills,
            )
        case _:
            raise _damaged(where)


def _damaged(where: str) -> MulticloudDbError:
    return invalid_request(
        "table",
        f"{where} has a damaged mark, so nobody knows which feed fills it",
        "fill a new table with a query that begins with a snapshot",
        ErrorReason.MALFORMED,
    )


def declared_names(mark: TableMark | None) -> tuple[str, ...]:
    """Return the columns that the mark of a table declares.

    Args:
        mark: The mark of the table.
    """
    return () if mark is None or mark.declared is None else mark.declared.names


def emptied(mark: TableMark | None, names: Iterable[str], written: Iterable[str] = ()) -> list[str]:
    """Return the columns of a table that a tombstone leaves empty, beside those that are written anyway.

    These are the columns that the sink has written, as the mark of the table lists them, without those of the
    key. What others write is not the sink's to remove. Without a mark it is not known which columns these
    are, so all count as its own.

    Args:
        mark: The mark of the table.
        names: The columns of the table.
        written: The columns of the batch, in each spelling.
    """
    of_the_key = () if mark is None or mark.declared is None else mark.declared.key_names
    needed = ("key", "order_key", DELETED_AT, STALE_SINCE, LONG_KEY)
    kept = {name.lower() for name in (*needed, *of_the_key, *written)}
    ours = None if mark is None else {name.lower() for name in mark.columns}
    return [name for name in names if name.lower() not in kept and (ours is None or name.lower() in ours)]


def lacked(mark: TableMark | None, names: Iterable[str], written: Iterable[str]) -> list[str]:
    """Return the columns that are null after each change of a batch, because the batch lacks them.

    They are those of `emptied`. Without a mark nobody knows which columns are the sink's, so a change empties
    none; only a tombstone does.

    Args:
        mark: The mark of the table.
        names: The columns of the table.
        written: The columns of the batch, in each spelling.
    """
    return [] if mark is None else emptied(mark, names, written)


def refilled(where: str) -> MulticloudDbError:
    """Make the error for a table whose columns another sink has begun to fill.

    Args:
        where: The name of the table.
    """
    return MulticloudDbError(
        f"columns: another sink has declared or begun to fill the columns of {where} meanwhile; try again",
        ErrorDetail(ErrorCategory.CONFLICT, retryable=True, reason=ErrorReason.OTHER_WRITER),
    )


@attrs.frozen
class FoundTable:
    """Which table was found under a name at one moment."""

    mark: TableMark | None
    """The mark of the sink, or None if there is none."""
    identity: str | None = None
    """An id that no other table of this name has or had; None if this kind of table has none."""
    version: int | None = None
    """The version that was found; None if the kind of table does not number them."""
    went_back: bool = False
    """True if the table went back to an earlier version since it was last looked at, or may have."""

    def check_still(self, before: FoundTable, where: str, source: FeedSource | None = None) -> None:
        """Check, in the step that merges, that the table is still the one that was looked at.

        Args:
            before: The table that was looked at.
            where: The name of the table, for the message.
            source: The feed whose mark a table without one gets now.

        Raises:
            MulticloudDbError: `CONFLICT` if it is another one; retryable, because a second try looks again.
        """
        wanted = source if before.mark is None else before.mark.source
        is_of_feed = before.mark is None
        if self.mark is not None:
            is_of_feed = wanted is None or self.mark.source.may_be(wanted)
        if not self.is_same(before) or self.went_back or not is_of_feed:
            raise MulticloudDbError(
                f"table: {where} was made again, restored or marked by another sink during the merge; try "
                "again",
                ErrorDetail(ErrorCategory.CONFLICT, retryable=True, reason=ErrorReason.OTHER_WRITER),
            )

    def is_same(self, before: FoundTable) -> bool:
        """Return whether this is the table that was found before, or nothing shows that it is not.

        Args:
            before: What was found before.
        """
        return None in (self.identity, before.identity) or self.identity == before.identity


@attrs.frozen
class Expected:
    """The only table into which the result of a comparison may be written."""

    source: FeedSource
    """The feed whose changes the table contains."""
    found: FoundTable
    """The table, as it was last looked at."""

    def check(self, now: FoundTable, where: str) -> None:
        """Check that the table is still the one that was looked at.

        Args:
            now: What is under the name now, in the step that writes.
            where: The name, for the message.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if it is another table, one that went back to an earlier
                version, or the table of another feed.
        """
        if self.found.mark is not None and now.mark is None:
            problem = "was replaced meanwhile by a table without a mark of a sink"
        elif now.mark is not None and not now.mark.source.may_be(self.source):
            problem = f"is the table of {now.mark.source} now, and not of {self.source}"
        elif not now.is_same(self.found):
            problem = "was replaced meanwhile by another table of its name"
        elif now.went_back:
            problem = "went back to an earlier version meanwhile, or its log does not show that it did not"
        else:
            return
        raise invalid_request(
            "target", f"{where} {problem}", "run verify again, when nobody replaces or restores it any more"
        )

    def completed(self, mark: TableMark | None) -> TableMark | None:
        """Return the new mark of a table that was proved to be complete; None to leave the mark as it is.

        Args:
            mark: The mark that the table has now. A gap that came after the comparison stays in it.
        """
        before = self.found.mark
        if mark is None or before is None or mark.incomplete_since != before.incomplete_since:
            return None
        return attrs.evolve(mark, incomplete_since=None)
