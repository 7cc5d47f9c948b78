"""The service provider interface (SPI): the contract for providers, and the engine that uses a provider."""

from __future__ import annotations

from multiclouddb_spi.abilities import (
    CollectionPart,
    Follows,
    Head,
    SupportsChangeMark,
    SupportsCollections,
    SupportsCommands,
    SupportsHeads,
    SupportsInterrupts,
    SupportsLookup,
    SupportsParts,
    SupportsRenewal,
)
from multiclouddb_spi.batch import (
    Awaiting,
    Batch,
    Child,
    Continue,
    Drained,
    Ended,
    Mapper,
    Outcome,
    Reached,
    Scanned,
    collector_paused,
)
from multiclouddb_spi.columns import DAMAGED, Column, ColumnMapper, Columns, View, reason_of
from multiclouddb_spi.contract import (
    Feed,
    FeedIdentity,
    FeedSpec,
    FeedStart,
    Partition,
    PartitionState,
    Position,
    Provider,
    Reader,
    Seed,
    Survey,
)
from multiclouddb_spi.cursor import Cursor, InvalidCursor
from multiclouddb_spi.engine import Engine
from multiclouddb_spi.faults import Fault, ProviderFault, RecordFault, cancelled, expired, unsupported
from multiclouddb_spi.fetching.fetcher import InlineExecutor
from multiclouddb_spi.lookup import AnsweredRows, check_components, look_up
from multiclouddb_spi.partition import PartitionId, decode_partition_id, encode_partition_id
from multiclouddb_spi.planning.planner import Planner, Step, ranges_between
from multiclouddb_spi.planning.ranges import Range, read_range
from multiclouddb_spi.planning.target import Target
from multiclouddb_spi.plugin import ProviderPlugin, open_provider
from multiclouddb_spi.reading.page_builder import Reading
from multiclouddb_spi.rows import RowMapper, Rows, canonical_texts, looked_up
from multiclouddb_spi.scan.contract import ScanPlan, SupportsBackfill, SupportsSnapshot
from multiclouddb_spi.segment import Scan, Segment, plan_id_of
from multiclouddb_spi.time_limits import Deadline

__all__ = [
    "DAMAGED",
    "AnsweredRows",
    "Awaiting",
    "Batch",
    "Child",
    "CollectionPart",
    "Column",
    "ColumnMapper",
    "Columns",
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
    "Follows",
    "Head",
    "InlineExecutor",
    "InvalidCursor",
    "Mapper",
    "Outcome",
    "Partition",
    "PartitionId",
    "PartitionState",
    "Planner",
    "Position",
    "Provider",
    "ProviderFault",
    "ProviderPlugin",
    "Range",
    "Reached",
    "Reader",
    "Reading",
    "RecordFault",
    "RowMapper",
    "Rows",
    "Scan",
    "ScanPlan",
    "Scanned",
    "Seed",
    "Segment",
    "Step",
    "SupportsBackfill",
    "SupportsChangeMark",
    "SupportsCollections",
    "SupportsCommands",
    "SupportsHeads",
    "SupportsInterrupts",
    "SupportsLookup",
    "SupportsParts",
    "SupportsRenewal",
    "SupportsSnapshot",
    "Survey",
    "Target",
    "View",
    "cancelled",
    "canonical_texts",
    "check_components",
    "collector_paused",
    "decode_partition_id",
    "encode_partition_id",
    "expired",
    "look_up",
    "looked_up",
    "open_provider",
    "plan_id_of",
    "ranges_between",
    "read_range",
    "reason_of",
    "unsupported",
]
