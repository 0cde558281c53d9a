import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.streams.core.RocketMQStream;
import org.apache.rocketmq.streams.core.function.ValueMapperAction;
import org.apache.rocketmq.streams.core.rstream.StreamBuilder;
import org.apache.rocketmq.streams.core.util.Pair;

/** RocketMQ Streams counts words: NAMESRV TOPIC JOB WORDS; prints (key=word, value=count) for each, ends after WORDS of them. */
public class StreamsCount {
    public static void main(String[] args) throws Throwable {
        int words = Integer.parseInt(args[3]);
        AtomicInteger counted = new AtomicInteger();
        StreamBuilder builder = new StreamBuilder(args[2]);
        builder.source(args[1], bytes -> new Pair<>(null, new String(bytes, StandardCharsets.UTF_8)))
            .flatMap((ValueMapperAction<String, List<String>>) line -> Arrays.asList(line.split(" ")))
            .keyBy(word -> word)
            .count()
            .toRStream()
            .map(count -> { counted.incrementAndGet(); return count; })
            .print();

        Properties properties = new Properties();
        properties.put(MixAll.NAMESRV_ADDR_PROPERTY, args[0]);
        new RocketMQStream(builder.build(), properties).start();
        System.out.println("ready");

        long limit = System.nanoTime() + 30_000_000_000L;
        while (counted.get() < words && System.nanoTime() < limit) {
            Thread.sleep(50);
        }
        // What came twice would come now.
        Thread.sleep(500);
        System.out.println("counted " + counted.get());
        Runtime.getRuntime().halt(0);
    }
}
