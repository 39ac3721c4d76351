package peer;

import java.util.Map;

/** Durations in classes that are a 128th wide, or a nanosecond. Not to be used by two threads at a time. */
final class Histogram {
    private static final int STEPS_LOG2 = 7;
    private static final int STEPS = 1 << STEPS_LOG2;

    private final long[] counts = new long[(64 - STEPS_LOG2 + 1) << STEPS_LOG2];
    private long count;

    void add(long nanos) {
        counts[place(nanos)]++;
        count++;
    }

    long count() {
        return count;
    }

    Map<String, Double> microseconds() {
        return Map.of("p50_us", quantile(0.5), "p99_us", quantile(0.99), "p999_us", quantile(0.999));
    }

    private static int place(long nanos) {
        int shift = Math.max(0, 63 - Long.numberOfLeadingZeros(nanos | 1) - STEPS_LOG2);
        return (shift << STEPS_LOG2) + (int) (nanos >>> shift);
    }

    private double quantile(double share) {
        long seen = 0;
        for (int place = 0; place < counts.length; place++) {
            seen += counts[place];
            if (seen > count * share) {
                return least(place) / 1e3;
            }
        }
        throw new IllegalStateException("no entry was confirmed while it was measured");
    }

    /** The inverse of `place`: the shortest duration that is counted there. */
    private static double least(int place) {
        int shift = Math.max(0, (place >>> STEPS_LOG2) - 1);
        return (double) ((long) (place - (shift << STEPS_LOG2)) << shift);
    }
}
