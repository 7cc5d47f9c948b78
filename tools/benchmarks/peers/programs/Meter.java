import java.io.BufferedWriter;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.bson.Document;

/**
 * Counts changes, writes their keys to a file, and measures. The clock starts after the warm-up, at the end
 * of a batch, and stops after the last change. It does the same as meter.py.
 */
final class Meter implements AutoCloseable {
    private final BufferedWriter keys;
    private final int warmUp;
    private final int total;
    private int count;
    private int begun;
    private long wallAtBegin;
    private long wallAtEnd;
    private long cpuAtBegin;
    private long cpuAtEnd;
    private boolean finished;

    Meter(Document spec) throws IOException {
        keys = Files.newBufferedWriter(Path.of(spec.getString("keys")));
        warmUp = spec.getInteger("warm_up");
        total = warmUp + spec.getInteger("events");
    }

    /** Reads the description of the work. */
    static Document spec(String[] arguments) throws IOException {
        return Document.parse(Files.readString(Path.of(arguments[0])));
    }

    /** Takes the key of one change; ignores changes after the last batch, which an engine still delivers. */
    void take(String key) throws IOException {
        if (finished) {
            return;
        }
        keys.write(key);
        keys.write('\n');
        count++;
    }

    /** Ends a batch; returns true after the last change. */
    boolean batch() {
        if (begun == 0 && count >= warmUp) {
            begun = count;
            wallAtBegin = System.nanoTime();
            cpuAtBegin = cpu();
        } else if (count >= total && !finished) {
            wallAtEnd = System.nanoTime();
            cpuAtEnd = cpu();
        }
        finished = count >= total;
        return finished;
    }

    /** Prints the figures as one line of JSON. */
    void report() throws IOException {
        Document versions = new Document("Java", System.getProperty("java.version"));
        System.out.println(
            new Document("count", count)
                .append("events", count - begun)
                .append("seconds", (wallAtEnd - wallAtBegin) / 1e9)
                .append("cpu", (cpuAtEnd - cpuAtBegin) / 1e9)
                .append("mebibytes", peak())
                .append("versions", versions)
                .toJson());
    }

    @Override
    public void close() throws IOException {
        keys.close();
    }

    private static long cpu() {
        var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return system.getProcessCpuTime();
    }

    private static double peak() throws IOException {
        Path status = Path.of("/proc/self/status");
        List<String> lines = Files.exists(status) ? Files.readAllLines(status) : List.of();
        for (String line : lines) {
            if (line.startsWith("VmHWM:")) {
                return Long.parseLong(line.replaceAll("\\D", "")) / 1024.0;
            }
        }
        return 0.0;
    }
}
