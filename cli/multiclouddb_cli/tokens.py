"""`multiclouddb token inspect` shows the content of a token; `token check` shows whether it can be resumed.

Cursors are opaque without their provider, and may contain a document's key. So `inspect` shows only the
size and a digest of each cursor, which are enough to see whether two tokens have the same position. `check`
first reads one event from the whole token, as a reader would, without its document. Then it reads each
partition separately, because events of one partition can hide that another partition has expired.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import attrs
import orjson
import typer

from multiclouddb_api import (
    ChangeFeedPage,
    ChangeFeedRequest,
    ClientConfig,
    EntireCollection,
    ErrorCategory,
    FeedScope,
    FromContinuationToken,
    MulticloudDbError,
    MulticloudDbKey,
    NewItemStateMode,
    NotKnown,
    PhysicalPartition,
    ProviderOptions,
)
from multiclouddb_api.redaction import rfc3339
from multiclouddb_cli.exits import LATE, NOT_COVERED, NOT_KNOWN
from multiclouddb_cli.failure import facts_of, scrub, told
from multiclouddb_cli.screen import Cell, duration, moment, print_fields, print_table, safe_json
from multiclouddb_cli.session import ConnectedFeed
from multiclouddb_spi.continuation.token import VERSION, Envelope, decode_token, scope_text
from multiclouddb_spi.lateness import Late, Lateness, OnTime, lateness
from multiclouddb_spi.token_report import (
    Standing,
    before,
    check_provider,
    ending,
    issued_at,
    lineage_of,
    one_partition,
    read_standings,
    resumes_after,
    scope_of,
    watermark_of,
)


def inspect(token: str, *, as_json: bool) -> None:
    """Print the token's feed, its age, and what it covers."""
    envelope = decode_token(token)
    standings = read_standings(envelope)
    if as_json:
        typer.echo(safe_json(orjson.dumps(_facts(token, envelope, standings))))
        return
    print_fields(_fields(token, envelope, standings))
    if standings:
        typer.echo()
        print_table(
            ["partition", "state", "position", "waits for"],
            [
                [_name(envelope, item), item.state, _position(item), ", ".join(item.parents)]
                for item in standings
            ],
        )


def ago(time_then: datetime) -> str:
    """Return a time, and how long ago it was according to this machine's clock."""
    return f"{moment(time_then)} ({duration(time.time() - time_then.timestamp())} ago)"


def _fields(token: str, envelope: Envelope, standings: list[Standing]) -> list[tuple[str, str]]:
    issued, watermark, end = issued_at(envelope), watermark_of(envelope), ending(envelope)
    fields = [
        ("provider", envelope.provider_id),
        ("resource", str(envelope.address) or "the whole cluster"),
        ("incarnation", envelope.incarnation or "the service names none"),
        ("scope", envelope.scope),
        ("issued", "-" if issued is None else ago(issued)),
        ("watermark", "-" if watermark is None else ago(watermark)),
        ("version", str(VERSION)),
        ("size", f"{len(token)} characters"),
        ("options", f"digest {envelope.options_digest}" if envelope.options_digest else "none that matter"),
        ("partitions", _count(standings)),
    ]
    if envelope.skipped:
        fields.append(("skipped", f"{len(envelope.skipped)} records that could not be decoded"))
    if end is not None:
        fields.append(("ended", end))
    return fields


def _count(standings: list[Standing]) -> str:
    states = [item.state for item in standings]
    parts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    return f"{len(states)} ({parts})" if states else "0"


def _facts(token: str, envelope: Envelope, standings: list[Standing]) -> dict[str, Any]:
    issued, watermark = issued_at(envelope), watermark_of(envelope)
    return {
        "provider": envelope.provider_id,
        "database": envelope.address.database,
        "collection": envelope.address.collection,
        "incarnation": envelope.incarnation,
        "scope": envelope.scope,
        "issued": None if issued is None else rfc3339(issued),
        "watermark": None if watermark is None else rfc3339(watermark),
        "version": VERSION,
        "size": len(token),
        "options_digest": envelope.options_digest,
        "skipped_records": len(envelope.skipped),
        "ended": ending(envelope),
        "partitions": [
            {
                "partition": _name(envelope, item),
                "state": item.state,
                "position": _position(item),
                "waits_for": list(item.parents),
            }
            for item in standings
        ],
    }


