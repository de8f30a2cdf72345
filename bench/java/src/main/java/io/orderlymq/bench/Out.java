package io.orderlymq.bench;

import java.util.Collection;
import java.util.Map;
import java.util.StringJoiner;

/** What the program says: one JSON object per line on standard output. */
final class Out {
    private Out() {}

    /** Prints an event with members given as name, value, name, value. */
    static void event(String name, Object... members) {
        StringJoiner json = new StringJoiner(",", "{", "}");
        json.add("\"event\":" + text(name));
        json.add("\"ns\":" + System.nanoTime()); // CLOCK_MONOTONIC, as the driver reads it
        for (int each = 0; each < members.length; each += 2) {
            json.add(text((String) members[each]) + ":" + text(members[each + 1]));
        }
        synchronized (System.out) {
            System.out.println(json);
            System.out.flush();
        }
    }

    private static String text(Object value) {
        if (value instanceof Number || value instanceof Boolean) {
            return value.toString();
        }
        if (value instanceof Collection<?> many) {
            StringJoiner json = new StringJoiner(",", "[", "]");
            many.forEach(each -> json.add(text(each)));
            return json.toString();
        }
        if (value instanceof Map<?, ?> map) {
            StringJoiner json = new StringJoiner(",", "{", "}");
            map.forEach((key, each) -> json.add(text(key.toString()) + ":" + text(each)));
            return json.toString();
        }
        StringBuilder quoted = new StringBuilder("\"");
        for (char each : String.valueOf(value).toCharArray()) {
            if (each == '"' || each == '\\') {
                quoted.append('\\').append(each);
            } else {
                quoted.append(each < ' ' ? ' ' : each);
            }
        }
        return quoted.append('"').toString();
    }

    static void sleep(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }
}
