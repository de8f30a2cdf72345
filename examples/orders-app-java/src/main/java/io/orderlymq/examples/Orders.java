package io.orderlymq.examples;

import java.io.IOException;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * A producer of order steps and an ordered consumer, as in orders-app/orders.py, with RocketMQ's own client.
 *
 * <p>{@code produce} sends until SIGTERM; it sends the next step of a key after the former one is acknowledged, and
 * repeats a send without an answer as the same message. {@code consume} runs until SIGTERM.
 */
public final class Orders {
    private static final String SERVERS = environment("ORDERS_NAME_SERVERS", "demo-nameserver:9876");
    private static final String TOPIC = environment("ORDERS_TOPIC", "orders");
    private static final String GROUP = environment("ORDERS_GROUP", "billing");
    private static final int AT_ONCE = Integer.parseInt(environment("ORDERS_AT_ONCE", "16"));
    private static final long PAUSE_MS = Long.parseLong(environment("ORDERS_PAUSE_MS", "50"));
    // For the readiness probe: the port opens when a first send is acknowledged or the consumer has started; 0 for none.
    private static final int READY_PORT = Integer.parseInt(environment("ORDERS_READY_PORT", "0"));
    // A restarted container is another process, so its messages and its client get other names.
    private static final String PROCESS =
            environment("HOSTNAME", "orders") + "-" + System.currentTimeMillis() / 1000 % 1_000_000;

    private static volatile boolean stopping;

    private Orders() {}

    public static void main(String[] arguments) {
        History history = new History(environment("ORDERS_HISTORY", ""), PROCESS);
        try {
            switch (arguments[0]) {
                case "produce" -> produce(history);
                case "consume" -> consume(history);
                default -> throw new IllegalArgumentException("say produce or consume, not " + arguments[0]);
            }
        } catch (Exception failed) {
            // Threads of a client that failed to start would keep the process alive, so it would not be restarted.
            failed.printStackTrace();
            System.exit(1);
        }
    }

    private static String environment(String name, String otherwise) {
        return System.getenv().getOrDefault(name, otherwise);
    }

    private static void produce(History history) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("orders");
        producer.setNamesrvAddr(SERVERS);
        producer.setSendMsgTimeout(1000);
        producer.start();
        List<Thread> lanes = new ArrayList<>();
        for (int lane = 0; lane < AT_ONCE; lane++) {
            String key = PROCESS + "-" + lane;
            Thread thread = new Thread(() -> send(producer, history, key), key);
            lanes.add(thread);
            thread.start();
        }
        Runtime.getRuntime()
                .addShutdownHook(
                        new Thread(
                                () -> {
                                    stopping = true;
                                    lanes.forEach(Orders::join);
                                    history.record("goodbye", "client", PROCESS);
                                }));
        lanes.forEach(Orders::join);
    }

    private static void join(Thread thread) {
        try {
            thread.join();
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    private static void send(DefaultMQProducer producer, History history, String key) {
        for (int step = 0; !stopping; step++) {
            String text = key + "/" + step;
            Message message = new Message(TOPIC, "", key, text.getBytes(StandardCharsets.UTF_8));
            history.record("send", "topic", TOPIC, "key", key, "message", text);
            while (true) {
                try {
                    SendResult result = producer.send(message, new SelectMessageQueueByHash(), key);
                    history.record(
                            "ack",
                            "topic", TOPIC,
                            "key", key,
                            "message", text,
                            "queue", name(result.getMessageQueue()),
                            "offset", result.getQueueOffset());
                    break;
                } catch (Exception error) {
                    history.record(
                            "unknown",
                            "topic", TOPIC,
                            "key", key,
                            "message", text,
                            "detail", error.getClass().getSimpleName());
                    History.pause(20);
                }
            }
            if (step == 0 && key.equals(PROCESS + "-0")) {
                sayReady();
            }
            History.pause(PAUSE_MS);
        }
    }

    private static void sayReady() {
        if (READY_PORT == 0) {
            return;
        }
        Thread hangingUp =
                new Thread(
                        () -> {
                            try (ServerSocket server = new ServerSocket(READY_PORT)) {
                                while (true) {
                                    server.accept().close();
                                }
                            } catch (IOException failed) {
                                failed.printStackTrace();
                            }
                        },
                        "ready");
        hangingUp.setDaemon(true);
        hangingUp.start();
    }

    private static void consume(History history) throws MQClientException {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(GROUP);
        consumer.setNamesrvAddr(SERVERS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPersistConsumerOffsetInterval(500);
        consumer.subscribe(TOPIC, "*");
        consumer.registerMessageListener(
                (MessageListenerOrderly)
                        (List<MessageExt> messages, ConsumeOrderlyContext context) -> {
                            messages.forEach(message -> handle(message, context.getMessageQueue(), history));
                            return ConsumeOrderlyStatus.SUCCESS;
                        });
        consumer.start();
        sayReady();
        Runtime.getRuntime()
                .addShutdownHook(
                        new Thread(
                                () -> {
                                    consumer.shutdown();
                                    history.record("goodbye", "client", PROCESS);
                                }));
    }

    private static void handle(MessageExt message, MessageQueue queue, History history) {
        Object[] facts = {
            "topic", message.getTopic(),
            "key", message.getKeys(),
            "message", new String(message.getBody(), StandardCharsets.UTF_8),
            "queue", name(queue),
            "offset", message.getQueueOffset(),
            "group", GROUP,
            "client", PROCESS
        };
        history.record("deliver", facts);
        // A real application would do its work here.
        history.record("done", facts);
    }

    private static String name(MessageQueue queue) {
        return queue.getBrokerName() + ":" + queue.getQueueId();
    }
}
