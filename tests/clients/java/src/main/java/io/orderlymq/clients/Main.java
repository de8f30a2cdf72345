package io.orderlymq.clients;

/** Starts one of the small programs; every result is one JSON object per line on standard output. */
public final class Main {
    private Main() {}

    public static void main(String[] arguments) {
        try {
            run(arguments);
        } catch (Exception failure) {
            // A client that failed to start leaves non-daemon threads, which would keep the process alive.
            failure.printStackTrace();
            System.exit(1);
        }
        // Clients that are shut down under load leave such threads, too.
        System.exit(0);
    }

    private static void run(String[] arguments) throws Exception {
        Options options = Options.parse(arguments, 1);
        switch (arguments[0]) {
            case "send" -> Sending.run(options);
            case "consume" -> Consuming.run(options);
            case "pull" -> Pulling.pull(options);
            case "transact" -> Transacting.run(options);
            case "query" -> Querying.run(options);
            case "hash" -> Querying.hash(options);
            case "administer" -> later("Administering", options);
            case "guarding" -> later("Guarding", options);
            case "lite-pull" -> later("since46.LitePulling", options);
            case "request" -> later("since46.Requesting", options);
            case "reply" -> later("since46.Replying", options);
            default -> throw new IllegalArgumentException("no program " + arguments[0]);
        }
    }

    /** Runs a program that the oldest clients cannot have, so that this class compiles without it. */
    private static void later(String program, Options options) throws Exception {
        Class<?> found = Class.forName("io.orderlymq.clients." + program);
        found.getDeclaredMethod("run", Options.class).invoke(null, options);
    }
}
