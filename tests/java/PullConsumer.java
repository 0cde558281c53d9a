import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.common.message.MessageQueue;

/** The old pull consumer: offsets are its user's affair. */
@SuppressWarnings("deprecation")
final class PullConsumer implements Driver.Handle {
    private final DefaultMQPullConsumer consumer;

    private PullConsumer(JSONObject args) {
        consumer = new DefaultMQPullConsumer(args.getString("group"), Messages.hook(args));
        Messages.configure(consumer, args);
    }

    static PullConsumer start(JSONObject args) throws Exception {
        PullConsumer started = new PullConsumer(args);
        started.consumer.start();
        return started;
    }

    @Override
    public Object call(String operation, JSONObject args) throws Exception {
        MessageQueue queue = args.containsKey("queue") ? Messages.queue(args.getJSONArray("queue")) : null;
        switch (operation) {
            case "queues": return Messages.queues(consumer.fetchSubscribeMessageQueues(args.getString("topic")));
            case "pull": return pull(queue, args);
            case "bounds": return JSONArray.of(consumer.minOffset(queue), consumer.maxOffset(queue));
            case "offset_for": return consumer.searchOffset(queue, args.getLongValue("timestamp"));
            case "earliest": return consumer.earliestMsgStoreTime(queue);
            case "committed": return consumer.fetchConsumeOffset(queue, true);
            case "commit":
                consumer.updateConsumeOffset(queue, args.getLongValue("offset"));
                consumer.getOffsetStore().persist(queue);
                return null;
            default: throw new IllegalArgumentException(operation);
        }
    }

    private JSONObject pull(MessageQueue queue, JSONObject args) throws Exception {
        PullResult result = consumer.pull(queue, args.getString("tags"), args.getLongValue("offset"), args.getIntValue("count"));
        return JSONObject.of("status", result.getPullStatus().name(), "next", result.getNextBeginOffset(),
            "messages", result.getMsgFoundList() == null ? new JSONArray() : Messages.json(result.getMsgFoundList()));
    }

    @Override
    public void stop() {
        consumer.shutdown();
    }

    @Override
    public void kill() {
        throw new UnsupportedOperationException("kill of a pull consumer");
    }
}
