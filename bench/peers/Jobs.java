import java.time.Duration;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.locks.LockSupport;
import org.apache.flink.api.common.accumulators.Histogram;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.source.lib.NumberSequenceSource;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.util.Collector;

/**
 * The workloads w1, w2 and latency on Flink's DataStream interface, which is faster than its SQL.
 *
 * <p>Arguments: {@code job=w1|w2|latency keys=N rate=EVENTS_PER_SECOND}; every other one is a Flink option.
 */
public final class Jobs {
    private static final long SCATTER = 2_654_435_761L;
    /** More than any run gets through: the source never ends. */
    private static final long EVENTS = 1L << 40;

    private static final TypeInformation<Tuple3<Long, Long, Long>> THREE = Types.TUPLE(Types.LONG, Types.LONG, Types.LONG);

    private Jobs() {}

    public static void main(String[] arguments) throws Exception {
        Map<String, String> given = new TreeMap<>();
        for (String argument : arguments) {
            int equals = argument.indexOf('=');
            given.put(argument.substring(0, equals), argument.substring(equals + 1));
        }
        String job = given.remove("job");
        long keys = Long.parseLong(given.remove("keys"));
        double rate = Double.parseDouble(given.remove("rate"));
        Configuration options = new Configuration();
        given.forEach(options::setString);
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.getExecutionEnvironment(options);
        switch (job) {
            case "w1" -> totals(events(environment, keys)).sinkTo(new DiscardingSink<>());
            case "w2" -> windows(timed(events(environment, keys)), Duration.ofSeconds(10)).sinkTo(new DiscardingSink<>());
            case "latency" -> latency(environment, keys, rate).sinkTo(new DiscardingSink<>());
            default -> throw new IllegalArgumentException("no such job: " + job);
        }
        environment.execute(job);
    }

    /**
     * Every index once. The source deals its range out in halves; mapped to even and odd indices, both subtasks go
     * through event time together, as an interleaved source would.
     */
    private static DataStream<Long> indices(StreamExecutionEnvironment environment) {
        long half = EVENTS / 2;
        return environment
                .fromSource(new NumberSequenceSource(0, EVENTS - 1), WatermarkStrategy.noWatermarks(), "indices")
                .map(number -> number < half ? 2 * number : 2 * (number - half) + 1)
                .returns(Types.LONG);
    }

    /** Key, value, time in milliseconds. Indices stay below 2^32 in any run, so that the product does not overflow. */
    private static DataStream<Tuple3<Long, Long, Long>> events(StreamExecutionEnvironment environment, long keys) {
        return indices(environment)
                .map(index -> Tuple3.of(index * SCATTER % keys, index % 1000, index / 100))
                .returns(THREE);
    }

    private static DataStream<Tuple3<Long, Long, Long>> timed(DataStream<Tuple3<Long, Long, Long>> events) {
        return events.assignTimestampsAndWatermarks(
                WatermarkStrategy.<Tuple3<Long, Long, Long>>forMonotonousTimestamps()
                        .withTimestampAssigner((event, unused) -> event.f2));
    }

    private static DataStream<Tuple3<Long, Long, Long>> totals(DataStream<Tuple3<Long, Long, Long>> events) {
        return events.keyBy(event -> event.f0, Types.LONG).process(new Totals(), THREE);
    }

    /** Count and sum per key. The state's object is changed in place, which the hash map backend allows. */
    public static final class Totals
            extends KeyedProcessFunction<Long, Tuple3<Long, Long, Long>, Tuple3<Long, Long, Long>> {
        private transient ValueState<Tuple2<Long, Long>> totals;

        @Override
        public void open(OpenContext context) {
            totals = getRuntimeContext()
                    .getState(new ValueStateDescriptor<>("totals", Types.TUPLE(Types.LONG, Types.LONG)));
        }

        @Override
        public void processElement(
                Tuple3<Long, Long, Long> event, Context context, Collector<Tuple3<Long, Long, Long>> out)
                throws Exception {
            Tuple2<Long, Long> now = totals.value();
            if (now == null) {
                now = Tuple2.of(0L, 0L);
            }
            now.f0++;
            now.f1 += event.f1;
            totals.update(now);
            out.collect(Tuple3.of(event.f0, now.f0, now.f1));
        }
    }

