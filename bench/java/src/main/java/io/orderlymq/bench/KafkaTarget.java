package io.orderlymq.bench;

import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Kafka through its own Java client. */
final class KafkaTarget implements Target {
    private static final long TOPIC_KNOWN_NS = 30_000_000_000L;
    private static final int BUFFERED_RECORDS = 10_000;

    private final String servers;
    private final KafkaProducer<byte[], byte[]> producer;

    KafkaTarget(String servers) {
        this.servers = servers;
        Properties properties = new Properties();
        properties.put("bootstrap.servers", servers);
        properties.put("acks", "all");
        properties.put("linger.ms", "0"); // the default of 5 ms would be all that a serial sender measures
        producer = new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer());
    }

    @Override
    public void createTopic(String topic, int queues) throws Exception {
        // One node leads all queues, as in a raft group: the same amount of work at one leader.
        Map<Integer, List<Integer>> replicas = new HashMap<>();
        for (int queue = 0; queue < queues; queue++) {
            replicas.put(queue, List.of(1, 2, 3));
        }
        try (Admin admin = admin()) {
            admin.createTopics(List.of(new NewTopic(topic, replicas))).all().get();
        } catch (ExecutionException error) {
            if (!(error.getCause() instanceof TopicExistsException)) {
                throw error;
            }
        }
        // A producer that comes too early takes the topic for unknown and waits longer than it needs to.
        long deadline = System.nanoTime() + TOPIC_KNOWN_NS;
        while (!isComplete(topic, queues)) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("the replicas of " + topic + " never came in sync");
            }
            Out.sleep(20);
        }
    }

    private boolean isComplete(String topic, int queues) throws InterruptedException {
        try (Admin admin = admin()) {
            List<TopicPartitionInfo> known =
                    admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions();
            return known.size() == queues && known.stream().allMatch(each -> each.isr().size() == 3);
        } catch (ExecutionException error) {
            return false;
        }
    }

    private Admin admin() {
        return Admin.create(Map.of("bootstrap.servers", servers, "default.api.timeout.ms", "10000",
                "request.timeout.ms", "5000"));
    }

    @Override
    public Sender sender(String topic, int number) {
        return new Sender() {
            @Override
            public void send(int queue, byte[] body) throws Exception {
                producer.send(new ProducerRecord<>(topic, queue, null, body)).get();
            }

            @Override
            public void sendBatch(int queue, List<byte[]> bodies) throws Exception {
                List<Future<?>> sent = new ArrayList<>(bodies.size());
                for (byte[] body : bodies) {
                    sent.add(producer.send(new ProducerRecord<>(topic, queue, null, body)));
                }
                for (Future<?> each : sent) {
                    each.get();
                }
            }
        };
    }

    @Override
    public AutoCloseable consume(Membership membership, Gate gate) {
        Consuming consuming = new Consuming(membership, gate);
        consuming.start();
        return consuming;
    }

    private Properties member(String group) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", servers);
        properties.put("group.id", group);
        properties.put("auto.offset.reset", "earliest");
        properties.put("enable.auto.commit", "false");
        return properties;
    }

    @Override
    public void sendByKey(String topic, String key, byte[] body) throws Exception {
        producer.send(new ProducerRecord<>(topic, key.getBytes(StandardCharsets.UTF_8), body)).get();
    }

    /**
     * Confluent's parallel consumer: it commits every 5 s and tries a failed record again after 1 s, by default. By default it
     * also stops to poll at twice maxConcurrency records that are not done, those of keys that fail included.
     */
    @Override
    public AutoCloseable consumeByKey(KeyGroup group, Handler handler) {
        // Keys are compared by equals(), which arrays of bytes do not have.
        KafkaConsumer<String, byte[]> consumer = new KafkaConsumer<>(member(group.group()),
                new StringDeserializer(), new ByteArrayDeserializer());
        ParallelStreamProcessor<String, byte[]> processor = ParallelStreamProcessor.createEosStreamProcessor(
                ParallelConsumerOptions.<String, byte[]>builder().consumer(consumer)
                        .ordering(ProcessingOrder.KEY).maxConcurrency(group.workers())
                        .messageBufferSize(BUFFERED_RECORDS).build());
        processor.subscribe(List.of(group.topic()));
        processor.poll(context -> handler.handle(context.key(), context.value()));
        return processor::closeDontDrainFirst;
    }

    private final class Consuming extends Thread implements AutoCloseable {
        private final Membership membership;
        private final Gate gate;
        private volatile boolean closed;

        Consuming(Membership membership, Gate gate) {
            this.membership = membership;
            this.gate = gate;
        }

        @Override
        public void run() {
            try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(member(membership.group()),
                    new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
                consumer.subscribe(List.of(membership.topic()));
                while (!closed) {
                    Collection<TopicPartition> assigned = consumer.assignment();
                    if (gate.isClosed()) {
                        assigned.forEach(each -> gate.has(each.partition()));
                        consumer.pause(assigned);
                    } else {
                        consumer.resume(assigned);
                    }
                    ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(20));
                    if (gate.isClosed()) {
                        records.partitions().forEach(each -> consumer.seek(each,
                                records.records(each).get(0).offset()));
                        continue;
                    }
                    for (ConsumerRecord<byte[], byte[]> each : records) {
                        gate.message(each.partition(), each.value());
                    }
                    if (!records.isEmpty()) {
                        consumer.commitAsync();
                    }
                }
            }
        }

        @Override
        public void close() throws Exception {
            closed = true;
            join();
        }
    }

    @Override
    public List<String> leaders(String topic, int queues) throws Exception {
        try (Admin admin = admin()) {
            return admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().stream()
                    .map(each -> "k" + each.leader().id()).toList();
        }
    }

    @Override
    public void close() {
        producer.close();
    }
}
