"""The service provider interface: the contract a provider implements, and the engine behind it."""

from __future__ import annotations

from multiclouddb_spi.contract import (
    Awaiting,
    Batch,
    Child,
    Continue,
    Drained,
    Ended,
    Feed,
    FeedIdentity,
    FeedSpec,
    FeedStart,
    Head,
    Outcome,
    Partition,
    PartitionState,
    Position,
    Provider,
    Reached,
    Reader,
    Seed,
    SupportsCommands,
    SupportsHeads,
)
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.deadline import Deadline
from multiclouddb_spi.engine import Engine, Reading
from multiclouddb_spi.fault import Fault, InvalidCursor, ProviderFault, RecordFault, unsupported
from multiclouddb_spi.fetcher import InlineExecutor
from multiclouddb_spi.partition import PartitionId, decode_partition_id, encode_partition_id
from multiclouddb_spi.plugin import ProviderPlugin, open_provider

__all__ = [
    "Awaiting",
    "Batch",
    "Child",
    "Continue",
    "Cursor",
    "Deadline",
    "Drained",
    "Ended",
    "Engine",
    "Fault",
    "Feed",
    "FeedIdentity",
    "FeedSpec",
    "FeedStart",
    "Head",
    "InlineExecutor",
    "InvalidCursor",
    "Outcome",
    "Partition",
    "PartitionId",
    "PartitionState",
    "Position",
    "Provider",
    "ProviderFault",
    "ProviderPlugin",
    "Reached",
    "Reader",
    "Reading",
    "RecordFault",
    "Seed",
    "SupportsCommands",
    "SupportsHeads",
    "decode_partition_id",
    "encode_partition_id",
    "open_provider",
    "unsupported",
]
