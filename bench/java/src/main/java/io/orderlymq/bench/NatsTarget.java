package io.orderlymq.bench;

import io.nats.client.Connection;
import io.nats.client.ConsumerContext;
import io.nats.client.Dispatcher;
import io.nats.client.ErrorListener;
import io.nats.client.JetStream;
import io.nats.client.JetStreamManagement;
import io.nats.client.JetStreamOptions;
import io.nats.client.JetStreamSubscription;
import io.nats.client.Message;
import io.nats.client.MessageConsumer;
import io.nats.client.Nats;
import io.nats.client.Options;
import io.nats.client.PullSubscribeOptions;
import io.nats.client.StreamContext;
import io.nats.client.api.AckPolicy;
import io.nats.client.api.ConsumerConfiguration;
import io.nats.client.api.PublishAck;
import io.nats.client.api.StorageType;
import io.nats.client.api.StreamConfiguration;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/** NATS JetStream through its own Java client: a stream per topic, a subject per queue, three replicas on files. */
final class NatsTarget implements Target {
    /** How many messages one request may bring; an acknowledgement of the last covers all. */
    private static final int FETCHED = 256;

    /** When a message that failed comes again: JetStream has no time of its own; that of RocketMQ and Kafka's. */
    private static final Duration RETRY = Duration.ofSeconds(1);

    /** By itself a server (since 2.15) lets a stream have 1,000. */
    private static final int CONSUMERS_MAX = 100_000;

    /** A thousand consumers, each a raft group, are asked for together. */
    private static final JetStreamOptions PATIENT =
            JetStreamOptions.builder().requestTimeout(Duration.ofSeconds(60)).build();

    private final Options options;
    private Connection connection;
    private JetStream stream;

    NatsTarget(String servers) {
        options = new Options.Builder().servers(servers.split(",")).maxReconnects(-1)
                .reconnectWait(Duration.ofMillis(20)).errorListener(new ErrorListener() {}).build();
    }

    private synchronized Connection connection() throws Exception {
        if (connection == null) {
            connection = Nats.connect(options);
            stream = connection.jetStream();
        }
        return connection;
    }

    @Override
    public void createTopic(String topic, int queues) throws Exception {
        List<String> subjects = new ArrayList<>();
        for (int queue = 0; queue < queues; queue++) {
            subjects.add(topic + "." + queue);
        }
        create(topic, subjects, -1);
    }

    private void create(String topic, List<String> subjects, int consumers) throws Exception {
        JetStreamManagement management = connection().jetStreamManagement();
        if (management.getStreamNames().contains(topic)) {
            return;
        }
        management.addStream(StreamConfiguration.builder().name(topic).subjects(subjects).replicas(3).maxConsumers(consumers)
                .storageType(StorageType.File).build());
    }

    @Override
    public Sender sender(String topic, int number) throws Exception {
        connection();
        return new Sender() {
            @Override
            public void send(int queue, byte[] body) throws Exception {
                stream.publish(topic + "." + queue, body);
            }

            @Override
            public void sendBatch(int queue, List<byte[]> bodies) throws Exception {
                List<CompletableFuture<PublishAck>> sent = new ArrayList<>(bodies.size());
                for (byte[] body : bodies) {
                    sent.add(stream.publishAsync(topic + "." + queue, body));
                }
                for (CompletableFuture<PublishAck> each : sent) {
                    each.get();
                }
            }
        };
    }

    @Override
    public AutoCloseable consume(Membership membership, Gate gate) throws Exception {
        List<Thread> threads = Collections.synchronizedList(new ArrayList<>());
        boolean[] closed = {false};
        for (int queue = 0; queue < membership.queues(); queue++) {
            if (membership.has(queue)) {
                gate.has(queue);
                Thread thread = reader(membership, queue, gate, closed);
                thread.start();
                threads.add(thread);
            }
        }
        return () -> {
            closed[0] = true;
            for (Thread thread : threads) {
                thread.join();
            }
        };
    }

    private Thread reader(Membership membership, int queue, Gate gate, boolean[] closed) throws Exception {
        String durable = membership.group() + "-" + queue;
        // One message at a time is what keeps order when a consumer dies; without a death a window may be wide.
        ConsumerConfiguration configuration = ConsumerConfiguration.builder().durable(durable)
                .ackPolicy(membership.strict() ? AckPolicy.Explicit : AckPolicy.All)
                .maxAckPending(membership.strict() ? 1 : 16 * FETCHED).build();
        JetStreamSubscription subscription = connection().jetStream().subscribe(membership.topic() + "." + queue,
                PullSubscribeOptions.builder().durable(durable).configuration(configuration).build());
        int fetched = membership.strict() ? 1 : FETCHED;
        return new Thread(() -> {
            while (!closed[0]) {
                if (gate.isClosed()) {
                    gate.has(queue);
                    Out.sleep(5);
                    continue;
                }
                Message last = null;
                for (Message message : subscription.fetch(fetched, Duration.ofMillis(100))) {
                    gate.message(queue, message.getData());
                    last = message;
                }
                if (last != null) {
                    last.ack();
                }
            }
        });
    }

    @Override
    public void createTopicByKey(String topic) throws Exception {
        create(topic, List.of(topic + ".>"), CONSUMERS_MAX);
    }

    @Override
    public void sendByKey(String topic, String key, byte[] body) throws Exception {
        connection();
        stream.publish(topic + "." + key, body);
    }

    /** A durable consumer per key with one message in flight, and one pool of workers for the messages of all. */
    @Override
    public AutoCloseable consumeByKey(KeyGroup group, Handler handler) throws Exception {
        ExecutorService workers = Executors.newFixedThreadPool(group.workers());
        StreamContext context = connection().getStreamContext(group.topic(), PATIENT);
        List<Callable<ConsumerContext>> creations = new ArrayList<>();
        for (String key : group.keys()) {
            ConsumerConfiguration configuration = ConsumerConfiguration.builder().durable(group.group() + "-" + key)
                    .filterSubject(group.topic() + "." + key).ackPolicy(AckPolicy.Explicit).maxAckPending(1).build();
            creations.add(() -> context.createOrUpdateConsumer(configuration));
        }
        List<Future<ConsumerContext>> created = workers.invokeAll(creations);
        Dispatcher dispatcher = connection().createDispatcher();
        List<MessageConsumer> consumers = new ArrayList<>();
        for (Future<ConsumerContext> each : created) {
            consumers.add(each.get().consume(dispatcher, message -> workers.execute(() -> handle(message, handler))));
        }
        return () -> {
            consumers.forEach(MessageConsumer::stop);
            workers.shutdown();
            connection().jetStreamManagement(PATIENT).deleteStream(group.topic()); // its consumers go with it
        };
    }

    private static void handle(Message message, Handler handler) {
        String subject = message.getSubject();
        try {
            handler.handle(subject.substring(subject.indexOf('.') + 1), message.getData());
            message.ack();
        } catch (RuntimeException error) {
            message.nakWithDelay(RETRY);
        }
    }

    @Override
    public List<String> leaders(String topic, int queues) throws Exception {
        String leader = connection().jetStreamManagement().getStreamInfo(topic).getClusterInfo().getLeader();
        return Collections.nCopies(queues, String.valueOf(leader));
    }

    @Override
    public void close() throws Exception {
        connection().close();
    }
}
