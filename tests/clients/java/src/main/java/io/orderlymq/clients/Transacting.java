package io.orderlymq.clients;

import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends one transactional message per word of {@code plan}, such as "commit,rollback,unknown"; the
 * body is "word:number". A check answers with the option {@code check}: commit, rollback, unknown, or
 * "later:N" for unknown N times and commit then. It ends after {@code seconds}, or when its standard
 * input is closed.
 */
final class Transacting implements TransactionListener {
    private final Options options;
    private final Map<String, Integer> checks = new ConcurrentHashMap<>();

    private Transacting(Options options) {
        this.options = options;
    }

    static void run(Options options) throws Exception {
        new Transacting(options).send();
    }

    private void send() throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(options.text("group"));
        producer.setNamesrvAddr(options.text("ns"));
        producer.setInstanceName("transacting-" + ProcessHandle.current().pid());
        producer.setHeartbeatBrokerInterval(options.number("heartbeat", 1000));
        producer.setTransactionListener(this);
        producer.start();
        Report.event("started");
        String[] plan = options.text("plan").split(",");
        for (int n = 0; n < plan.length; n++) {
            Message message =
                    new Message(
                            options.text("topic"),
                            "tx",
                            "k" + n,
                            (plan[n] + ":" + n).getBytes(StandardCharsets.UTF_8));
            if (options.number("immunity", 0) > 0) {
                message.putUserProperty(
                        "CHECK_IMMUNITY_TIME_IN_SECONDS", options.text("immunity"));
            }
            try {
                TransactionSendResult result = producer.sendMessageInTransaction(message, plan[n]);
                Report.event(
                        "half",
                        "body", plan[n] + ":" + n,
                        "status", result.getSendStatus(),
                        "state", result.getLocalTransactionState(),
                        "offset", result.getQueueOffset(),
                        "transaction", result.getTransactionId(),
                        "msgId", result.getMsgId());
            } catch (Exception error) {
                Report.event("failed", "body", plan[n] + ":" + n, "text", error.toString());
            }
        }
        Report.event("sent");
        Thread reader = new Thread(Transacting::readToTheEnd);
        reader.setDaemon(true);
        reader.start();
        reader.join(TimeUnit.SECONDS.toMillis(options.number("seconds", 60)));
        producer.shutdown();
        Report.event("finished");
    }

    private static void readToTheEnd() {
        try {
            while (System.in.read() >= 0) {
                continue;
            }
        } catch (java.io.IOException ignored) {
            // A broken pipe is an end of input too.
        }
    }

    @Override
    public LocalTransactionState executeLocalTransaction(Message message, Object word) {
        return state((String) word);
    }

    @Override
    public LocalTransactionState checkLocalTransaction(MessageExt message) {
        String body = new String(message.getBody(), StandardCharsets.UTF_8);
        int count = checks.merge(body, 1, Integer::sum);
        String answer = options.text("check", "commit");
        if (answer.startsWith("later:")) {
            answer = count > Integer.parseInt(answer.substring(6)) ? "commit" : "unknown";
        } else if (answer.equals("plan")) {
            answer = body.substring(0, body.indexOf(':'));
        }
        Report.event(
                "check",
                "body", body,
                "count", count,
                "topic", message.getTopic(),
                "queue", message.getQueueId(),
                "offset", message.getQueueOffset(),
                "times", message.getUserProperty("TRANSACTION_CHECK_TIMES"),
                "transaction", message.getTransactionId(),
                "answer", answer);
        return state(answer);
    }

    private static LocalTransactionState state(String word) {
        return switch (word) {
            case "commit" -> LocalTransactionState.COMMIT_MESSAGE;
            case "rollback" -> LocalTransactionState.ROLLBACK_MESSAGE;
            default -> LocalTransactionState.UNKNOW;
        };
    }
}
