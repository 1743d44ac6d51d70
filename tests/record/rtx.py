"""Builds a plan with TensorRT-RTX's bindings, and makes an engine and a context of it where there is a GPU."""

import tensorrt_rtx_bindings as trt

logger = trt.Logger(trt.Logger.INTERNAL_ERROR)


def build_a_plan():
    builder = trt.Builder(logger)
    network, config = builder.create_network(0), builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM89, 0)
    tensor = network.add_input("input", trt.float32, (4, 8))
    network.mark_output(network.add_activation(tensor, trt.ActivationType.RELU).get_output(0))
    return builder.build_serialized_network(network, config)


def load_the_plan(runtime, plan):
    return runtime.deserialize_cuda_engine(plan)


def create_a_context(engine):
    return engine.create_execution_context()


runtime = trt.Runtime(logger)
plan = build_a_plan()
assert plan.nbytes > 1000
print("a plan")
engine = load_the_plan(runtime, plan)
if engine:
    print("an engine")
    create_a_context(engine)
