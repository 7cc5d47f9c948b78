"""The multiclouddb provider for Amazon DynamoDB Streams.

Applications need to import this package only to pass their own boto3 clients, or in a function of AWS Lambda:

    from multiclouddb_dynamo import DynamoClients, events_from_lambda

    connect("dynamo://eu-west-1", native_client=DynamoClients(dynamodb, dynamodbstreams))
    events_from_lambda(event, key=("pk", "sk"))
"""

from __future__ import annotations

from multiclouddb_dynamo.native import DynamoClients
from multiclouddb_dynamo.pushed import batch_item_failures, events_from_lambda

__all__ = ["DynamoClients", "batch_item_failures", "events_from_lambda"]
