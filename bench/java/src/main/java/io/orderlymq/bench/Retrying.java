package io.orderlymq.bench;

import java.util.ArrayList;
import java.util.List;

/**
 * One sender per queue that never gives up: the load under which leaders are killed.
 *
 * <p>A failed send is tried again immediately, with the same body; each acknowledgement is remembered with the time at
 * which its last attempt began, so that one that was on its way when the leader died does not count as recovery.
 */
final class Retrying implements AutoCloseable {
    private static final int PAUSE_MS = 5;

    private final List<Thread> threads = new ArrayList<>();
    private final List<List<long[]>> acknowledged = new ArrayList<>();
    private volatile boolean closed;
    private volatile String trouble = "";

    Retrying(Target target, String topic, int queues, int size) {
        Body body = new Body(size);
        for (int queue = 0; queue < queues; queue++) {
            int me = queue;
            List<long[]> mine = new ArrayList<>();
            acknowledged.add(mine);
            Thread thread = new Thread(() -> run(target, topic, me, body, mine));
            threads.add(thread);
            thread.start();
        }
    }

    private void run(Target target, String topic, int queue, Body body, List<long[]> mine) {
        Target.Sender sender = null;
        long sequence = 0;
        while (!closed) {
            long began = System.nanoTime();
            try {
                if (sender == null) {
                    sender = target.sender(topic, queue);
                }
                sender.send(queue, body.of(queue, sequence));
                long now = System.nanoTime();
                synchronized (mine) {
                    mine.add(new long[] {began, now});
                }
                sequence++;
            } catch (Exception error) {
                trouble = error.toString();
                Out.sleep(PAUSE_MS);
            }
        }
    }

    /** Returns for each queue when the first send begun after *ns* was acknowledged, 0 when none was in time. */
    List<Long> recovered(long ns, long timeoutMs) {
        long deadline = System.nanoTime() + timeoutMs * 1_000_000;
        List<Long> found = new ArrayList<>();
        for (List<long[]> mine : acknowledged) {
            long first = 0;
            while (first == 0 && System.nanoTime() < deadline) {
                synchronized (mine) {
                    for (int each = mine.size() - 1; each >= 0 && mine.get(each)[1] > ns; each--) {
                        if (mine.get(each)[0] >= ns) {
                            first = mine.get(each)[1];
                        }
                    }
                }
                if (first == 0) {
                    Out.sleep(1);
                }
            }
            found.add(first);
        }
        return found;
    }

    String trouble() {
        return trouble;
    }

    /** Returns how many sends of each queue were acknowledged. */
    List<Integer> counts() {
        return acknowledged.stream().map(List::size).toList();
    }

    @Override
    public void close() throws Exception {
        closed = true;
        for (Thread thread : threads) {
            thread.join();
        }
    }
}
