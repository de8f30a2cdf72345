package io.orderlymq.clients.since46;

import io.orderlymq.clients.Options;
import io.orderlymq.clients.Report;
import io.orderlymq.clients.Routes;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.common.message.Message;

/** Sends {@code count} requests, every second one without waiting, and reports their answers. */
public final class Requesting {
    private Requesting() {}

    public static void run(Options options) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(options.text("group"));
        producer.setNamesrvAddr(options.text("ns"));
        producer.setInstanceName("requesting-" + ProcessHandle.current().pid());
        producer.start();
        Routes.learn(producer, options.text("topic"));
        int count = options.number("count", 1);
        int timeout = options.number("timeout", 5000);
        CountDownLatch open = new CountDownLatch(count);
        for (int n = 0; n < count; n++) {
            String text = "ping-" + n;
            Message message =
                    new Message(options.text("topic"), text.getBytes(StandardCharsets.UTF_8));
            if (n % 2 == 1) {
                producer.request(message, callback(text, open), timeout);
                continue;
            }
            try {
                report(text, producer.request(message, timeout));
            } catch (Exception error) {
                Report.event("failed", "request", text, "text", error.toString());
            }
            open.countDown();
        }
        if (!open.await(timeout + 5000L, TimeUnit.MILLISECONDS)) {
            Report.event("error", "text", open.getCount() + " callbacks never came");
        }
        producer.shutdown();
        Report.event("finished");
    }

    private static RequestCallback callback(String text, CountDownLatch open) {
        return new RequestCallback() {
            @Override
            public void onSuccess(Message reply) {
                report(text, reply);
                open.countDown();
            }

            @Override
            public void onException(Throwable error) {
                Report.event("failed", "request", text, "text", error.toString());
                open.countDown();
            }
        };
    }

    private static void report(String text, Message reply) {
        Report.event(
                "answer",
                "request", text,
                "body", new String(reply.getBody(), StandardCharsets.UTF_8),
                "correlation", reply.getProperty("CORRELATION_ID"));
    }
}
