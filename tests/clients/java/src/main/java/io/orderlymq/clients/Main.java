package io.orderlymq.clients;

/** Starts one of the small programs; every result is one JSON object per line on standard output. */
public final class Main {
    private Main() {}

    public static void main(String[] arguments) throws Exception {
        Options options = Options.parse(arguments, 1);
        switch (arguments[0]) {
            case "send" -> Sending.run(options);
            case "consume" -> Consuming.run(options);
            case "pull" -> Pulling.pull(options);
            case "lite-pull" -> Pulling.litePull(options);
            case "query" -> Querying.run(options);
            case "hash" -> Querying.hash(options);
            case "guarding" -> Guarding.run(options);
            default -> throw new IllegalArgumentException("no program " + arguments[0]);
        }
        // The clients leave non-daemon threads behind when they are shut down under load.
        System.exit(0);
    }
}
