import java.nio.charset.StandardCharsets;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.streams.core.RocketMQStream;
import org.apache.rocketmq.streams.core.common.Constant;
import org.apache.rocketmq.streams.core.function.AggregateAction;
import org.apache.rocketmq.streams.core.rstream.StreamBuilder;
import org.apache.rocketmq.streams.core.util.Pair;
import org.apache.rocketmq.streams.core.window.Time;
import org.apache.rocketmq.streams.core.window.TimeType;
import org.apache.rocketmq.streams.core.window.WindowBuilder;

/**
 * Sums by key in tumbling windows of 10 s of event time, on Apache RocketMQ Streams 1.1.0: NAMESRV TOPIC EVENTS, events like
 * {"k":"12","n":2}. It starts at the end of the topic, so send some 25 s after it started; it ends when all events are in
 * their windows, or after 60 s without progress: it drops what it holds for late.
 */
public class WindowSum {
    public static void main(String[] args) throws Throwable {
        long events = Long.parseLong(args[2]);
        AtomicLong added = new AtomicLong();
        AtomicLong first = new AtomicLong();

        StreamBuilder builder = new StreamBuilder("window-sum-" + System.currentTimeMillis());
        builder.source(args[1], bytes -> new Pair<>(null, new String(bytes, StandardCharsets.UTF_8)))
            .keyBy(event -> {
                first.compareAndSet(0, System.nanoTime());
                return field(event, "\"k\":\"", '"');
            })
            .window(WindowBuilder.tumblingWindow(Time.seconds(10)))
            .aggregate((AggregateAction<String, String, Integer>) (key, event, sum) -> {
                added.incrementAndGet();
                return (sum == null ? 0 : sum) + Integer.parseInt(field(event, "\"n\":", '}'));
            })
            .toRStream()
            .foreach(sum -> { });

        Properties properties = new Properties();
        properties.put(MixAll.NAMESRV_ADDR_PROPERTY, args[0]);
        properties.put(Constant.TIME_TYPE, TimeType.EVENT_TIME);
        new RocketMQStream(builder.build(), properties).start();

        long last = 0, since = System.nanoTime(), limit = System.nanoTime() + 600_000_000_000L;
        while (added.get() < events && System.nanoTime() < limit) {
            Thread.sleep(200);
            if (added.get() != last) { last = added.get(); since = System.nanoTime(); }
            else if (last > 0 && System.nanoTime() - since > 60_000_000_000L) break;
        }
        double seconds = ((added.get() >= events ? System.nanoTime() : since) - first.get()) / 1e9;
        System.out.printf("counted %d events in %.2f s = %.0f events/s%n", added.get(), seconds, added.get() / seconds);
        Runtime.getRuntime().halt(0);
    }

    private static String field(String event, String before, char behind) {
        int start = event.indexOf(before) + before.length();
        return event.substring(start, event.indexOf(behind, start));
    }
}
