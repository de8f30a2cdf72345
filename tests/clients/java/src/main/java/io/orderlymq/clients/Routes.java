package io.orderlymq.clients;

import java.util.concurrent.Callable;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.remoting.exception.RemotingException;

/**
 * The request for a topic's queues that a client sends to the name server at its start.
 *
 * <p>A client asks once, and on a busy machine it may get no answer. A consumer then reports its start and asks again half
 * a minute later, or does not start; a producer fails its first send.
 */
public final class Routes {
    private Routes() {}

    /** Starts a consumer, and again if the name server did not answer, so that it knows its topic's queues. */
    public static DefaultMQPushConsumer started(Callable<DefaultMQPushConsumer> made, String topic)
            throws Exception {
        while (true) {
            DefaultMQPushConsumer consumer = made.call();
            try {
                consumer.start();
            } catch (IllegalStateException refused) {
                if (refused.getCause() instanceof RemotingException) {
                    // A 4.9 consumer stays half started.
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
     * Waits until a started producer knows the queues of a topic, unless the topic does not exist yet.
     *
     * <p>Then its brokers know the producer, too: a request announces its producer to brokers only if it must ask for the
     * queues itself, and a reply cannot reach a producer that was not announced.
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
