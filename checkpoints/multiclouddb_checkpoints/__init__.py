"""Checkpoint stores that several machines share; each loads the vendor's library when it is first used."""

from multiclouddb_checkpoints.azure_blob import AzureBlobCheckpointStore
from multiclouddb_checkpoints.dynamo import DynamoCheckpointStore
from multiclouddb_checkpoints.gcs import GcsCheckpointStore
from multiclouddb_checkpoints.s3 import S3CheckpointStore
from multiclouddb_checkpoints.store import SharedCheckpointStore

__all__ = [
    "AzureBlobCheckpointStore",
    "DynamoCheckpointStore",
    "GcsCheckpointStore",
    "S3CheckpointStore",
    "SharedCheckpointStore",
]
