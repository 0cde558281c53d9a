import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/** A push consumer that keeps what it gets, and fails as it is told to. */
final class PushConsumer implements Driver.Handle {
    private final DefaultMQPushConsumer consumer;
    private final Received received = new Received();
    /** How often a body still fails; -1: always. */
    private final Map<String, Integer> failures = new ConcurrentHashMap<>();
    private final Integer level;
    private final long pause;

    private PushConsumer(JSONObject args) throws Exception {
        consumer = new DefaultMQPushConsumer(args.getString("group"), Messages.hook(args));
        Messages.configure(consumer, args);
        consumer.setConsumeFromWhere(Messages.start(args));
        consumer.setMessageModel(args.getBooleanValue("broadcast") ? MessageModel.BROADCASTING : MessageModel.CLUSTERING);
        if (args.containsKey("timestamp")) consumer.setConsumeTimestamp(args.getString("timestamp"));
        if (args.containsKey("max_reconsume_times")) consumer.setMaxReconsumeTimes(args.getIntValue("max_reconsume_times"));
        consumer.setSuspendCurrentQueueTimeMillis(args.getLongValue("suspend_ms", 50));
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(4);
        JSONObject subscriptions = args.getJSONObject("subscriptions");
        for (String topic : subscriptions.keySet()) consumer.subscribe(topic, subscriptions.getString(topic));
        JSONObject sql = args.getJSONObject("sql");
        if (sql != null) for (String topic : sql.keySet()) consumer.subscribe(topic, MessageSelector.bySql(sql.getString(topic)));
        JSONObject fail = args.getJSONObject("fail");
        for (String body : fail.keySet()) failures.put(body, fail.getIntValue(body));
        level = args.getInteger("level");
        pause = args.getLongValue("pause_ms");
        if (args.getBooleanValue("orderly")) consumer.registerMessageListener((MessageListenerOrderly) this::inOrder);
        else consumer.registerMessageListener((MessageListenerConcurrently) this::atOnce);
    }

    static PushConsumer start(JSONObject args) throws Exception {
        PushConsumer started = new PushConsumer(args);
        started.consumer.start();
        return started;
    }

    private ConsumeConcurrentlyStatus atOnce(List<MessageExt> messages, ConsumeConcurrentlyContext context) {
        if (level != null) context.setDelayLevelWhenNextConsume(level);
        return take(messages) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
    }

    private ConsumeOrderlyStatus inOrder(List<MessageExt> messages, ConsumeOrderlyContext context) {
        return take(messages) ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
    }

    private boolean take(List<MessageExt> messages) {
        received.add(messages);
        boolean good = true;
        for (MessageExt message : messages) good &= !fails(new String(message.getBody(), StandardCharsets.UTF_8));
        try {
            Thread.sleep(pause);
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
        }
        return good;
    }

    private boolean fails(String body) {
        Integer before = failures.get(body);
        if (before == null || before == 0) return false;
        failures.computeIfPresent(body, (key, left) -> left < 0 ? left : left - 1);
        return true;
    }

    @Override
    public Object call(String operation, JSONObject args) throws Exception {
        switch (operation) {
            case "take": return received.take(args.getIntValue("count"), args.getLongValue("timeout_ms"));
            case "taken": return received.all();
            case "assignment": return assignment(args.getString("topic"));
            case "client_id": return consumer.buildMQClientId();
            case "queues": return Messages.queues(consumer.fetchSubscribeMessageQueues(args.getString("topic")));
            case "suspend": consumer.suspend(); return null;
            case "resume": consumer.resume(); return null;
            default: throw new IllegalArgumentException(operation);
        }
    }

    private JSONArray assignment(String topic) {
        List<MessageQueue> mine = consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()
            .stream().filter(queue -> queue.getTopic().equals(topic)).toList();
        return Messages.queues(mine);
    }

    @Override
    public void stop() {
        consumer.shutdown();
    }

    @Override
    public void kill() {
        Messages.kill(consumer.getDefaultMQPushConsumerImpl().getmQClientFactory(), consumer::shutdown);
    }
}
