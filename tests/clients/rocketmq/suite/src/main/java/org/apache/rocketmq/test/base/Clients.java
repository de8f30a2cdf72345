package org.apache.rocketmq.test.base;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.test.client.rmq.RMQAsyncSendProducer;
import org.apache.rocketmq.test.client.rmq.RMQNormalConsumer;
import org.apache.rocketmq.test.client.rmq.RMQNormalProducer;
import org.apache.rocketmq.test.client.rmq.RMQTransactionalProducer;
import org.apache.rocketmq.test.clientinterface.AbstractMQConsumer;
import org.apache.rocketmq.test.clientinterface.AbstractMQProducer;
import org.apache.rocketmq.test.factory.ConsumerFactory;
import org.apache.rocketmq.test.listener.AbstractListener;
import org.apache.rocketmq.tools.admin.MQAdminExt;

/** The clients of the suite's tests, which are created and shut down in the same way in every version. */
public class Clients {
    protected static List<Object> mqClients = Collections.synchronizedList(new ArrayList<>());

    public static RMQNormalProducer getProducer(String nsAddr, String topic) {
        return getProducer(nsAddr, topic, false);
    }

    public static RMQNormalProducer getProducer(String nsAddr, String topic, boolean useTls) {
        return kept(new RMQNormalProducer(nsAddr, topic, useTls));
    }

    public static RMQNormalProducer getProducer(String nsAddr, String topic, String group, String instance) {
        return kept(new RMQNormalProducer(nsAddr, topic, group, instance));
    }

    public static RMQTransactionalProducer getTransactionalProducer(
            String nsAddr, String topic, TransactionListener listener) {
        return kept(new RMQTransactionalProducer(nsAddr, topic, false, listener));
    }

    public static RMQAsyncSendProducer getAsyncProducer(String nsAddr, String topic) {
        return kept(new RMQAsyncSendProducer(nsAddr, topic));
    }

    public static RMQNormalConsumer getConsumer(
            String nsAddr, String group, String topic, String expression, AbstractListener listener) {
        return getConsumer(nsAddr, group, topic, expression, listener, false);
    }

    public static RMQNormalConsumer getConsumer(
            String nsAddr,
            String group,
            String topic,
            String expression,
            AbstractListener listener,
            boolean useTls) {
        return kept(
                ConsumerFactory.getRMQNormalConsumer(nsAddr, group, topic, expression, listener, useTls));
    }

    public static void shutdown() {
        shutdown(new ArrayList<>(mqClients));
        mqClients.clear();
    }

    public static void shutdown(List<Object> clients) {
        for (Object client : clients) {
            if (client instanceof AbstractMQProducer) {
                ((AbstractMQProducer) client).shutdown();
            } else if (client instanceof AbstractMQConsumer) {
                ((AbstractMQConsumer) client).shutdown();
            } else if (client instanceof MQAdminExt) {
                ((MQAdminExt) client).shutdown();
            }
        }
    }

    protected static <T> T kept(T client) {
        mqClients.add(client);
        return client;
    }
}
