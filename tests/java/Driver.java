import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicLong;

/** RocketMQ's clients and tools in one process: takes a JSON command a line, gives a JSON answer a line, in any order. */
public class Driver {
    /** A running client; its operations are named by the command. */
    interface Handle {
        Object call(String operation, JSONObject args) throws Exception;

        /** Ends the client as its users would. */
        void stop() throws Exception;

        /** Ends its connections without a farewell, as a crash does. */
        void kill() throws Exception;
    }

    // Clients print, and so does mqadmin: answers have a stream of their own.
    private static final PrintStream ANSWERS =
        new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
    private static final Map<Long, Handle> HANDLES = new ConcurrentHashMap<>();
    private static final AtomicLong NUMBERS = new AtomicLong();
    private static final ExecutorService POOL = Executors.newCachedThreadPool();

    public static void main(String[] args) throws Exception {
        System.setOut(Admin.OUTPUT);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = input.readLine()) != null; ) {
            JSONObject command = JSON.parseObject(line);
            POOL.execute(() -> answer(command));
        }
        Runtime.getRuntime().halt(0);
    }

    private static void answer(JSONObject command) {
        JSONObject answer = JSONObject.of("id", command.getLongValue("id"));
        try {
            answer.put("result", perform(command.getString("op"), command));
        } catch (Throwable error) {
            answer.put("error", Messages.describe(error));
        }
        String line = JSON.toJSONString(answer);
        synchronized (ANSWERS) {
            ANSWERS.println(line);
        }
    }

    private static Object perform(String operation, JSONObject args) throws Exception {
        switch (operation) {
            case "mqadmin": return Hurry.during(() -> Admin.run(args));
            case "new_producer": return keep(Producer.start(args));
            case "new_push": return keep(PushConsumer.start(args));
            case "new_lite": return keep(LiteConsumer.start(args));
            case "new_pull": return keep(PullConsumer.start(args));
            default:
        }
        Handle handle = HANDLES.get(args.getLong("handle"));
        if (handle == null) throw new IllegalArgumentException("no client " + args.getLong("handle"));
        switch (operation) {
            case "stop": case "kill":
                HANDLES.remove(args.getLong("handle"));
                return Hurry.during(() -> {
                    if (operation.equals("stop")) handle.stop(); else handle.kill();
                    return null;
                });
            default: return handle.call(operation, args);
        }
    }

    private static long keep(Handle handle) {
        long number = NUMBERS.incrementAndGet();
        HANDLES.put(number, handle);
        return number;
    }
}
