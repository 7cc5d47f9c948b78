import boto3
from bloop import BaseModel, Column, Engine, String

KINDS = {"insert": "CREATE", "modify": "UPDATE", "remove": "DELETE"}


class Order(BaseModel):
    class Meta:
        table_name = "orders"
        stream = {"include": {"new", "old"}}

    id = Column(String, hash_key=True)
    status = Column(String)


engine = Engine()
# engine.bind(Order) does these three lines, but makes a call that DynamoDB Local does not have.
engine.bind(Order, skip_table_setup=True)
table = boto3.client("dynamodb").describe_table(TableName="orders")["Table"]
Order.Meta.stream["arn"] = table["LatestStreamArn"]

stream = engine.stream(Order, "trim_horizon")
empty = 0
while empty < 5:
    record = next(stream)
    if record is None:  # nothing in this round over the shards
        empty += 1
        continue
    empty = 0
    item = record["new"]
    print(KINDS[record["meta"]["event"]["type"]], (item or record["old"]).id, item.status if item else None)
