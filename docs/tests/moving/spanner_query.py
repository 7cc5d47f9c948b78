from datetime import datetime
from pathlib import Path

from google.cloud import spanner
from google.cloud.spanner_v1 import param_types

KINDS = {"INSERT": "CREATE", "UPDATE": "UPDATE", "DELETE": "DELETE"}
QUERY = """
SELECT ChangeRecord FROM READ_orders_stream(
  start_timestamp => @start, end_timestamp => @end,
  partition_token => @token, heartbeat_milliseconds => 10000
)
"""
TYPES = {"start": param_types.TIMESTAMP, "end": param_types.TIMESTAMP, "token": param_types.STRING}
database = spanner.Client("my-project").instance("main").database("shop")


def records(start, end, token):
    values = {"start": start, "end": end, "token": token}
    with database.snapshot() as snapshot:
        for (answer,) in snapshot.execute_sql(QUERY, values, TYPES):
            yield from answer


with database.snapshot() as snapshot:
    ((end,),) = snapshot.execute_sql("SELECT CURRENT_TIMESTAMP()")
waiting = [(datetime.fromisoformat(Path("position.txt").read_text()), None)]
seen = set()
while waiting:
    start, token = waiting.pop(0)
    for changes, _heartbeats, children in records(start, end, token):
        for change in changes:
            _time, _sequence, _transaction, _last, table, _columns, mods, kind, *_rest = change
            for keys, new, _old in mods:
                if table == "orders":
                    print(KINDS[kind], keys["id"], None if kind == "DELETE" else new["status"])
        for start_of_child, _sequence, partitions in children:
            for name, _parents in partitions:
                if name not in seen:
                    seen.add(name)
                    waiting.append((start_of_child, name))