def _name(envelope: Envelope, standing: Standing) -> str:
    """Return the partition's name, or a digest if the name may be a document's key."""
    if not envelope.scope.startswith("key:"):
        return standing.partition_id
    return f"#{_digest(standing.partition_id.encode())}"


def _position(standing: Standing) -> str:
    text = orjson.dumps(list(standing.cursors))
    return f"{len(text)} bytes, #{_digest(text)}"


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:8]


@attrs.frozen
class PartitionCheck:
    """The service's answer for one partition in the token."""

    standing: Standing
    page: ChangeFeedPage | None = None
    error: MulticloudDbError | None = None

    @property
    def text(self) -> str:
        """The answer in a few words, for a cell of a table."""
        if self.error is not None:
            return str(self.error.category)
        if self.page is None:
            return "not asked"
        return "has changes" if self.page.events else "nothing new"

    @property
    def headroom(self) -> float | None:
        """The number of seconds until the partition's position expires, if the service reports it."""
        return None if self.page is None else self.page.diagnostics.retention_headroom_seconds


@attrs.frozen
class Verdict:
    """The result of checking a token."""

    envelope: Envelope
    page: ChangeFeedPage | None  # the page of the whole token, unless it has expired
    expired: MulticloudDbError | None
    answers: list[PartitionCheck]
    missed: list[str] | None
    late: Lateness | None = None  # None if nobody asked, or if the token cannot be resumed

    @property
    def error(self) -> MulticloudDbError | None:
        """The error of a read from the token, first one that proves that it cannot be resumed; or None."""
        found = [self.expired, *(answer.error for answer in self.answers)]
        errors = [error for error in found if error is not None]
        return next((each for each in errors if resumes_after(each) is False), errors[0] if errors else None)

    @property
    def resumes(self) -> bool | None:
        """Whether the token can be resumed; None if the service has not said so."""
        return resumes_after(self.error)

    @property
    def watermark(self) -> datetime | None:
        """The watermark before the page, or that in the token if there is no page."""
        return watermark_of(self.envelope) if self.page is None else before(self.page)[0]

    @property
    def lag(self) -> float | None:
        """The number of seconds by which the token lags behind the service's clock."""
        return None if self.page is None else before(self.page)[1]

    @property
    def changes(self) -> str:
        """True if there are changes to read after the token."""
        if self.page is None:
            return "lost to retention"
        return "waiting" if self.page.events else "none at present" if self.page.idle else "maybe"

    @property
    def covers(self) -> str:
        """True if the token covers every open partition of the service."""
        if self.missed is None:
            return "unknown"
        return f"no, {len(self.missed)} missed: {', '.join(self.missed[:3])}" if self.missed else "yes"

    @property
    def headroom(self) -> float | None:
        """The number of seconds until the token's oldest position expires, if the service reports it."""
        headrooms = [answer.headroom for answer in self.answers]
        if self.page is not None:
            headrooms.append(self.page.diagnostics.retention_headroom_seconds)
        return min((seconds for seconds in headrooms if seconds is not None), default=None)


def check(
    config: ClientConfig,
    token: str,
    key: MulticloudDbKey | None,
    options: ProviderOptions | None,
    *,
    max_lag: timedelta | None,
    as_json: bool,
) -> None:
    """Print whether the token can be resumed and, with `max_lag`, whether its reader is late."""
    with (
        told(as_json=as_json, answer=failed),
        judged(config, token, key, options, max_lag) as (session, verdict),
    ):
        (_print_json if as_json else _print)(session, verdict)
    if verdict.error is not None:
        raise verdict.error
    if isinstance(verdict.late, Late):
        typer.echo(f"error: [LATE] {late_text(verdict.late)}", err=True)
        raise typer.Exit(LATE)
    if verdict.missed:
        typer.echo(
            "error: [NOT_COVERED] the token does not lead to every open partition; a consumer that "
            "continues from it starts the missing partitions after its next search, with a "
            "PartitionFoundLate notice",
            err=True,
        )
        raise typer.Exit(NOT_COVERED)
    if isinstance(verdict.late, NotKnown):
        typer.echo(f"error: [NOT_KNOWN] {scrub(verdict.late.reason)}", err=True)
        raise typer.Exit(NOT_KNOWN)


