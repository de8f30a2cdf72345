package io.orderlymq.clients;

import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.exception.RemotingException;

/**
 * Clients that sign their requests (ak, sk), trace their messages (trace) and select by SQL (sql).
 *
 * <p>role: send or consume. A message's property "number" is its number. TLS is chosen by system
 * properties.
 */
final class Guarding {
    private Guarding() {}

    static void run(Options options) throws Exception {
        try {
            if (options.text("role").equals("send")) {
                send(options);
            } else {
                consume(options);
            }
        } catch (MQClientException error) {
            refused(error.getResponseCode(), String.valueOf(error.getErrorMessage()), error);
        } catch (MQBrokerException error) {
            refused(error.getResponseCode(), error.getErrorMessage(), error);
        } catch (RemotingException | IllegalStateException error) {
            refused(-1, String.valueOf(error.getMessage()), error);
        }
        Report.event("finished");
    }

    private static void refused(int code, String text, Exception error) {
        Throwable cause = error.getCause();
        if (cause instanceof MQBrokerException broker) {
            code = broker.getResponseCode();
            text = broker.getErrorMessage();
        }
        Report.event("refused", "code", code, "text", text, "all", error.toString());
    }

    private static RPCHook hook(Options options) {
        String key = options.text("ak", "");
        if (key.isEmpty()) {
            return null;
        }
        return new AclClientRPCHook(new SessionCredentials(key, options.text("sk", "")));
    }

    private static void send(Options options) throws Exception {
        DefaultMQProducer producer =
                new DefaultMQProducer(
                        options.text("group", "guarded-producers"),
                        hook(options),
                        options.flag("trace"),
                        null);
        producer.setNamesrvAddr(options.text("ns"));
        producer.setInstanceName("guarding-" + ProcessHandle.current().pid());
        producer.start();
        Report.event("started");
        try {
            for (int n = 0; n < options.number("count", 10); n++) {
                byte[] body = Integer.toString(n).getBytes(StandardCharsets.UTF_8);
                Message message = new Message(options.text("topic"), "TagG", "key-" + n, body);
                message.putUserProperty("number", Integer.toString(n));
                SendResult result = producer.send(message);
                Report.event("ack", "body", n, "msgId", result.getMsgId());
            }
            // The tracing client sends its records some time after the message.
            Thread.sleep(options.number("linger", 0));
        } finally {
            producer.shutdown();
        }
    }

    private static void consume(Options options) throws Exception {
        DefaultMQPushConsumer consumer =
                new DefaultMQPushConsumer(
                        options.text("group"),
                        hook(options),
                        new AllocateMessageQueueAveragely(),
                        options.flag("trace"),
                        null);
        consumer.setNamesrvAddr(options.text("ns"));
        consumer.setInstanceName("guarding-" + ProcessHandle.current().pid());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        String sql = options.text("sql", "");
        if (sql.isEmpty()) {
            consumer.subscribe(options.text("topic"), "*");
        } else {
            consumer.subscribe(options.text("topic"), MessageSelector.bySql(sql));
        }
        CountDownLatch end = new CountDownLatch(options.number("expected", Integer.MAX_VALUE));
        String fail = options.text("fail", "");
        consumer.registerMessageListener(
                (MessageListenerConcurrently)
                        (messages, context) -> {
                            MessageExt message = messages.get(0);
                            String body = new String(message.getBody(), StandardCharsets.UTF_8);
                            boolean fails = body.equals(fail) && message.getReconsumeTimes() == 0;
                            Report.event(
                                    fails ? "fail" : "done",
                                    "body",
                                    body,
                                    "reconsume",
                                    message.getReconsumeTimes());
                            if (fails) {
                                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                            }
                            end.countDown();
                            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                        });
        try {
            consumer.start();
            Report.event("started");
            end.await(options.number("seconds", 60), TimeUnit.SECONDS);
            Thread.sleep(options.number("linger", 500));
        } finally {
            consumer.shutdown();
        }
    }
}
