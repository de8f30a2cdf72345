package io.orderlymq.bench;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * The load program: commands on standard input, one JSON object per line on standard output.
 *
 * <p>java io.orderlymq.bench.Main client=rocketmq servers=127.0.0.1:9876
 */
public final class Main {
    private final Target target;
    private final Map<String, Members> groups = new HashMap<>();
    private final ByKey byKey;
    private Retrying retrying;

    private Main(Target target) {
        this.target = target;
        byKey = new ByKey(target);
    }

    public static void main(String[] arguments) throws Exception {
        Words words = new Words("main " + String.join(" ", arguments));
        Main main = new Main(open(words.text("client"), words.text("servers"), words.text("address", "")));
        Out.event("started");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            try {
                main.obey(new Words(line));
            } catch (Throwable error) {
                Out.event("failed", "command", line, "reason", error.toString());
            }
        }
        Runtime.getRuntime().halt(0); // no farewell: the driver stops the cluster when it likes
    }

    private static Target open(String client, String servers, String address) {
        return switch (client) {
            case "rocketmq" -> new RocketTarget(servers);
            case "wire" -> new WireTarget(servers, address);
            case "kafka" -> new KafkaTarget(servers);
            case "nats" -> new NatsTarget(servers);
            case "rabbitmq" -> new RabbitTarget(servers);
            default -> throw new IllegalArgumentException("no client " + client);
        };
    }

    private void obey(Words words) throws Exception {
        switch (words.verb) {
            case "ready" -> ready(words.text("topic"), words.number("queues"), words.number("timeout"));
            case "topic" -> {
                target.createTopic(words.text("topic"), words.number("queues"));
                Out.event("done");
            }
            case "send" -> new Sending(target, words).timed(words.number("senders"), words.decimal("warm"),
                    words.decimal("seconds"), tally(words.text("group", "")));
            case "fill" -> new Sending(target, words).fill(words.number("senders"), words.number("count"));
            case "leaders" -> Out.event("done", "leaders",
                    target.leaders(words.text("topic"), words.number("queues")));
            case "retry" -> {
                retrying = new Retrying(target, words.text("topic"), words.number("queues"), words.number("size"));
                Out.event("done");
            }
            case "recovered" -> Out.event("done", "recovered",
                    retrying.recovered(Long.parseLong(words.text("since")), words.number("timeout")),
                    "trouble", retrying.trouble());
            case "retried" -> {
                retrying.close();
                Out.event("done", "counts", retrying.counts());
            }
            case "key-topic", "key-send", "key-join", "key-leave" -> byKey.obey(words);
            default -> group(words);
        }
    }

    private void group(Words words) throws Exception {
        String name = words.text("group");
        switch (words.verb) {
            case "join" -> {
                Members members = groups.computeIfAbsent(name, any -> new Members());
                members.join(target, words);
                Out.event("done");
            }
            case "held" -> Out.event("done", "held", groups.get(name).held());
            case "gate" -> {
                groups.get(name).set(Gate.State.valueOf(words.text("state")));
                Out.event("done");
            }
            case "await" -> groups.get(name).await(words.number("count"), words.number("timeout"));
            case "first" -> groups.get(name).first(words.number("queue"), words.number("timeout"));
            case "leave" -> {
                groups.remove(name).close();
                Out.event("done");
            }
            default -> throw new IllegalArgumentException("no command " + words.verb);
        }
    }

    private Tally tally(String group) {
        return groups.containsKey(group) ? groups.get(group).tally : new Tally();
    }

    /** Makes a topic and sends to it until a send is acknowledged: the end of a start. */
    private void ready(String topic, int queues, int timeoutS) throws Exception {
        long deadline = System.nanoTime() + timeoutS * 1_000_000_000L;
        while (true) {
            try {
                target.createTopic(topic, queues);
                try (Target.Sender sender = target.sender(topic, 0)) {
                    sender.send(0, new Body(Body.SMALLEST).of(0, 0));
                }
                Out.event("done");
                return;
            } catch (Exception error) {
                if (System.nanoTime() > deadline) {
                    throw error;
                }
                Out.sleep(20);
            }
        }
    }

    /** The members of one group that live in this process. */
    private static final class Members implements AutoCloseable {
        final Tally tally = new Tally();
        private final List<Gate> gates = new ArrayList<>();
        private final List<AutoCloseable> members = new ArrayList<>();

        void join(Target target, Words words) throws Exception {
            int first = words.number("first", 0);
            int here = words.number("here", words.number("members"));
            for (int number = first; number < first + here; number++) {
                Gate gate = new Gate(tally);
                gates.add(gate);
                members.add(target.consume(new Target.Membership(words.text("topic"), words.text("group"),
                        words.number("queues"), number, words.number("members"),
                        words.text("strict", "false").equals("true")), gate));
            }
        }

        List<List<Integer>> held() {
            List<List<Integer>> found = new ArrayList<>();
            for (Gate gate : gates) {
                found.add(List.copyOf(gate.held()));
                gate.forget();
            }
            return found;
        }

        void set(Gate.State state) {
            if (state == Gate.State.OPEN) {
                tally.restart();
                Out.event("begin");
            }
            gates.forEach(gate -> gate.set(state));
        }

        void await(long count, int timeoutS) {
            long deadline = System.nanoTime() + timeoutS * 1_000_000_000L;
            while (tally.count() < count && System.nanoTime() < deadline) {
                Out.sleep(1);
            }
            Out.event("end");
            tally.report("done");
        }

        void first(int queue, int timeoutS) {
            long deadline = System.nanoTime() + timeoutS * 1_000_000_000L;
            while (tally.first(queue) == 0 && System.nanoTime() < deadline) {
                Out.sleep(1);
            }
            Out.event("done", "at", tally.first(queue));
        }

        @Override
        public void close() throws Exception {
            for (AutoCloseable member : members) {
                member.close();
            }
        }
    }
}
