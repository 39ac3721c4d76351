package peer;

import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.Random;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/** Connections to the bookies, made when they are needed first, and what all that is measured has in common. */
final class Cluster implements AutoCloseable {
    static final int ENSEMBLE = 3;
    static final int ACK_QUORUM = 2;
    static final int DEADLINE_S = 60;
    private static final DigestType DIGEST = DigestType.CRC32C;
    private static final byte[] PASSWORD = "benchmark".getBytes(StandardCharsets.UTF_8);

    final String metadata;
    private final boolean isV2 = !Boolean.getBoolean("peer.v3");
    private final Map<Boolean, BookKeeper> clients = new HashMap<>();

    Cluster(String metadata) {
        this.metadata = metadata;
    }

    /** The client that appends and reads: with the leaner wire protocol, as Pulsar has it. */
    BookKeeper client() throws Exception {
        return client(isV2);
    }

    /** The leaner protocol (version 2) knows no long polls, so what follows a ledger has connections of its own. */
    synchronized BookKeeper client(boolean isVersion2) throws Exception {
        BookKeeper known = clients.get(isVersion2);
        if (known == null) {
            known = new BookKeeper(configuration(isVersion2));
            clients.put(isVersion2, known);
        }
        return known;
    }

    private ClientConfiguration configuration(boolean isVersion2) {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(metadata);
        configuration.setUseV2WireProtocol(isVersion2);
        configuration.setThrottleValue(0); // what is in flight is ours to bound
        configuration.setAddEntryTimeout(DEADLINE_S / 2); // a slow disk is no dead bookie
        configuration.setReadEntryTimeout(DEADLINE_S / 2);
        configuration.setBatchReadEnabled(isVersion2);
        configuration.setStickyReadsEnabled(true); // batches need it
        return configuration;
    }

    LedgerHandle create() throws Exception {
        return client().createLedger(ENSEMBLE, ENSEMBLE, ACK_QUORUM, DIGEST, PASSWORD);
    }

    /** Opens it for reading as a new leader would: fences its writer, recovers what that had in flight, and closes it. */
    LedgerHandle recover(long ledger) throws Exception {
        return client().openLedger(ledger, DIGEST, PASSWORD);
    }

    LedgerHandle follow(BookKeeper client, long ledger) throws Exception {
        return client.openLedgerNoRecovery(ledger, DIGEST, PASSWORD);
    }

    void delete(LedgerHandle ledger) throws Exception {
        ledger.close();
        client().deleteLedger(ledger.getId());
    }

    static byte[] payload(int size) {
        byte[] bytes = new byte[size];
        new Random().nextBytes(bytes);
        return bytes;
    }

    @Override
    public void close() throws Exception {
        for (BookKeeper each : clients.values()) {
            each.close();
        }
    }
}
