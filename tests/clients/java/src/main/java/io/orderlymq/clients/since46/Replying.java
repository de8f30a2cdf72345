package io.orderlymq.clients.since46;

import io.orderlymq.clients.Options;
import io.orderlymq.clients.Report;
import io.orderlymq.clients.Routes;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Answers every request with "re:" and its body, until its standard input is closed. */
public final class Replying {
    private Replying() {}

    public static void run(Options options) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(options.text("group") + "-replies");
        producer.setNamesrvAddr(options.text("ns"));
        producer.setInstanceName("replying-" + ProcessHandle.current().pid());
        producer.start();
        DefaultMQPushConsumer consumer =
                Routes.started(() -> answering(options, producer), options.text("topic"));
        Report.event("started");
        while (System.in.read() >= 0) {
            continue;
        }
        consumer.shutdown();
        producer.shutdown();
        Report.event("finished");
    }

    private static DefaultMQPushConsumer answering(Options options, DefaultMQProducer producer)
            throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.text("group"));
        consumer.setNamesrvAddr(options.text("ns"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(options.text("topic"), "*");
        consumer.registerMessageListener(
                (MessageListenerConcurrently)
                        (messages, context) -> {
                            messages.forEach(message -> answer(producer, message));
                            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                        });
        return consumer;
    }

    private static void answer(DefaultMQProducer producer, MessageExt message) {
        String text = new String(message.getBody(), StandardCharsets.UTF_8);
        try {
            Message reply =
                    MessageUtil.createReplyMessage(
                            message, ("re:" + text).getBytes(StandardCharsets.UTF_8));
            Report.event("replied", "body", text, "status", producer.send(reply, 3000).getSendStatus());
        } catch (Exception error) {
            Report.event("failed", "body", text, "text", error.toString());
        }
    }
}
