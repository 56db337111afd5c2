"""How summaries travel: buckets of bytes with a manifest, and the codecs of the tensors in them."""

from fedforget.codecs.buckets import BUCKET_BYTES, RAW, Bucket
from fedforget.codecs.instructions import Instruction, instructions, needed_share
from fedforget.codecs.manifest import CODECS
from fedforget.codecs.packing import DECODED_LIMIT, pack, unpack
from fedforget.codecs.traffic import traffic

__all__ = [
    "BUCKET_BYTES",
    "CODECS",
    "DECODED_LIMIT",
    "RAW",
    "Bucket",
    "Instruction",
    "instructions",
    "needed_share",
    "pack",
    "traffic",
    "unpack",
]