def failed(error: MulticloudDbError) -> dict[str, object]:
    """Return the facts of a check whose read has failed."""
    return {**not_read(error), "resumes": resumes_after(error)}


def not_read(error: MulticloudDbError) -> dict[str, object]:
    """Return the facts of a check that has failed before the service was asked about the token."""
    found = facts_of(error)
    return {"resumes": None, "error": found.pop("category"), **found, "late": None}


@contextmanager
def judged(
    config: ClientConfig,
    token: str,
    key: MulticloudDbKey | None,
    options: ProviderOptions | None,
    max_lag: timedelta | None,
) -> Iterator[tuple[ConnectedFeed, Verdict]]:
    """Ask the service about a token; the feed is open inside the block.

    Args:
        config: The database.
        token: The token.
        key: The partition key of a token of one.
        options: The provider's options.
        max_lag: The highest age of a change that has not been read; None not to ask for lateness.
    """
    envelope = decode_token(token)
    check_provider(config.provider, envelope)
    if envelope.options_digest and options is None:
        raise typer.BadParameter(
            "the token was made with provider options that change positions: give the same options",
            param_hint="--option NAME=VALUE",
        )
    request = ChangeFeedRequest(
        envelope.address,
        FromContinuationToken(token),
        _scope(envelope, key),
        new_item_state_mode=NewItemStateMode.OMIT,
        max_page_size=1,
        provider_options=options,
    )
    with ConnectedFeed(config, request) as session:
        page, expired = _read(session, request)
        answers = _ask_each(session, request, envelope, page, expired)
        missed = None if page is None else _missed(session, envelope)
        verdict = Verdict(envelope, page, expired, answers, missed)
        if max_lag is not None and verdict.error is None:
            now = session.opened.call("clock", session.feed.clock)
            late = lateness(session.read, now, session.feed, request, envelope, max_lag)
            verdict = attrs.evolve(verdict, late=late)
        yield session, verdict


def late_text(late: Lateness) -> str:
    """Return whether a reader is late, in words."""
    match late:
        case OnTime():
            return "no"
        case Late(change, seconds):
            return f"a change of {moment(change)}, {duration(seconds)} ago, has not been read"
        case NotKnown(reason):
            return f"not known: {scrub(reason)}"


def _missed(session: ConnectedFeed, envelope: Envelope) -> list[str] | None:
    lineage, feed = lineage_of(envelope), session.feed
    if lineage is None or scope_text(EntireCollection()) != envelope.scope or not feed.lists_parents:
        return None
    asked = {each.partition_id: each.cursor for each in lineage.listed()}
    survey = session.opened.call("survey", lambda deadline: feed.survey(asked, deadline))
    if lineage.gone(survey) or not lineage.is_shown_by(survey):
        return None
    lineage.rules = feed
    return [seed.partition_id for seed in lineage.found(survey, skips=True)[0]]


def _scope(envelope: Envelope, key: MulticloudDbKey | None) -> FeedScope:
    try:
        scope = scope_of(envelope, key)
    except MulticloudDbError as error:
        raise typer.BadParameter("the token belongs to another partition key", param_hint="--key") from error
    if scope is None:
        raise typer.BadParameter("the token belongs to one partition key: give that key", param_hint="--key")
    return scope


def _read(
    session: ConnectedFeed, request: ChangeFeedRequest
) -> tuple[ChangeFeedPage | None, MulticloudDbError | None]:
    try:
        return session.read(request), None
    except MulticloudDbError as error:
        if error.category != ErrorCategory.CHECKPOINT_EXPIRED:
            raise
        return None, error


