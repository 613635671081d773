"""w3 on PyFlink: per key (count, last value); puts out (key, count) when a value falls.

Arguments: `keys=N values=N`; every other one is a Flink option. The events are made in the JVM, by SQL over a sequence,
so that Python has only the function itself to do, and the selection of the key that PyFlink puts before the exchange.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from common import SCATTER
from pyflink.common import Configuration, Types
from pyflink.datastream import DataStream, KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import ValueStateDescriptor
from pyflink.java_gateway import get_gateway
from pyflink.table import StreamTableEnvironment

EVENTS = 1 << 32


class Falls(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self._seen = runtime_context.get_state(ValueStateDescriptor("seen", Types.TUPLE([Types.LONG(), Types.LONG()])))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[int, int]]:
        key, number = value
        seen = self._seen.value()
        count, last = (0, -1) if seen is None else seen
        self._seen.update((count + 1, number))
        if number < last:
            yield key, count + 1


def main() -> None:
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    keys, values = int(given.pop("keys")), int(given.pop("values"))
    options = Configuration()
    for key, value in given.items():
        options.set_string(key, value)
    environment = StreamExecutionEnvironment.get_execution_environment(options)
    tables = StreamTableEnvironment.create(environment)
    jvm = get_gateway().jvm
    sequence = jvm.org.apache.flink.api.connector.source.lib.NumberSequenceSource(0, EVENTS - 1)
    no_time = jvm.org.apache.flink.api.common.eventtime.WatermarkStrategy.noWatermarks()
    indices = DataStream(environment._j_stream_execution_environment.fromSource(sequence, no_time, "indices"))
    tables.create_temporary_view("indices", tables.from_data_stream(indices).alias("i"))
    events = tables.sql_query(
        f"SELECT CAST(MOD(i * {SCATTER}, {keys}) AS BIGINT), CAST(MOD(i, {values}) AS BIGINT) FROM indices"
    )
    falls = (
        tables.to_data_stream(events)
        .key_by(lambda row: row[0], key_type=Types.LONG())
        .process(Falls(), output_type=Types.TUPLE([Types.LONG(), Types.LONG()]))
    )
    falls._j_data_stream.sinkTo(jvm.org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink())
    environment.execute("w3")


if __name__ == "__main__":
    main()
