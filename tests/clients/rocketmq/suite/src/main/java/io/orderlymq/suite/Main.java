package io.orderlymq.suite;

import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/** Runs test classes one after the other and prints one JSON object for each test. */
public final class Main {
    private Main() {}

    public static void main(String[] classes) {
        JUnitCore core = new JUnitCore();
        core.addListener(new Report());
        for (String each : classes) {
            try {
                core.run(Class.forName(each));
            } catch (ClassNotFoundException error) {
                say("failed", each, "there is no such class");
            }
        }
        // Clients that a test forgot must not keep the process alive.
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static synchronized void say(String event, String test, String why) {
        System.out.println(
                "{\"event\": \"" + event + "\", \"test\": \"" + quoted(test) + "\", \"why\": \"" + quoted(why) + "\"}");
    }

    private static String quoted(String text) {
        StringBuilder quoted = new StringBuilder();
        for (char each : text.toCharArray()) {
            if (each == '"' || each == '\\') {
                quoted.append('\\').append(each);
            } else if (each < ' ') {
                quoted.append(' ');
            } else {
                quoted.append(each);
            }
        }
        return quoted.toString();
    }

    private static final class Report extends RunListener {
        private boolean failed;
        private long began;

        @Override
        public void testStarted(Description test) {
            failed = false;
            began = System.currentTimeMillis();
        }

        @Override
        public void testFailure(Failure failure) {
            failed = true;
            String trace = failure.getTrace();
            say("failed", failure.getTestHeader(), trace.substring(0, Math.min(1500, trace.length())));
        }

        @Override
        public void testAssumptionFailure(Failure failure) {
            failed = true;
            say("left-out", failure.getTestHeader(), String.valueOf(failure.getMessage()));
        }

        @Override
        public void testIgnored(Description test) {
            say("left-out", test.getDisplayName(), "ignored by its authors");
        }

        @Override
        public void testFinished(Description test) {
            if (!failed) {
                say("passed", test.getDisplayName(), (System.currentTimeMillis() - began) + " ms");
            }
        }
    }
}
