package org.apache.bookkeeper.test;

import java.io.File;
import java.io.IOException;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BookKeeperTestClient;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.conf.TestBKConfiguration;
import org.apache.bookkeeper.net.BookieId;
import org.apache.zookeeper.ZooKeeper;
import org.junit.After;
import org.junit.Before;
import org.junit.Rule;
import org.junit.rules.TestName;
import org.junit.rules.Timeout;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * What Apache's own tests of its client stand on, with bookies of replog: it takes the place of the class of this name, whose bookies
 * run in the process of the tests. A test that reaches into those finds no such method, and cannot run here.
 */
public abstract class BookKeeperClusterTestCase {
    static final Logger LOG = LoggerFactory.getLogger(BookKeeperClusterTestCase.class);
    @Rule public final TestName runtime = new TestName();
    @Rule public final Timeout globalTimeout;
    protected final ZooKeeperCluster zkUtil;
    protected ZooKeeper zkc;
    protected String metadataServiceUri;
    protected final TmpDirs tmpDirs = new TmpDirs();
    protected int numBookies;
    protected BookKeeperTestClient bkc;
    protected boolean useUUIDasBookieId = true;
    protected final ServerConfiguration baseConf = TestBKConfiguration.newServerConfiguration();
    protected final ClientConfiguration baseClientConf = TestBKConfiguration.newClientConfiguration();
    SynchronousQueue<Throwable> asyncExceptions = new SynchronousQueue<>();
    private static final String KILLED = "replogKilled";
    final List<Program> programs = new ArrayList<>();
    final Map<String, Program> killed = new HashMap<>();
    int made = 0;

    /** A bookie of replog, in a process of its own. */
    static final class Program {
        final File directory;
        final int port;
        final String uri;
        Process process;
        BookieId id;

        Program(File directory, int port, String uri) {
            this.directory = directory;
            this.port = port;
            this.uri = uri;
        }

        void start() throws Exception {
            File output = new File(directory, "output");
            output.delete();
            ProcessBuilder builder = new ProcessBuilder(System.getProperty("replog.python"), "-m", "replog.cli", "bookkeeper",
                "bookie", "--listen", "127.0.0.1:" + port, "--metastore", uri, "--data", directory + "/data",
                "--storage", "files?journal_file_bytes=1MiB", "--json");
            builder.redirectErrorStream(true).redirectOutput(output);
            process = builder.start();
            for (int look = 0; look < 600; look++) {
                String said = output.exists() ? Files.readString(output.toPath()) : "";
                if (said.contains("\"event\": \"serving\"")) {
                    java.util.regex.Matcher found = java.util.regex.Pattern.compile("\"bookie\": \"([^\"]+)\"").matcher(said);
                    found.find(said.indexOf("\"event\": \"serving\""));
                    id = BookieId.parse(found.group(1));
                    return;
                }
                if (!process.isAlive()) {
                    throw new IOException("the bookie has ended: " + said);
                }
                Thread.sleep(50);
            }
            throw new IOException("no bookie: " + Files.readString(output.toPath()));
        }

        void signal(String name) throws IOException, InterruptedException {
            new ProcessBuilder("kill", "-" + name, Long.toString(process.pid())).start().waitFor();
        }

        void end() throws Exception {
            signal("CONT");
            process.destroy();
            if (!process.waitFor(20, TimeUnit.SECONDS)) {
                process.destroyForcibly().waitFor();
            }
        }
    }

    public BookKeeperClusterTestCase(int numBookies) {
        this(numBookies, 120);
    }

    public BookKeeperClusterTestCase(int numBookies, int testTimeoutSecs) {
        this(numBookies, 1, testTimeoutSecs);
    }

    public BookKeeperClusterTestCase(int numBookies, int numOfZKNodes, int testTimeoutSecs) {
        this.numBookies = numBookies;
        this.globalTimeout = Timeout.seconds(4L * testTimeoutSecs);
        this.zkUtil = new ZooKeeperUtil();
        this.baseConf.setAllowLoopback(true);
    }

    protected void captureThrowable(Runnable c) {
        try {
            c.run();
        } catch (Throwable e) {
            asyncExceptions.add(e);
        }
    }

    @Before
    public void setUp() throws Exception {
        setUp("/ledgers");
    }

    protected void setUp(String ledgersRootPath) throws Exception {
        zkUtil.startCluster();
        zkc = zkUtil.getZooKeeperClient();
        metadataServiceUri = getMetadataServiceUri(ledgersRootPath);
        baseConf.setMetadataServiceUri(metadataServiceUri);
        baseClientConf.setMetadataServiceUri(metadataServiceUri);
        if (Boolean.getBoolean("replog.v2")) {
            baseClientConf.setUseV2WireProtocol(true);
        }
        org.apache.bookkeeper.client.BookKeeperAdmin.format(baseConf, false, true);
        startBKCluster(metadataServiceUri);
    }

    protected String getMetadataServiceUri(String ledgersRootPath) {
        return zkUtil.getMetadataServiceUri(ledgersRootPath);
    }

