package io.orderlymq.clients;

import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** The two pull consumers. */
final class Pulling {
    private Pulling() {}

    /** Pulls every queue of a topic from offset 0 until there is no new message. */
    @SuppressWarnings("deprecation")
    static void pull(Options options) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(options.text("group"));
        consumer.setNamesrvAddr(options.text("ns"));
        consumer.setBrokerSuspendMaxTimeMillis(options.number("suspend", 20_000));
        consumer.start();
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(options.text("topic"))) {
            long offset = options.number("offset", 0);
            while (true) {
                PullResult result =
                        options.flag("block")
                                ? consumer.pullBlockIfNotFound(queue, null, offset, 32)
                                : consumer.pull(queue, options.text("tags", "*"), offset, 32);
                Report.event(
                        "pull",
                        "queue", queue.getBrokerName() + ":" + queue.getQueueId(),
                        "status", result.getPullStatus(),
                        "next", result.getNextBeginOffset(),
                        "min", result.getMinOffset(),
                        "max", result.getMaxOffset());
                if (result.getPullStatus() == PullStatus.FOUND) {
                    report(result.getMsgFoundList(), queue);
                } else if (result.getPullStatus() != PullStatus.NO_MATCHED_MSG) {
                    break;
                }
                offset = result.getNextBeginOffset();
                consumer.updateConsumeOffset(queue, offset);
            }
            Report.event(
                    "bounds",
                    "queue", queue.getBrokerName() + ":" + queue.getQueueId(),
                    "min", consumer.minOffset(queue),
                    "max", consumer.maxOffset(queue));
        }
        consumer.shutdown();
        Report.event("finished");
    }

    /** Polls in subscribe mode, or in assign mode with a seek to offset. */
    static void litePull(Options options) throws Exception {
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
                report(
                        List.of(message),
                        new MessageQueue(message.getTopic(), message.getBrokerName(), message.getQueueId()));
            }
            expected -= messages.size();
        }
        consumer.commitSync();
        consumer.shutdown();
        Report.event("finished");
    }

    private static void report(List<MessageExt> messages, MessageQueue queue) {
        for (MessageExt message : messages) {
            Report.event(
                    "message",
                    "body", new String(message.getBody(), StandardCharsets.UTF_8),
                    "queue", queue.getBrokerName() + ":" + queue.getQueueId(),
                    "offset", message.getQueueOffset(),
                    "tags", message.getTags(),
                    "keys", message.getKeys());
        }
    }
}
