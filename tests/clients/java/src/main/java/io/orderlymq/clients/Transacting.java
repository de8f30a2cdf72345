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
 * body is "word:number". The option {@code check} answers checks: commit, rollback, unknown, "later:N"
 * (unknown N times, then commit), or "plan" (as the body says). The word "later-STATE" means unknown at
 * first and STATE at a check. The program ends after {@code seconds}, or when its standard input is closed.
 *
 * <p>With cycle=true the plan is repeated, with {@code prefix} before each body, a local transaction of
 * {@code work} milliseconds and a pause of {@code pause}, until standard input is closed; after that the
 * program only answers checks. With ak and sk its requests are signed.
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
        TransactionMQProducer producer =
                new TransactionMQProducer(options.text("group"), Signing.hook(options));
        producer.setNamesrvAddr(options.text("ns"));
        producer.setInstanceName("transacting-" + ProcessHandle.current().pid());
        producer.setHeartbeatBrokerInterval(options.number("heartbeat", 1000));
        producer.setTransactionListener(this);
        producer.start();
        Routes.learn(producer, options.text("topic"));
        Report.event("started");
        Thread reader = new Thread(Transacting::readToTheEnd);
        reader.setDaemon(true);
        String[] plan = options.text("plan").split(",");
        if (options.flag("cycle")) {
            reader.start();
            for (int n = 0; reader.isAlive(); n++) {
                send(producer, plan[n % plan.length], n);
                Thread.sleep(options.number("pause", 0));
            }
            Report.event("sent");
            Thread.sleep(TimeUnit.SECONDS.toMillis(options.number("seconds", 60)));
        } else {
            for (int n = 0; n < plan.length; n++) {
                send(producer, plan[n], n);
            }
            Report.event("sent");
            reader.start();
            reader.join(TimeUnit.SECONDS.toMillis(options.number("seconds", 60)));
        }
        producer.shutdown();
        Report.event("finished");
    }

    private void send(TransactionMQProducer producer, String word, int n) {
        String body = options.text("prefix", "") + word + ":" + n;
        Message message =
                new Message(
                        options.text("topic"), "tx", "k" + n, body.getBytes(StandardCharsets.UTF_8));
        if (options.number("immunity", 0) > 0) {
            message.putUserProperty("CHECK_IMMUNITY_TIME_IN_SECONDS", options.text("immunity"));
        }
        Report.event("begin", "body", body);
        try {
            TransactionSendResult result = producer.sendMessageInTransaction(message, word);
            Report.event(
                    "half",
                    "body", body,
                    "status", result.getSendStatus(),
                    "state", result.getLocalTransactionState(),
                    "offset", result.getQueueOffset(),
                    "transaction", result.getTransactionId(),
                    "msgId", result.getMsgId());
        } catch (Exception error) {
            Report.event("failed", "body", body, "text", error.toString());
        }
    }

    private static void readToTheEnd() {
        try {
            while (System.in.read() >= 0) {
                continue;
            }
        } catch (java.io.IOException ignored) {
            // A broken pipe counts as the end of input, too.
        }
    }

    @Override
    public LocalTransactionState executeLocalTransaction(Message message, Object word) {
        String body = new String(message.getBody(), StandardCharsets.UTF_8);
        Report.event("stored", "body", body);
        try {
            Thread.sleep(options.number("work", 0));
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
        LocalTransactionState state = state((String) word);
        Report.event("decided", "body", body, "state", state);
        return state;
    }

    @Override
    public LocalTransactionState checkLocalTransaction(MessageExt message) {
        String body = new String(message.getBody(), StandardCharsets.UTF_8);
        int count = checks.merge(body, 1, Integer::sum);
        String answer = options.text("check", "commit");
        if (answer.startsWith("later:")) {
            answer = count > Integer.parseInt(answer.substring(6)) ? "commit" : "unknown";
        } else if (answer.equals("plan")) {
            int begin = body.lastIndexOf('/') + 1;
            answer = body.substring(begin, body.indexOf(':', begin));
            answer = answer.startsWith("later-") ? answer.substring(6) : answer;
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
