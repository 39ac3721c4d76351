package peer;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.conf.ServerConfiguration;

/**
 * BookKeeper's own client, told what to do by lines of JSON on standard input; each is answered by lines of JSON on standard
 * output, of which the last has "done" or "error". The end of the input ends the program, whatever it does.
 *
 * <p>Arguments: the metadata service's URI.
 */
public final class Client {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final PrintStream ANSWERS = System.out;

    private Client() {}

    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err); // what a library prints is no answer
        BlockingQueue<String> commands = new LinkedBlockingQueue<>();
        Thread reading = new Thread(() -> read(commands), "commands");
        reading.setDaemon(true);
        reading.start();
        try (Cluster cluster = new Cluster(arguments[0])) {
            while (true) {
                obey(cluster, JSON.readTree(commands.take()));
            }
        }
    }

    private static void read(BlockingQueue<String> commands) {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try {
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                commands.add(line);
            }
        } catch (IOException error) {
            error.printStackTrace();
        }
        Runtime.getRuntime().halt(0);
    }

    private static void obey(Cluster cluster, JsonNode command) {
        try {
            answer("done", dispatch(cluster, command));
        } catch (Exception error) {
            error.printStackTrace();
            answer("error", error.toString());
        }
    }

    private static Object dispatch(Cluster cluster, JsonNode command) throws Exception {
        String what = command.get("do").asText();
        int entryBytes = command.path("entry_bytes").asInt();
        int entries = command.path("entries").asInt();
        long ledger = command.path("ledger").asLong();
        switch (what) {
            case "format":
                ServerConfiguration configuration = new ServerConfiguration();
                configuration.setMetadataServiceUri(cluster.metadata);
                return BookKeeperAdmin.initNewCluster(configuration);
            case "append":
                double warmUpSeconds = command.get("warm_up_s").asDouble();
                double seconds = command.get("seconds").asDouble();
                int inFlight = command.get("in_flight").asInt();
                long entriesMax = command.get("entries_max").asLong();
                Appending appending = new Appending(cluster, entryBytes, inFlight, entriesMax);
                return appending.figures(warmUpSeconds, seconds, Client::say);
            case "fill":
                return Reading.fill(cluster, entryBytes, entries);
            case "read":
                return Reading.all(cluster, ledger, Client::say);
            case "tail":
                return Following.figures(cluster, entryBytes, entries);
            case "write":
                return OneByOne.write(cluster, entryBytes, Client::say);
            case "take_over":
                return OneByOne.takeOver(cluster, ledger, entryBytes);
            case "practise":
                return OneByOne.practise(cluster, entryBytes);
            case "append_one":
                return OneByOne.once(cluster, entryBytes);
            default:
                throw new IllegalArgumentException("no such command: " + what);
        }
    }

    /** A line that is not the last one of an answer. */
    static void say(String event, Object value) {
        answer(event, value);
    }

    private static synchronized void answer(String name, Object value) {
        try {
            ANSWERS.println(JSON.writeValueAsString(Map.of(name, value)));
            ANSWERS.flush();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    /** Where lines go that are not the last one of an answer. */
    interface Events {
        void say(String event, Object value);
    }
}
