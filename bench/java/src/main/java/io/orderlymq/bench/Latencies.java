package io.orderlymq.bench;

import java.util.Arrays;
import java.util.Map;
import java.util.TreeMap;

/** Durations counted in buckets of 0.7 %, so that a run of any length can be handed over whole. */
final class Latencies {
    /** Buckets per doubling; bench/report/figures.py turns bucket numbers back into times. */
    private static final int PER_OCTAVE = 100;

    private final int[] counts = new int[PER_OCTAVE * 48];

    void add(long nanos) {
        int bucket = (int) (Math.log(Math.max(1, nanos)) / Math.log(2) * PER_OCTAVE);
        counts[Math.min(bucket, counts.length - 1)]++;
    }

    void add(Latencies other) {
        for (int each = 0; each < counts.length; each++) {
            counts[each] += other.counts[each];
        }
    }

    void clear() {
        Arrays.fill(counts, 0);
    }

    Map<Integer, Integer> buckets() {
        Map<Integer, Integer> found = new TreeMap<>();
        for (int each = 0; each < counts.length; each++) {
            if (counts[each] > 0) {
                found.put(each, counts[each]);
            }
        }
        return found;
    }
}
