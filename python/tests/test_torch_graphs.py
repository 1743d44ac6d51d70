"""PyTorch's graphs, MemPools, snapshots and history with the pool as PyTorch's allocator: what needs a CUDA runtime with captures,
and the allocator that use_for_torch() compiles.
"""

import textwrap

from conftest import needs

pytestmark = needs("torch")

START = """
    import gc, time, torch, trtalloc
    trtalloc.use_for_torch()
    torch.empty(1, device="cuda")
    MIB = 1 << 20

    def figure(name):
        return trtalloc.stats()[name]

    def captured(pool, sizes, stream=None):
        # A graph whose temporaries have these sizes in MiB, and their addresses.
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            kept = [torch.zeros(size * MIB, dtype=torch.uint8, device="cuda") for size in sizes]
            addresses = [tensor.data_ptr() for tensor in kept]
            del kept
        return graph, addresses
"""


def program(text):
    return textwrap.dedent(START) + textwrap.dedent(text)


def test_graphs_of_one_pool_share_memory(over_graphs):
    over_graphs(
        program(
            """
            before = figure("reserved")
            pool = torch.cuda.graph_pool_handle()
            graphs = [captured(pool, (16, 16)) for _ in range(32)]
            assert 0 < figure("reserved") - before <= 32 * MIB, figure("reserved")
            assert len({tuple(sorted(addresses)) for _, addresses in graphs}) == 1
            for graph, _ in graphs:
                graph.replay()

            # No other request gets the pool's memory, also on the stream of the captures.
            taken = set(graphs[0][1])
            with torch.cuda.stream(torch.cuda.graph.default_capture_stream):
                others = [torch.zeros(16 * MIB, dtype=torch.uint8, device="cuda") for _ in range(4)]
            assert not taken & {tensor.data_ptr() for tensor in others}
            # Nor does another pool.
            _, elsewhere = kept = captured(torch.cuda.graph_pool_handle(), (16, 16))
            assert not taken & set(elsewhere)
            del others, kept

            # The memory is free once the last graph is gone, and not before.
            last = graphs.pop()
            graphs.clear()
            gc.collect()
            assert any(segment["address"] in taken for segment in torch.cuda.memory_snapshot(pool))
            del last, graph
            torch.cuda.synchronize()
            assert torch.cuda.memory_snapshot(pool) == []
            for _ in range(100):
                torch.cuda.empty_cache()
                if figure("reserved") <= before:
                    break
                time.sleep(0.05)
            assert figure("reserved") <= before and figure("allocated") == 0
            """
        )
    )


def test_smaller_graphs_fit_into_the_memory_of_larger_ones(over_graphs):
    over_graphs(
        program(
            """
            pool = torch.cuda.graph_pool_handle()
            graphs = [captured(pool, (64, 32))]
            reserved = figure("reserved")
            graphs += [captured(pool, (size, size, size)) for size in (16, 8, 2)]
            assert figure("reserved") == reserved, (reserved, figure("reserved"))
            for _, addresses in graphs:
                assert len(set(addresses)) == len(addresses)
            # On another stream they get memory of their own: graphs of two streams may run side by side.
            _, elsewhere = other = captured(pool, (16,), torch.cuda.Stream())
            assert figure("reserved") == reserved + 16 * MIB
            """
        )
    )


def test_a_graphs_result_outlives_it(over_graphs):
    over_graphs(
        program(
            """
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                result = torch.zeros(16 * MIB, dtype=torch.uint8, device="cuda")
            graph.replay()
            address = result.data_ptr()
            del graph
            gc.collect()
            others = [torch.zeros(16 * MIB, dtype=torch.uint8, device="cuda") for _ in range(4)]
            assert address not in {tensor.data_ptr() for tensor in others}
            assert torch.cuda.memory_allocated() == 5 * 16 * MIB
            del result, others
            assert torch.cuda.memory_allocated() == 0 == figure("allocated")
            """
        )
    )


