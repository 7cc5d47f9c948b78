import os
from pathlib import Path

from bson import json_util
from pymongo import MongoClient

KINDS = {"insert": "CREATE", "replace": "UPDATE", "update": "UPDATE", "delete": "DELETE"}
position = Path("resume-token.json")
after = json_util.loads(position.read_text()) if position.exists() else None

with (
    MongoClient(os.environ["MONGODB_URI"]) as client,
    client["shop"]["orders"].watch(full_document="whenAvailable", resume_after=after) as stream,
):
    while change := stream.try_next():
        if change["operationType"] in KINDS:
            item = change.get("fullDocument")
            kind = KINDS[change["operationType"]]
            print(kind, change["documentKey"]["_id"], item["status"] if item else None)
    position.write_text(json_util.dumps(stream.resume_token))
