package io.orderlymq.bench;

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Address;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DefaultConsumer;
import com.rabbitmq.client.Envelope;
import com.rabbitmq.client.MessageProperties;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;

/** RabbitMQ through its own Java client: a quorum queue with a single active consumer per queue. */
final class RabbitTarget implements Target {
    private static final int CONNECTIONS = 4;
    private static final int CONFIRM_MS = 10_000;

    /** Messages on their way to one consumer; the last of each quarter acknowledges what came before it. */
    private static final int PREFETCH = 1024;

    private final Address[] servers;
    private final Connection[] connections = new Connection[CONNECTIONS];

    RabbitTarget(String servers) {
        this.servers = Stream.of(servers.split(",")).map(Address::parseAddress).toArray(Address[]::new);
    }

    private Connection connection(int number) throws Exception {
        synchronized (connections) {
            int slot = number % CONNECTIONS;
            if (connections[slot] == null || !connections[slot].isOpen()) {
                ConnectionFactory factory = new ConnectionFactory();
                factory.setAutomaticRecoveryEnabled(false); // a sender opens it again immediately
                factory.setConnectionTimeout(2000);
                connections[slot] = factory.newConnection(List.of(servers));
            }
            return connections[slot];
        }
    }

    private static String name(String topic, int queue) {
        return topic + "." + queue;
    }

    @Override
    public void createTopic(String topic, int queues) throws Exception {
        try (Channel channel = connection(0).createChannel()) {
            for (int queue = 0; queue < queues; queue++) {
                channel.queueDeclare(name(topic, queue), true, false, false,
                        Map.of("x-queue-type", "quorum", "x-single-active-consumer", true));
            }
        }
    }

    @Override
    public Sender sender(String topic, int number) {
        return new Sender() {
            private Channel channel;

            @Override
            public void send(int queue, byte[] body) throws Exception {
                sendBatch(queue, List.of(body));
            }

            @Override
            public void sendBatch(int queue, List<byte[]> bodies) throws Exception {
                if (channel == null || !channel.isOpen()) {
                    channel = connection(number).createChannel();
                    channel.confirmSelect();
                }
                for (byte[] body : bodies) {
                    channel.basicPublish("", name(topic, queue), MessageProperties.PERSISTENT_BASIC, body);
                }
                boolean confirmed = false;
                try {
                    confirmed = channel.waitForConfirms(CONFIRM_MS);
                } finally {
                    if (!confirmed) {
                        // What this channel thinks of the queue may be out of date: the next attempt opens a new one.
                        Channel old = channel;
                        channel = null;
                        old.abort();
                    }
                }
                if (!confirmed) {
                    throw new IOException("not confirmed");
                }
            }

            @Override
            public void close() throws Exception {
                if (channel != null && channel.isOpen()) {
                    channel.close();
                }
            }
        };
    }

    @Override
    public AutoCloseable consume(Membership membership, Gate gate) throws Exception {
        List<Channel> channels = new ArrayList<>();
        List<Integer> mine = new ArrayList<>();
        for (int queue = 0; queue < membership.queues(); queue++) {
            if (membership.has(queue)) {
                mine.add(queue);
                gate.has(queue);
            }
        }
        Thread opening = new Thread(() -> {
            while (gate.isClosed()) {
                mine.forEach(gate::has);
                Out.sleep(5);
            }
            for (int queue : mine) {
                try {
                    channels.add(open(membership, queue, gate));
                } catch (Exception error) {
                    Out.event("trouble", "reason", error.toString());
                }
            }
        });
        opening.start();
        return () -> {
            for (Channel channel : channels) {
                channel.abort();
            }
        };
    }

    private Channel open(Membership membership, int queue, Gate gate) throws Exception {
        Channel channel = connection(membership.number()).createChannel();
        int window = membership.strict() ? 1 : PREFETCH;
        channel.basicQos(window);
        channel.basicConsume(name(membership.topic(), queue), false, new DefaultConsumer(channel) {
            @Override
            public void handleDelivery(String tag, Envelope envelope, AMQP.BasicProperties properties, byte[] body)
                    throws IOException {
                gate.message(queue, body);
                if (envelope.getDeliveryTag() % Math.max(1, window / 4) == 0) {
                    channel.basicAck(envelope.getDeliveryTag(), true);
                }
            }
        });
        return channel;
    }

    @Override
    public List<String> leaders(String topic, int queues) {
        throw new UnsupportedOperationException("the driver asks rabbitmqctl");
    }

    @Override
    public void close() throws Exception {
        for (Connection each : connections) {
            if (each != null) {
                each.abort();
            }
        }
    }
}