    private static DataStream<Tuple3<Long, Long, Long>> windows(
            DataStream<Tuple3<Long, Long, Long>> events, Duration size) {
        return events.keyBy(event -> event.f0, Types.LONG)
                .window(TumblingEventTimeWindows.of(size))
                .aggregate(new CountAndSum(), THREE, THREE);
    }

    /** Key, count, sum. */
    public static final class CountAndSum
            implements AggregateFunction<
                    Tuple3<Long, Long, Long>, Tuple3<Long, Long, Long>, Tuple3<Long, Long, Long>> {
        @Override
        public Tuple3<Long, Long, Long> createAccumulator() {
            return Tuple3.of(0L, 0L, 0L);
        }

        @Override
        public Tuple3<Long, Long, Long> add(Tuple3<Long, Long, Long> event, Tuple3<Long, Long, Long> soFar) {
            soFar.f0 = event.f0;
            soFar.f1++;
            soFar.f2 += event.f1;
            return soFar;
        }

        @Override
        public Tuple3<Long, Long, Long> getResult(Tuple3<Long, Long, Long> soFar) {
            return soFar;
        }

        @Override
        public Tuple3<Long, Long, Long> merge(Tuple3<Long, Long, Long> one, Tuple3<Long, Long, Long> other) {
            one.f1 += other.f1;
            one.f2 += other.f2;
            return one;
        }
    }

    /**
     * w2 with windows of 100 ms, at a rate. What travels is key, creation time, event time; a window keeps the newest
     * creation time per key, and its age is taken when the window's row comes out.
     */
    private static DataStream<Integer> latency(StreamExecutionEnvironment environment, long keys, double rate) {
        DataStream<Tuple3<Long, Long, Long>> events =
                timed(indices(environment).map(new Created(keys, rate)).returns(THREE));
        return events.keyBy(event -> event.f0, Types.LONG)
                .window(TumblingEventTimeWindows.of(Duration.ofMillis(100)))
                .reduce((one, other) -> one.f1 >= other.f1 ? one : other)
                .map(new Ages())
                .returns(Types.INT);
    }

    /** An event is created when its turn comes at the set rate, whether the source was in time or not. */
    public static final class Created extends RichMapFunction<Long, Tuple3<Long, Long, Long>> {
        private final long keys;
        private final double rate;
        private transient long start;

        Created(long keys, double rate) {
            this.keys = keys;
            this.rate = rate;
        }

        @Override
        public Tuple3<Long, Long, Long> map(Long index) {
            if (start == 0) {
                start = System.currentTimeMillis() - (long) (index / rate * 1e3);
            }
            long created = start + (long) (index / rate * 1e3);
            while (System.currentTimeMillis() < created) {
                LockSupport.parkNanos(500_000);
            }
            return Tuple3.of(index * SCATTER % keys, created, index / 100);
        }
    }

    /** Counts ages by the millisecond, as an accumulator that the cluster tells over REST. */
    public static final class Ages extends RichMapFunction<Tuple3<Long, Long, Long>, Integer> {
        private static final int LONGEST = 60_000;
        private transient Histogram ages;

        @Override
        public void open(OpenContext context) {
            ages = new Histogram();
            getRuntimeContext().addAccumulator("ages", ages);
        }

        @Override
        public Integer map(Tuple3<Long, Long, Long> row) {
            int age = (int) Math.min(LONGEST, System.currentTimeMillis() - row.f1);
            ages.add(age);
            return age;
        }
    }
}
