"""Translates the advice in the library's error messages to command-line options.

The library writes this advice for Python programs.
"""

from __future__ import annotations

from typing import Final

__all__ = ["on_the_command_line"]

# Maps words in a message of the library to the command-line options with the same effect.
_ADVICE: Final = (
    ("Resnapshot", "tail --on-expired snapshot"),
    ("SkipToOldest", "tail --on-expired skip"),
    ("CosmosOptions(backfill=True)", "--option backfill=true"),
    ("EmbeddedOptions(backfill=True)", "--option backfill=true"),
    ("allow_missing", "--option allow_missing=true"),
    ('after_invalidate="follow"', "--option after_invalidate=follow"),
    ("max_scan_rate", "tail --from snapshot --max-scan-rate RATE"),
    ("SnapshotOrder.ORDERED", "tail --from snapshot:ordered"),
    ("SnapshotOrder.INTERLEAVED", "tail --from snapshot:interleaved"),
    ("event.timestamp", "tail --from beginning --since TIME"),
    ("Beginning()", "tail --from beginning"),
    ("Now()", "tail --from now"),
    ("event.key", "tail --only-key JSON"),
    ("timeout_seconds", "tail --timeout SECONDS"),
    ("max_outage_seconds", "tail --wait"),
    ("list_physical_partitions", "multiclouddb partitions prints them"),
    ("with_descendants=True", "--scope descendants:ID"),
    ("with_descendants=False", "--scope partition:ID"),
    ("PhysicalPartition(…)", "--scope partition:ID"),
    ("INCLUDE_IF_AVAILABLE", "--state include"),
    ("old_item_state_mode=OMIT", "--old-state omit"),
    ("new_item_state_mode=OMIT", "--state omit"),
    ("ResourceAddress(", "DATABASE/COLLECTION"),
    ("EntireDatabase()", "--scope database"),
    ("EntireCluster()", "--scope cluster"),
    ("native_client", "a .toml file or the environment"),
    ("connection={", "the table [connection] of a .toml file"),
)


def on_the_command_line(message: str) -> str:
    """Return the message, followed by the command-line options that match its advice."""
    _, _, way_out = message.partition("; ")
    found = dict.fromkeys(ours for words, ours in _ADVICE if words in way_out)
    return f"{message}; here: {', or '.join(found)}" if found else message
