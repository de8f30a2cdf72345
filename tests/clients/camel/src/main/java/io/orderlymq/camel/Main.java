package io.orderlymq.camel;

import org.apache.camel.CamelContext;
import org.apache.camel.Exchange;
import org.apache.camel.ExchangePattern;
import org.apache.camel.ProducerTemplate;
import org.apache.camel.builder.RouteBuilder;
import org.apache.camel.component.rocketmq.RocketMQConstants;
import org.apache.camel.impl.DefaultCamelContext;

/**
 * Routes that print their messages, and sends of each kind that the component has.
 *
 * <p>Arguments: the name server, then the topics plain, requests and replies. The end of standard input ends the program.
 */
public final class Main {
    private Main() {}

    public static void main(String[] words) throws Exception {
        String at = "?namesrvAddr=" + words[0];
        String plain = "rocketmq:" + words[1] + at;
        String requests = "rocketmq:" + words[2] + at;
        String replies = words[3];
        try (CamelContext context = new DefaultCamelContext()) {
            context.addRoutes(routes(plain, requests, "rocketmq:" + replies + at));
            context.start();
            ProducerTemplate template = context.createProducerTemplate();
            String waiting = plain + "&producerGroup=camel&waitForSendResult=true";
            template.sendBodyAndHeader(waiting, "tagged", RocketMQConstants.OVERRIDE_TAG, "red");
            template.sendBodyAndHeader(waiting, "keyed", RocketMQConstants.OVERRIDE_MESSAGE_KEY, "key-1");
            template.sendBody(plain + "&producerGroup=camel-async", "not waited for");
            String asked = requests + "&producerGroup=camel-asks&replyToTopic=" + replies
                    + "&replyToConsumerGroup=asking-" + replies + "&requestTimeoutMillis=30000";
            print("answered", template.requestBody(asked, "question", String.class));
            print("ready", "");
            while (System.in.read() >= 0) {}
        }
    }

    private static RouteBuilder routes(String plain, String requests, String replies) {
        return new RouteBuilder() {
            @Override
            public void configure() {
                from(plain + "&consumerGroup=all-camel").process(Main::receive);
                from(plain + "&consumerGroup=red-camel&subscribeTags=red")
                        .process(each -> print("tagged", each.getIn().getBody(String.class)));
                from(requests + "&consumerGroup=answering-camel")
                        .process(Main::answer)
                        .to(ExchangePattern.InOnly, replies + "&producerGroup=camel-answers&waitForSendResult=true");
            }
        };
    }

    private static void receive(Exchange exchange) {
        String body = exchange.getIn().getBody(String.class);
        print("all", body);
        String key = exchange.getIn().getHeader(RocketMQConstants.KEY, String.class);
        if (key != null && key.startsWith("key-")) {
            print("key", key);
        }
    }

    private static void answer(Exchange exchange) {
        exchange.getIn().setHeader(
                RocketMQConstants.OVERRIDE_MESSAGE_KEY, exchange.getIn().getHeader(RocketMQConstants.KEY));
        exchange.getIn().setBody("answer to " + exchange.getIn().getBody(String.class));
    }

    static synchronized void print(String event, String body) {
        System.out.println("{\"event\":\"" + event + "\",\"body\":\"" + body + "\"}");
        System.out.flush();
    }
}
