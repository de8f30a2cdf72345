package io.orderlymq.bench;

import java.util.List;

/** A cluster as the load program sees it: through one client library, and nothing but that. */
interface Target extends AutoCloseable {
    /** Makes a topic of this many ordered queues, replicated by all nodes; it may be there already. */
    void createTopic(String topic, int queues) throws Exception;

    /** Returns what one sending thread uses. */
    Sender sender(String topic, int number) throws Exception;

    /** Starts one member of an ordered consumer group over these queues of a topic. */
    AutoCloseable consume(Membership membership, Gate gate) throws Exception;

    /** Makes a topic of one queue, or of what this system has in place of it, for messages of many keys. */
    default void createTopicByKey(String topic) throws Exception {
        createTopic(topic, 1);
    }

    /** Sends to a topic of one queue and comes back when the message is acknowledged; throws when it is not. */
    default void sendByKey(String topic, String key, byte[] body) throws Exception {
        throw new UnsupportedOperationException("not compared by key");
    }

    /** Starts the consumer of a group whose workers share the one queue of a topic, in order per key. */
    default AutoCloseable consumeByKey(KeyGroup group, Handler handler) throws Exception {
        throw new UnsupportedOperationException("not compared by key");
    }

    /** Returns the name, id or port of the node that leads each queue; the driver knows what it means. */
    List<String> leaders(String topic, int queues) throws Exception;

    /** Sends and comes back when the message is acknowledged; throws when it is not. */
    interface Sender extends AutoCloseable {
        void send(int queue, byte[] body) throws Exception;

        /** Sends several messages to one queue as the client's own kind of batch. */
        void sendBatch(int queue, List<byte[]> bodies) throws Exception;

        @Override
        default void close() throws Exception {}
    }

    /** Handles one message, or throws: then the message is to come again, a second later. */
    interface Handler {
        void handle(String key, byte[] body);
    }

    /**
     * Who consumes by key.
     *
     * @param workers how many messages may be in hand together
     * @param keys all keys that may come, for a system that must know them
     */
    record KeyGroup(String topic, String group, int workers, List<String> keys) {}

    /**
     * Who consumes what.
     *
     * @param strict whether order must survive this member's death: some peers need a narrower window for it
     */
    record Membership(String topic, String group, int queues, int number, int members, boolean strict) {
        /** Whether a queue belongs to this member where the client does not divide queues by itself. */
        boolean has(int queue) {
            return strict || queue % members == number;
        }
    }
}