def test_live_blocks_never_overlap(over_graphs):
    """Random requests and frees in private pools and outside, in captures, nested contexts and on several streams."""
    over_graphs(
        program(
            """
            import random
            draw = random.Random(33)
            streams = [torch.cuda.Stream() for _ in range(3)]
            graph_pools = [torch.cuda.graph_pool_handle() for _ in range(3)]
            mem_pools = [torch.cuda.MemPool() for _ in range(3)]
            graphs, live, owners = [], {}, {}

            def check(tensor, pool):
                start, end = tensor.data_ptr(), tensor.data_ptr() + tensor.numel()
                for other, (first, last) in live.items():
                    assert end <= first or last <= start, "two live blocks overlap"
                live[tensor] = (start, end)
                owners[tensor] = pool

            def work(pool, count):
                for _ in range(count):
                    mine = [tensor for tensor, owner in owners.items() if owner is pool]
                    if mine and draw.random() < 0.5:
                        tensor = draw.choice(mine)
                        if draw.random() < 0.3:
                            tensor.record_stream(draw.choice(streams))
                        del live[tensor], owners[tensor]
                        del tensor
                        mine.clear()
                    else:
                        size = draw.choice((1, 600, 5000, MIB, 3 * MIB, 12 * MIB)) + draw.randrange(4000)
                        check(torch.zeros(size, dtype=torch.uint8, device="cuda"), pool)

            for _ in range(150):
                kind = draw.randrange(4)
                if kind == 0:
                    with torch.cuda.stream(draw.choice(streams)):
                        work(None, 8)
                elif kind == 1:
                    pool = draw.choice(graph_pools)
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(graph, pool=pool, stream=draw.choice(streams)):
                        torch.zeros(1, device="cuda")
                        work(pool, 8)
                    graphs.append(graph)
                elif kind == 2:
                    outer, inner = draw.sample(mem_pools, 2)
                    with torch.cuda.stream(draw.choice(streams)), torch.cuda.use_mem_pool(outer):
                        work(outer, 4)
                        with torch.cuda.use_mem_pool(inner):
                            work(inner, 4)
                        work(outer, 4)
                elif len(graphs) > 10:
                    graphs.remove(draw.choice(graphs))
                    if draw.random() < 0.2:
                        torch.cuda.synchronize()
                        torch.cuda.empty_cache()
            assert trtalloc.memory._snapshot() and sum(tensor.numel() for tensor in live) <= torch.cuda.memory_allocated()
            del graph
            graphs.clear(), live.clear(), owners.clear(), mem_pools.clear()
            outer = inner = None
            gc.collect()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            assert torch.cuda.memory_allocated() == 0 == figure("allocated"), torch.cuda.memory_allocated()
            """
        )
    )


def test_a_block_of_a_mem_pool_waits_for_other_streams(over_graphs):
    # Each kernel takes 0.2 s.
    over_graphs(
        program(
            """
            pool, stream = torch.cuda.MemPool(), torch.cuda.Stream()
            with torch.cuda.use_mem_pool(pool):
                tensor = torch.empty(16 * MIB, dtype=torch.uint8, device="cuda")
                address = tensor.data_ptr()
                torch.cuda.synchronize()
                with torch.cuda.stream(stream):
                    tensor.fill_(1)
                tensor.record_stream(stream)
                del tensor
                early = torch.empty(16 * MIB, dtype=torch.uint8, device="cuda")
                states = [block["state"] for segment in pool.snapshot() for block in segment["blocks"]]
                assert early.data_ptr() != address and "active_pending_free" in states, states
                torch.cuda.synchronize()
                late = torch.empty(16 * MIB, dtype=torch.uint8, device="cuda")
                assert late.data_ptr() == address
            """
        ),
        CUDASIM_KERNEL_US="200000",
    )


def test_a_block_used_by_another_stream_in_a_capture_is_not_reused_there(over_graphs):
    over_graphs(
        program(
            """
            pool, side = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                tensor = torch.zeros(16 * MIB, dtype=torch.uint8, device="cuda")
                address = tensor.data_ptr()
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    tensor.fill_(1)
                tensor.record_stream(side)
                del tensor
                assert torch.empty(16 * MIB, dtype=torch.uint8, device="cuda").data_ptr() != address
                torch.cuda.current_stream().wait_stream(side)
            _, addresses = captured(pool, (16, 16))
            assert address in addresses
            """
        )
    )


def test_torch_compile_captures_graphs(over_graphs):
    compiled = """
        import torch
        steps = []
        compiled = [torch.compile(function, backend="cudagraphs") for function in (
            lambda x: (x.sin().cos() + x) * x, lambda x: x.exp() * x)]
        x = torch.empty(512, 512, device="cuda")
        with torch.no_grad():
            for _ in range(6):
                torch.compiler.cudagraph_mark_step_begin()
                first = compiled[0](x)
                second = compiled[1](first)
                # Recorded after another path: the pool goes back to a checkpoint.
                third = compiled[0](second)
                kept = third.clone()
                del first
                torch.cuda.synchronize()
                steps.append(torch.cuda.memory_allocated())
        from torch._inductor.cudagraph_trees import get_container
        assert get_container(0).tree_manager.new_graph_id().id >= 3, "no graphs"
        print(steps)
    """
    theirs = over_graphs(textwrap.dedent(compiled)).stdout
    ours = over_graphs("import trtalloc; trtalloc.use_for_torch()\n" + textwrap.dedent(compiled)).stdout
    assert theirs == ours


