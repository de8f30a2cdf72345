package io.orderlymq.clients;

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Runs mqadmin commands, one per line of standard input with tabs between the words, in one virtual
 * machine; each gives one event with all that the command printed.
 */
public final class Administering {
    private Administering() {}

    public static void run(Options options) throws Exception {
        BufferedReader lines =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream terminal = System.out;
        Report.event("ready");
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PrintStream captured = new PrintStream(printed, true, StandardCharsets.UTF_8);
            PrintStream errors = System.err;
            System.setOut(captured);
            System.setErr(captured);
            forget();
            try {
                MQAdminStartup.main0(line.split("\t", -1), null);
            } finally {
                System.setOut(terminal);
                System.setErr(errors);
            }
            Report.event("printed", "text", printed.toString(StandardCharsets.UTF_8));
        }
    }

    /**
     * Empties mqadmin's list of commands, which each start fills anew: the first of a name is taken,
     * and some keep the client that their last run has shut down.
     */
    private static void forget() throws IllegalAccessException {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (Modifier.isStatic(field.getModifiers()) && field.getType() == List.class) {
                field.setAccessible(true);
                ((List<?>) field.get(null)).clear();
            }
        }
    }
}
