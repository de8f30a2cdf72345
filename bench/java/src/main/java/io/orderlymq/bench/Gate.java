package io.orderlymq.bench;

import java.util.Set;
import java.util.concurrent.ConcurrentSkipListSet;

/**
 * What a member does with its messages: nothing yet, take them, or keep the next one in its hands for ever.
 *
 * <p>A consumer group first settles who has which queue while the gate is closed; what is measured begins when it
 * opens.
 */
final class Gate {
    enum State {
        CLOSED,
        OPEN,
        HOLD
    }

    /** Takes one message. */
    interface Listener {
        void message(int queue, byte[] body);
    }

    private final Set<Integer> held = new ConcurrentSkipListSet<>();
    private final Listener listener;
    private volatile State state = State.CLOSED;

    Gate(Listener listener) {
        this.listener = listener;
    }

    boolean isClosed() {
        return state == State.CLOSED;
    }

    void set(State next) {
        state = next;
    }

    /** Notes that this member has the queue. */
    void has(int queue) {
        held.add(queue);
    }

    /** Forgets which queues there were; what the member still has is noted again. */
    void forget() {
        held.clear();
    }

    Set<Integer> held() {
        return held;
    }

    /** Passes a message on; does not come back in the state HOLD. */
    void message(int queue, byte[] body) {
        if (state == State.HOLD) {
            Out.event("holding", "queue", queue);
            while (true) {
                Out.sleep(1_000_000);
            }
        }
        listener.message(queue, body);
    }
}
