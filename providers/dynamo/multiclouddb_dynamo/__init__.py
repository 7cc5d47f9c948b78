"""The multiclouddb provider for Amazon DynamoDB Streams.

Applications need to import this package only to pass their own boto3 clients:

    from multiclouddb_dynamo import DynamoClients

    connect("dynamo://eu-west-1", native_client=DynamoClients(dynamodb, dynamodbstreams))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from multiclouddb_api.loading import on_first_use

if TYPE_CHECKING:
    from multiclouddb_dynamo.config import DynamoClients

_HOMES: Final = {"config": "DynamoClients"}

if not TYPE_CHECKING:
    __getattr__, __dir__ = on_first_use(__name__, _HOMES)

__all__ = ["DynamoClients"]
