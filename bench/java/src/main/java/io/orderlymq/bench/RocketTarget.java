package io.orderlymq.bench;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** RocketMQ and OrderlyMQ, through Apache's Java client as it is. */
class RocketTarget implements Target {
    /** A second instead of 30: otherwise a fail-over measures how rarely the client asks for routes. */
    private static final int ROUTE_POLL_MS = 1000;

    private static final long TOPIC_KNOWN_NS = 30_000_000_000L;

    /** How soon a member asks again whether the gate is open. */
    private static final int GATE_MS = 20;

    private final String servers;
    private final DefaultMQProducer producer = new DefaultMQProducer("bench-producers");
    private final Map<String, List<MessageQueue>> routes = new ConcurrentHashMap<>();

    RocketTarget(String servers) {
        this.servers = servers;
        producer.setNamesrvAddr(servers);
        producer.setPollNameServerInterval(ROUTE_POLL_MS);
        try {
            producer.start();
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    @Override
    public void createTopic(String topic, int queues) throws Exception {
        producer.createTopic("TBW102", topic, queues);
        // A client that asks for the route too early takes that of TBW102, with fewer queues, for a second.
        long deadline = System.nanoTime() + TOPIC_KNOWN_NS;
        while (queues(topic).size() != queues) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("no route of " + queues + " queues to " + topic);
            }
            Out.sleep(5);
        }
    }

    @Override
    public Sender sender(String topic, int number) throws Exception {
        return new Sender() {
            @Override
            public void send(int queue, byte[] body) throws Exception {
                Message message = new Message(topic, "bench", "s" + number, body);
                check(producer.send(message, (queues, sent, arg) -> queues.get((Integer) arg), queue));
            }

            @Override
            public void sendBatch(int queue, List<byte[]> bodies) throws Exception {
                List<Message> messages = new ArrayList<>(bodies.size());
                for (byte[] body : bodies) {
                    messages.add(new Message(topic, "bench", "s" + number, body));
                }
                check(producer.send(messages, route(topic).get(queue)));
            }
        };
    }

    private List<MessageQueue> queues(String topic) {
        try {
            return producer.fetchPublishMessageQueues(topic);
        } catch (MQClientException error) {
            return List.of();
        }
    }

    private List<MessageQueue> route(String topic) throws Exception {
        List<MessageQueue> known = routes.get(topic);
        if (known == null) {
            known = producer.fetchPublishMessageQueues(topic).stream().sorted().toList();
            routes.put(topic, known);
        }
        return known;
    }

    private static void check(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException("acknowledged with " + result.getSendStatus());
        }
    }

    @Override
    public AutoCloseable consume(Membership membership, Gate gate) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(membership.group());
        consumer.setNamesrvAddr(servers);
        if (membership.members() > 1) {
            // Members of one process need names of their own; the form is the client's: process id and a number.
            consumer.setInstanceName(ProcessHandle.current().pid() + "#" + System.nanoTime());
        }
        consumer.setPollNameServerInterval(ROUTE_POLL_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(membership.strict() ? 1 : 32);
        consumer.setSuspendCurrentQueueTimeMillis(GATE_MS);
        consumer.subscribe(membership.topic(), "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            int queue = context.getMessageQueue().getQueueId();
            if (gate.isClosed()) {
                gate.has(queue);
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            }
            for (MessageExt message : messages) {
                gate.message(queue, message.getBody());
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        return consumer::shutdown;
    }

    @Override
    public void sendByKey(String topic, String key, byte[] body) throws Exception {
        check(producer.send(new Message(topic, "bench", key, body), (queues, sent, arg) -> queues.get(0), key));
    }

    /** Orderly: the client takes one message of a queue at a time, however many threads it has. */
    @Override
    public AutoCloseable consumeByKey(KeyGroup group, Handler handler) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group.group());
        consumer.setNamesrvAddr(servers);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMax(group.workers());
        consumer.setConsumeThreadMin(group.workers());
        consumer.subscribe(group.topic(), "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            try {
                for (MessageExt message : messages) {
                    handler.handle(message.getKeys(), message.getBody());
                }
            } catch (RuntimeException error) {
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT; // for 1 s, and without an end, by default
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        return consumer::shutdown;
    }

    @Override
    public List<String> leaders(String topic, int queues) throws Exception {
        List<String> found = new ArrayList<>();
        for (MessageQueue queue : producer.fetchPublishMessageQueues(topic).stream().sorted().toList()) {
            String address = producer.getDefaultMQProducerImpl().getMqClientFactory()
                    .findBrokerAddressInPublish(queue.getBrokerName());
            found.add(address.substring(address.indexOf(':') + 1));
        }
        return found;
    }

    @Override
    public void close() {
        producer.shutdown();
    }
}
