import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufAllocator;
import io.netty.buffer.ByteBufUtil;
import io.netty.buffer.Unpooled;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import org.apache.bookkeeper.client.LedgerMetadataBuilder;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.discover.BookieServiceInfo;
import org.apache.bookkeeper.discover.ZKRegistrationManager;
import org.apache.bookkeeper.meta.LedgerLayout;
import org.apache.bookkeeper.meta.LedgerMetadataSerDe;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.proto.BookieProtoEncoding;
import org.apache.bookkeeper.proto.BookieProtocol;
import org.apache.bookkeeper.proto.BookkeeperProtocol;
import org.apache.bookkeeper.proto.DataFormats.LedgerMetadataFormat;
import org.apache.bookkeeper.proto.checksum.DigestManager;
import org.apache.bookkeeper.util.ByteBufList;
import org.apache.bookkeeper.util.StringUtils;

/** Prints bytes that Apache's own classes make, a line for each: its name, and hexadecimal digits or a path. */
public final class Golden {
    private static final byte[] PASSWORD = "secret".getBytes(StandardCharsets.US_ASCII);
    private static final byte[] PAYLOAD = "payload".getBytes(StandardCharsets.US_ASCII);
    private static final long LEDGER = 0x123456789AL;
    private static final long ENTRY = 7;
    private static final long CONFIRMED = 5;
    private static final long LENGTH = 1000;

    public static void main(String[] arguments) throws Exception {
        keys();
        entries();
        metadata();
        frames();
        version2();
        places();
    }

    private static void print(String name, byte[] data) {
        StringBuilder text = new StringBuilder();
        for (byte each : data) {
            text.append(String.format("%02x", each));
        }
        System.out.println(name + " " + text);
    }

    private static void keys() throws Exception {
        print("key-empty", DigestManager.generateMasterKey(new byte[0]));
        print("key-secret", DigestManager.generateMasterKey(PASSWORD));
    }

    private static void entries() throws Exception {
        for (LedgerMetadataFormat.DigestType type : LedgerMetadataFormat.DigestType.values()) {
            DigestManager manager = DigestManager.instantiate(LEDGER, PASSWORD, type, ByteBufAllocator.DEFAULT, false);
            ByteBufList entry = (ByteBufList) manager.computeDigestAndPackageForSending(
                    ENTRY, CONFIRMED, LENGTH, Unpooled.copiedBuffer(PAYLOAD), PASSWORD, 0);
            print("entry-" + type, entry.toArray());
            print("confirmed-" + type, manager.computeDigestAndPackageForSendingLac(CONFIRMED).toArray());
        }
    }

    private static LedgerMetadataBuilder builder(int version) {
        LedgerMetadataBuilder builder = LedgerMetadataBuilder.create()
                .withId(LEDGER)
                .withMetadataFormatVersion(version)
                .withEnsembleSize(3)
                .withWriteQuorumSize(2)
                .withAckQuorumSize(2)
                .newEnsembleEntry(0, List.of(BookieId.parse("one:3181"), BookieId.parse("bookie-2"), BookieId.parse("bookie-3")))
                .newEnsembleEntry(5, List.of(BookieId.parse("one:3181"), BookieId.parse("bookie-4"), BookieId.parse("bookie-3")));
        if (version > 1) {
            builder.withPassword(PASSWORD).withDigestType(DigestType.MAC).withCreationTime(1_700_000_000_123L).storingCreationTime(true)
                    .withCustomMetadata(Map.of("application", new byte[] {(byte) 0xff, 0, '"'}));
        }
        return version > 2 ? builder.withCToken(42) : builder;
    }

    private static void metadata() throws Exception {
        LedgerMetadataSerDe serializer = new LedgerMetadataSerDe();
        for (int version = 1; version <= 3; version++) {
            LedgerMetadata open = builder(version).build();
            print("metadata-" + version + "-open", serializer.serialize(open));
            print("metadata-" + version + "-recovery", serializer.serialize(builder(version).withInRecoveryState().build()));
            LedgerMetadata closed = builder(version).withClosedState().withLastEntryId(8).withLength(LENGTH).build();
            print("metadata-" + version + "-closed", serializer.serialize(closed));
        }
    }

    private static BookkeeperProtocol.BKPacketHeader header(BookkeeperProtocol.OperationType operation, int priority) {
        BookkeeperProtocol.BKPacketHeader.Builder builder = BookkeeperProtocol.BKPacketHeader.newBuilder()
                .setVersion(BookkeeperProtocol.ProtocolVersion.VERSION_THREE).setOperation(operation).setTxnId(300);
        return (priority > 0 ? builder.setPriority(priority) : builder).build();
    }

    private static com.google.protobuf.ByteString bytes(byte[] data) {
        return com.google.protobuf.ByteString.copyFrom(data);
    }

