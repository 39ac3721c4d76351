import java.nio.file.Paths;
import org.apache.bookkeeper.bookie.BookieShell;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.util.EntryFormatter;
import org.apache.bookkeeper.util.LedgerIdFormatter;

/**
 * Performs commands of `bookkeeper shell`, one after the other: to start Java anew for each of them costs a second.
 *
 * <pre>
 * Shell CONF "COMMAND ARGUMENT..." ...
 * </pre>
 *
 * A line "command N" stands before what command N says. Ends with the status of the first command that fails.
 */
public final class Shell {
    private Shell() {
    }

    public static void main(String[] arguments) throws Exception {
        for (int place = 1; place < arguments.length; place++) {
            System.out.println("command " + place);
            System.out.flush();
            ServerConfiguration configuration = new ServerConfiguration();
            configuration.loadConf(Paths.get(arguments[0]).toUri().toURL());
            BookieShell shell = new BookieShell(
                LedgerIdFormatter.newLedgerIdFormatter(configuration), EntryFormatter.newEntryFormatter(configuration));
            shell.setConf(configuration);
            int status = shell.run(arguments[place].split(" "));
            System.out.flush();
            if (status != 0) {
                System.exit(status);
            }
        }
        System.exit(0);
    }
}
