package org.apache.rocketmq.test.base;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.common.attribute.CQType;
import org.apache.rocketmq.common.attribute.TopicMessageType;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.test.client.rmq.RMQAsyncSendProducer;
import org.apache.rocketmq.test.client.rmq.RMQNormalConsumer;
import org.apache.rocketmq.test.client.rmq.RMQNormalProducer;
import org.apache.rocketmq.test.client.rmq.RMQTransactionalProducer;
import org.apache.rocketmq.test.clientinterface.AbstractMQConsumer;
import org.apache.rocketmq.test.clientinterface.AbstractMQProducer;
import org.apache.rocketmq.test.factory.ConsumerFactory;
import org.apache.rocketmq.test.listener.AbstractListener;
import org.apache.rocketmq.test.util.MQAdminTestUtils;
import org.apache.rocketmq.test.util.MQRandomUtils;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.admin.MQAdminExt;

/**
 * As the class of that name for 4.9, under the names that the tests of 5.x use: a running cluster of three
 * groups, told by system properties, in place of brokers in this process.
 */
public class BaseConf {
    public static final String NAMESRV_ADDR = System.getProperty("suite.ns");
    protected static final String CLUSTER_NAME = System.getProperty("suite.cluster");
    protected static final String BROKER1_NAME = CLUSTER_NAME + "-0";
    protected static final String BROKER2_NAME = CLUSTER_NAME + "-1";
    protected static final String BROKER3_NAME = CLUSTER_NAME + "-2";
    protected static final int BROKER_NUM = 3;
    /** Seconds that a test waits for replies; milliseconds that it waits for messages. */
    protected static final int WAIT_TIME = 5;
    protected static final int CONSUME_TIME = Integer.getInteger("suite.consumeTime", 60_000);
    protected static final int QUEUE_NUMBERS = 8;

    /** Always null or empty: tests that look into these are about a process, not about what clients see. */
    protected static NamesrvController namesrvController;
    protected static BrokerController brokerController1;
    protected static BrokerController brokerController2;
    protected static BrokerController brokerController3;
    protected static List<BrokerController> brokerControllerList = Collections.emptyList();
    protected static Map<String, BrokerController> brokerControllerMap = new HashMap<>();

    protected static List<Object> mqClients = Collections.synchronizedList(new ArrayList<>());
    protected static boolean debug = false;

    static {
        IntegrationTestBase.initMQAdmin(NAMESRV_ADDR);
    }

    /** The cluster was waited for before the suite began. */
    public static void waitBrokerRegistered(String nsAddr, String cluster, int brokers) {
    }

    /** What is acknowledged can be consumed at once. */
    public boolean awaitDispatchMs(long millis) {
        return true;
    }

    public static String initTopic() {
        return initTopicWithName(MQRandomUtils.getRandomTopic());
    }

    public static String initTopic(TopicMessageType type) {
        return initTopicWithName(MQRandomUtils.getRandomTopic(), type);
    }

    public static String initTopicWithName(String topic) {
        IntegrationTestBase.initTopic(topic, NAMESRV_ADDR, CLUSTER_NAME, CQType.SimpleCQ);
        return topic;
    }

    public static String initTopicWithName(String topic, TopicMessageType type) {
        IntegrationTestBase.initTopic(topic, NAMESRV_ADDR, CLUSTER_NAME, type);
        return topic;
    }

    public static String initTopicOnSampleTopicBroker(String sample) {
        return initTopicOnSampleTopicBroker(MQRandomUtils.getRandomTopic(), sample);
    }

    public static String initTopicOnSampleTopicBroker(String topic, String sample) {
        IntegrationTestBase.initTopic(topic, NAMESRV_ADDR, sample, CQType.SimpleCQ);
        return topic;
    }

    public static String initTopicOnSampleTopicBroker(String sample, TopicMessageType type) {
        return initTopicOnSampleTopicBroker(MQRandomUtils.getRandomTopic(), sample, type);
    }

    public static String initTopicOnSampleTopicBroker(String topic, String sample, TopicMessageType type) {
        IntegrationTestBase.initTopic(topic, NAMESRV_ADDR, sample, type);
        return topic;
    }

    public static String initConsumerGroup() {
        return initConsumerGroup(MQRandomUtils.getRandomConsumerGroup());
    }

    public static String initConsumerGroup(String group) {
        MQAdminTestUtils.createSub(NAMESRV_ADDR, CLUSTER_NAME, group);
        return group;
    }

    public static DefaultMQAdminExt getAdmin(String nsAddr) {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(3_000);
        admin.setNamesrvAddr(nsAddr);
        admin.setPollNameServerInterval(100);
        return kept(admin);
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

    public static Set<String> getBrokers() {
        return new HashSet<>(List.of(BROKER1_NAME, BROKER2_NAME, BROKER3_NAME));
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

    private static <T> T kept(T client) {
        mqClients.add(client);
        return client;
    }
}
