import java.util.concurrent.Callable;
import java.util.concurrent.atomic.AtomicInteger;

/** Ends clients in milliseconds: the thread for network events looks only every 3 s whether it should stop. */
final class Hurry {
    private static final AtomicInteger WAITING = new AtomicInteger();

    private Hurry() { }

    static {
        Thread waker = new Thread(Hurry::wake, "hurry");
        waker.setDaemon(true);
        waker.start();
    }

    /** Does something that may end a client. */
    static <T> T during(Callable<T> work) throws Exception {
        synchronized (WAITING) {
            WAITING.incrementAndGet();
            WAITING.notifyAll();
        }
        try {
            return work.call();
        } finally {
            WAITING.decrementAndGet();
        }
    }

    private static void wake() {
        try {
            while (true) {
                synchronized (WAITING) {
                    while (WAITING.get() == 0) WAITING.wait();
                }
                // One that goes on only logs that it was woken.
                Thread[] threads = new Thread[Thread.activeCount() * 2 + 16];
                int count = Thread.enumerate(threads);
                for (int i = 0; i < count; i++) {
                    if (threads[i].getName().contains("NettyEventExecutor")) threads[i].interrupt();
                }
                Thread.sleep(10);
            }
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
        }
    }
}
