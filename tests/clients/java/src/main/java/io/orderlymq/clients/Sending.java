package io.orderlymq.clients;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends {@code count} messages with {@code keys} different sharding keys; the body is "key:step".
 *
 * <p>kind: selector (default), plain, async, oneway, batch. With retry=true a failed send is tried
 * again with the same Message, and so with the same unique key, until it is acknowledged. With ak and sk
 * its requests are signed. With unprepared=true the first sends ask for the topic's queues.
 */
final class Sending {
    private Sending() {}

    static void run(Options options) throws Exception {
        DefaultMQProducer producer =
                new DefaultMQProducer(options.text("group", "producers"), Signing.hook(options));
        producer.setNamesrvAddr(options.text("ns"));
        producer.setInstanceName("sending-" + ProcessHandle.current().pid());
        producer.setSendMsgTimeout(options.number("timeout", 3000));
        producer.start();
        if (!options.flag("unprepared")) {
            Routes.learn(producer, options.text("topic"));
        }
        Report.event("started");

        int threads = options.number("threads", 1);
        Thread[] senders = new Thread[threads];
        for (int t = 0; t < threads; t++) {
            int thread = t;
            senders[t] = new Thread(() -> send(producer, options, thread, threads));
            senders[t].start();
        }
        for (Thread sender : senders) {
            sender.join();
        }
        producer.shutdown();
        Report.event("finished");
    }

    private static void send(DefaultMQProducer producer, Options options, int thread, int threads) {
        try {
            switch (options.text("kind", "selector")) {
                case "async" -> sendAsync(producer, options);
                case "batch" -> sendBatches(producer, options);
                default -> sendOneByOne(producer, options, thread, threads);
            }
        } catch (Exception error) {
            Report.event("error", "text", error.toString());
        }
    }

    private static Message message(Options options, String key, int step) {
        String body = options.text("prefix", "") + key + ":" + step;
        Message message =
                new Message(
                        options.text("topic"),
                        options.text("tags", ""),
                        key,
                        pad(body, options.number("size", 0)).getBytes(StandardCharsets.UTF_8));
        if (options.number("delay", 0) > 0) {
            message.setDelayTimeLevel(options.number("delay", 0));
        }
        return message;
    }

    private static String pad(String body, int size) {
        return body.length() >= size ? body : body + "|" + "x".repeat(size - body.length() - 1);
    }

    private static void sendOneByOne(
            DefaultMQProducer producer, Options options, int thread, int threads) throws Exception {
        int count = options.number("count", 10);
        int keys = options.number("keys", 1);
        String kind = options.text("kind", "selector");
        int pause = options.number("pause", 0);
        for (int n = thread; n < count; n += threads) {
            // One thread owns a key, so that each key has one sequence of acknowledgements.
            String key = "key-" + (n % keys / threads * threads + thread);
            Message message = message(options, key, n);
            Report.event("send", "key", key, "body", n, "thread", thread);
            while (true) {
                try {
                    if (kind.equals("oneway")) {
                        producer.sendOneway(message);
                        break;
                    }
                    SendResult result =
                            kind.equals("plain")
                                    ? producer.send(message)
                                    : producer.send(message, new SelectMessageQueueByHash(), key);
                    acknowledged(key, n, result);
                    break;
                } catch (Exception error) {
                    Report.event("failed", "key", key, "body", n, "text", error.toString());
                    if (!options.flag("retry")) {
                        break;
                    }
                    Thread.sleep(20);
                }
            }
            if (pause > 0) {
                Thread.sleep(pause);
            }
        }
    }

    private static void sendAsync(DefaultMQProducer producer, Options options) throws Exception {
        int count = options.number("count", 10);
        CountDownLatch open = new CountDownLatch(count);
        for (int n = 0; n < count; n++) {
            String key = "key-" + n % options.number("keys", 1);
            int step = n;
            producer.send(
                    message(options, key, n),
                    new SelectMessageQueueByHash(),
                    key,
                    new SendCallback() {
                        @Override
                        public void onSuccess(SendResult result) {
                            acknowledged(key, step, result);
                            open.countDown();
                        }

                        @Override
                        public void onException(Throwable error) {
                            Report.event("failed", "key", key, "body", step, "text", error.toString());
                            open.countDown();
                        }
                    });
        }
        if (!open.await(20, TimeUnit.SECONDS)) {
            Report.event("error", "text", open.getCount() + " callbacks never came");
        }
    }

    private static void sendBatches(DefaultMQProducer producer, Options options) throws Exception {
        int size = options.number("batch", 10);
        for (int n = 0; n < options.number("count", 10); n += size) {
            List<Message> batch = new ArrayList<>();
            for (int step = n; step < n + size; step++) {
                batch.add(message(options, "key-0", step));
            }
            SendResult result = producer.send(batch);
            acknowledged("key-0", n, result);
        }
    }

    private static void acknowledged(String key, int step, SendResult result) {
        Report.event(
                "ack",
                "key", key,
                "body", step,
                "status", result.getSendStatus(),
                "queue", result.getMessageQueue().getBrokerName() + ":" + result.getMessageQueue().getQueueId(),
                "offset", result.getQueueOffset(),
                "msgId", result.getMsgId(),
                "offsetMsgId", result.getOffsetMsgId());
    }
}
