"""Five things that processors do in one instruction and Numba has no word for.

`prefetch` asks for memory to be brought near before it is needed, without effect on any result: a lookup in a large
table waits for memory nearly all of its time, and where the addresses of many lookups are known ahead, the waits
overlap. `word_at` reads eight bytes at once, wherever they lie, and `put_word` writes them. `publish` keeps what is
read and written before it before what is written after it, in the eyes of other threads; `observe` keeps what is read
before it before all that follows.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_WRITE, _KEEP, _DATA = 1, 3, 1
_FLAG = ir.IntType(32)


def _address(context: Any, builder: Any, signature: Any, arguments: Any, pointer: Any) -> Any:
    """Of the item of a contiguous, one-dimensional array."""
    data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
    return builder.bitcast(builder.gep(data, [arguments[1]]), pointer)


def _prefetch(typing: Any, array: Any, index: Any) -> Any:
    """`prefetch(array, index)`: the item at that index will be changed soon. It need not be within the array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        function_type = ir.FunctionType(ir.VoidType(), [byte, _FLAG, _FLAG, _FLAG])
        function = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
            builder.module, function_type, "llvm.prefetch.p0i8"
        )
        flags = [ir.Constant(_FLAG, value) for value in (_WRITE, _KEEP, _DATA)]
        builder.call(function, [_address(context, builder, signature, arguments, byte), *flags])
        return context.get_dummy_value()

    return types.void(array, index), generate


def _word_at(typing: Any, array: Any, index: Any) -> Any:
    """`word_at(bytes, index)`: the eight bytes from there on, the first one lowest. All must be within the array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64).as_pointer()
        return builder.load(_address(context, builder, signature, arguments, word), align=1)

    return types.uint64(array, index), generate


def _put_word(typing: Any, array: Any, index: Any, word: Any) -> Any:
    """`put_word(bytes, index, word)`: puts its eight bytes there, the lowest first. All must be within the array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = ir.IntType(64).as_pointer()
        builder.store(arguments[2], _address(context, builder, signature, arguments, pointer), align=1)
        return context.get_dummy_value()

    return types.void(array, index, types.uint64), generate


def _publish(typing: Any) -> Any:
    """`publish()`: what was written so far is seen by whoever sees anything that is written later."""
    return _fence("release")


def _observe(typing: Any) -> Any:
    """`observe()`: what was published before anything that was read so far is seen by whatever is read later."""
    return _fence("acquire")


def _fence(order: str) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence(order)
        return context.get_dummy_value()

    return types.void(), generate


prefetch: Any = intrinsic(_prefetch)
publish: Any = intrinsic(_publish)
observe: Any = intrinsic(_observe)
put_word: Any = intrinsic(_put_word)
word_at: Any = intrinsic(_word_at)
