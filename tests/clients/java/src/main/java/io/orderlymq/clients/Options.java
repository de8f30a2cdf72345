package io.orderlymq.clients;

import java.util.HashMap;
import java.util.Map;

/** Options given as name=value words. */
public final class Options {
    private final Map<String, String> values = new HashMap<>();

    public static Options parse(String[] words, int from) {
        Options options = new Options();
        for (int i = from; i < words.length; i++) {
            int equals = words[i].indexOf('=');
            if (equals < 0) {
                throw new IllegalArgumentException("write " + words[i] + " as name=value");
            }
            options.values.put(words[i].substring(0, equals), words[i].substring(equals + 1));
        }
        return options;
    }

    public String text(String name) {
        String value = values.get(name);
        if (value == null) {
            throw new IllegalArgumentException("option " + name + " is missing");
        }
        return value;
    }

    public String text(String name, String otherwise) {
        return values.getOrDefault(name, otherwise);
    }

    public int number(String name, int otherwise) {
        return values.containsKey(name) ? Integer.parseInt(values.get(name)) : otherwise;
    }

    public boolean flag(String name) {
        return Boolean.parseBoolean(values.getOrDefault(name, "false"));
    }
}
