import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Enumeration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Drives Apache's client: reads one command a line, answers each with one line, "ok ..." or "error CODE WORDS".
 *
 * <pre>
 * client NAME v2|v3                        a client of its own, which `crash NAME` ends without closing its ledgers
 * create NAME HANDLE E QW QA DIGEST PASSWORD [ID]  a ledger (of this id), and its writer: "ok ID"
 * append HANDLE COUNT SIZE SEED            so many entries, in flight together; waits for none: "ok FIRST LAST"
 * flush HANDLE TIMEOUT_MS                  waits for them: "ok CONFIRMED FAILED_CODE"; CONFIRMED counts from the first entry on
 * bench HANDLE COUNT SIZE IN_FLIGHT        "ok SECONDS"
 * lone HANDLE COUNT SIZE                   one after the other: "ok SECONDS", of the median
 * open NAME HANDLE ID DIGEST PASSWORD recover|plain
 * last HANDLE                              "ok LAST_ADD_CONFIRMED LENGTH IS_CLOSED"
 * lac HANDLE                               asks the bookies: "ok LAST_ADD_CONFIRMED"
 * explicit HANDLE                          the same, for what the writer published by itself
 * poll HANDLE ENTRY TIMEOUT_MS             waits for this entry to be confirmed: "ok LAST_ADD_CONFIRMED HEX"
 * batch HANDLE FIRST COUNT                 reads several entries with one request: "ok SHA-256", as `read`
 * read HANDLE FIRST LAST                   "ok SHA-256", of all (length as 8 bytes, payload); reads what is unconfirmed, too
 * get HANDLE ENTRY                         "ok HEX"
 * close HANDLE
 * delete NAME ID
 * state NAME ID                            "ok STATE LAST LENGTH FRAGMENTS", as metadata says
 * crash NAME
 * </pre>
 *
 * PASSWORD is hexadecimal, "-" if it is empty. Entry I of a seed has the bytes that {@link #payload} makes.
 */
public final class Driver {
    private static final char[] HEX = "0123456789abcdef".toCharArray();

    private final String uri;
    private final Map<String, BookKeeper> clients = new HashMap<>();
    private final Map<String, LedgerHandle> handles = new HashMap<>();
    private final Map<String, Pending> pending = new HashMap<>();

    private Driver(String uri) {
        this.uri = uri;
    }

    /** What became of the entries of one writer. */
    private static final class Pending {
        final AtomicLong left = new AtomicLong();
        final TreeMap<Long, Integer> codes = new TreeMap<>();
        long sent;

        synchronized void ended(long place, int code) {
            codes.put(place, code);
            left.decrementAndGet();
            notifyAll();
        }

        synchronized boolean await(long timeoutMs) throws InterruptedException {
            long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMs);
            while (left.get() > 0) {
                long restMs = TimeUnit.NANOSECONDS.toMillis(until - System.nanoTime());
                if (restMs <= 0) {
                    return false;
                }
                wait(restMs);
            }
            return true;
        }

        synchronized String told() {
            long confirmed = 0;
            int failed = 0;
            for (Map.Entry<Long, Integer> each : codes.entrySet()) {
                if (each.getValue() == 0 && each.getKey() == confirmed) {
                    confirmed++;
                } else if (each.getValue() != 0 && failed == 0) {
                    failed = each.getValue();
                }
            }
            return confirmed + " " + failed;
        }
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err);
        Driver driver = new Driver(arguments[0]);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        out.println("ok ready");
        out.flush();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String answer;
            try {
                answer = ("ok " + driver.perform(line.trim().split(" "))).trim();
            } catch (BKException error) {
                answer = "error " + error.getCode() + " " + BKException.getMessage(error.getCode());
            } catch (Exception error) {
                answer = "error 1 " + error.toString().replace('\n', ' ');
            }
            out.println(answer);
            out.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private String perform(String[] words) throws Exception {
        switch (words[0]) {
            case "client":
                clients.put(words[1], new BookKeeper(configuration(words[2].equals("v2"))));
                return "";
            case "create":
                return create(words);
            case "append":
                return append(words[1], Integer.parseInt(words[2]), Integer.parseInt(words[3]), Long.parseLong(words[4]));
            case "flush":
                Pending waited = pending.get(words[1]);
                waited.await(Long.parseLong(words[2]));
                return waited.told();
            case "bench":
                return bench(words);
            case "lone":
                return lone(handles.get(words[1]), Integer.parseInt(words[2]), new byte[Integer.parseInt(words[3])]);
            case "open":
                return open(words);
            case "last":
                LedgerHandle known = handles.get(words[1]);
                return known.getLastAddConfirmed() + " " + known.getLength() + " " + known.isClosed();
            case "lac":
                return "" + handles.get(words[1]).readLastConfirmed();
            case "explicit":
                return "" + handles.get(words[1]).readExplicitLastConfirmed();
            case "poll":
                return poll(handles.get(words[1]), Long.parseLong(words[2]), Long.parseLong(words[3]));
            case "batch":
                return batch(handles.get(words[1]), Long.parseLong(words[2]), Integer.parseInt(words[3]));
            case "read":
                return read(handles.get(words[1]), Long.parseLong(words[2]), Long.parseLong(words[3]));
            case "get":
                long entry = Long.parseLong(words[2]);
                return hex(handles.get(words[1]).readUnconfirmedEntries(entry, entry).nextElement().getEntry());
            case "close":
                handles.remove(words[1]).close();
                return "";
            case "delete":
                clients.get(words[1]).deleteLedger(Long.parseLong(words[2]));
                return "";
            case "state":
                return state(clients.get(words[1]), Long.parseLong(words[2]));
            case "crash":
                try {
                    clients.remove(words[1]).close();
                } catch (NullPointerException error) {
                    // Of Java's client, where it connects to a bookie at this moment. It is to be gone in any case.
                    error.printStackTrace();
                }
                return "";
            default:
                throw new IllegalArgumentException("no such command: " + words[0]);
        }
    }

    private ClientConfiguration configuration(boolean isV2) {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(uri);
        configuration.setUseV2WireProtocol(isV2);
        configuration.setAddEntryTimeout(5);
        configuration.setReadEntryTimeout(5);
        configuration.setThrottleValue(0);
        configuration.setExplictLacInterval(isV2 ? 0 : 200);
        configuration.setNumIOThreads(2);
        configuration.setNumWorkerThreads(2);
        return configuration;
    }

    private String create(String[] words) throws Exception {
        BookKeeper client = clients.get(words[1]);
        int ensemble = Integer.parseInt(words[3]);
        int write = Integer.parseInt(words[4]);
        int ack = Integer.parseInt(words[5]);
        DigestType digest = DigestType.valueOf(words[6]);
        byte[] password = unhex(words[7]);
        LedgerHandle handle;
        if (words.length > 8) {
            handle = client.createLedgerAdv(Long.parseLong(words[8]), ensemble, write, ack, digest, password, null);
        } else {
            handle = client.createLedger(ensemble, write, ack, digest, password, Map.of("made-by", new byte[] {(byte) 0xff, 1}));
        }
        handles.put(words[2], handle);
        pending.put(words[2], new Pending());
        return "" + handle.getId();
    }

    private String append(String name, int count, int size, long seed) throws Exception {
        LedgerHandle handle = handles.get(name);
        Pending noted = pending.get(name);
        long first = noted.sent;
        boolean isAdvanced = handle.getClass().getSimpleName().contains("Adv");
        for (int each = 0; each < count; each++) {
            long place = noted.sent++;
            noted.left.incrementAndGet();
            byte[] data = payload(seed, place, size);
            if (isAdvanced) {
                handle.asyncAddEntry(place, data, (code, ledger, entry, context) -> noted.ended(place, code), null);
            } else {
                handle.asyncAddEntry(data, (code, ledger, entry, context) -> noted.ended(place, code), null);
            }
        }
        return first + " " + (noted.sent - 1);
    }

    private String bench(String[] words) throws Exception {
        LedgerHandle handle = handles.get(words[1]);
        int count = Integer.parseInt(words[2]);
        byte[] data = new byte[Integer.parseInt(words[3])];
        java.util.concurrent.Semaphore room = new java.util.concurrent.Semaphore(Integer.parseInt(words[4]));
        CountDownLatch done = new CountDownLatch(count);
        long began = System.nanoTime();
        for (int each = 0; each < count; each++) {
            room.acquire();
            handle.asyncAddEntry(data, (code, ledger, entry, context) -> {
                room.release();
                done.countDown();
            }, null);
        }
        done.await();
        return "" + (System.nanoTime() - began) / 1e9;
    }

    private static String lone(LedgerHandle handle, int count, byte[] data) throws Exception {
        long[] took = new long[count];
        for (int each = 0; each < count; each++) {
            long began = System.nanoTime();
            handle.addEntry(data);
            took[each] = System.nanoTime() - began;
        }
        java.util.Arrays.sort(took);
        return "" + took[count / 2] / 1e9;
    }

    private String open(String[] words) throws Exception {
        BookKeeper client = clients.get(words[1]);
        long ledger = Long.parseLong(words[3]);
        DigestType digest = DigestType.valueOf(words[4]);
        byte[] password = unhex(words[5]);
        boolean recovers = words[6].equals("recover");
        handles.put(words[2], recovers ? client.openLedger(ledger, digest, password) : client.openLedgerNoRecovery(ledger, digest, password));
        return "" + handles.get(words[2]).getLastAddConfirmed();
    }

    private static String poll(LedgerHandle handle, long entry, long timeoutMs) throws Exception {
        var found = handle.readLastAddConfirmedAndEntryAsync(entry, timeoutMs, false).get(timeoutMs + 10_000, TimeUnit.MILLISECONDS);
        return found.getLastAddConfirmed() + " " + (found.hasEntry() ? hex(found.getEntry().getEntryBytes()) : "-");
    }

    private static String batch(LedgerHandle handle, long first, int count) throws Exception {
        MessageDigest sum = MessageDigest.getInstance("SHA-256");
        Enumeration<LedgerEntry> found = handle.batchReadEntries(first, count, 1 << 20);
        while (found.hasMoreElements()) {
            add(sum, found.nextElement().getEntry());
        }
        return hex(sum.digest());
    }

    private static void add(MessageDigest sum, byte[] data) {
        sum.update(java.nio.ByteBuffer.allocate(8).putLong(data.length).array());
        sum.update(data);
    }

    private static String read(LedgerHandle handle, long first, long last) throws Exception {
        MessageDigest sum = MessageDigest.getInstance("SHA-256");
        for (long begin = first; begin <= last; begin += 100) {
            Enumeration<LedgerEntry> found = handle.readUnconfirmedEntries(begin, Math.min(last, begin + 99));
            while (found.hasMoreElements()) {
                add(sum, found.nextElement().getEntry());
            }
        }
        return hex(sum.digest());
    }

    private static String state(BookKeeper client, long ledger) throws Exception {
        LedgerMetadata found = client.getLedgerManager().readLedgerMetadata(ledger).get(10, TimeUnit.SECONDS).getValue();
        List<String> fragments = new ArrayList<>();
        found.getAllEnsembles().forEach((first, bookies) -> fragments.add(first + "=" + bookies.toString().replace(" ", "")));
        return found.getState() + " " + found.getLastEntryId() + " " + found.getLength() + " " + String.join(";", fragments);
    }

    /** The bytes of entry `place` of a seed: the SHA-256 of "SEED:PLACE", again and again. */
    private static byte[] payload(long seed, long place, int size) throws Exception {
        byte[] data = new byte[size];
        MessageDigest sum = MessageDigest.getInstance("SHA-256");
        byte[] block = sum.digest((seed + ":" + place).getBytes("US-ASCII"));
        for (int at = 0; at < size; at += block.length) {
            System.arraycopy(block, 0, data, at, Math.min(block.length, size - at));
        }
        return data;
    }

    private static String hex(byte[] data) {
        StringBuilder text = new StringBuilder();
        for (byte each : data) {
            text.append(HEX[each >> 4 & 15]).append(HEX[each & 15]);
        }
        return text.length() == 0 ? "-" : text.toString();
    }

    private static byte[] unhex(String text) {
        if (text.equals("-")) {
            return new byte[0];
        }
        byte[] data = new byte[text.length() / 2];
        for (int each = 0; each < data.length; each++) {
            data[each] = (byte) Integer.parseInt(text.substring(2 * each, 2 * each + 2), 16);
        }
        return data;
    }
}
