package io.orderlymq.bench;

import java.io.IOException;
import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.Stream;

/**
 * The works by key: one queue, many keys, and workers that wait for each message.
 *
 * <p>bench/bykey.py asks for them; bench/laneworker.py and the keys of bench/bykey.py do the same for OrderlyMQ.
 */
final class ByKey {
    private static final String POISON = "poison";
    private static final int POISON_KEYS = 10;

    /** One message in so many is of a poison key. */
    private static final int POISON_EVERY = 50;

    /** Shares no factor with the number of keys, so that all keys come in turn. */
    private static final int STRIDE = 7919;

    /** A key's messages come from one thread, which waits for each acknowledgement: order without a client's help. */
    private static final int SENDERS = 64;

    private static final long TOPIC_KNOWN_NS = 30_000_000_000L;

    private final Target target;
    private AutoCloseable consumer;

    ByKey(Target target) {
        this.target = target;
    }

    void obey(Words words) throws Exception {
        String topic = words.text("topic");
        switch (words.verb) {
            case "key-topic" -> create(topic);
            case "key-send" -> send(topic, words);
            case "key-join" -> {
                Handling handling = new Handling(Path.of(words.text("log")), words.number("handler"));
                consumer = target.consumeByKey(new Target.KeyGroup(topic, words.text("group"),
                        words.number("workers"), all(words.number("keys"))), handling);
            }
            case "key-leave" -> consumer.close();
            default -> throw new IllegalArgumentException("no command " + words.verb);
        }
        Out.event("done");
    }

    /** Tries again for a while: not every node of a cluster that has just started need be known to the others. */
    private void create(String topic) throws Exception {
        long deadline = System.nanoTime() + TOPIC_KNOWN_NS;
        while (true) {
            try {
                target.createTopicByKey(topic);
                return;
            } catch (Exception error) {
                if (System.nanoTime() > deadline) {
                    throw error;
                }
                Out.sleep(100);
            }
        }
    }

    /** Sends in order per key, at a rate or, with rate=0, as fast as acknowledgements come. */
    private void send(String topic, Words words) throws Exception {
        int count = words.number("count");
        int keys = words.number("keys");
        int rate = words.number("rate", 0);
        boolean poisoned = words.text("poisoned", "false").equals("true");
        long begin = System.nanoTime();
        Body body = new Body(Body.SMALLEST);
        new Senders(SENDERS, (me, goesOn) -> {
            for (int each = 0; each < count && goesOn.getAsBoolean(); each++) {
                String key = key(each, keys, poisoned);
                if (Math.floorMod(key.hashCode(), SENDERS) == me) {
                    await(begin + (rate == 0 ? 0 : each * 1_000_000_000L / rate));
                    target.sendByKey(topic, key, body.of(me, each));
                }
            }
        }).join();
    }

    private static void await(long due) {
        long left = due - System.nanoTime();
        if (left > 0) {
            Out.sleep((left + 999_999) / 1_000_000);
        }
    }

    private static String key(int number, int keys, boolean poisoned) {
        if (poisoned && number % POISON_EVERY == POISON_EVERY / 2) {
            return POISON + "-" + number / POISON_EVERY % POISON_KEYS;
        }
        return "key-" + (long) number * STRIDE % keys;
    }

    /** Names every key that may come. */
    private static List<String> all(int keys) {
        int both = keys + POISON_KEYS;
        return Stream.iterate(0, each -> each < both, each -> each + 1)
                .map(each -> each < keys ? "key-" + each : POISON + "-" + (each - keys)).toList();
    }

    /** Waits for each message and writes the line of bench/laneworker.py about it; a poison key fails always. */
    private static final class Handling implements Target.Handler {
        private final PrintWriter log;
        private final int waitMs;

        Handling(Path log, int waitMs) throws IOException {
            this.log = new PrintWriter(Files.newBufferedWriter(log));
            this.waitMs = waitMs;
        }

        @Override
        public void handle(String key, byte[] body) {
            if (key.startsWith(POISON)) {
                throw new IllegalArgumentException("this message cannot be handled");
            }
            long begun = System.nanoTime();
            Out.sleep(waitMs);
            String line = key + " " + Body.sequence(body) + " " + Body.sentAt(body) + " " + begun + " ";
            synchronized (log) {
                log.println(line + System.nanoTime());
                log.flush();
            }
        }
    }
}
