"""Lists the options of the data source with their names, their meanings and the table in the docs."""

from __future__ import annotations

from typing import Final

import attrs

__all__ = ["ALIASES", "BACKLOG_RECORDS", "CONNECTION", "OPTIONS", "Option", "options_table"]

CONNECTION: Final = "connection."
"""The prefix of options that are passed to the provider's own configuration."""

BACKLOG_RECORDS: Final = 1_000_000
"""The limit on a micro-batch while a stream without `maxRecordsPerTrigger` has not yet caught up."""


@attrs.frozen
class Option:
    """One option.

    Attributes:
        name: The name of the option as the docs spell it; Spark ignores case.
        values: The possible values of the option, in Markdown.
        default: The default of the option, in Markdown.
        only: `stream` or `batch` if the option applies only to streams or batches; otherwise empty.
    """

    name: str
    values: str
    default: str
    only: str = ""


OPTIONS: Final = (
    Option(
        "url", "the URL for `connect`, such as `embedded:///data/store.db`", "`url` or `provider` is required"
    ),
    Option("provider", "the provider id; the provider's settings are options `connection.*`", "from `url`"),
    Option("database", "the name of the database", "the provider's"),
    Option("collection", "the name of the collection, table or container", "required"),
    Option("startingPosition", "`beginning`, `now`, `snapshot`, or an ISO time with a zone", "`beginning`"),
    Option(
        "snapshotOrder",
        "`ordered` reads all rows before the first change; `interleaved` reads rows and changes together; "
        "`auto` starts like `ordered` and becomes `interleaved` before changes expire; `interleaved` and "
        "`auto` need a sink that keeps deletes",
        "`ordered`; after `failOnDataLoss=resnapshot`, `auto`",
    ),
    Option(
        "snapshotSegments",
        "the number of segments of a snapshot; one task reads a segment",
        "the provider's",
    ),
    Option("endingPosition", "`latest`, or an ISO time with a zone", "`latest`", "batch"),
    Option(
        "maxRecordsPerTrigger",
        "the largest number of rows in a micro-batch; during a snapshot, a micro-batch reads whole segments, "
        "at least one, and their estimated rows count",
        "see below",
        "stream",
    ),
    Option("maxTasksPerBatch", "the largest number of tasks in a batch", "`32`"),
    Option(
        "minPartitions",
        "the desired number of tasks; a number above 32 raises `maxTasksPerBatch` to this number; a batch "
        "has at most one task for each partition with records, because tasks do not share a partition",
        "one task for each partition with records",
    ),
    Option(
        "failOnDataLoss",
        "`false` to skip changes that have expired; `resnapshot` (streams only) to read every row again, for "
        "`merge_into_delta(…, checkpoint=…)`",
        "`true`",
    ),
    Option(
        "onPoison",
        "`fail` or `skip`: what happens to a change that cannot be decoded; with `skip`, the driver reads "
        "each micro-batch before its tasks do",
        "`fail`",
    ),
    Option("newItemState", "`omit`, `include_if_available`, `require`", "`include_if_available`"),
    Option("oldItemState", "the same values", "`omit`"),
    Option(
        "pollInterval",
        "how often an idle feed is polled, such as `1 second` or `500 ms`",
        "`1 second`",
        "stream",
    ),
    Option(
        "idleCheckpointInterval", "how often the position of an idle feed is saved", "`5 minutes`", "stream"
    ),
)

ALIASES: Final = {
    "startingOffsets": "startingPosition",
    "startingTimestamp": "startingPosition",
    "endingOffsets": "endingPosition",
    "endingTimestamp": "endingPosition",
    "maxOffsetsPerTrigger": "maxRecordsPerTrigger",
}
"""Maps the option names of Kafka's source to the options of this source."""


def options_table() -> str:
    """Return the table of options in Markdown, as the docs show it."""
    also = {option.name: [name for name in ALIASES if ALIASES[name] == option.name] for option in OPTIONS}
    lines = ["| option | values | default |", "|---|---|---|"]
    for option in OPTIONS:
        names = ", ".join(f"`{name}`" for name in (option.name, *also[option.name]))
        only = f"; {option.only} only" if option.only else ""
        lines.append(f"| {names} | {option.values}{only} | {option.default} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(options_table())  # noqa: T201 - for the docs
