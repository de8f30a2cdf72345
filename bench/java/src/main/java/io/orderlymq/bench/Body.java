package io.orderlymq.bench;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.Random;

/**
 * A message of the bench: who sent it, as its how manieth, when; the rest does not compress.
 *
 * <p>Nor does it repeat: a broker that compresses many messages at once gains nothing by seeing the same bytes again.
 */
final class Body {
    static final int SMALLEST = 24;

    private static final byte[] NOISE = new byte[16 << 20];
    private static final long SCATTER = 0x9E3779B97F4A7C15L; // an odd number: no two of many sequences fall together

    static {
        new Random(1).nextBytes(NOISE);
    }

    private final int size;

    Body(int size) {
        this.size = Math.max(size, SMALLEST);
    }

    byte[] of(int sender, long sequence) {
        int at = (int) Long.remainderUnsigned((sequence << 8 | sender & 0xFF) * SCATTER, NOISE.length - size);
        byte[] body = Arrays.copyOfRange(NOISE, at, at + size);
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
