package org.apache.rocketmq.test.base;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.test.client.rmq.RMQAsyncSendProducer;
import org.apache.rocketmq.test.client.rmq.RMQNormalConsumer;
import org.apache.rocketmq.test.client.rmq.RMQNormalProducer;
import org.apache.rocketmq.test.client.rmq.RMQTransactionalProducer;
import org.apache.rocketmq.test.clientinterface.AbstractMQConsumer;
import org.apache.rocketmq.test.clientinterface.AbstractMQProducer;
import org.apache.rocketmq.test.factory.ConsumerFactory;
import org.apache.rocketmq.test.listener.AbstractListener;
import org.apache.rocketmq.test.util.MQAdmin;
import org.apache.rocketmq.test.util.MQRandomUtils;

/**
 * What the suite's tests extend, under the name that they know it by; it stands before Apache's own on
 * the class path. That one starts name server and brokers in this process; this one is told by system
 * properties where a running cluster of two groups is.
 */
public class BaseConf {
    public static String nsAddr = System.getProperty("suite.ns");
    protected static String clusterName = System.getProperty("suite.cluster");
    protected static String broker1Name = clusterName + "-0";
    protected static String broker2Name = clusterName + "-1";
    protected static int brokerNum = 2;
    /** Seconds that a test waits for replies; milliseconds that it waits for messages. */
    protected static int waitTime = 5;
    protected static int consumeTime = Integer.getInteger("suite.consumeTime", 60_000);

    /** Always null: tests that look into these are about a process, not about what clients see. */
    protected static NamesrvController namesrvController;
    protected static BrokerController brokerController1;
    protected static BrokerController brokerController2;

    protected static List<Object> mqClients = Collections.synchronizedList(new ArrayList<>());
    protected static boolean debug = false;

    public static String initTopic() {
        return initTopicWithName(MQRandomUtils.getRandomTopic());
    }

    public static String initTopicWithName(String topic) {
        IntegrationTestBase.initTopic(topic, nsAddr, clusterName);
        return topic;
    }

    public static String initConsumerGroup() {
        return initConsumerGroup(MQRandomUtils.getRandomConsumerGroup());
    }

    public static String initConsumerGroup(String group) {
        MQAdmin.createSub(nsAddr, clusterName, group);
        return group;
    }

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
            String nsAddr, String topic, String expression, AbstractListener listener) {
        return getConsumer(nsAddr, topic, expression, listener, false);
    }

    public static RMQNormalConsumer getConsumer(
            String nsAddr, String topic, String expression, AbstractListener listener, boolean useTls) {
        return getConsumer(nsAddr, initConsumerGroup(), topic, expression, listener, useTls);
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
        for (Object client : new ArrayList<>(mqClients)) {
            if (client instanceof AbstractMQProducer) {
                ((AbstractMQProducer) client).shutdown();
            } else {
                ((AbstractMQConsumer) client).shutdown();
            }
        }
        mqClients.clear();
    }

    private static <T> T kept(T client) {
        mqClients.add(client);
        return client;
    }
}
