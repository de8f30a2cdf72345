package io.orderlymq.clients.since46;

import io.orderlymq.clients.Options;
import io.orderlymq.clients.Pulling;
import io.orderlymq.clients.Report;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.exception.RemotingConnectException;
import org.apache.rocketmq.remoting.exception.RemotingSendRequestException;

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
                seek(consumer, queue, options.number("offset", 0));
            }
        } else {
            consumer.subscribe(topic, options.text("tags", "*"));
            consumer.start();
        }
        Report.event("started");
        int expected = options.number("expected", 1);
        // If a seek comes during a pull, the messages of that pull are delivered twice.
        Set<String> seen = new HashSet<>();
        long end = System.nanoTime() + options.number("seconds", 20) * 1_000_000_000L;
        while (seen.size() < expected && System.nanoTime() < end) {
            List<MessageExt> messages = consumer.poll(500);
            for (MessageExt message : messages) {
                seen.add(message.getMsgId());
                Pulling.report(
                        List.of(message),
                        new MessageQueue(message.getTopic(), message.getBrokerName(), message.getQueueId()));
            }
        }
        consumer.commitSync();
        consumer.shutdown();
        Report.event("finished");
    }

    /**
     * Seeks, and seeks again if the client has closed its own connection.
     *
     * <p>A seek interrupts the pull of its queue. NettyRemotingClient of 5.x treats an interrupt just before a send as
     * a failed send: it closes the connection, so that requests for other queues fail, too.
     */
    private static void seek(DefaultLitePullConsumer consumer, MessageQueue queue, long offset) throws Exception {
        long end = System.nanoTime() + 10_000_000_000L;
        while (true) {
            try {
                consumer.seek(queue, offset);
                return;
            } catch (MQClientException failure) {
                boolean closed = failure.getCause() instanceof RemotingSendRequestException
                        || failure.getCause() instanceof RemotingConnectException;
                if (!closed || System.nanoTime() > end) {
                    throw failure;
                }
            }
        }
    }
}
