package io.orderlymq.spring;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.spring.annotation.ConsumeMode;
import org.apache.rocketmq.spring.annotation.MessageModel;
import org.apache.rocketmq.spring.annotation.RocketMQMessageListener;
import org.apache.rocketmq.spring.annotation.RocketMQTransactionListener;
import org.apache.rocketmq.spring.annotation.SelectorType;
import org.apache.rocketmq.spring.core.RocketMQListener;
import org.apache.rocketmq.spring.core.RocketMQLocalRequestCallback;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionListener;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionState;
import org.apache.rocketmq.spring.core.RocketMQReplyListener;
import org.apache.rocketmq.spring.core.RocketMQTemplate;
import org.apache.rocketmq.spring.core.RocketMQPushConsumerLifecycleListener;
import org.springframework.beans.factory.config.BeanPostProcessor;
import org.springframework.boot.CommandLineRunner;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.SpringBootConfiguration;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.context.annotation.Bean;
import org.springframework.messaging.Message;
import org.springframework.messaging.support.MessageBuilder;

/**
 * Sends with each method of the template, while listeners of each kind print the messages that they get.
 *
 * <p>Arguments: the name server, then the topics ordered, plain and requests.
 */
@SpringBootConfiguration
@EnableAutoConfiguration
public class Main {
    public static void main(String[] words) {
        SpringApplication application = new SpringApplication(Main.class);
        application.setDefaultProperties(
                Map.of(
                        "rocketmq.name-server", words[0],
                        "rocketmq.producer.group", "spring-" + words[2],
                        "rocketmq.pull-consumer.group", "pulling-" + words[2],
                        "rocketmq.pull-consumer.topic", words[2],
                        "ordered", words[1],
                        "plain", words[2],
                        "requests", words[3],
                        "spring.main.banner-mode", "off",
                        "logging.level.root", "warn"));
        application.run();
    }

    /** Others begin where their queues end when they get them, which may be after the first sends. */
    abstract static class FromFirst implements RocketMQPushConsumerLifecycleListener {
        @Override
        public void prepareStart(DefaultMQPushConsumer consumer) {
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        }
    }

    @RocketMQMessageListener(topic = "${ordered}", consumerGroup = "in-order-${ordered}", consumeMode = ConsumeMode.ORDERLY)
    static class InOrder extends FromFirst implements RocketMQListener<MessageExt> {
        private final AtomicBoolean failed = new AtomicBoolean();

        @Override
        public void onMessage(MessageExt message) {
            String body = new String(message.getBody());
            if (body.equals("key-1:4") && failed.compareAndSet(false, true)) {
                print("failed", body);
                throw new IllegalStateException("the first attempt");
            }
            print("in-order", body);
        }
    }

    @RocketMQMessageListener(topic = "${plain}", consumerGroup = "all-${plain}")
    static class All extends FromFirst implements RocketMQListener<String> {
        @Override
        public void onMessage(String body) {
            print("all", body);
        }
    }

    @RocketMQMessageListener(topic = "${plain}", consumerGroup = "tag-${plain}", selectorExpression = "red || blue")
    static class Tagged extends FromFirst implements RocketMQListener<String> {
        @Override
        public void onMessage(String body) {
            print("tagged", body);
        }
    }

    @RocketMQMessageListener(
            topic = "${plain}",
            consumerGroup = "sql-${plain}",
            selectorType = SelectorType.SQL92,
            selectorExpression = "price BETWEEN 5 AND 7")
    static class Priced extends FromFirst implements RocketMQListener<String> {
        @Override
        public void onMessage(String body) {
            print("priced", body);
        }
    }

    @RocketMQMessageListener(topic = "${plain}", consumerGroup = "wide-${plain}", messageModel = MessageModel.BROADCASTING)
    static class Everyone extends FromFirst implements RocketMQListener<String> {
        @Override
        public void onMessage(String body) {
            print("broadcast", body);
        }
    }

