package io.orderlymq.clients;

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.locks.LockSupport;
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
        hasten(Thread.currentThread());
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
     * Wakes the thread for which the shutdown of a 5.x client waits. Otherwise each command would end up to
     * three seconds later, when that thread stops waiting for events.
     */
    private static void hasten(Thread main) {
        Thread waker = new Thread(() -> {
            while (main.isAlive()) {
                if (isShuttingDown(main)) {
                    for (Thread each : Thread.getAllStackTraces().keySet()) {
                        if (each.getName().contains("NettyEventExecutor")) {
                            each.interrupt();
                        }
                    }
                }
                LockSupport.parkNanos(100_000_000);
            }
        });
        waker.setDaemon(true);
        waker.start();
    }

    private static boolean isShuttingDown(Thread main) {
        for (StackTraceElement frame : main.getStackTrace()) {
            if (frame.getClassName().endsWith(".ServiceThread")
                    && frame.getMethodName().equals("shutdown")) {
                return true;
            }
        }
        return false;
    }

    /**
     * Empties mqadmin's list of commands, which each start fills again. The first command of a name is used,
     * and some commands keep the client that their last run has shut down.
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
