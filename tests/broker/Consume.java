import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Reads messages and prints their bodies: KIND NAMESRV TOPIC GROUP TAGS COUNT; ends after COUNT messages. */
public class Consume {
    private static final AtomicInteger LEFT = new AtomicInteger();

    public static void main(String[] args) throws Exception {
        LEFT.set(Integer.parseInt(args[5]));
        switch (args[0]) {
            case "push" -> push(args, false);
            case "orderly" -> push(args, true);
            case "subscribe", "assign" -> pull(args);
            default -> throw new IllegalArgumentException(args[0]);
        }
        System.exit(0);
    }

    private static void push(String[] args, boolean orderly) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[3]);
        consumer.setNamesrvAddr(args[1]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args[2], args[4]);
        if (orderly) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                show(messages);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                show(messages);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        while (LEFT.get() > 0) Thread.sleep(20);
        consumer.shutdown();
    }

    private static void pull(String[] args) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(args[3]);
        consumer.setNamesrvAddr(args[1]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        if (args[0].equals("subscribe")) consumer.subscribe(args[2], args[4]);
        consumer.start();
        if (args[0].equals("assign")) {
            Collection<MessageQueue> queues = consumer.fetchMessageQueues(args[2]);
            consumer.assign(queues);
            List<MessageQueue> list = new ArrayList<>(queues);
            for (MessageQueue queue : list) consumer.seekToBegin(queue);
        }
        while (LEFT.get() > 0) show(consumer.poll(1000));
        consumer.commitSync();
        consumer.shutdown();
    }

    private static void show(List<MessageExt> messages) {
        for (MessageExt message : messages) {
            String body = new String(message.getBody(), StandardCharsets.UTF_8);
            System.out.println("got " + message.getQueueId() + " " + body);
            LEFT.decrementAndGet();
        }
    }
}
