// The loop over a stream's only shard with the AWS SDK for JavaScript, and its `unmarshall` for key and item.

const {
  DescribeStreamCommand,
  DynamoDBStreamsClient,
  GetRecordsCommand,
  GetShardIteratorCommand,
} = require("@aws-sdk/client-dynamodb-streams");
const { unmarshall } = require("@aws-sdk/util-dynamodb");
const { Meter, spec } = require("./meter.cjs");

async function main() {
  const streams = new DynamoDBStreamsClient({ endpoint: spec.endpoint_url, region: spec.region });
  const meter = new Meter(spec);
  const described = await streams.send(new DescribeStreamCommand({ StreamArn: spec.arn }));
  const [shard] = described.StreamDescription.Shards;
  const start = { StreamArn: spec.arn, ShardId: shard.ShardId, ShardIteratorType: "TRIM_HORIZON" };
  let iterator = (await streams.send(new GetShardIteratorCommand(start))).ShardIterator;
  let finished = false;
  while (!finished) {
    const page = await streams.send(new GetRecordsCommand({ ShardIterator: iterator, Limit: 1000 }));
    for (const record of page.Records) {
      const key = unmarshall(record.dynamodb.Keys);
      const item = unmarshall(record.dynamodb.NewImage);
      if (item.pk !== key.pk) {
        throw new Error(`the item of ${key.pk} has the key ${item.pk}`);
      }
      finished = meter.take(key.pk);
    }
    iterator = page.NextShardIterator;
  }
  meter.report();
}

main();