    private static void frames() throws Exception {
        byte[] key = DigestManager.generateMasterKey(PASSWORD);
        BookkeeperProtocol.Request.Builder request = BookkeeperProtocol.Request.newBuilder();
        print("request-read", request.setHeader(header(BookkeeperProtocol.OperationType.READ_ENTRY, 0))
                .setReadRequest(BookkeeperProtocol.ReadRequest.newBuilder().setLedgerId(LEDGER).setEntryId(ENTRY)).build().toByteArray());
        request = BookkeeperProtocol.Request.newBuilder();
        print("request-fence", request.setHeader(header(BookkeeperProtocol.OperationType.READ_ENTRY, 100))
                .setReadRequest(BookkeeperProtocol.ReadRequest.newBuilder().setLedgerId(LEDGER).setEntryId(-1).setMasterKey(bytes(key))
                        .setFlag(BookkeeperProtocol.ReadRequest.Flag.FENCE_LEDGER)).build().toByteArray());
        request = BookkeeperProtocol.Request.newBuilder();
        print("request-poll", request.setHeader(header(BookkeeperProtocol.OperationType.READ_ENTRY, 0))
                .setReadRequest(BookkeeperProtocol.ReadRequest.newBuilder().setLedgerId(LEDGER).setEntryId(-1).setPreviousLAC(4)
                        .setTimeOut(1000).setFlag(BookkeeperProtocol.ReadRequest.Flag.ENTRY_PIGGYBACK)).build().toByteArray());
        request = BookkeeperProtocol.Request.newBuilder();
        print("request-add-recovery", request.setHeader(header(BookkeeperProtocol.OperationType.ADD_ENTRY, 100))
                .setAddRequest(BookkeeperProtocol.AddRequest.newBuilder().setLedgerId(LEDGER).setEntryId(ENTRY).setMasterKey(bytes(key))
                        .setBody(bytes(PAYLOAD)).setFlag(BookkeeperProtocol.AddRequest.Flag.RECOVERY_ADD)).build().toByteArray());
        request = BookkeeperProtocol.Request.newBuilder();
        print("request-write-lac", request.setHeader(header(BookkeeperProtocol.OperationType.WRITE_LAC, 0))
                .setWriteLacRequest(BookkeeperProtocol.WriteLacRequest.newBuilder().setLedgerId(LEDGER).setLac(CONFIRMED)
                        .setMasterKey(bytes(key)).setBody(bytes(PAYLOAD))).build().toByteArray());
        request = BookkeeperProtocol.Request.newBuilder();
        print("request-read-lac", request.setHeader(header(BookkeeperProtocol.OperationType.READ_LAC, 0))
                .setReadLacRequest(BookkeeperProtocol.ReadLacRequest.newBuilder().setLedgerId(LEDGER)).build().toByteArray());
        request = BookkeeperProtocol.Request.newBuilder();
        print("request-start-tls", request.setHeader(header(BookkeeperProtocol.OperationType.START_TLS, 0))
                .setStartTLSRequest(BookkeeperProtocol.StartTLSRequest.newBuilder()).build().toByteArray());
        answers();
    }

    private static void answers() {
        for (BookkeeperProtocol.StatusCode code : BookkeeperProtocol.StatusCode.values()) {
            print("answer-add-" + code, BookkeeperProtocol.Response.newBuilder()
                    .setHeader(header(BookkeeperProtocol.OperationType.ADD_ENTRY, 0)).setStatus(code)
                    .setAddResponse(BookkeeperProtocol.AddResponse.newBuilder().setStatus(code).setLedgerId(LEDGER).setEntryId(ENTRY))
                    .build().toByteArray());
        }
        print("answer-read", BookkeeperProtocol.Response.newBuilder()
                .setHeader(header(BookkeeperProtocol.OperationType.READ_ENTRY, 0)).setStatus(BookkeeperProtocol.StatusCode.EOK)
                .setReadResponse(BookkeeperProtocol.ReadResponse.newBuilder().setStatus(BookkeeperProtocol.StatusCode.EOK)
                        .setLedgerId(LEDGER).setEntryId(ENTRY).setBody(bytes(PAYLOAD)).setMaxLAC(9).setLacUpdateTimestamp(1))
                .build().toByteArray());
        print("answer-read-lac", BookkeeperProtocol.Response.newBuilder()
                .setHeader(header(BookkeeperProtocol.OperationType.READ_LAC, 0)).setStatus(BookkeeperProtocol.StatusCode.EOK)
                .setReadLacResponse(BookkeeperProtocol.ReadLacResponse.newBuilder().setStatus(BookkeeperProtocol.StatusCode.EOK)
                        .setLedgerId(LEDGER).setLacBody(bytes(PAYLOAD)).setLastEntryBody(bytes(PASSWORD)))
                .build().toByteArray());
    }