    @After
    public void tearDown() throws Exception {
        if (bkc != null) {
            bkc.close();
        }
        for (Program each : programs) {
            each.end();
        }
        programs.clear();
        zkUtil.killCluster();
        tmpDirs.cleanup();
    }

    protected void startBKCluster(String uri) throws Exception {
        for (int number = 0; number < numBookies; number++) {
            startNewBookie();
        }
        bkc = new BookKeeperTestClient(baseClientConf, new TestStatsProvider());
    }

    protected ServerConfiguration newServerConfiguration() throws Exception {
        return TestBKConfiguration.newServerConfiguration().setAllowLoopback(true);
    }

    protected ClientConfiguration newClientConfiguration() {
        return new ClientConfiguration(baseConf);
    }

    public int startNewBookie() throws Exception {
        startNewBookieAndReturnBookieId();
        return programs.get(programs.size() - 1).port;
    }

    public BookieId startNewBookieAndReturnBookieId() throws Exception {
        int port;
        try (ServerSocket socket = new ServerSocket(0)) {
            port = socket.getLocalPort();
        }
        Program made = new Program(tmpDirs.createNew("replog", "bookie" + this.made++), port, metadataServiceUri);
        made.start();
        programs.add(made);
        return made.id;
    }

    Program named(BookieId id) {
        return programs.stream().filter(each -> each.id.equals(id)).findFirst().orElse(null);
    }

    public BookieId getBookie(int index) throws Exception {
        return programs.get(index).id;
    }

    protected BookieId addressByIndex(int index) throws Exception {
        return programs.get(index).id;
    }

    protected List<BookieId> bookieAddresses() throws Exception {
        List<BookieId> found = new ArrayList<>();
        programs.forEach(each -> found.add(each.id));
        return found;
    }

    protected int lastBookieIndex() {
        return programs.size() - 1;
    }

    protected int bookieCount() {
        return programs.size();
    }

    public ServerConfiguration killBookie(BookieId id) throws Exception {
        ServerConfiguration configuration = new ServerConfiguration(baseConf);
        Program found = named(id);
        if (found != null) {
            programs.remove(found);
            found.end();
            killed.put(id.toString(), found);
            configuration.setProperty(KILLED, id.toString());
        }
        return configuration;
    }

    /** Starts a bookie again that was killed, or a new one. */
    protected ServerTester startAndAddBookie(ServerConfiguration configuration) throws Exception {
        Program found = killed.remove(configuration.getString(KILLED, ""));
        if (found == null) {
            startNewBookie();
        } else {
            found.start();
            programs.add(found);
        }
        return new ServerTester(programs.get(programs.size() - 1).id);
    }

    /** What a test may know of a bookie that it has started. */
    public static class ServerTester {
        private final BookieId id;

        ServerTester(BookieId id) {
            this.id = id;
        }

        public BookieId getAddress() {
            return id;
        }
    }

    public ServerConfiguration killBookie(int index) throws Exception {
        return killBookie(programs.get(index).id);
    }

    public ServerConfiguration killBookieAndWaitForZK(int index) throws Exception {
        return killBookie(index);
    }

    protected void stopBKCluster() throws Exception {
        stopAllBookies(true);
    }

    protected void stopAllBookies() throws Exception {
        stopAllBookies(true);
    }

    protected void stopAllBookies(boolean shutdownClient) throws Exception {
        for (Program each : new ArrayList<>(programs)) {
            killBookie(each.id);
        }
        if (shutdownClient && bkc != null) {
            bkc.close();
            bkc = null;
        }
    }

    public CountDownLatch sleepBookie(BookieId id, int seconds) throws Exception {
        CountDownLatch asleep = new CountDownLatch(1);
        Program found = named(id);
        Thread sleeper = new Thread(() -> {
            try {
                found.signal("STOP");
                asleep.countDown();
                Thread.sleep(seconds * 1000L);
                found.signal("CONT");
            } catch (Exception e) {
                LOG.error("sleeping", e);
            }
        });
        sleeper.start();
        return asleep;
    }

    public void sleepBookie(BookieId id, CountDownLatch until) throws InterruptedException, IOException {
        sleepBookie(id, new CountDownLatch(1), until);
    }

    public void sleepBookie(BookieId id, CountDownLatch asleep, CountDownLatch until) throws InterruptedException, IOException {
        Program found = named(id);
        new Thread(() -> {
            try {
                found.signal("STOP");
                asleep.countDown();
                until.await();
                found.signal("CONT");
            } catch (Exception e) {
                LOG.error("sleeping", e);
            }
        }).start();
        asleep.await(5, TimeUnit.SECONDS);
    }

    public void restartBookies() throws Exception {
        for (Program each : programs) {
            each.end();
            each.start();
        }
    }

    public void restartBookie(BookieId id) throws Exception {
        named(id).end();
        named(id).start();
    }

    public void setAutoRecoveryEnabled(boolean isEnabled) {
    }
}
