package io.orderlymq.clients.since46;

import io.orderlymq.clients.Options;
import io.orderlymq.clients.Pulling;
import io.orderlymq.clients.Report;
import java.util.Collection;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** The lite pull consumer. */
public final class LitePulling {
    private LitePulling() {}

    /** Polls in subscribe mode, or in assign mode with a seek to offset. */
    public static void run(Options options) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(options.text("group"));
        consumer.setNamesrvAddr(options.text("ns"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(true);
        String topic = options.text("topic");
        if (options.flag("assign")) {
            consumer.start();
            Collection<MessageQueue> queues = consumer.fetchMessageQueues(topic);
            consumer.assign(queues);
            for (MessageQueue queue : queues) {
                consumer.seek(queue, options.number("offset", 0));
            }
        } else {
            consumer.subscribe(topic, options.text("tags", "*"));
            consumer.start();
        }
        Report.event("started");
        int expected = options.number("expected", 1);
        long end = System.nanoTime() + options.number("seconds", 20) * 1_000_000_000L;
        while (expected > 0 && System.nanoTime() < end) {
            List<MessageExt> messages = consumer.poll(500);
            for (MessageExt message : messages) {
                Pulling.report(
                        List.of(message),
                        new MessageQueue(message.getTopic(), message.getBrokerName(), message.getQueueId()));
            }
            expected -= messages.size();
        }
        consumer.commitSync();
        consumer.shutdown();
        Report.event("finished");
    }
}
