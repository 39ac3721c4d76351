package peer;

import java.util.ArrayDeque;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;

/** A ledger that is written, closed, and read from its first entry to its last, with a few requests ahead. */
final class Reading {
    private static final int BATCH_BYTES = 1 << 20;
    private static final int OVERHEAD_BYTES = 100; // of an entry in an answer, and some more
    private static final int AHEAD = 4;
    private static final int FILLING_IN_FLIGHT = 1000;
    private static final int FILLING_BYTES = 16 << 20;

    private Reading() {}

    static Map<String, Object> fill(Cluster cluster, int entryBytes, int entries) throws Exception {
        byte[] payload = Cluster.payload(entryBytes);
        int inFlight = Math.max(1, Math.min(FILLING_IN_FLIGHT, FILLING_BYTES / entryBytes));
        Semaphore free = new Semaphore(inFlight);
        AtomicInteger failure = new AtomicInteger(BKException.Code.OK);
        LedgerHandle ledger = cluster.create();
        for (int number = 0; number < entries; number++) {
            acquire(free, 1);
            ledger.asyncAddEntry(payload, (code, handle, entry, context) -> {
                if (code != BKException.Code.OK) {
                    failure.set(code);
                }
                free.release();
            }, null);
        }
        acquire(free, inFlight);
        if (failure.get() != BKException.Code.OK) {
            throw BKException.create(failure.get());
        }
        ledger.close();
        return Map.of("ledger", ledger.getId());
    }

    private static void acquire(Semaphore free, int count) throws InterruptedException {
        if (!free.tryAcquire(count, Cluster.DEADLINE_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException("an entry was not confirmed in " + Cluster.DEADLINE_S + " s");
        }
    }

    /** By batches, which a bookie puts together: measured, the fastest that this client has. */
    static Map<String, Object> all(Cluster cluster, long id, Client.Events events) throws Exception {
        LedgerHandle ledger = cluster.follow(cluster.client(), id);
        events.say("measuring", true);
        long before = System.nanoTime();
        long entryBytes = ledger.getLength() / (ledger.getLastAddConfirmed() + 1);
        long range = Math.max(1, BATCH_BYTES / (entryBytes + OVERHEAD_BYTES));
        long[] found = inBatches(ledger, range);
        double took = (System.nanoTime() - before) / 1e9;
        events.say("measured", true);
        ledger.close();
        return Map.of("entries", found[0], "bytes", found[1], "entries_per_s", found[0] / took);
    }

    private static long[] inBatches(LedgerHandle ledger, long range) throws Exception {
        long last = ledger.getLastAddConfirmed();
        long[] found = new long[2];
        ArrayDeque<CompletableFuture<LedgerEntries>> ahead = new ArrayDeque<>();
        ArrayDeque<Long> ends = new ArrayDeque<>();
        for (long next = 0; next <= last || !ahead.isEmpty(); ) {
            if (next <= last && ahead.size() < AHEAD) {
                long end = Math.min(last + 1, next + range);
                ahead.add(batch(ledger, next, end));
                ends.add(end);
                next = end;
                continue;
            }
            count(ahead.remove(), found);
            for (long end = ends.remove(); found[0] < end; ) { // a bookie decides how much of a batch it sends
                count(batch(ledger, found[0], end), found);
            }
        }
        return found;
    }

    private static CompletableFuture<LedgerEntries> batch(LedgerHandle ledger, long first, long end) {
        return ledger.batchReadAsync(first, (int) (end - first), BATCH_BYTES);
    }

    private static void count(CompletableFuture<LedgerEntries> reading, long[] found) throws Exception {
        try (LedgerEntries entries = reading.get(Cluster.DEADLINE_S, TimeUnit.SECONDS)) {
            for (LedgerEntry each : entries) {
                if (each.getEntryId() != found[0]) {
                    throw new IllegalStateException("entry " + each.getEntryId() + " instead of " + found[0]);
                }
                found[0]++;
                found[1] += each.getEntryBuffer().readableBytes();
            }
        }
    }
}
