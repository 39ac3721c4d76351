package peer;

import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLongArray;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;

/**
 * Appends one after the other, while a reader with connections of its own waits for each (a long poll). It hears of an entry when
 * the next one tells the bookies that it is confirmed. It asks all three of them at once: with one, it mostly was far behind.
 */
final class Following {
    private static final int POLL_MS = 100; // a bookie now and then does not wake who waits there

    private Following() {}

    static Map<String, Object> figures(Cluster cluster, int entryBytes, int entries) throws Exception {
        byte[] payload = Cluster.payload(entryBytes);
        AtomicLongArray sentNanos = new AtomicLongArray(entries + 3);
        ExecutorService threads = Executors.newSingleThreadExecutor();
        LedgerHandle ledger = cluster.create();
        CountDownLatch connected = new CountDownLatch(1);
        try (LedgerHandle followed = cluster.follow(cluster.client(false), ledger.getId())) {
            ledger.addEntry(payload); // not measured: it tells that the reader is there
            Future<Histogram> reading = threads.submit(() -> follow(followed, sentNanos, connected));
            ledger.addEntry(payload);
            connected.await(Cluster.DEADLINE_S, TimeUnit.SECONDS);
            for (int number = 2; number < sentNanos.length(); number++) {
                sentNanos.set(number, System.nanoTime());
                ledger.addEntry(payload);
            }
            Map<String, Object> found = new HashMap<>(reading.get(Cluster.DEADLINE_S, TimeUnit.SECONDS).microseconds());
            found.put("entries", entries);
            return found;
        } finally {
            threads.shutdownNow();
            cluster.delete(ledger);
        }
    }

    /** From the third entry to the last but one, of which the last one tells. */
    private static Histogram follow(LedgerHandle followed, AtomicLongArray sentNanos, CountDownLatch connected) throws Exception {
        Histogram histogram = new Histogram();
        long next = 0;
        while (next < sentNanos.length() - 1) {
            long last;
            try (LastConfirmedAndEntry found = followed.readLastAddConfirmedAndEntryAsync(next, POLL_MS, true)
                    .get(Cluster.DEADLINE_S, TimeUnit.SECONDS)) {
                next = found.hasEntry() ? seen(next, sentNanos, histogram) : next;
                last = found.getLastAddConfirmed();
            }
            connected.countDown();
            if (last >= next) { // it is behind: all that is there at once
                try (LedgerEntries found = followed.readAsync(next, last).get(Cluster.DEADLINE_S, TimeUnit.SECONDS)) {
                    for (LedgerEntry each : found) {
                        next = seen(each.getEntryId(), sentNanos, histogram);
                    }
                }
            }
        }
        return histogram;
    }

    private static long seen(long entry, AtomicLongArray sentNanos, Histogram histogram) {
        if (entry > 1) {
            histogram.add(System.nanoTime() - sentNanos.get((int) entry));
        }
        return entry + 1;
    }
}
