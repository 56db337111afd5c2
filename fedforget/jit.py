"""What numba's kernels share: how they are compiled, and how they reinterpret bits and addresses."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def compiled(signature: str | None = None) -> Callable[[F], F]:
    """Compile a function, at once for a signature; without a fast-math flag nothing is reordered.

    Division is NumPy's: a test for zero in every step would keep a loop from becoming vector code.
    """
    import numba

    return cast(Callable[[F], F], numba.njit(signature, nogil=True, error_model="numpy"))


@cache
def as_float() -> Any:
    """Return a function for kernels: the fp32 number with the bits of a uint32."""
    import numba
    from llvmlite import ir
    from numba.extending import intrinsic

    def reinterpret(context: Any, bits: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], ir.FloatType())

        return numba.float32(numba.uint32), generate

    return intrinsic(reinterpret)


@cache
def array_at(kind: str) -> Any:
    """Return a function for kernels: ``(address, n)`` to the array of ``n`` numbers that lies there."""
    import numba
    from numba.extending import intrinsic

    pointer: Any = numba.types.CPointer
    carray: Any = vars(numba)["carray"]  # not among what its types export

    def at(context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return pointer(getattr(numba, kind))(numba.int64), generate

    pointer_at: Any = intrinsic(at)

    @compiled()
    def array(address: Any, n: Any) -> Any:
        return carray(pointer_at(address), n)

    return array
