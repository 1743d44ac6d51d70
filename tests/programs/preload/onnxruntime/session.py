"""A session of ONNX Runtime's TensorRT provider, which makes its IRuntime. The model's one node is left to the CPU."""

import numpy
import onnxruntime


def varint(n):
    return bytes([n & 127 | 128]) + varint(n >> 7) if n > 127 else bytes([n])


def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def count(number, value):
    return varint(number << 3) + varint(value)


def value(name):
    shape = field(2, field(1, count(1, 1024)))
    return field(1, name) + field(2, field(1, count(1, 1) + shape))


node = field(1, b"x") + field(2, b"y") + field(4, b"Identity")
graph = field(1, node) + field(2, b"g") + field(11, value(b"x")) + field(12, value(b"y"))
model = count(1, 8) + field(7, graph) + field(8, field(1, b"") + count(2, 13))

options = {"trt_op_types_to_exclude": "Identity"}
providers = [("TensorrtExecutionProvider", options), "CPUExecutionProvider"]
session = onnxruntime.InferenceSession(model, providers=providers)
print(session.get_providers())
numbers = numpy.arange(1024, dtype=numpy.float32)
(result,) = session.run(None, {"x": numbers})
print((result == numbers).all())
