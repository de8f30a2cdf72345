package io.orderlymq.bench;

import java.nio.ByteBuffer;
import java.util.Random;

/** A message of the bench: who sent it, as its how manieth, when; the rest does not compress. */
final class Body {
    static final int SMALLEST = 24;

    private final byte[] filling;

    Body(int size) {
        filling = new byte[Math.max(size, SMALLEST)];
        new Random(1).nextBytes(filling);
    }

    byte[] of(int sender, long sequence) {
        byte[] body = filling.clone();
        ByteBuffer.wrap(body).putLong(sender).putLong(sequence).putLong(System.nanoTime());
        return body;
    }

    static int sender(byte[] body) {
        return (int) ByteBuffer.wrap(body).getLong();
    }

    static long sequence(byte[] body) {
        return ByteBuffer.wrap(body).getLong(8);
    }

    static long sentAt(byte[] body) {
        return ByteBuffer.wrap(body).getLong(16);
    }
}
