package io.orderlymq.clients;

import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** The plain pull consumer. */
public final class Pulling {
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

    /** Prints messages as events. */
    public static void report(List<MessageExt> messages, MessageQueue queue) {
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
