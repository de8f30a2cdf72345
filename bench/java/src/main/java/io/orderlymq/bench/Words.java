package io.orderlymq.bench;

import java.util.HashMap;
import java.util.Map;

/** One command: a verb and name=value words. */
final class Words {
    final String verb;
    private final Map<String, String> values = new HashMap<>();

    Words(String line) {
        String[] words = line.trim().split(" +");
        verb = words[0];
        for (int each = 1; each < words.length; each++) {
            int equals = words[each].indexOf('=');
            values.put(words[each].substring(0, equals), words[each].substring(equals + 1));
        }
    }

    String text(String name) {
        String value = values.get(name);
        if (value == null) {
            throw new IllegalArgumentException(verb + " needs " + name + "=");
        }
        return value;
    }

    String text(String name, String otherwise) {
        return values.getOrDefault(name, otherwise);
    }

    int number(String name) {
        return Integer.parseInt(text(name));
    }

    int number(String name, int otherwise) {
        return values.containsKey(name) ? number(name) : otherwise;
    }

    double decimal(String name) {
        return Double.parseDouble(text(name));
    }
}
