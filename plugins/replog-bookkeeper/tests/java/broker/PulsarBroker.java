import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.broker.PulsarService;
import org.apache.pulsar.broker.ServiceConfiguration;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.common.policies.data.ClusterData;
import org.apache.pulsar.common.policies.data.TenantInfo;

/**
 * A broker of Pulsar and a client of it, in one process. ZOOKEEPER URI: the client writes two topics with each compression, one of
 * batches and one of chunks, reads them back and prints what it read, a line for each message. Then the broker dies.
 */
public final class PulsarBroker {
    private static final String NAMESPACE = "public/broker";
    private static final int BATCHED = 500;
    private static final int CHUNKED = 5;

    public static void main(String[] arguments) {
        try {
            run(arguments[0], arguments[1]);
            System.out.flush();
            Runtime.getRuntime().halt(0);
        } catch (Throwable error) {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    private static void run(String zookeeper, String uri) throws Exception {
        ServiceConfiguration settings = new ServiceConfiguration();
        settings.setMetadataStoreUrl("zk:" + zookeeper);
        settings.setConfigurationMetadataStoreUrl("zk:" + zookeeper);
        settings.setBookkeeperMetadataServiceUri(uri);
        settings.setClusterName("test");
        settings.setAdvertisedAddress("127.0.0.1");
        settings.setBindAddress("127.0.0.1");
        settings.setBrokerServicePort(Optional.of(0));
        settings.setWebServicePort(Optional.of(0));
        settings.setManagedLedgerDefaultEnsembleSize(3);
        settings.setManagedLedgerMaxEntriesPerLedger(100);
        settings.setManagedLedgerMinLedgerRolloverTimeMinutes(0);
        settings.setManagedLedgerInfoCompressionType("LZ4");
        settings.setManagedCursorInfoCompressionType("ZSTD");
        settings.setBrokerEntryMetadataInterceptors(Set.of(
                "org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor",
                "org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor"));
        settings.setExposingBrokerEntryMetadataToClientEnabled(true);
        settings.setDefaultRetentionTimeInMinutes(-1);
        settings.setDefaultRetentionSizeInMB(-1);
        settings.setSystemTopicEnabled(false);
        settings.setTopicLevelPoliciesEnabled(false);
        settings.setLoadBalancerEnabled(false);
        PulsarService broker = new PulsarService(settings);
        broker.start();
        PulsarAdmin admin = broker.getAdminClient();
        admin.clusters().createCluster("test", ClusterData.builder().serviceUrl(broker.getWebServiceAddress())
                .brokerServiceUrl(broker.getBrokerServiceUrl()).build());
        admin.tenants().createTenant("public", TenantInfo.builder().allowedClusters(Set.of("test")).adminRoles(Set.of()).build());
        admin.namespaces().createNamespace(NAMESPACE, Set.of("test"));
        admin.topics().createPartitionedTopic("persistent://" + NAMESPACE + "/parts", 2);
        PulsarClient client = PulsarClient.builder().serviceUrl(broker.getBrokerServiceUrl()).build();
        for (CompressionType type : CompressionType.values()) {
            write(client, type);
        }
        client.newConsumer().topic(topic("batched")).subscriptionName("sub/one")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
        print(client, "batched");
        print(client, "chunked");
    }

    private static String topic(String name) {
        return "persistent://" + NAMESPACE + "/" + name;
    }

    private static void write(PulsarClient client, CompressionType type) throws Exception {
        ProducerBuilder<byte[]> builder = client.newProducer().compressionType(type);
        try (Producer<byte[]> producer = builder.clone().topic(topic("batched")).producerName("batched-" + type)
                .batchingMaxMessages(50).batchingMaxPublishDelay(20, TimeUnit.MILLISECONDS).create()) {
            List<CompletableFuture<MessageId>> sent = new ArrayList<>();
            for (int number = 0; number < BATCHED; number++) {
                byte[] data = ("message " + number + " " + "x".repeat(number)).getBytes();
                sent.add(producer.newMessage().key("key-" + number % 7).property("number", "" + number).eventTime(1 + number)
                        .value(number % 100 == 99 ? null : data).sendAsync());
            }
            for (CompletableFuture<MessageId> each : sent) {
                each.get();
            }
        }
        try (Producer<byte[]> producer = builder.clone().topic(topic("chunked")).producerName("chunked-" + type)
                .enableBatching(false).enableChunking(true).chunkMaxMessageSize(1000).create()) {
            for (int number = 0; number < CHUNKED; number++) {
                byte[] data = new byte[20_000];
                new Random(number).nextBytes(data);
                producer.newMessage().key("large").value(data).send();
            }
            producer.newMessage().keyBytes(new byte[] {(byte) 0xff, 1}).orderingKey(new byte[] {3}).value(new byte[0]).send();
        }
    }

    private static void print(PulsarClient client, String name) throws Exception {
        try (Reader<byte[]> reader = client.newReader().topic(topic(name)).startMessageId(MessageId.earliest).create()) {
            while (reader.hasMessageAvailable()) {
                Message<byte[]> message = reader.readNext();
                String data = message.getData() == null ? "null" : HexFormat.of().formatHex(message.getData());
                System.out.println(String.join(" ", "message", name, HexFormat.of().formatHex(message.getKeyBytes()),
                        message.getProducerName(), "" + message.getSequenceId(), "" + message.getPublishTime(),
                        "" + message.getEventTime(), "" + message.getIndex().orElse(-1L),
                        new TreeMap<>(message.getProperties()).toString(), "data=" + data));
            }
        }
    }
}
