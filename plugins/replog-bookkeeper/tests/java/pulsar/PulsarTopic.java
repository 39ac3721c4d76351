import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufUtil;
import io.netty.buffer.Unpooled;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.common.util.OrderedExecutor;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.mledger.ManagedCursor;
import org.apache.bookkeeper.mledger.ManagedLedger;
import org.apache.bookkeeper.mledger.ManagedLedgerConfig;
import org.apache.bookkeeper.mledger.ManagedLedgerFactoryConfig;
import org.apache.bookkeeper.mledger.MetadataCompressionConfig;
import org.apache.bookkeeper.mledger.Position;
import org.apache.bookkeeper.mledger.impl.ManagedLedgerFactoryImpl;
import org.apache.bookkeeper.mledger.impl.MetaStoreImpl;
import org.apache.bookkeeper.mledger.proto.MLDataFormats.KeyValue;
import org.apache.bookkeeper.mledger.proto.MLDataFormats.ManagedCursorInfo;
import org.apache.bookkeeper.mledger.proto.MLDataFormats.ManagedLedgerInfo;
import org.apache.bookkeeper.mledger.proto.MLDataFormats.ManagedLedgerInfo.LedgerInfo;
import org.apache.bookkeeper.mledger.proto.MLDataFormats.NestedPositionInfo;
import org.apache.bookkeeper.mledger.proto.MLDataFormats.OffloadContext;
import org.apache.bookkeeper.mledger.proto.MLDataFormats.OffloadDriverMetadata;
import org.apache.pulsar.common.api.proto.CommandSubscribe.InitialPosition;
import org.apache.pulsar.common.api.proto.CompressionType;
import org.apache.pulsar.common.api.proto.MessageMetadata;
import org.apache.pulsar.common.api.proto.SingleMessageMetadata;
import org.apache.pulsar.common.compression.CompressionCodecProvider;
import org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor;
import org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor;
import org.apache.pulsar.common.intercept.BrokerEntryMetadataInterceptor;
import org.apache.pulsar.common.protocol.Commands;
import org.apache.pulsar.common.protocol.Commands.ChecksumType;
import org.apache.pulsar.common.protocol.Markers;
import org.apache.pulsar.common.util.Codec;
import org.apache.pulsar.metadata.api.MetadataStoreConfig;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;

/**
 * Makes what brokers of Pulsar keep of topics, with Pulsar's own classes and without a broker.
 *
 * <p>golden: prints entries and records, a line for each: its name, and hexadecimal digits.
 *
 * <p>write ZOOKEEPER URI MANAGED_LEDGER TYPE HOW: writes the same entries, as a broker does, into ledgers of five entries with two
 * subscriptions; records are compressed by TYPE. HOW is close; or wait: it reads standard input, and writes one entry more; or halt: the last ledger stays open, as when a
 * broker dies.
 */
public final class PulsarTopic {
    private static final long PUBLISHED = 1_700_000_000_123L;
    private static final int ENTRIES_PER_LEDGER = 5;

