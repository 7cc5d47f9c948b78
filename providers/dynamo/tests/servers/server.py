"""The base class of every DynamoDB server in the tests; makes clients, and tables with a stream."""

import functools
from typing import Any, Self

import boto3
from botocore.config import Config

REGION = "eu-west-1"
# Credentials for code that looks for them itself. The servers accept any credentials.
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "a/secret/that/nobody/may/see"}


@functools.cache
def session() -> boto3.Session:
    key, secret = CREDENTIALS.values()
    return boto3.Session(aws_access_key_id=key, aws_secret_access_key=secret, region_name=REGION)


class Server:
    def __init__(self, endpoint_url: str) -> None:
        self.endpoint_url = endpoint_url
        self._clients: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        while self._clients:
            self._clients.popitem()[1].close()

    def session(self) -> boto3.Session:
        return session()

    def client(self, service: str = "dynamodb") -> Any:
        """Return the client for tables and items, or another. Each server has one, which does not retry."""
        if service not in self._clients:
            once = Config(retries={"mode": "standard", "total_max_attempts": 1})
            self._clients[service] = session().client(service, endpoint_url=self.endpoint_url, config=once)
        return self._clients[service]

    def create_table(
        self,
        name: str,
        view_type: str | None = "NEW_AND_OLD_IMAGES",
        sort_key: str | None = None,
        *,
        partition_key: str = "pk",
        types: dict[str, str] | None = None,
    ) -> str | None:
        """Create a table and return the ARN of its stream, or None without a stream.

        `types` names the attributes of the key that are not strings: `N` or `B`.
        """
        keys = {partition_key: "HASH"} | ({sort_key: "RANGE"} if sort_key else {})
        kinds = {key: (types or {}).get(key, "S") for key in keys}
        view = {"StreamViewType": view_type} if view_type else {}
        made = self.client().create_table(
            TableName=name,
            KeySchema=[{"AttributeName": key, "KeyType": role} for key, role in keys.items()],
            AttributeDefinitions=[{"AttributeName": key, "AttributeType": kinds[key]} for key in keys],
            BillingMode="PAY_PER_REQUEST",
            StreamSpecification={"StreamEnabled": bool(view), **view},
        )
        arn: str | None = made["TableDescription"].get("LatestStreamArn")
        return arn