    /** Frames of version 2, with their lengths, as clients and bookies encode them. */
    private static void version2() throws Exception {
        byte[] key = DigestManager.generateMasterKey(PASSWORD);
        DigestManager manager =
                DigestManager.instantiate(LEDGER, PASSWORD, LedgerMetadataFormat.DigestType.CRC32C, ByteBufAllocator.DEFAULT, true);
        int recovery = BookieProtocol.FLAG_RECOVERY_ADD | BookieProtocol.FLAG_HIGH_PRIORITY;
        for (int flags : new int[] {0, recovery}) {
            ByteBuf add = (ByteBuf) manager.computeDigestAndPackageForSending(
                    ENTRY, CONFIRMED, LENGTH, Unpooled.copiedBuffer(PAYLOAD), key, flags);
            print("version-2-add" + (flags == 0 ? "" : "-recovery"), ByteBufUtil.getBytes(add));
        }
        var requests = new BookieProtoEncoding.RequestEnDeCoderPreV3(null);
        byte version = BookieProtocol.CURRENT_PROTOCOL_VERSION;
        String inner = BookieProtocol.class.getName() + "$";
        short fencing = BookieProtocol.FLAG_DO_FENCING | BookieProtocol.FLAG_HIGH_PRIORITY;
        framed("read", requests, made(BookieProtocol.ReadRequest.class, version, LEDGER, ENTRY, (short) 0, null));
        framed("fence", requests, made(BookieProtocol.ReadRequest.class, version, LEDGER, ENTRY, fencing, key));
        var responses = new BookieProtoEncoding.ResponseEnDeCoderPreV3(null);
        framed("answer-add", responses, made(Class.forName(inner + "AddResponse"), version, BookieProtocol.EOK, LEDGER, ENTRY));
        framed("answer-read", responses,
                made(Class.forName(inner + "ReadResponse"), version, BookieProtocol.EOK, LEDGER, ENTRY, Unpooled.copiedBuffer(PAYLOAD)));
        framed("refusal-add", responses, made(Class.forName(inner + "AddResponse"), version, BookieProtocol.EFENCED, LEDGER, ENTRY));
        framed("refusal-read", responses, made(Class.forName(inner + "ReadResponse"), version, BookieProtocol.EFENCED, LEDGER, ENTRY));
    }

    /** Calls what only the package may: the method `create`, or else the constructor, with so many arguments. */
    private static Object made(Class<?> type, Object... arguments) throws Exception {
        for (Method each : type.getDeclaredMethods()) {
            if (each.getName().equals("create") && each.getParameterCount() == arguments.length) {
                each.setAccessible(true);
                return each.invoke(null, arguments);
            }
        }
        for (var each : type.getDeclaredConstructors()) {
            if (each.getParameterCount() == arguments.length) {
                each.setAccessible(true);
                return each.newInstance(arguments);
            }
        }
        throw new IllegalArgumentException(type.getName());
    }

    private static void framed(String name, BookieProtoEncoding.EnDecoder encoder, Object message) throws Exception {
        Object encoded = encoder.encode(message, ByteBufAllocator.DEFAULT);
        byte[] data = encoded instanceof ByteBufList ? ((ByteBufList) encoded).toArray() : ByteBufUtil.getBytes((ByteBuf) encoded);
        print("version-2-" + name, data);
    }

    private static void places() throws Exception {
        for (String factory : List.of("Hierarchical", "LongHierarchical", "Flat", "LegacyHierarchical")) {
            print("layout-" + factory, new LedgerLayout("org.apache.bookkeeper.meta." + factory + "LedgerManagerFactory", 1).serialize());
        }
        for (long id : new long[] {0, 1234567890, Integer.MAX_VALUE - 1L, Integer.MAX_VALUE, Integer.MAX_VALUE + 1L, Long.MAX_VALUE}) {
            System.out.println("path-hierarchical-" + id + " " + StringUtils.getHybridHierarchicalLedgerPath(id));
            System.out.println("path-longhierarchical-" + id + " " + StringUtils.getLongHierarchicalLedgerPath(id));
            System.out.println("path-flat-" + id + " /L" + StringUtils.getZKStringId(id));
        }
        BookieServiceInfo.Endpoint endpoint =
                new BookieServiceInfo.Endpoint("bookie", 3181, "host-1", "bookie-rpc", List.of(), List.of("tls"));
        Method serialize = ZKRegistrationManager.class.getDeclaredMethod("serializeBookieServiceInfo", BookieServiceInfo.class);
        serialize.setAccessible(true);
        print("service-info", (byte[]) serialize.invoke(null, new BookieServiceInfo(Map.of("color", "blue"), List.of(endpoint))));
    }
}