def test_a_checkpoint_is_restored(over_graphs):
    over_graphs(
        program(
            """
            pool, device = torch.cuda.graph_pool_handle(), 0
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                kept = torch.zeros(3 * MIB, dtype=torch.uint8, device="cuda")
                gone = torch.zeros(4 * MIB, dtype=torch.uint8, device="cuda")
                small = torch.zeros(100, dtype=torch.uint8, device="cuda")
                del gone

            def blocks():
                segments = torch.cuda.memory_snapshot(pool)
                return [(b["address"], b["size"], b["state"]) for s in segments for b in s["blocks"]]

            addresses = {kept.data_ptr(), small.data_ptr()}
            assert torch._C._cuda_checkPoolLiveAllocations(device, pool, addresses)
            assert not torch._C._cuda_checkPoolLiveAllocations(device, pool, {kept.data_ptr()})
            state, before = torch._C._cuda_getCheckpointState(device, pool), blocks()
            more = torch.cuda.CUDAGraph()
            with torch.cuda.graph(more, pool=pool):
                later = torch.zeros(5 * MIB, dtype=torch.uint8, device="cuda")
                assert later.data_ptr() not in addresses
            assert blocks() != before
            stale = [tensor.untyped_storage()._cdata for tensor in (kept, small, later)]
            # As torch.compile's graphs make them: they do not own their memory yet.
            again = [
                torch._C._construct_storage_from_data_pointer(address, torch.device("cuda:0"), 100) for address in addresses
            ]
            torch._C._cuda_setCheckpointPoolState(device, state, stale, [storage._cdata for storage in again])
            assert blocks() == before, (before, blocks())
            del kept, small, later
            assert blocks() == before, "what the checkpoint took over was freed"
            del again
            assert {state for _, _, state in blocks()} == {"inactive"}
            """
        )
    )


def test_mem_pools_work_beside_it(over_graphs):
    over_graphs(
        program(
            """
            pool = trtalloc.torch_mem_pool()
            assert pool.use_count() == 1
            with torch.cuda.use_mem_pool(pool):
                assert pool.use_count() == 2
                inside = torch.empty(MIB, device="cuda")
            outside = torch.empty(MIB, device="cuda")
            segments = torch.cuda.memory_snapshot()
            kinds = {segment["segment_pool_id"] for segment in segments}
            assert kinds == {(0, 0), pool.id} and pool.snapshot() == [s for s in segments if s["segment_pool_id"] == pool.id]
            assert pool.snapshot()[0]["blocks"][0]["address"] == inside.data_ptr()
            # The end of a MemPool returns no other memory to the driver.
            free = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
            del free
            reserved = figure("reserved")
            del inside, pool
            assert figure("reserved") == reserved >= 64 * MIB
            assert torch.cuda.memory_allocated() == 4 * MIB == figure("allocated")

            # One that is used where memory has run out, and one that is not divided.
            last = trtalloc.torch_mem_pool(use_on_oom=True)
            with torch.cuda.use_mem_pool(last):
                torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")
            torch.cuda.empty_cache()
            trtalloc.set_limit(figure("reserved"))
            given = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
            assert last.snapshot()[0]["blocks"][0]["address"] == given.data_ptr()
            trtalloc.set_limit(0)
            whole = trtalloc.torch_mem_pool(no_split=True)
            with torch.cuda.use_mem_pool(whole):
                kept = [torch.empty(4 * MIB, dtype=torch.uint8, device="cuda") for _ in range(2)]
            assert [len(segment["blocks"]) for segment in whole.snapshot()] == [1, 1]
            del given, kept, last, whole
            """
        )
    )


def test_bytes_are_counted_in_total(over_graphs):
    over_graphs(
        program(
            """
            before = torch.cuda.memory_stats()
            kept = torch.empty(MIB, device="cuda")
            del kept
            graph, _ = captured(None, (2, 2))
            after = torch.cuda.memory_stats()
            for kind in ("active_bytes", "allocated_bytes"):
                for part in ("allocated", "freed"):
                    assert after[f"{kind}.all.{part}"] - before[f"{kind}.all.{part}"] == 8 * MIB, (kind, part)
            assert after["allocation.all.freed"] - before["allocation.all.freed"] == 3
            assert after["allocated_bytes.all.current"] == before["allocated_bytes.all.current"]
            torch.cuda.reset_accumulated_memory_stats()
            assert torch.cuda.memory_stats()["active_bytes.all.freed"] == 0
            """
        )
    )


def test_an_observer_is_called_when_memory_runs_out(over_graphs):
    over_graphs(
        program(
            """
            seen = []
            torch._C._cuda_attach_out_of_memory_observer(lambda *figures: seen.append(figures))
            try:
                torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError:
                pass
            device, allocated, total, free = seen[0]
            assert (device, allocated, len(seen)) == (0, 0, 1) and total >= free > 0
            """
        )
    )


def test_without_a_compiler_pytorch_allocates_from_the_pool_as_before(over_graphs):
    over_graphs(
        """
        import os, torch, trtalloc, warnings
        os.environ["CXX"] = "no-such-compiler"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trtalloc.use_for_torch()
        texts = [str(one.message) for one in caught if one.category is RuntimeWarning]
        assert len(texts) == 1 and "no-such-compiler" in texts[0] and "\\n" not in texts[0], texts
        kept = torch.empty(1 << 20, device="cuda")
        assert trtalloc.stats()["allocated"] == torch.cuda.memory_allocated() == 4 << 20
        try:
            trtalloc.torch_mem_pool()
        except RuntimeError as error:
            assert "compiles" in str(error), error
        else:
            raise SystemExit("no error")
        """
    )
