import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.impl.consumer.DefaultLitePullConsumerImpl;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** A lite pull consumer: subscribes, or assigns queues to itself. */
final class LiteConsumer implements Driver.Handle {
    private final DefaultLitePullConsumer consumer;

    private LiteConsumer(JSONObject args) throws Exception {
        consumer = new DefaultLitePullConsumer(args.getString("group"), Messages.hook(args));
        Messages.configure(consumer, args);
        consumer.setConsumeFromWhere(Messages.start(args));
        if (args.containsKey("timestamp")) consumer.setConsumeTimestamp(args.getString("timestamp"));
        consumer.setAutoCommit(args.getBooleanValue("auto_commit"));
        JSONObject subscriptions = args.getJSONObject("subscriptions");
        for (String topic : subscriptions.keySet()) consumer.subscribe(topic, subscriptions.getString(topic));
    }

    static LiteConsumer start(JSONObject args) throws Exception {
        LiteConsumer started = new LiteConsumer(args);
        started.consumer.start();
        return started;
    }

    @Override
    public Object call(String operation, JSONObject args) throws Exception {
        MessageQueue queue = args.containsKey("queue") ? Messages.queue(args.getJSONArray("queue")) : null;
        switch (operation) {
            case "take": return take(args.getIntValue("count"), args.getLongValue("timeout_ms"));
            case "queues": return Messages.queues(consumer.fetchMessageQueues(args.getString("topic")));
            case "assign": consumer.assign(queues(args.getJSONArray("queues"))); return null;
            case "assignment": return Messages.queues(consumer.assignment());
            case "seek": consumer.seek(queue, args.getLongValue("offset")); return null;
            case "seek_begin": consumer.seekToBegin(queue); return null;
            case "seek_end": consumer.seekToEnd(queue); return null;
            case "offset_for": return consumer.offsetForTimestamp(queue, args.getLong("timestamp"));
            case "commit": consumer.commitSync(); return null;
            case "committed": return consumer.committed(queue);
            case "client_id": return consumer.buildMQClientId();
            default: throw new IllegalArgumentException(operation);
        }
    }

    private static Collection<MessageQueue> queues(JSONArray told) {
        List<MessageQueue> queues = new ArrayList<>();
        for (int i = 0; i < told.size(); i++) queues.add(Messages.queue(told.getJSONArray(i)));
        return queues;
    }

    private JSONArray take(int count, long timeout) {
        List<MessageExt> messages = new ArrayList<>();
        long deadline = System.nanoTime() + timeout * 1_000_000;
        while (messages.size() < count && System.nanoTime() < deadline) messages.addAll(consumer.poll(50));
        return Messages.json(messages);
    }

    @Override
    public void stop() {
        consumer.shutdown();
    }

    @Override
    public void kill() throws Exception {
        // Unlike the others, it does not show the connections that it uses.
        java.lang.reflect.Field inner = DefaultLitePullConsumer.class.getDeclaredField("defaultLitePullConsumerImpl");
        inner.setAccessible(true);
        java.lang.reflect.Field factory = DefaultLitePullConsumerImpl.class.getDeclaredField("mQClientFactory");
        factory.setAccessible(true);
        Messages.kill((MQClientInstance) factory.get(inner.get(consumer)), consumer::shutdown);
    }
}
