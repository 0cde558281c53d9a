import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;

/** Messages, queues, errors and settings between JSON and Java. */
final class Messages {
    private Messages() { }

    static Message message(JSONObject told) {
        Message message = new Message(told.getString("topic"), Base64.getDecoder().decode(told.getString("body")));
        if (told.containsKey("tags")) message.setTags(told.getString("tags"));
        if (told.containsKey("keys")) message.setKeys(told.getString("keys"));
        if (told.containsKey("delay_level")) message.setDelayTimeLevel(told.getIntValue("delay_level"));
        if (told.containsKey("delay_seconds")) message.setDelayTimeSec(told.getLongValue("delay_seconds"));
        if (told.containsKey("delay_ms")) message.setDelayTimeMs(told.getLongValue("delay_ms"));
        if (told.containsKey("deliver_ms")) message.setDeliverTimeMs(told.getLongValue("deliver_ms"));
        for (Map.Entry<String, Object> property : told.getJSONObject("properties").entrySet()) {
            MessageAccessor.putProperty(message, property.getKey(), String.valueOf(property.getValue()));
        }
        return message;
    }

    static List<Message> messages(JSONArray told) {
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < told.size(); i++) messages.add(message(told.getJSONObject(i)));
        return messages;
    }

    static JSONObject json(MessageExt message) {
        return JSONObject.of(
            "topic", message.getTopic(), "queue", message.getQueueId(), "offset", message.getQueueOffset(),
            "body", Base64.getEncoder().encodeToString(message.getBody() == null ? new byte[0] : message.getBody()),
            "properties", message.getProperties()).fluentPut("reconsume_times", message.getReconsumeTimes())
            .fluentPut("msg_id", message.getMsgId()).fluentPut("sys_flag", message.getSysFlag())
            .fluentPut("broker", message.getBrokerName()).fluentPut("position", message.getCommitLogOffset());
    }

    static JSONArray json(List<MessageExt> messages) {
        JSONArray list = new JSONArray();
        for (MessageExt message : messages) list.add(json(message));
        return list;
    }

    static JSONArray json(MessageQueue queue) {
        return JSONArray.of(queue.getTopic(), queue.getBrokerName(), queue.getQueueId());
    }

    static JSONArray queues(Iterable<MessageQueue> queues) {
        List<MessageQueue> sorted = new ArrayList<>();
        queues.forEach(sorted::add);
        sorted.sort(null);
        JSONArray list = new JSONArray();
        for (MessageQueue queue : sorted) list.add(json(queue));
        return list;
    }

    static MessageQueue queue(JSONArray told) {
        return new MessageQueue(told.getString(0), told.getString(1), told.getIntValue(2));
    }

    static JSONObject describe(Throwable error) {
        StringBuilder text = new StringBuilder(error.toString());
        for (Throwable cause = error.getCause(); cause != null; cause = cause.getCause()) text.append(" because of ").append(cause);
        JSONObject told = JSONObject.of("text", text.toString(), "kind", error.getClass().getSimpleName());
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof MQBrokerException) return told.fluentPut("code", ((MQBrokerException) cause).getResponseCode());
            if (cause instanceof MQClientException && ((MQClientException) cause).getResponseCode() > 0) {
                return told.fluentPut("code", ((MQClientException) cause).getResponseCode());
            }
        }
        return told;
    }

    /** The hook that signs requests, if the command has credentials. */
    static RPCHook hook(JSONObject args) {
        JSONArray keys = args.getJSONArray("credentials");
        return keys == null ? null : new AclClientRPCHook(new SessionCredentials(keys.getString(0), keys.getString(1)));
    }

    static void configure(ClientConfig client, JSONObject args) {
        client.setNamesrvAddr(args.getString("namesrv"));
        client.setUseTLS(args.getBooleanValue("tls"));
        if (args.containsKey("instance")) client.setInstanceName(args.getString("instance"));
        // Tests do not wait as long as users do.
        client.setPollNameServerInterval(args.getIntValue("poll_ms", 300));
        client.setHeartbeatBrokerInterval(args.getIntValue("heartbeat_ms", 1000));
        client.setPersistConsumerOffsetInterval(args.getIntValue("persist_ms", 200));
        client.setUseHeartbeatV2(args.getBooleanValue("heartbeat_v2"));
    }

    static ConsumeFromWhere start(JSONObject args) {
        return ConsumeFromWhere.valueOf("CONSUME_FROM_" + args.getString("start"));
    }

    /** Closes the connections of a client, then ends its threads: nobody hears a farewell. */
    static void kill(MQClientInstance instance, Runnable shutdown) {
        instance.getMQClientAPIImpl().shutdown();
        try {
            shutdown.run();
        } catch (RuntimeException expected) {
            // It cannot say goodbye any more.
        }
    }
}
