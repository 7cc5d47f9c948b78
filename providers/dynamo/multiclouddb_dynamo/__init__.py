"""The multiclouddb provider for Amazon DynamoDB Streams.

Applications need to import this package only to pass their own boto3 clients:

    from multiclouddb_dynamo import DynamoClients

    connect("dynamo://eu-west-1", native_client=DynamoClients(dynamodb, dynamodbstreams))
"""

from __future__ import annotations

from multiclouddb_dynamo.native import DynamoClients

__all__ = ["DynamoClients"]