    @RocketMQMessageListener(topic = "${requests}", consumerGroup = "reply-${requests}")
    static class Replying extends FromFirst implements RocketMQReplyListener<String, String> {
        @Override
        public String onMessage(String body) {
            return "answer to " + body;
        }
    }

    // Spring makes a bean of it, because the annotation marks a component.
    @RocketMQTransactionListener
    static class Deciding implements RocketMQLocalTransactionListener {
        @Override
        public RocketMQLocalTransactionState executeLocalTransaction(Message message, Object state) {
            return (RocketMQLocalTransactionState) state;
        }

        @Override
        public RocketMQLocalTransactionState checkLocalTransaction(Message message) {
            print("checked", new String((byte[]) message.getPayload()));
            return RocketMQLocalTransactionState.COMMIT;
        }
    }

    @Bean InOrder inOrder() { return new InOrder(); }
    @Bean All all() { return new All(); }
    @Bean Tagged tagged() { return new Tagged(); }
    @Bean Priced priced() { return new Priced(); }
    @Bean Everyone everyone() { return new Everyone(); }
    @Bean Replying replying() { return new Replying(); }

    /** So for the consumer of the template. */
    @Bean
    static BeanPostProcessor fromFirst() {
        return new BeanPostProcessor() {
            @Override
            public Object postProcessBeforeInitialization(Object bean, String name) {
                if (bean instanceof DefaultLitePullConsumer) {
                    ((DefaultLitePullConsumer) bean).setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
                }
                return bean;
            }
        };
    }

    @Bean
    CommandLineRunner sends(
            RocketMQTemplate template,
            org.springframework.core.env.Environment names) {
        return words -> {
            String plain = names.getProperty("plain");
            for (int n = 0; n < 12; n++) {
                String key = "key-" + n % 3;
                template.syncSendOrderly(names.getProperty("ordered"), key + ":" + n, key);
            }
            template.convertAndSend(plain + ":red", "converted");
            template.syncSend(plain + ":green", "synchronous");
            template.sendOneWay(plain + ":blue", "oneway");
            template.asyncSend(plain, "asynchronous", new SendCallback() {
                @Override public void onSuccess(SendResult result) { print("sent", result.getSendStatus().name()); }
                @Override public void onException(Throwable error) { print("sent", error.toString()); }
            });
            template.syncSend(plain, MessageBuilder.withPayload("priced").setHeader("price", 6).build());
            template.syncSend(plain, MessageBuilder.withPayload("delayed").build(), 3000, 1);
            template.syncSendDelayTimeMills(plain, "timed", 1000);
            List<Message<String>> batch = new ArrayList<>();
            for (String body : Arrays.asList("first of batch", "second of batch")) {
                batch.add(MessageBuilder.withPayload(body).build());
            }
            template.syncSend(plain, batch);
            for (RocketMQLocalTransactionState state : RocketMQLocalTransactionState.values()) {
                template.sendMessageInTransaction(plain, MessageBuilder.withPayload(state.name()).build(), state);
            }
            // Not the form that waits: in clients 5.3.1 to 5.3.3 it gives up when the send is acknowledged
            // (apache/rocketmq#9292), and so does the one with a callback and without a key.
            template.sendAndReceive(names.getProperty("requests"), "question", new RocketMQLocalRequestCallback<String>() {
                @Override public void onSuccess(String answer) { print("answered", answer); }
                @Override public void onException(Throwable error) { print("answered", error.toString()); }
            }, "key", 30_000);
            int left = 11;
            for (long end = System.currentTimeMillis() + 30_000; left > 0 && System.currentTimeMillis() < end; ) {
                for (String body : template.receive(String.class)) {
                    print("pulled", body);
                    left--;
                }
            }
            print("ready", "");
        };
    }

    static synchronized void print(String event, String body) {
        System.out.println("{\"event\":\"" + event + "\",\"body\":\"" + body + "\"}");
        System.out.flush();
    }
}
