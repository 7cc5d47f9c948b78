import boto3

KINDS = {"INSERT": "CREATE", "MODIFY": "UPDATE", "REMOVE": "DELETE"}
table = boto3.client("dynamodb", region_name="eu-west-1")
streams = boto3.client("dynamodbstreams", region_name="eu-west-1")
arn = table.describe_table(TableName="orders")["Table"]["LatestStreamArn"]

shards, more = [], {}
while True:
    listed = streams.describe_stream(StreamArn=arn, **more)["StreamDescription"]
    shards += listed["Shards"]
    if "LastEvaluatedShardId" not in listed:
        break
    more = {"ExclusiveStartShardId": listed["LastEvaluatedShardId"]}

for shard in shards:
    found = streams.get_shard_iterator(
        StreamArn=arn, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
    )
    iterator = found["ShardIterator"]
    while iterator:
        answer = streams.get_records(ShardIterator=iterator)
        for record in answer["Records"]:
            change = record["dynamodb"]
            status = change.get("NewImage", {}).get("status", {}).get("S")
            print(KINDS[record["eventName"]], change["Keys"]["id"]["S"], status)
        iterator = answer.get("NextShardIterator")
        if not answer["Records"] and "EndingSequenceNumber" not in shard["SequenceNumberRange"]:
            break  # nothing more for now