    public static void main(String[] arguments) throws Exception {
        if (arguments[0].equals("golden")) {
            for (ByteBuf entry : entries()) {
                print("entry", ByteBufUtil.getBytes(entry));
            }
            records();
            System.exit(0);
        }
        write(arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
    }

    private static void print(String name, byte[] data) {
        System.out.println(name + " " + ByteBufUtil.hexDump(data));
    }

    // -- entries ------------------------------------------------------------------------------------------------

    private static byte[] payload(int number, int size) {
        byte[] data = new byte[size];
        for (int place = 0; place < size; place++) {
            data[place] = (byte) (number + place % 50);
        }
        return data;
    }

    private static MessageMetadata metadata(long sequence) {
        return new MessageMetadata().setProducerName("producer").setSequenceId(sequence).setPublishTime(PUBLISHED + sequence);
    }

    private static ByteBuf compressed(MessageMetadata metadata, CompressionType type, ByteBuf payload) {
        metadata.setUncompressedSize(payload.readableBytes());
        if (type != CompressionType.NONE) {
            metadata.setCompression(type);
        }
        return CompressionCodecProvider.getCompressionCodec(type).encode(payload);
    }

    private static ByteBuf entry(MessageMetadata metadata, ByteBuf payload) {
        return Commands.serializeMetadataAndPayload(ChecksumType.Crc32c, metadata, payload);
    }

    private static ByteBuf single(MessageMetadata metadata, CompressionType type, byte[] payload) {
        return entry(metadata, compressed(metadata, type, Unpooled.wrappedBuffer(payload)));
    }

    private static ByteBuf batch(long sequence, CompressionType type, int count) {
        ByteBuf payload = Unpooled.buffer();
        for (int index = 0; index < count; index++) {
            SingleMessageMetadata one = new SingleMessageMetadata().setSequenceId(sequence + index);
            one.setPartitionKey("key-" + index).addProperty().setKey("index").setValue("" + index);
            if (index == 1) {
                one.setNullValue(true).setEventTime(PUBLISHED);
            }
            byte[] data = index == 1 ? new byte[0] : payload(index, 100);
            Commands.serializeSingleMessageInBatchWithPayload(one, Unpooled.wrappedBuffer(data), payload);
        }
        MessageMetadata metadata = metadata(sequence).setNumMessagesInBatch(count);
        return entry(metadata, compressed(metadata, type, payload));
    }

    private static List<ByteBuf> entries() throws Exception {
        List<ByteBuf> found = new ArrayList<>();
        MessageMetadata rich = metadata(0).setPartitionKey("Schlüssel").setEventTime(PUBLISHED - 1).setOrderingKey(new byte[] {1, 2});
        rich.setSchemaVersion(new byte[] {0, 7}).setDeliverAtTime(PUBLISHED + 60_000).setReplicatedFrom("elsewhere");
        rich.addProperty().setKey("a").setValue("1");
        rich.addProperty().setKey("price").setValue("€ 5");
        found.add(single(rich, CompressionType.NONE, payload(0, 100)));
        for (CompressionType type : CompressionType.values()) {
            found.add(single(metadata(1 + type.getValue()), type, payload(1 + type.getValue(), 1000)));
        }
        MessageMetadata plain = metadata(6).setUncompressedSize(3);
        found.add(Commands.serializeMetadataAndPayload(ChecksumType.None, plain, Unpooled.wrappedBuffer(payload(6, 3))));
        found.add(batch(10, CompressionType.NONE, 3));
        found.add(batch(20, CompressionType.LZ4, 10));
        found.add(batch(30, CompressionType.ZSTD, 1));
        AppendIndexMetadataInterceptor index = new AppendIndexMetadataInterceptor();
        index.recoveryIndexGenerator(99);
        ByteBuf noted = single(metadata(40), CompressionType.NONE, payload(40, 10));
        found.add(Commands.addBrokerEntryMetadata(noted, Set.<BrokerEntryMetadataInterceptor>of(index), 1));
        found.add(marker(Markers.newTxnCommitMarker(41, 7, 8)));
        found.add(single(metadata(42).setTxnidMostBits(7).setTxnidLeastBits(9), CompressionType.NONE, payload(42, 10)));
        found.add(marker(Markers.newTxnAbortMarker(43, 7, 9)));
        found.add(marker(Markers.newReplicatedSubscriptionsSnapshotRequest("snapshot", "elsewhere")));
        String binary = Base64.getEncoder().encodeToString(new byte[] {(byte) 0xff, 0, 1});
        found.add(single(metadata(44).setPartitionKey(binary).setPartitionKeyB64Encoded(true), CompressionType.NONE, new byte[0]));
        found.add(single(metadata(45).setPartitionKey("gone").setNullValue(true), CompressionType.NONE, new byte[0]));
        chunks(found);
        MessageMetadata secret = metadata(47).setEncryptionAlgo("AES/GCM/NoPadding").setEncryptionParam(new byte[12]);
        secret.addEncryptionKey().setKey("reader").setValue(new byte[] {9, 9});
        found.add(single(secret, CompressionType.ZLIB, payload(47, 200)));
        found.add(single(metadata(48).setPartitionKey("x").setNullPartitionKey(true), CompressionType.NONE, payload(48, 1)));
        return found;
    }

    /** The same at a time that is always the same. */
    private static ByteBuf marker(ByteBuf marker) {
        return entry(Commands.parseMessageMetadata(marker).setPublishTime(PUBLISHED), marker);
    }

    /** A message in three chunks, and between them one of another producer. */
    private static void chunks(List<ByteBuf> found) {
        byte[] data = new byte[900];
        for (int place = 0; place < data.length; place++) {
            data[place] = (byte) (place * place * 31 + place);
        }
        ByteBuf all = CompressionCodecProvider.getCompressionCodec(CompressionType.LZ4).encode(Unpooled.wrappedBuffer(data));
        int total = all.readableBytes();
        int size = total / 3 + 1;
        for (int chunk = 0; chunk < 3; chunk++) {
            MessageMetadata metadata = metadata(46).setUuid("producer-46").setNumChunksFromMsg(3).setTotalChunkMsgSize(total);
            metadata.setChunkId(chunk).setCompression(CompressionType.LZ4).setUncompressedSize(data.length).setPartitionKey("large");
            found.add(entry(metadata, all.readRetainedSlice(Math.min(size, all.readableBytes()))));
            if (chunk == 0) {
                found.add(single(metadata(5).setProducerName("other"), CompressionType.NONE, payload(5, 5)));
            }
        }
    }

    // -- records ------------------------------------------------------------------------------------------------

    private static NestedPositionInfo position(long ledger, long entry) {
        return NestedPositionInfo.newBuilder().setLedgerId(ledger).setEntryId(entry).build();
    }

    private static LedgerInfo.Builder closed(long ledger) {
        return LedgerInfo.newBuilder().setLedgerId(ledger).setEntries(5).setSize(500).setTimestamp(PUBLISHED);
    }

    private static void records() throws Exception {
        OffloadContext.Builder offloaded = OffloadContext.newBuilder().setUidMsb(1).setUidLsb(2).setComplete(true)
                .setDriverMetadata(OffloadDriverMetadata.newBuilder().setName("aws-s3"));
        ManagedLedgerInfo.Builder info = ManagedLedgerInfo.newBuilder()
                .addLedgerInfo(closed(3).setOffloadContext(offloaded.setBookkeeperDeleted(true)))
                .addLedgerInfo(closed(4).setOffloadContext(offloaded.setBookkeeperDeleted(false)))
                .addLedgerInfo(closed(5))
                .addLedgerInfo(LedgerInfo.newBuilder().setLedgerId(6).setTimestamp(0))
                .setTerminatedPosition(position(6, 2));
        for (int number = 0; number < 20; number++) {
            info.addProperties(KeyValue.newBuilder().setKey("name-" + number).setValue("value"));
        }
        ManagedCursorInfo.Builder cursor = ManagedCursorInfo.newBuilder().setCursorsLedgerId(-1).setMarkDeleteLedgerId(5)
                .setMarkDeleteEntryId(1);
        cursor.addIndividualDeletedMessagesBuilder().setLowerEndpoint(position(5, 2)).setUpperEndpoint(position(5, 4));
        cursor.addBatchedEntryDeletionIndexInfoBuilder().setPosition(position(5, 2)).addDeleteSet(5);
        cursor.addCursorPropertiesBuilder().setName("owner").setValue("team");
        OrderedExecutor executor = OrderedExecutor.newBuilder().numThreads(1).build();
        MetadataStoreExtended store = MetadataStoreExtended.create("memory:records", MetadataStoreConfig.builder().build());
        for (CompressionType type : CompressionType.values()) {
            MetadataCompressionConfig how = new MetadataCompressionConfig(type.name());
            MetaStoreImpl records = new MetaStoreImpl(store, executor, how, how);
            print("topic-" + type, records.compressLedgerInfo(info.build()));
            print("cursor-" + type, records.compressCursorInfo(cursor.build()));
        }
    }

    // -- a topic ------------------------------------------------------------------------------------------------

    private static void write(String zookeeper, String uri, String name, String type, String how) throws Exception {
        MetadataStoreExtended store = MetadataStoreExtended.create("zk:" + zookeeper, MetadataStoreConfig.builder().build());
        BookKeeper client = new BookKeeper(new ClientConfiguration().setMetadataServiceUri(uri));
        ManagedLedgerFactoryConfig settings = new ManagedLedgerFactoryConfig();
        settings.setManagedLedgerInfoCompressionType(type);
        settings.setManagedCursorInfoCompressionType(type);
        ManagedLedgerFactoryImpl factory = new ManagedLedgerFactoryImpl(store, client, settings);
        ManagedLedgerConfig config = new ManagedLedgerConfig().setEnsembleSize(3).setWriteQuorumSize(2).setAckQuorumSize(2)
                .setMetadataEnsembleSize(2).setMetadataWriteQuorumSize(2).setMetadataAckQuorumSize(2)
                .setMaxEntriesPerLedger(ENTRIES_PER_LEDGER).setDigestType(DigestType.CRC32C).setPassword("")
                .setRetentionTime(-1, TimeUnit.SECONDS).setRetentionSizeInMB(-1);
        config.setMinimumRolloverTime(0, TimeUnit.SECONDS);
        ManagedLedger ledger = factory.open(name, config);
        ManagedCursor behind = ledger.openCursor("behind");
        ManagedCursor holes = ledger.openCursor(
                Codec.encode("with holes/%"), InitialPosition.Earliest, Map.of(), Map.of("owner", "team"));
        List<Position> places = new ArrayList<>();
        for (ByteBuf entry : entries()) {
            byte[] data = ByteBufUtil.getBytes(entry);
            places.add(ledger.addEntry(data));
        }
        behind.markDelete(places.get(2));
        holes.markDelete(places.get(1));
        holes.delete(places.get(4));
        holes.delete(places.get(7));
        System.out.println(String.join(" ", places.stream().map(each -> each.getLedgerId() + ":" + each.getEntryId()).toList()));
        System.out.flush();
        if (how.equals("wait")) {
            System.in.read();
            ledger.addEntry(ByteBufUtil.getBytes(entries().get(0)));
            System.out.println("more");
            System.out.flush();
        }
        if (!how.equals("halt")) {
            ledger.close();
            factory.shutdown();
        }
        Runtime.getRuntime().halt(0);
    }
}
