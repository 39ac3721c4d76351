package peer;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.AsyncCallback.AddCallback;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.LedgerHandle;

/**
 * A number of entries in flight in one ledger, a new one sent for each that is confirmed, by a thread of its own: measured, that
 * is faster than to send from the callback. No object is made for an entry here: the slots are used anew.
 */
final class Appending implements AddCallback {
    private enum Phase { WARMING, MEASURING, ENDING }

    private static final class Slot {
        long sentNanos;
    }

    private final Cluster cluster;
    private final byte[] payload;
    private final int inFlight;
    private final LedgerHandle ledger;
    private final BlockingQueue<Slot> freed;
    private final AtomicInteger left;
    private final long entriesMax;
    private final CountDownLatch drained = new CountDownLatch(1);
    private final CountDownLatch full = new CountDownLatch(1); // when `entriesMax` are confirmed
    private final Histogram histogram = new Histogram(); // of the ledger's one callback thread, until `drained`
    private long[] bySecond = {}; // so are these: entries confirmed in each second
    private long measuredSince; // like `bySecond`, set before `phase` is
    private volatile Phase phase = Phase.WARMING;
    private volatile int failure = BKException.Code.OK;

    Appending(Cluster cluster, int entryBytes, int inFlight, long entriesMax) throws Exception {
        this.cluster = cluster;
        this.inFlight = inFlight;
        this.entriesMax = entriesMax;
        payload = Cluster.payload(entryBytes);
        ledger = cluster.create();
        left = new AtomicInteger(inFlight);
        freed = new ArrayBlockingQueue<>(inFlight);
    }

    Map<String, Object> figures(double warmUpSeconds, double seconds, Client.Events events) throws Exception {
        Thread sending = new Thread(this::sendFreed, "sending");
        sending.setDaemon(true);
        for (int number = 0; number < inFlight; number++) {
            freed.add(new Slot());
        }
        sending.start();
        Thread.sleep(millis(warmUpSeconds));
        events.say("measuring", true);
        bySecond = new long[(int) seconds + 2 + Cluster.DEADLINE_S];
        measuredSince = System.nanoTime();
        phase = Phase.MEASURING;
        full.await(millis(seconds), TimeUnit.MILLISECONDS);
        phase = Phase.ENDING;
        double took = (System.nanoTime() - measuredSince) / 1e9;
        events.say("measured", true);
        if (!drained.await(Cluster.DEADLINE_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException(left.get() + " entries were not confirmed in " + Cluster.DEADLINE_S + " s");
        }
        if (failure != BKException.Code.OK) {
            throw BKException.create(failure);
        }
        sending.interrupt();
        cluster.delete(ledger);
        Map<String, Object> found = new HashMap<>(histogram.microseconds());
        found.put("entries", histogram.count());
        found.put("entries_per_s", histogram.count() / took);
        if (took >= 2) {
            found.put("lowest_per_s", (double) Arrays.stream(bySecond, 0, (int) took).min().getAsLong());
        }
        return found;
    }

    private static long millis(double seconds) {
        return (long) (seconds * 1000);
    }

    private void sendFreed() {
        List<Slot> slots = new ArrayList<>(inFlight);
        try {
            while (true) {
                slots.add(freed.take());
                freed.drainTo(slots);
                for (Slot slot : slots) {
                    slot.sentNanos = System.nanoTime();
                    ledger.asyncAddEntry(payload, this, slot);
                }
                slots.clear();
            }
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
        }
    }

    @Override
    public void addComplete(int code, LedgerHandle handle, long entry, Object context) {
        Slot slot = (Slot) context;
        Phase now = phase;
        if (code != BKException.Code.OK) {
            failure = code;
        } else if (now == Phase.MEASURING) {
            long confirmed = System.nanoTime();
            histogram.add(confirmed - slot.sentNanos);
            bySecond[(int) ((confirmed - measuredSince) / 1_000_000_000L)]++;
            if (histogram.count() == entriesMax) {
                full.countDown();
            }
        }
        if (now == Phase.ENDING || failure != BKException.Code.OK) {
            if (left.decrementAndGet() == 0) {
                drained.countDown();
            }
        } else {
            freed.add(slot);
        }
    }
}
