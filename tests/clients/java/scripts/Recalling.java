import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** Recalls a waiting message by its handle: a call of clients from 5.3.1 on, so it is compiled when it runs. */
public final class Recalling {
    private static final long DELAY_MS = 8_000;

    public static void main(String[] words) throws Exception {
        String nameServer = words[0];
        String topic = words[1];
        CountDownLatch stayed = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("recall-" + topic);
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(each -> say("received", new String(each.getBody())));
            if (messages.stream().anyMatch(each -> new String(each.getBody()).equals("stays"))) {
                stayed.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQProducer producer = new DefaultMQProducer("recallers");
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        SendResult plain = producer.send(new Message(topic, "plain".getBytes()));
        say("handle-of-plain", String.valueOf(plain.getRecallHandle()));
        SendResult taken = producer.send(later(topic, "taken back"));
        SendResult stays = producer.send(later(topic, "stays"));
        say("sent", taken.getMsgId());
        for (int i = 0; i < 2; i++) {
            say("recalled", producer.recallMessage(topic, taken.getRecallHandle()));
        }
        stayed.await(60, TimeUnit.SECONDS);
        try {
            producer.recallMessage(topic, stays.getRecallHandle());
        } catch (MQBrokerException error) {
            say("refused", String.valueOf(error.getResponseCode()));
        }
        System.out.flush();
        // The work is done, and its clients' threads would keep the program alive.
        Runtime.getRuntime().halt(0);
    }

    private static Message later(String topic, String body) {
        Message message = new Message(topic, body.getBytes());
        message.setDelayTimeMs(DELAY_MS);
        return message;
    }

    private static synchronized void say(String event, String text) {
        System.out.println("{\"event\": \"" + event + "\", \"text\": \"" + text + "\"}");
    }
}
