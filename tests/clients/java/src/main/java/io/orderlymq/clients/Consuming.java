package io.orderlymq.clients;

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.store.OffsetStore;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * A push consumer that reports each message before and after its listener.
 *
 * <p>mode: orderly (default) or concurrently. fail=TEXT makes messages whose body contains TEXT
 * fail {@code times} times (-1: always). It ends after {@code expected} messages were taken, after {@code
 * seconds}, or when its standard input is closed. With ak and sk its requests are signed.
 */
final class Consuming {
    private final Options options;
    private final CountDownLatch end = new CountDownLatch(1);
    private final Set<String> consumed = ConcurrentHashMap.newKeySet();
    private final Map<String, Integer> failures = new ConcurrentHashMap<>();
    private final Map<MessageQueue, Long> next = new ConcurrentHashMap<>();

    private Consuming(Options options) {
        this.options = options;
    }

    static void run(Options options) throws Exception {
        new Consuming(options).consume();
    }

    private DefaultMQPushConsumer made() throws Exception {
        DefaultMQPushConsumer consumer =
                new DefaultMQPushConsumer(
                        options.text("group"),
                        Signing.hook(options),
                        new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(options.text("ns"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(options.number("batch", 1));
        consumer.setMaxReconsumeTimes(options.number("max-reconsume", -1));
        consumer.setSuspendCurrentQueueTimeMillis(options.number("suspend", 1000));
        Models.set(consumer, options.text("model", "CLUSTERING"));
        if (options.text("client-rebalance", "true").equals("false")) {
            // Since 5.0: the broker assigns the queues instead.
            consumer.getClass().getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
        }
        if (options.flag("own-instance")) {
            consumer.setInstanceName("consuming-" + ProcessHandle.current().pid());
        }
        if (!options.text("instance", "").isEmpty()) {
            consumer.setInstanceName(options.text("instance"));
        }
        consumer.subscribe(options.text("topic"), options.text("tags", "*"));
        if (options.text("mode", "orderly").equals("orderly")) {
            consumer.registerMessageListener(
                    (MessageListenerOrderly)
                            (messages, context) ->
                                    handle(messages, context.getMessageQueue())
                                            ? ConsumeOrderlyStatus.SUCCESS
                                            : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener(
                    (MessageListenerConcurrently)
                            (messages, context) ->
                                    handle(messages, context.getMessageQueue())
                                            ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                                            : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        }
        return consumer;
    }

    private void consume() throws Exception {
        DefaultMQPushConsumer consumer = Routes.started(this::made, options.text("topic"));
        Report.event("started", "client", consumer.buildMQClientId(), "pid", ProcessHandle.current().pid());

        Thread watcher = new Thread(this::waitForEndOfInput);
        watcher.setDaemon(true);
        watcher.start();
        end.await(options.number("seconds", 60), TimeUnit.SECONDS);
        waitForOffsets(consumer.getDefaultMQPushConsumerImpl().getOffsetStore());
        Thread.sleep(options.number("linger", 0));
        consumer.shutdown();
        Report.event("finished");
    }

    /**
     * The client records an offset after its listener has returned, and commits recorded offsets at its
     * shutdown. A queue that moved to another member has no offset here any more, so the wait is short.
     */
    private void waitForOffsets(OffsetStore store) throws InterruptedException {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(3);
        for (Map.Entry<MessageQueue, Long> each : next.entrySet()) {
            while (store.readOffset(each.getKey(), ReadOffsetType.READ_FROM_MEMORY) < each.getValue()
                    && System.nanoTime() < deadline) {
                Thread.sleep(5);
            }
        }
    }

    private void waitForEndOfInput() {
        try {
            while (System.in.read() >= 0) {
                continue;
            }
        } catch (java.io.IOException ignored) {
            // A broken pipe counts as the end of input, too.
        }
        end.countDown();
    }

    private boolean handle(List<MessageExt> messages, MessageQueue queue) {
        boolean good = true;
        for (MessageExt message : messages) {
            String body = new String(message.getBody(), StandardCharsets.UTF_8);
            int bar = body.indexOf('|');
            String text = bar < 0 ? body : body.substring(0, bar);
            report("deliver", message, queue, text);
            pause();
            if (shouldFail(text)) {
                report("fail", message, queue, text);
                good = false;
            } else {
                report("done", message, queue, text);
            }
        }
        if (good) {
            messages.forEach(each -> next.merge(queue, each.getQueueOffset() + 1, Math::max));
            // Count each message once: repeated messages must not hide missing ones.
            messages.forEach(each -> consumed.add(each.getMsgId()));
        }
        if (consumed.size() >= options.number("expected", Integer.MAX_VALUE)) {
            end.countDown();
        }
        return good;
    }

    private void pause() {
        try {
            Thread.sleep(options.number("work", 0));
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    private boolean shouldFail(String text) {
        String fail = options.text("fail", "");
        if (fail.isEmpty() || !text.contains(fail)) {
            return false;
        }
        int times = options.number("times", -1);
        return failures.merge(text, 1, Integer::sum) <= times || times < 0;
    }

    private void report(String kind, MessageExt message, MessageQueue queue, String text) {
        Report.event(
                kind,
                "body", text,
                "size", message.getBody().length,
                "keys", message.getKeys(),
                "tags", message.getTags(),
                "topic", message.getTopic(),
                "queue", queue.getBrokerName() + ":" + queue.getQueueId(),
                "offset", message.getQueueOffset(),
                "reconsume", message.getReconsumeTimes(),
                "msgId", message.getMsgId(),
                "born", message.getBornTimestamp(),
                "thread", Thread.currentThread().getName());
    }
}
