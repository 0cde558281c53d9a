import com.alibaba.fastjson2.JSONArray;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages in the order of their arrival, for whoever waits for them. */
final class Received {
    private final List<Object> messages = new ArrayList<>();
    private int taken;

    synchronized void add(List<MessageExt> arrived) {
        long now = System.currentTimeMillis();
        for (MessageExt message : arrived) messages.add(Messages.json(message).fluentPut("arrived", now));
        notifyAll();
    }

    /** The next messages: so many, or fewer when time is up. */
    synchronized JSONArray take(int count, long timeout) throws InterruptedException {
        long deadline = System.nanoTime() + timeout * 1_000_000;
        while (messages.size() - taken < count) {
            long left = (deadline - System.nanoTime()) / 1_000_000;
            if (left <= 0) break;
            wait(left);
        }
        int end = Math.min(messages.size(), taken + count);
        JSONArray next = new JSONArray(messages.subList(taken, end));
        taken = end;
        return next;
    }

    synchronized JSONArray all() {
        return new JSONArray(messages);
    }
}
