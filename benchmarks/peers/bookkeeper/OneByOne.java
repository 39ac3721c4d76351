package peer;

import java.util.Map;
import org.apache.bookkeeper.client.LedgerHandle;

/** One entry at a time, for what is measured by killing somebody. */
final class OneByOne {
    private OneByOne() {}

    /** Appends until this process is killed, and says which ledger it is and what is confirmed. */
    static Object write(Cluster cluster, int entryBytes, Client.Events events) throws Exception {
        byte[] payload = Cluster.payload(entryBytes);
        LedgerHandle ledger = cluster.create();
        events.say("ledger", ledger.getId());
        while (true) {
            events.say("confirmed", ledger.addEntry(payload));
        }
    }

    /** Fences and recovers another one's ledger, makes a new one, and appends to it. */
    static Map<String, Object> takeOver(Cluster cluster, long id, int entryBytes) throws Exception {
        LedgerHandle old = cluster.recover(id);
        LedgerHandle ledger = cluster.create();
        ledger.addEntry(Cluster.payload(entryBytes));
        long last = old.getLastAddConfirmed();
        old.close();
        cluster.delete(ledger);
        return Map.of("last", last);
    }

    /** The same with a ledger of its own, so that the way there is compiled when it is measured. */
    static Map<String, Object> practise(Cluster cluster, int entryBytes) throws Exception {
        LedgerHandle ledger = cluster.create();
        ledger.addEntry(Cluster.payload(entryBytes));
        return takeOver(cluster, ledger.getId(), entryBytes);
    }

    /** A ledger with one entry. */
    static Map<String, Object> once(Cluster cluster, int entryBytes) throws Exception {
        LedgerHandle ledger = cluster.create();
        ledger.addEntry(Cluster.payload(entryBytes));
        cluster.delete(ledger);
        return Map.of("entries", 1);
    }
}
