package io.orderlymq.clients;

/** Writes events as JSON lines, whole lines at a time, from any thread. */
public final class Report {
    private Report() {}

    /** Prints one event; {@code pairs} are name, value, name, value; numbers stay numbers. */
    public static void event(String kind, Object... pairs) {
        StringBuilder line = new StringBuilder("{\"event\":");
        quote(line, kind);
        line.append(",\"at\":").append(System.nanoTime());
        for (int i = 0; i < pairs.length; i += 2) {
            line.append(',');
            quote(line, (String) pairs[i]);
            line.append(':');
            Object value = pairs[i + 1];
            if (value == null || value instanceof Number || value instanceof Boolean) {
                line.append(value);
            } else {
                quote(line, value.toString());
            }
        }
        line.append('}');
        synchronized (Report.class) {
            System.out.println(line);
            System.out.flush();
        }
    }

    private static void quote(StringBuilder line, String text) {
        line.append('"');
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            if (c == '"' || c == '\\') {
                line.append('\\').append(c);
            } else if (c < 0x20) {
                line.append(String.format("\\u%04x", (int) c));
            } else {
                line.append(c);
            }
        }
        line.append('"');
    }
}
