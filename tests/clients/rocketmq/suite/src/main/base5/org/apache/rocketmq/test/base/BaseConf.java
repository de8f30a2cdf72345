package org.apache.rocketmq.test.base;

import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.attribute.CQType;
import org.apache.rocketmq.common.attribute.TopicMessageType;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.test.client.rmq.RMQNormalConsumer;
import org.apache.rocketmq.test.listener.AbstractListener;
import org.apache.rocketmq.test.util.MQAdminTestUtils;
import org.apache.rocketmq.test.util.MQRandomUtils;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * As the class of this name for 4.9, with the names that the tests of 5.x use: they use a running cluster of three
 * groups, whose address is in system properties, instead of brokers in this process.
 */
public class BaseConf extends Clients {
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

    /** Always null or empty: tests that use these check a broker's process, not what clients see. */
    protected static NamesrvController namesrvController;
    protected static BrokerController brokerController1;
    protected static BrokerController brokerController2;
    protected static BrokerController brokerController3;
    protected static List<BrokerController> brokerControllerList = Collections.emptyList();
    protected static Map<String, BrokerController> brokerControllerMap = new HashMap<>();

    protected static boolean debug = false;

    static {
        IntegrationTestBase.initMQAdmin(NAMESRV_ADDR);
    }

    /** Does nothing, because the cluster is ready before the suite begins. */
    public static void waitBrokerRegistered(String nsAddr, String cluster, int brokers) {
    }

    /** An acknowledged message can be consumed immediately. */
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

    public static RMQNormalConsumer getConsumer(
            String nsAddr, String topic, String expression, AbstractListener listener) {
        return getConsumer(nsAddr, topic, expression, listener, false);
    }

    public static RMQNormalConsumer getConsumer(
            String nsAddr, String topic, String expression, AbstractListener listener, boolean useTls) {
        return getConsumer(nsAddr, initConsumerGroup(), topic, expression, listener, useTls);
    }

    public static Set<String> getBrokers() {
        return new HashSet<>(List.of(BROKER1_NAME, BROKER2_NAME, BROKER3_NAME));
    }
}
