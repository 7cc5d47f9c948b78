import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.IOException;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.bson.Document;

/** Debezium's embedded engine with a consumer that keeps only the key of each change. */
final class DebeziumEmbedded {
    public static void main(String[] arguments) throws Exception {
        Document spec = Meter.spec(arguments);
        Properties properties = new Properties();
        Document settings = spec.get("debezium", Document.class);
        settings.forEach((name, value) -> properties.setProperty(name, value.toString()));
        CountDownLatch finished = new CountDownLatch(1);
        ExecutorService thread = Executors.newSingleThreadExecutor();
        try (Meter meter = new Meter(spec)) {
            DebeziumEngine<ChangeEvent<String, String>> engine =
                DebeziumEngine.create(Json.class)
                    .using(properties)
                    .notifying((changes, committer) -> consume(changes, committer, meter, finished))
                    .using((success, message, error) -> {
                        if (!success) {
                            System.err.println(message);
                        }
                        finished.countDown();
                    })
                    .build();
            thread.execute(engine);
            finished.await();
            meter.report();
        }
        System.exit(0); // the engine's own end takes seconds, which say nothing about reading
    }

    private static void consume(
            List<ChangeEvent<String, String>> changes,
            DebeziumEngine.RecordCommitter<ChangeEvent<String, String>> committer,
            Meter meter,
            CountDownLatch finished)
            throws InterruptedException {
        for (ChangeEvent<String, String> change : changes) {
            try {
                meter.take(change.key());
            } catch (IOException error) {
                throw new IllegalStateException(error);
            }
            committer.markProcessed(change);
        }
        committer.markBatchFinished();
        if (meter.batch()) {
            finished.countDown();
        }
    }
}
