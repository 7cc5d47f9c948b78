"""The multiclouddb provider for Azure Cosmos DB.

An application needs to import this package only if it requests a backfill:

    from multiclouddb_cosmos import CosmosOptions

    ChangeFeedRequest(address, Beginning(), provider_options=CosmosOptions(backfill=True))
"""

from __future__ import annotations

from multiclouddb_cosmos.config import CosmosOptions

__all__ = ["CosmosOptions"]
