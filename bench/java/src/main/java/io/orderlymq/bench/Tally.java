package io.orderlymq.bench;

import java.util.HashMap;
import java.util.Map;

/**
 * What a group of consumers got, and whether each sender's messages came in order and without a gap.
 *
 * <p>A sender keeps to one queue, so its numbers must rise by one. A number that came before is a repeat, which at
 * least once allows; a number above the next one is a gap: the messages between are late or lost.
 */
final class Tally implements Gate.Listener {
    final Latencies latencies = new Latencies();
    private final Map<Integer, Long> next = new HashMap<>();
    private long count;
    private long repeats;
    private long gaps;
    private long first;
    private long last;
    private final Map<Integer, Long> firsts = new HashMap<>();

    @Override
    public synchronized void message(int queue, byte[] body) {
        long now = System.nanoTime();
        if (first == 0) {
            first = now;
        }
        last = now;
        firsts.putIfAbsent(queue, now);
        latencies.add(now - Body.sentAt(body));
        int sender = Body.sender(body);
        long sequence = Body.sequence(body);
        long expected = next.getOrDefault(sender, 0L);
        if (sequence < expected) {
            repeats++;
            return;
        }
        gaps += sequence - expected;
        next.put(sender, sequence + 1);
        count++;
    }

    /** Begins to count again; what each sender has sent is still known. */
    synchronized void restart() {
        count = 0;
        latencies.clear();
        first = 0;
        firsts.clear();
    }

    synchronized long count() {
        return count;
    }

    /** Returns when the first message of a queue came since the last restart, 0 when none came. */
    synchronized long first(int queue) {
        return firsts.getOrDefault(queue, 0L);
    }

    synchronized void report(String event) {
        Out.event(event, "count", count, "repeats", repeats, "gaps", gaps, "first", first, "last", last);
    }
}
