package io.orderlymq.stream;

import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;
import org.apache.rocketmq.client.producer.MessageQueueSelector;
import org.springframework.boot.CommandLineRunner;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.SpringBootConfiguration;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.cloud.stream.function.StreamBridge;
import org.springframework.context.annotation.Bean;
import org.springframework.messaging.Message;
import org.springframework.messaging.support.MessageBuilder;

/**
 * Sends through bindings of each kind, while a function at each consuming binding prints its messages.
 *
 * <p>Arguments: the name server, then the topics ordered and plain.
 */
@SpringBootConfiguration
@EnableAutoConfiguration
public class Main {
    private static final String BINDINGS = "spring.cloud.stream.bindings.";
    private static final String ROCKETMQ = "spring.cloud.stream.rocketmq.bindings.";

    private final AtomicBoolean failed = new AtomicBoolean();

    public static void main(String[] words) {
        SpringApplication application = new SpringApplication(Main.class);
        application.setDefaultProperties(
                Map.ofEntries(
                        Map.entry("spring.cloud.stream.rocketmq.binder.name-server", words[0]),
                        Map.entry("spring.cloud.function.definition", "inOrder;all;tagged;priced"),
                        Map.entry(BINDINGS + "inOrder-in-0.destination", words[1]),
                        Map.entry(BINDINGS + "inOrder-in-0.group", "in-order-" + words[1]),
                        Map.entry(ROCKETMQ + "inOrder-in-0.consumer.push.orderly", "true"),
                        Map.entry(BINDINGS + "all-in-0.destination", words[2]),
                        Map.entry(BINDINGS + "all-in-0.group", "all-" + words[2]),
                        Map.entry(BINDINGS + "tagged-in-0.destination", words[2]),
                        Map.entry(BINDINGS + "tagged-in-0.group", "tagged-" + words[2]),
                        Map.entry(ROCKETMQ + "tagged-in-0.consumer.subscription", "red || blue"),
                        Map.entry(BINDINGS + "priced-in-0.destination", words[2]),
                        Map.entry(BINDINGS + "priced-in-0.group", "priced-" + words[2]),
                        Map.entry(ROCKETMQ + "priced-in-0.consumer.subscription", "sql:(price BETWEEN 5 AND 7)"),
                        Map.entry(BINDINGS + "ordered-out-0.destination", words[1]),
                        Map.entry(ROCKETMQ + "ordered-out-0.producer.group", "ordering-" + words[1]),
                        Map.entry(ROCKETMQ + "ordered-out-0.producer.message-queue-selector", "byKey"),
                        Map.entry(BINDINGS + "plain-out-0.destination", words[2]),
                        Map.entry(ROCKETMQ + "plain-out-0.producer.group", "plain-" + words[2]),
                        Map.entry("spring.main.banner-mode", "off"),
                        Map.entry("logging.level.root", "warn")));
        application.run();
    }

    @Bean
    Consumer<Message<String>> inOrder() {
        return message -> {
            if (message.getPayload().equals("key-1:4") && failed.compareAndSet(false, true)) {
                print("failed", message.getPayload());
                throw new IllegalStateException("the first attempt");
            }
            print("in-order", message.getPayload());
        };
    }

    @Bean
    Consumer<Message<String>> all() {
        AtomicBoolean tried = new AtomicBoolean();
        return message -> {
            if (message.getPayload().equals("fails once") && tried.compareAndSet(false, true)) {
                print("failed", message.getPayload());
                throw new IllegalStateException("the first attempt");
            }
            print("all", message.getPayload());
        };
    }

    @Bean
    Consumer<Message<String>> tagged() {
        return message -> print("tagged", message.getPayload());
    }

    @Bean
    Consumer<Message<String>> priced() {
        return message -> print("priced", message.getPayload());
    }

    /** Selects the queue of a key. */
    @Bean
    MessageQueueSelector byKey() {
        return (queues, message, key) ->
                queues.get(Math.floorMod(String.valueOf(message.getProperty("key")).hashCode(), queues.size()));
    }

    @Bean
    CommandLineRunner sends(StreamBridge bridge) {
        return words -> {
            for (int n = 0; n < 12; n++) {
                String key = "key-" + n % 3;
                bridge.send("ordered-out-0", MessageBuilder.withPayload(key + ":" + n).setHeader("key", key).build());
            }
            bridge.send("plain-out-0", MessageBuilder.withPayload("red one").setHeader("TAGS", "red").build());
            bridge.send("plain-out-0", MessageBuilder.withPayload("green one").setHeader("TAGS", "green").build());
            bridge.send("plain-out-0", MessageBuilder.withPayload("priced").setHeader("price", 6).build());
            bridge.send("plain-out-0", MessageBuilder.withPayload("delayed").setHeader("DELAY", 1).build());
            bridge.send("plain-out-0", MessageBuilder.withPayload("fails once").build());
            print("ready", "");
        };
    }

    static synchronized void print(String event, String body) {
        System.out.println("{\"event\":\"" + event + "\",\"body\":\"" + body + "\"}");
        System.out.flush();
    }
}
