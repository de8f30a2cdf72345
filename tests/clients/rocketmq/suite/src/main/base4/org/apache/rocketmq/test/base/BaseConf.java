package org.apache.rocketmq.test.base;

import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.test.client.rmq.RMQNormalConsumer;
import org.apache.rocketmq.test.listener.AbstractListener;
import org.apache.rocketmq.test.util.MQAdmin;
import org.apache.rocketmq.test.util.MQRandomUtils;

/**
 * The base class of the suite's tests, which replaces Apache's class of the same name because it is earlier on
 * the class path. Apache's class starts name server and brokers in this process; this one uses a running
 * cluster of two groups, whose address is in system properties.
 */
public class BaseConf extends Clients {
    public static String nsAddr = System.getProperty("suite.ns");
    protected static String clusterName = System.getProperty("suite.cluster");
    protected static String broker1Name = clusterName + "-0";
    protected static String broker2Name = clusterName + "-1";
    protected static int brokerNum = 2;
    /** Seconds that a test waits for replies; milliseconds that it waits for messages. */
    protected static int waitTime = 5;
    protected static int consumeTime = Integer.getInteger("suite.consumeTime", 60_000);

    /** Always null: tests that use these check a broker's process, not what clients see. */
    protected static NamesrvController namesrvController;
    protected static BrokerController brokerController1;
    protected static BrokerController brokerController2;

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

    public static RMQNormalConsumer getConsumer(
            String nsAddr, String topic, String expression, AbstractListener listener) {
        return getConsumer(nsAddr, topic, expression, listener, false);
    }

    public static RMQNormalConsumer getConsumer(
            String nsAddr, String topic, String expression, AbstractListener listener, boolean useTls) {
        return getConsumer(nsAddr, initConsumerGroup(), topic, expression, listener, useTls);
    }
}
