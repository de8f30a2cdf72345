package io.orderlymq.clients;

import java.util.concurrent.Callable;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.remoting.exception.RemotingException;

/**
 * The question for a topic's queues that a client asks the name server when it begins.
 *
 * <p>A client asks once. On a busy machine that question can end without an answer. A consumer says that it is
 * started and asks again half a minute later, or does not start, and a producer fails its first send.
 */
public final class Routes {
    private Routes() {}

    /** Starts a consumer, and again where the name server did not answer; it knows its topic's queues then. */
    public static DefaultMQPushConsumer started(Callable<DefaultMQPushConsumer> made, String topic)
            throws Exception {
        while (true) {
            DefaultMQPushConsumer consumer = made.call();
            try {
                consumer.start();
            } catch (IllegalStateException refused) {
                if (refused.getCause() instanceof RemotingException) {
                    // One of 4.9 stays half started.
                    consumer.shutdown();
                    continue;
                }
                throw refused;
            }
            MQClientInstance client = consumer.getDefaultMQPushConsumerImpl().getmQClientFactory();
            if (!client.getTopicRouteTable().containsKey(topic)) {
                learn(client, topic);
                client.sendHeartbeatToAllBrokerWithLock();
                client.rebalanceImmediately();
            }
            return consumer;
        }
    }

    /**
     * Waits until a producer that was started knows the queues of a topic, unless there is no such topic yet.
     *
     * <p>Its brokers know it then: a request announces its producer only where it has to ask for the queues itself, and a
     * reply finds no producer that is not announced.
     */
    public static void learn(DefaultMQProducer producer, String topic) throws InterruptedException {
        MQClientInstance client = producer.getDefaultMQProducerImpl().getmQClientFactory();
        learn(client, topic);
        client.sendHeartbeatToAllBrokerWithLock();
    }

    private static void learn(MQClientInstance client, String topic) throws InterruptedException {
        while (!client.getTopicRouteTable().containsKey(topic)) {
            try {
                client.getMQClientAPIImpl().getTopicRouteInfoFromNameServer(topic, 3000);
                client.updateTopicRouteInfoFromNameServer(topic);
            } catch (MQClientException answered) {
                return;
            } catch (RemotingException | IllegalStateException silence) {
                continue;
            }
        }
    }
}
