// The loop over a change stream of MongoDB's driver for Node.js, which decodes each document to an object.

const { MongoClient, Timestamp } = require("mongodb");
const { Meter, spec } = require("./meter.cjs");

async function main() {
  const client = new MongoClient(spec.url);
  const meter = new Meter(spec);
  const stream = client
    .db(spec.database)
    .collection(spec.collection)
    .watch([], { startAtOperationTime: new Timestamp({ t: spec.second, i: 0 }), batchSize: spec.batch_size });
  for await (const change of stream) {
    if (meter.take(change.fullDocument._id)) {
      break;
    }
  }
  meter.report();
  await client.close();
}

main();
