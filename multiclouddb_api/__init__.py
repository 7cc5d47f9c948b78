"""One Python API for the change feeds of several databases; this is the package that applications import."""

from __future__ import annotations

from multiclouddb_api.capability import (
    Capability,
    CapabilityNote,
    CapabilitySet,
    ScanFacts,
    ScanFloor,
    Support,
)
from multiclouddb_api.checkpoint import (
    Checkpoint,
    CheckpointStore,
    FileCheckpointStore,
    open_checkpoint_store,
)
from multiclouddb_api.client import MulticloudDbClient, connect
from multiclouddb_api.codec import Tagged, canonical_json, decode_json, encode_json
from multiclouddb_api.config import ClientConfig
from multiclouddb_api.errors import (
    ErrorCategory,
    ErrorDetail,
    ErrorReason,
    MulticloudDbError,
    invalid_request,
)
from multiclouddb_api.event import ChangeEvent, ChangeType
from multiclouddb_api.event_json import event_from_json, event_to_json, page_from_json, page_to_json
from multiclouddb_api.iterator import ChangeFeedIterator, IteratorSettings
from multiclouddb_api.key import MulticloudDbKey
from multiclouddb_api.lookup import LookupAnswer, NotKnown
from multiclouddb_api.observer import Observer
from multiclouddb_api.page import (
    BackfillDone,
    ChangeFeedPage,
    ChildPartition,
    Dropped,
    FeedEnded,
    Gap,
    Invalidated,
    Notice,
    OperationDiagnostics,
    PartitionFoundLate,
    RecordSkipped,
    Renamed,
    SnapshotStarted,
)
from multiclouddb_api.plan import PartitionList, PartitionPlan, PlannedPartition
from multiclouddb_api.registry import installed_providers
from multiclouddb_api.request import (
    AtTime,
    Beginning,
    ChangeFeedRequest,
    EntireCluster,
    EntireCollection,
    EntireDatabase,
    Fail,
    FeedScope,
    FromContinuationToken,
    LogicalPartition,
    NewItemStateMode,
    Now,
    OldItemStateMode,
    OnExpired,
    OperationOptions,
    PhysicalPartition,
    ProviderOptions,
    ResourceAddress,
    SkipToOldest,
    StartPosition,
)
from multiclouddb_api.snapshot import Resnapshot, Snapshot, SnapshotOrder, SnapshotProgress
from multiclouddb_api.token_report import TokenPartition, TokenReport
from multiclouddb_api.worker import follow

__all__ = [
    "AtTime",
    "BackfillDone",
    "Beginning",
    "Capability",
    "CapabilityNote",
    "CapabilitySet",
    "ChangeEvent",
    "ChangeFeedIterator",
    "ChangeFeedPage",
    "ChangeFeedRequest",
    "ChangeType",
    "Checkpoint",
    "CheckpointStore",
    "ChildPartition",
    "ClientConfig",
    "Dropped",
    "EntireCluster",
    "EntireCollection",
    "EntireDatabase",
    "ErrorCategory",
    "ErrorDetail",
    "ErrorReason",
    "Fail",
    "FeedEnded",
    "FeedScope",
    "FileCheckpointStore",
    "FromContinuationToken",
    "Gap",
    "Invalidated",
    "IteratorSettings",
    "LogicalPartition",
    "LookupAnswer",
    "MulticloudDbClient",
    "MulticloudDbError",
    "MulticloudDbKey",
    "NewItemStateMode",
    "NotKnown",
    "Notice",
    "Now",
    "Observer",
    "OldItemStateMode",
    "OnExpired",
    "OperationDiagnostics",
    "OperationOptions",
    "PartitionFoundLate",
    "PartitionList",
    "PartitionPlan",
    "PhysicalPartition",
    "PlannedPartition",
    "ProviderOptions",
    "RecordSkipped",
    "Renamed",
    "Resnapshot",
    "ResourceAddress",
    "ScanFacts",
    "ScanFloor",
    "SkipToOldest",
    "Snapshot",
    "SnapshotOrder",
    "SnapshotProgress",
    "SnapshotStarted",
    "StartPosition",
    "Support",
    "Tagged",
    "TokenPartition",
    "TokenReport",
    "canonical_json",
    "connect",
    "decode_json",
    "encode_json",
    "event_from_json",
    "event_to_json",
    "follow",
    "installed_providers",
    "invalid_request",
    "open_checkpoint_store",
    "page_from_json",
    "page_to_json",
]
