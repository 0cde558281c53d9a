import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** A producer; with a script of answers, of transactions. */
final class Producer implements Driver.Handle, TransactionListener {
    private final DefaultMQProducer producer;
    private final JSONObject script;
    private final Queue<JSONObject> checks = new ConcurrentLinkedQueue<>();

    private Producer(JSONObject args) {
        script = args.getJSONObject("transactions");
        String group = args.getString("group");
        if (script == null) {
            producer = new DefaultMQProducer(group, Messages.hook(args));
        } else {
            TransactionMQProducer transactional = new TransactionMQProducer(group, Messages.hook(args));
            transactional.setTransactionListener(this);
            producer = transactional;
        }
        Messages.configure(producer, args);
        producer.setRetryTimesWhenSendFailed(args.getIntValue("retries", 0));
        producer.setSendMsgTimeout(args.getIntValue("timeout_ms", 10_000));
    }

    static Producer start(JSONObject args) throws Exception {
        Producer started = new Producer(args);
        started.producer.start();
        return started;
    }

    @Override
    public Object call(String operation, JSONObject args) throws Exception {
        switch (operation) {
            case "send": return send(args.getString("how"), Messages.messages(args.getJSONArray("messages")), args);
            case "checks": return new JSONArray(checks);
            case "queues": return Messages.queues(producer.fetchPublishMessageQueues(args.getString("topic")));
            case "view": return Messages.json(producer.viewMessage(args.getString("topic"), args.getString("msg_id")));
            case "create_topic":
                producer.createTopic(args.getString("key"), args.getString("topic"), args.getIntValue("queues"), null);
                return null;
            default: throw new IllegalArgumentException(operation);
        }
    }

    private JSONArray send(String how, List<Message> messages, JSONObject args) throws Exception {
        JSONArray results = new JSONArray();
        MessageQueue queue = args.containsKey("queue") ? Messages.queue(args.getJSONArray("queue")) : null;
        switch (how) {
            case "batch":
                return JSONArray.of(json(queue == null ? producer.send(messages) : producer.send(messages, queue)));
            case "async": return sendAsync(messages, queue);
            default:
        }
        for (Message message : messages) {
            switch (how) {
                case "sync": results.add(json(queue == null ? producer.send(message) : producer.send(message, queue))); break;
                case "oneway": if (queue == null) producer.sendOneway(message); else producer.sendOneway(message, queue); break;
                case "hash": results.add(json(producer.send(message, new SelectMessageQueueByHash(), message.getKeys()))); break;
                case "transaction": results.add(json(producer.sendMessageInTransaction(message, null))); break;
                default: throw new IllegalArgumentException(how);
            }
        }
        return results;
    }

    private JSONArray sendAsync(List<Message> messages, MessageQueue queue) throws Exception {
        List<CompletableFuture<SendResult>> sent = messages.stream().map(m -> new CompletableFuture<SendResult>()).toList();
        for (int i = 0; i < messages.size(); i++) {
            CompletableFuture<SendResult> result = sent.get(i);
            SendCallback callback = new SendCallback() {
                @Override public void onSuccess(SendResult sendResult) { result.complete(sendResult); }
                @Override public void onException(Throwable error) { result.completeExceptionally(error); }
            };
            if (queue == null) producer.send(messages.get(i), callback); else producer.send(messages.get(i), queue, callback);
        }
        JSONArray results = new JSONArray();
        for (CompletableFuture<SendResult> result : sent) results.add(json(result.get(30, TimeUnit.SECONDS)));
        return results;
    }

    private static JSONObject json(SendResult result) {
        return JSONObject.of("status", result.getSendStatus().name(), "msg_id", result.getMsgId(),
            "offset_id", result.getOffsetMsgId(), "queue", result.getMessageQueue().getQueueId(), "offset", result.getQueueOffset())
            .fluentPut("transaction_id", result.getTransactionId());
    }

    @Override
    public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
        return LocalTransactionState.valueOf(script.getString("local"));
    }

    @Override
    public LocalTransactionState checkLocalTransaction(MessageExt message) {
        checks.add(Messages.json(message));
        // The answers in their order; the last one stays.
        JSONArray answers = script.getJSONArray("checks");
        return LocalTransactionState.valueOf(answers.getString(Math.min(checks.size(), answers.size()) - 1));
    }

    @Override
    public void stop() {
        producer.shutdown();
    }

    @Override
    public void kill() {
        Messages.kill(producer.getDefaultMQProducerImpl().getMqClientFactory(), producer::shutdown);
    }
}
