import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Waiting senders side by side: NAMESRV TOPIC MESSAGES SENDERS BYTES PER_REQUEST SECONDS. The topic must exist.
 * It ends after so many messages or so many seconds, whichever is first; the first part warms up and does not count.
 */
public class Send {
    public static void main(String[] args) throws Exception {
        String topic = args[1];
        long messages = Long.parseLong(args[2]);
        int senders = Integer.parseInt(args[3]);
        byte[] body = new byte[Integer.parseInt(args[4])];
        int perRequest = Integer.parseInt(args[5]);
        long limit = (long) (Double.parseDouble(args[6]) * 1e9);

        DefaultMQProducer producer = new DefaultMQProducer("send-side-by-side");
        producer.setNamesrvAddr(args[0]);
        producer.setSendMsgTimeout(30_000);
        producer.setCompressMsgBodyOverHowmuch(1 << 30);
        producer.start();
        List<MessageQueue> queues = producer.fetchPublishMessageQueues(topic);
        AtomicLong sent = new AtomicLong();
        AtomicReference<Throwable> failure = new AtomicReference<>();
        AtomicLong deadline = new AtomicLong(Long.MAX_VALUE);
        CountDownLatch ended = new CountDownLatch(senders);
        for (int number = 0; number < senders; number++) {
            MessageQueue queue = queues.get(number % queues.size());
            Thread sender = new Thread(() -> {
                try {
                    while (sent.get() < messages && System.nanoTime() < deadline.get() && failure.get() == null) {
                        SendStatus status;
                        if (perRequest == 1) {
                            status = producer.send(new Message(topic, body), queue).getSendStatus();
                        } else {
                            List<Message> batch = new ArrayList<>(perRequest);
                            for (int i = 0; i < perRequest; i++) batch.add(new Message(topic, body));
                            status = producer.send(batch, queue).getSendStatus();
                        }
                        if (status != SendStatus.SEND_OK) throw new IllegalStateException(status.toString());
                        sent.addAndGet(perRequest);
                    }
                } catch (Throwable error) {
                    failure.compareAndSet(null, error);
                } finally {
                    ended.countDown();
                }
            });
            sender.setDaemon(true);
            sender.start();
        }
        // A tenth of the messages, or two seconds, for Java and the broker to warm up.
        long begun = System.nanoTime();
        while (sent.get() < messages / 10 && System.nanoTime() - begun < 2_000_000_000L && ended.getCount() > 0) Thread.sleep(1);
        long before = sent.get();
        long start = System.nanoTime();
        deadline.set(start + limit);
        ended.await();
        double seconds = (System.nanoTime() - start) / 1e9;
        if (failure.get() != null) {
            failure.get().printStackTrace();
            System.exit(1);
        }
        long counted = sent.get() - before;
        System.out.printf("sent %d messages in %.2f s = %.0f messages/s%n", counted, seconds, counted / seconds);
        System.exit(0);
    }
}
