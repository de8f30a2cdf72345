package io.orderlymq.bench;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;

/** Sends by many threads, each waiting for its acknowledgement before it sends again. */
final class Sending {
    private static final int RETRY_MS = 5;

    private final Target target;
    private final String topic;
    private final int queues;
    private final int topics;
    private final int batch;
    private final Body body;

    Sending(Target target, Words words) {
        this.target = target;
        topic = words.text("topic");
        queues = words.number("queues");
        topics = words.number("topics", 1);
        batch = words.number("batch", 1);
        body = new Body(words.number("size"));
    }

    /** Sends for some seconds after a warm-up; what was acknowledged inside that time counts. */
    void timed(int senders, double warm, double seconds, Tally tally) throws Exception {
        long start = System.nanoTime() + (long) (warm * 1e9);
        long end = start + (long) (seconds * 1e9);
        Latencies[] latencies = new Latencies[senders];
        Arrays.setAll(latencies, each -> new Latencies());
        long[] acknowledged = new long[senders];
        AtomicInteger refused = new AtomicInteger();
        AtomicReference<String> reason = new AtomicReference<>("");
        Senders running = new Senders(senders, (me, goesOn) -> {
            try (Target.Sender sender = open(me)) {
                long sequence = 0;
                long began = System.nanoTime();
                while (began < end && goesOn.getAsBoolean()) {
                    try {
                        sequence = once(sender, me, sequence);
                    } catch (Exception error) {
                        refused.incrementAndGet();
                        reason.set(error.toString());
                        Out.sleep(RETRY_MS);
                        began = System.nanoTime();
                        continue;
                    }
                    long now = System.nanoTime();
                    if (began >= start && now <= end) {
                        latencies[me].add(now - began);
                        acknowledged[me] += batch;
                    }
                    began = now;
                }
            }
        });
        Out.sleep(Math.max(0, (start - System.nanoTime()) / 1_000_000));
        tally.restart();
        Out.event("begin");
        Out.sleep(Math.max(0, (end - System.nanoTime()) / 1_000_000));
        Out.event("end");
        long consumed = tally.count();
        running.join();
        Latencies all = new Latencies();
        long total = 0;
        for (int each = 0; each < senders; each++) {
            all.add(latencies[each]);
            total += acknowledged[each];
        }
        Out.event("done", "count", total, "seconds", seconds, "consumed", consumed,
                "refused", refused.get(), "reason", reason.get(),
                "latencies", all.buckets(), "ways", tally.latencies.buckets());
    }

    /** Sends a number of messages, each until it is acknowledged. */
    void fill(int senders, long count) throws Exception {
        long each = count / senders;
        Out.event("begin");
        new Senders(senders, (me, goesOn) -> {
            try (Target.Sender sender = open(me)) {
                long sequence = 0;
                while (sequence < each && goesOn.getAsBoolean()) {
                    sequence = until(sender, me, sequence);
                }
            }
        }).join();
        Out.event("end");
        Out.event("done", "count", each * senders);
    }

    /** Returns a sender to the topic, or one that takes all of topic-0, topic-1 and so on in turn. */
    private Target.Sender open(int me) throws Exception {
        if (topics == 1) {
            return target.sender(topic, me);
        }
        return new Target.Sender() {
            private int next = me;

            @Override
            public void send(int queue, byte[] body) throws Exception {
                target.sender(topic + "-" + next++ % topics, me).send(queue, body);
            }

            @Override
            public void sendBatch(int queue, List<byte[]> bodies) {
                throw new UnsupportedOperationException("batches go to one topic");
            }
        };
    }

    private long until(Target.Sender sender, int me, long sequence) throws Exception {
        for (int attempt = 0; ; attempt++) {
            try {
                return once(sender, me, sequence);
            } catch (Exception error) {
                if (attempt > 200) {
                    throw error;
                }
                Out.sleep(10 * RETRY_MS);
            }
        }
    }

    private long once(Target.Sender sender, int me, long sequence) throws Exception {
        if (batch == 1) {
            sender.send(me % queues, body.of(me, sequence));
            return sequence + 1;
        }
        List<byte[]> bodies = new ArrayList<>(batch);
        for (int each = 0; each < batch; each++) {
            bodies.add(body.of(me, sequence + each));
        }
        sender.sendBatch(me % queues, bodies);
        return sequence + batch;
    }
}
