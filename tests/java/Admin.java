import com.alibaba.fastjson2.JSONObject;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.commons.cli.CommandLine;
import org.apache.commons.cli.DefaultParser;
import org.apache.commons.cli.Options;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.remoting.netty.TlsSystemConfig;
import org.apache.rocketmq.srvutil.ServerUtil;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

/** The tool mqadmin: its commands, but not its main program, which would end the process. */
final class Admin extends MQAdminStartup {
    private static final ByteArrayOutputStream PRINTED = new ByteArrayOutputStream();
    static final PrintStream OUTPUT = new PrintStream(PRINTED, true, StandardCharsets.UTF_8);

    static {
        initCommand();
    }

    /** Runs one command at a time, as all print to the same place; gives what it printed. */
    static synchronized String run(JSONObject args) throws Exception {
        List<String> words = args.getList("arguments", String.class);
        SubCommand known = SUB_COMMANDS.stream().filter(each -> each.commandName().equalsIgnoreCase(words.get(0)))
            .findFirst().orElseThrow(() -> new IllegalArgumentException("no command " + words.get(0)));
        // Some keep their client, which they have ended: a command object serves once.
        SubCommand command = known.getClass().getDeclaredConstructor().newInstance();
        Options options = command.buildCommandlineOptions(ServerUtil.buildCommandlineOptions(new Options()));
        CommandLine line = new DefaultParser().parse(options, words.subList(1, words.size()).toArray(new String[0]));
        OUTPUT.flush();
        PRINTED.reset();
        System.setProperty(MixAll.NAMESRV_ADDR_PROPERTY, args.getString("namesrv"));
        TlsSystemConfig.tlsEnable = args.getBooleanValue("tls");
        try {
            command.execute(line, options, Messages.hook(args));
        } finally {
            System.clearProperty(MixAll.NAMESRV_ADDR_PROPERTY);
            TlsSystemConfig.tlsEnable = false;
        }
        OUTPUT.flush();
        return PRINTED.toString(StandardCharsets.UTF_8);
    }
}
