package io.orderlymq.bench;

import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;

/** The cheapest client of the remoting protocol: frames written by hand, a few connections shared by all threads. */
final class WireTarget extends RocketTarget {
    private static final int CONNECTIONS = 4;

    private final String address;
    private final Line[] lines = new Line[CONNECTIONS];

    WireTarget(String servers, String address) {
        super(servers);
        this.address = address;
    }

    @Override
    public Sender sender(String topic, int number) {
        return new Sender() {
            private final AtomicInteger sent = new AtomicInteger();

            @Override
            public void send(int queue, byte[] body) throws Exception {
                line(number).call(header(topic, number, queue, sent.incrementAndGet()), body);
            }

            @Override
            public void sendBatch(int queue, List<byte[]> bodies) {
                throw new UnsupportedOperationException("batches are measured with the client itself");
            }
        };
    }

    private Line line(int number) throws IOException {
        synchronized (lines) {
            int slot = number % CONNECTIONS;
            if (lines[slot] == null || lines[slot].broken) {
                lines[slot] = new Line(address);
            }
            return lines[slot];
        }
    }

    private static String header(String topic, int sender, int queue, int number) {
        return "{\"code\":310,\"extFields\":{\"a\":\"bench-producers\",\"b\":\"" + topic
                + "\",\"c\":\"TBW102\",\"d\":\"4\",\"e\":\"" + queue + "\",\"f\":\"0\",\"g\":\""
                + System.currentTimeMillis()
                + "\",\"h\":\"0\",\"i\":\"KEYS\\u0001s" + sender + "\\u0002UNIQ_KEY\\u0001"
                + String.format("%016X%08X%08X", System.nanoTime(), sender, number)
                + "\\u0002WAIT\\u0001true\\u0002TAGS\\u0001bench\",\"j\":\"0\",\"k\":\"false\",\"m\":\"false\"},"
                + "\"flag\":0,\"language\":\"JAVA\",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":409,\"opaque\":";
    }

    /** One connection; answers find their callers by the opaque number. */
    private static final class Line extends Thread {
        private static final byte[] OPAQUE = "\"opaque\":".getBytes(StandardCharsets.US_ASCII);
        private static final byte[] CODE = "\"code\":".getBytes(StandardCharsets.US_ASCII);

        private final Socket socket;
        private final OutputStream out;
        private final Map<Integer, CompletableFuture<Integer>> waiting = new ConcurrentHashMap<>();
        private final AtomicInteger numbers = new AtomicInteger();
        volatile boolean broken;

        Line(String address) throws IOException {
            String[] parts = address.split(":");
            socket = new Socket(parts[0], Integer.parseInt(parts[1]));
            socket.setTcpNoDelay(true);
            out = socket.getOutputStream();
            setDaemon(true);
            start();
        }

        void call(String header, byte[] body) throws Exception {
            int opaque = numbers.incrementAndGet();
            byte[] head = (header + opaque + "}").getBytes(StandardCharsets.US_ASCII);
            byte[] frame = ByteBuffer.allocate(8 + head.length + body.length).putInt(4 + head.length + body.length)
                    .putInt(head.length).put(head).put(body).array();
            CompletableFuture<Integer> answer = new CompletableFuture<>();
            waiting.put(opaque, answer);
            synchronized (out) {
                out.write(frame);
            }
            if (broken) {
                throw new IOException("connection lost");
            }
            int code = answer.get();
            if (code != 0) {
                throw new IOException("refused with code " + code);
            }
        }

        @Override
        public void run() {
            try (DataInputStream in = new DataInputStream(new BufferedInputStream(socket.getInputStream(), 1 << 16))) {
                while (true) {
                    byte[] frame = new byte[in.readInt()];
                    in.readFully(frame);
                    CompletableFuture<Integer> answer = waiting.remove(number(frame, OPAQUE));
                    if (answer != null) {
                        answer.complete(number(frame, CODE));
                    }
                }
            } catch (IOException error) {
                broken = true;
                waiting.values().forEach(each -> each.completeExceptionally(error));
            }
        }

        private static int number(byte[] frame, byte[] name) {
            for (int at = 0; at + name.length < frame.length; at++) {
                int same = 0;
                while (same < name.length && frame[at + same] == name[same]) {
                    same++;
                }
                if (same == name.length) {
                    int found = 0;
                    for (int digit = at + same; frame[digit] >= '0' && frame[digit] <= '9'; digit++) {
                        found = found * 10 + frame[digit] - '0';
                    }
                    return found;
                }
            }
            throw new IllegalStateException("no number in " + new String(frame, StandardCharsets.UTF_8));
        }
    }
}
