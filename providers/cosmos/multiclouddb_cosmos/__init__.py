"""The multiclouddb provider for Azure Cosmos DB.

Applications need to import this package only to ask for a backfill:

    from multiclouddb_cosmos import CosmosOptions

    ChangeFeedRequest(address, Beginning(), provider_options=CosmosOptions(backfill=True))
"""

from __future__ import annotations

from multiclouddb_cosmos.options import CosmosOptions

__all__ = ["CosmosOptions"]
