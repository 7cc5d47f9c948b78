import os
from pathlib import Path

from azure.cosmos import CosmosClient

ENDPOINT = "https://my-account.documents.azure.com"
KINDS = {"create": "CREATE", "replace": "UPDATE", "delete": "DELETE"}
position = Path("continuation.txt")

with CosmosClient(ENDPOINT, os.environ["AZURE_COSMOS_KEY"]) as client:
    container = client.get_database_client("shop").get_container_client("orders")
    if position.exists():
        start = {"continuation": position.read_text()}
    else:
        start = {"mode": "AllVersionsAndDeletes", "start_time": "Now"}
    answers = []  # headers of each answer; azure-cosmos completes them after the hook
    changes = container.query_items_change_feed(
        **start, response_hook=lambda headers, _: answers.append(headers)
    )
    for change in changes:
        about, item = change["metadata"], change.get("current") or {}
        key = item.get("id") or about["id"]
        print(KINDS[about["operationType"]], key, item.get("status"))
    position.write_text(answers[-1]["etag"])
