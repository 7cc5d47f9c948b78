"""A Cosmos DB that runs on your machine, for the unmodified azure-cosmos."""
