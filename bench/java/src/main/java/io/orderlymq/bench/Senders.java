package io.orderlymq.bench;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.BooleanSupplier;

/** Threads that send, each its part; all end when one has failed. */
final class Senders {
    /** What one thread does for as long as it may go on. */
    interface Part {
        void send(int me, BooleanSupplier goesOn) throws Exception;
    }

    private final List<Thread> threads = new ArrayList<>();
    private final AtomicReference<Throwable> failure = new AtomicReference<>();

    Senders(int count, Part part) {
        for (int number = 0; number < count; number++) {
            int me = number;
            Thread thread = new Thread(() -> {
                try {
                    part.send(me, () -> failure.get() == null);
                } catch (Throwable error) {
                    failure.compareAndSet(null, error);
                }
            });
            thread.start();
            threads.add(thread);
        }
    }

    /** Waits until all have ended. */
    void join() throws InterruptedException {
        for (Thread thread : threads) {
            thread.join();
        }
        if (failure.get() != null) {
            throw new IllegalStateException("a send failed: " + failure.get(), failure.get());
        }
    }
}
