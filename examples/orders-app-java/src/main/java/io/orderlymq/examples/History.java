package io.orderlymq.examples;

import java.io.IOException;
import java.io.OutputStream;
import java.net.Socket;
import java.nio.charset.StandardCharsets;

/**
 * Reports events to the server of orders-app/history.py; an event is recorded when {@code record} returns.
 *
 * <p>Without an address nothing is reported.
 */
final class History {
    private final String host;
    private final int port;
    private final String process;
    private Socket socket;

    History(String address, String process) {
        int colon = address.lastIndexOf(':');
        this.host = colon < 0 ? "" : address.substring(0, colon);
        this.port = colon < 0 ? 0 : Integer.parseInt(address.substring(colon + 1));
        this.process = process;
    }

    /** Records one event that happens now; {@code facts} are name, value, name, value. */
    void record(String kind, Object... facts) {
        if (host.isEmpty()) {
            return;
        }
        // On Linux this is the monotonic clock, as in the Python application.
        StringBuilder line = new StringBuilder("{\"at\":").append(System.nanoTime());
        field(line, "kind", kind);
        field(line, "process", process);
        for (int i = 0; i < facts.length; i += 2) {
            field(line, (String) facts[i], facts[i + 1]);
        }
        send(line.append("}\n").toString().getBytes(StandardCharsets.UTF_8));
    }

    private static void field(StringBuilder line, String name, Object value) {
        line.append(",\"").append(name).append("\":");
        if (value instanceof Number) {
            line.append(value);
            return;
        }
        line.append('"');
        for (char c : String.valueOf(value).toCharArray()) {
            if (c == '"' || c == '\\') {
                line.append('\\').append(c);
            } else {
                line.append(c < 0x20 ? ' ' : c);
            }
        }
        line.append('"');
    }

    private synchronized void send(byte[] line) {
        while (true) {
            try {
                if (socket == null) {
                    socket = new Socket(host, port);
                    socket.setTcpNoDelay(true);
                }
                OutputStream out = socket.getOutputStream();
                out.write(line);
                out.flush();
                if (socket.getInputStream().read() < 0) {
                    throw new IOException("the history has closed");
                }
                return;
            } catch (IOException lost) {
                socket = null;
                pause(200);
            }
        }
    }

    static void pause(long milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }
}
