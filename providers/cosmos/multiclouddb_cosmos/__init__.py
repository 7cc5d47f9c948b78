"""The multiclouddb provider for Azure Cosmos DB.

An application needs to import this package only if it chooses options, for example a backfill, or the feed of
latest versions, or in a function of Azure Functions (`events_from_function`):

    from multiclouddb_cosmos import CosmosOptions

    ChangeFeedRequest(address, Beginning(), provider_options=CosmosOptions(backfill=True))
    ChangeFeedRequest(address, Beginning(), provider_options=CosmosOptions(mode="latest"))
"""

from __future__ import annotations

from multiclouddb_cosmos.options import CosmosOptions
from multiclouddb_cosmos.pushed import events_from_function

__all__ = ["CosmosOptions", "events_from_function"]
