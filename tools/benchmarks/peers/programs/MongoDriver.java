import com.mongodb.client.MongoClient;
import com.mongodb.client.MongoClients;
import com.mongodb.client.MongoCollection;
import com.mongodb.client.MongoCursor;
import com.mongodb.client.model.changestream.ChangeStreamDocument;
import org.bson.BsonTimestamp;
import org.bson.Document;

/** The loop over a change stream of MongoDB's Java driver, which decodes each document to a map. */
final class MongoDriver {
    public static void main(String[] arguments) throws Exception {
        Document spec = Meter.spec(arguments);
        try (MongoClient client = MongoClients.create(spec.getString("url"));
                Meter meter = new Meter(spec)) {
            MongoCollection<Document> collection =
                client.getDatabase(spec.getString("database")).getCollection(spec.getString("collection"));
            try (MongoCursor<ChangeStreamDocument<Document>> changes =
                    collection
                        .watch()
                        .startAtOperationTime(new BsonTimestamp(spec.getInteger("second"), 0))
                        .batchSize(spec.getInteger("batch_size"))
                        .iterator()) {
                do {
                    meter.take(changes.next().getFullDocument().getString("_id"));
                } while (!meter.batch());
            }
            meter.report();
        }
        System.exit(0);
    }
}