def _ask_each(
    session: ConnectedFeed,
    request: ChangeFeedRequest,
    envelope: Envelope,
    page: ChangeFeedPage | None,
    expired: MulticloudDbError | None,
) -> list[PartitionCheck]:
    standings = read_standings(envelope)
    active = [item for item in standings if item.state == "active"]
    one = isinstance(request.scope, PhysicalPartition) and not request.scope.with_descendants
    if one or len(standings) == len(active) == 1:
        return [
            PartitionCheck(item, page, expired) if item.state == "active" else PartitionCheck(item)
            for item in standings
        ]
    if not isinstance(request.scope, EntireCollection | PhysicalPartition):
        return [PartitionCheck(item) for item in standings]

    feed = session.feed  # opened once here, not in every thread

    def ask(item: Standing) -> PartitionCheck:
        if item.state != "active":
            return PartitionCheck(item)
        part = attrs.evolve(
            request,
            scope=PhysicalPartition(feed.public_id(item.partition_id)),
            start_position=FromContinuationToken(one_partition(envelope, item)),
        )
        try:
            return PartitionCheck(item, session.read(part))
        except MulticloudDbError as error:
            return PartitionCheck(item, error=error)

    with ThreadPoolExecutor(session.width) as pool:
        return list(pool.map(ask, standings))


def _print(session: ConnectedFeed, verdict: Verdict) -> None:
    watermark, headroom, end = verdict.watermark, verdict.headroom, ending(verdict.envelope)
    fields = [
        ("resumes", {True: "yes", False: "no", None: "not known"}[verdict.resumes]),
        ("changes", verdict.changes),
        ("covers", verdict.covers),
        ("watermark", "-" if watermark is None else ago(watermark)),
        ("lag", duration(verdict.lag)),
        ("kept for", "not known" if headroom is None else duration(headroom)),
    ]
    if verdict.late is not None:
        fields.append(("late", late_text(verdict.late)))
    if end is not None:
        fields.append(("ended", scrub(end)))
    print_fields(fields)
    if verdict.answers:
        typer.echo()
        print_table(
            ["partition", "state", "position", "time", "kept for", "answer"],
            [_row(session, answer) for answer in verdict.answers],
            spare=["time"],
        )


def _row(session: ConnectedFeed, answer: PartitionCheck) -> list[Cell]:
    standing = answer.standing
    text, time = standing.describe(session.feed)
    return [
        standing.partition_id,
        standing.state,
        text,
        moment(time),
        duration(answer.headroom),
        (answer.text, "" if answer.error is None else "red"),
    ]


def _print_json(session: ConnectedFeed, verdict: Verdict) -> None:
    watermark, page, public_id = verdict.watermark, verdict.page, session.feed.public_id
    facts: dict[str, Any] = {
        "resumes": verdict.resumes,
        "error": None if verdict.error is None else str(verdict.error.category),
        "reason": None if verdict.error is None else verdict.error.reason,
        "changes_waiting": None if page is None else bool(page.events) or (False if page.idle else None),
        "idle": None if page is None else page.idle,
        "covers": None if verdict.missed is None else not verdict.missed,
        "missed": None if verdict.missed is None else [public_id(name) for name in verdict.missed],
        "open_watches": sum(answer.standing.state == "watched" for answer in verdict.answers),
        "watermark": None if watermark is None else rfc3339(watermark),
        "lag_seconds": verdict.lag,
        "late": late_facts(verdict.late),
        "retention_headroom_seconds": verdict.headroom,
        "ended": ending(verdict.envelope),
        "partitions": [_answer_facts(session, answer) for answer in verdict.answers],
    }
    typer.echo(safe_json(orjson.dumps(facts)))


def late_facts(late: Lateness | None) -> dict[str, Any] | None:
    """Return whether a reader is late, for JSON; None if nobody asked."""
    match late:
        case None:
            return None
        case OnTime():
            return {"is_late": False}
        case Late(change, seconds):
            return {"is_late": True, "change": rfc3339(change), "seconds": seconds}
        case NotKnown(reason):
            return {"is_late": None, "reason": scrub(reason)}


def _answer_facts(session: ConnectedFeed, answer: PartitionCheck) -> dict[str, Any]:
    text, time = answer.standing.describe(session.feed)
    return {
        "partition_id": session.feed.public_id(answer.standing.partition_id),
        "state": answer.standing.state,
        "position": text,
        "time": None if time is None else rfc3339(time),
        "retention_headroom_seconds": answer.headroom,
        "error": None if answer.error is None else str(answer.error.category),
        "reason": None if answer.error is None else answer.error.reason,
    }
