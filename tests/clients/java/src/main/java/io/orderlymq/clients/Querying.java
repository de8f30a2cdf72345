package io.orderlymq.clients;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Finds messages by key, by unique id and by offset message id. */
final class Querying {
    private Querying() {}

    static void run(Options options) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("queriers");
        producer.setNamesrvAddr(options.text("ns"));
        producer.start();
        String topic = options.text("topic");
        if (!options.text("key", "").isEmpty()) {
            producer.queryMessage(topic, options.text("key"), 64, 0, System.currentTimeMillis() + 60_000)
                    .getMessageList()
                    .forEach(message -> report("by-key", message));
        }
        if (!options.text("id", "").isEmpty()) {
            report("by-id", producer.viewMessage(topic, options.text("id")));
        }
        producer.shutdown();
        Report.event("finished");
    }

    /** Prints which of {@code queues} queues the client's own selector chooses for each key. */
    static void hash(Options options) {
        List<MessageQueue> queues = new ArrayList<>();
        for (int id = 0; id < options.number("queues", 8); id++) {
            queues.add(new MessageQueue("t", "g0", id));
        }
        SelectMessageQueueByHash selector = new SelectMessageQueueByHash();
        for (String key : options.text("keys").split(",")) {
            Report.event("hash", "key", key, "queue", selector.select(queues, null, key).getQueueId());
        }
    }

    private static void report(String kind, MessageExt message) {
        Report.event(
                kind,
                "body", new String(message.getBody(), StandardCharsets.UTF_8),
                "offset", message.getQueueOffset(),
                "keys", message.getKeys(),
                "msgId", message.getMsgId());
    }
}
