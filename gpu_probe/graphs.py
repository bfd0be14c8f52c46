"""Steps that only decode, over static buffers: on CUDA a captured graph for each number of rows.

Whatever changes from step to step is read from one integer buffer on the device, filled by a single
copy; the token is written back on the device. Rows that pad a bucket belong to a spare request and
write to a spare block. On a CPU the same code runs without capture.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from torch import Tensor

from .batch import Batch, BlockTable, Plan, say
from .models import Decoder

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


def on_cuda(device: torch.device) -> bool:
    return device.type == "cuda"


@cache
def side() -> torch.cuda.Stream:
    """Where graphs are captured. One: what cuBLAS takes for itself on a stream is never freed."""
    return torch.cuda.Stream()


class DecodeGraph:
    """One bucket: up to `rows` requests a step."""

    def __init__(
        self, model: Decoder, ids: Tensor, cache: Tensor, width: int, rows: int, share=None
    ):
        """width: blocks of a row of the table; share: the memory of graphs captured before."""
        self.model, self.ids, self.cache, self.rows, self.share = model, ids, cache, rows, share
        cuda = on_cuda(model.device)
        size = rows * (4 + width)
        self.host = torch.zeros(size, dtype=torch.int64, pin_memory=cuda)
        self.buffer = torch.zeros(size, dtype=torch.int64, device=model.device)
        self.idle()
        self.buffer.copy_(self.host)
        self.first = torch.arange(rows + 1, device=model.device)
        self.tiles = torch.stack((self.first[:-1], self.first.new_zeros(rows)))
        self.replay: Callable[[], object] = self.capture() if cuda else self.compute

    def parts(self, buffer):
        """(owner, position, slot, length; each (rows,)), and the table."""
        return buffer[: 4 * self.rows].reshape(4, -1), buffer[4 * self.rows :].reshape(
            self.rows, -1
        )

    def idle(self) -> tuple[np.ndarray, np.ndarray]:
        """Every row is the spare request's first token, in the spare block."""
        block_size, spare = self.cache.shape[3], self.cache.shape[2] - 1
        columns, table = self.parts(self.host.numpy())
        columns[:] = np.array([len(self.ids) - 1, 0, spare * block_size, 1])[:, None]
        table[:] = spare
        return columns, table

    def compute(self) -> None:
        (owner, position, slot, length), table = self.parts(self.buffer)
        batch = Batch(
            self.rows, [], owner, position, slot, self.first[:-1], table, length, self.first,
            self.tiles, [(0, self.rows, table.shape[1])],
        )  # fmt: skip

        x = self.model.hidden(
            self.ids[owner, position], position, self.model.over_pages(self.cache, batch)
        )
        self.logits = self.model.logits(x)
        say(self.ids, owner, position + 1, self.logits)

    def capture(self) -> Callable[[], None]:
        stream, main = side(), torch.cuda.current_stream()
        stream.wait_stream(main)
        with torch.cuda.stream(stream):  # kernels load and cuBLAS takes its workspace outside
            for _ in range(2):
                self.compute()
        main.wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Another thread samples memory meanwhile: its calls are no part of the capture.
        with torch.cuda.graph(
            graph, pool=self.share, stream=stream, capture_error_mode="thread_local"
        ):
            self.compute()
        self.share = graph.pool()
        return graph.replay

    @torch.inference_mode()
    def step(self, requests: np.ndarray, position: np.ndarray, slot: np.ndarray, table) -> Tensor:
        """Logits of the requests, valid until the next step."""
        n = len(requests)
        columns, blocks = self.idle()
        columns[:, :n] = requests, position, slot, position + 1
        blocks[:n] = table
        self.buffer.copy_(self.host, non_blocking=True)
        self.replay()
        return self.logits[:n]


class DecodeGraphs:
    """The buckets up to so many rows. The largest comes first: the others fit into its memory."""

    def __init__(self, model: Decoder, ids: Tensor, cache: Tensor, table: BlockTable, most: int):
        """ids: (requests and a spare one, tokens); cache: with a spare block at its end."""
        self.table, self.graphs, share = table, {}, None
        top = next((b for b in BUCKETS if b >= most), most)
        for rows in sorted({b for b in BUCKETS if b < top} | {top}, reverse=True):
            graph = DecodeGraph(model, ids, cache, table.ids.shape[1], rows, share)
            self.graphs[rows], share = graph, graph.share
        self.buckets = sorted(self.graphs)

    def step(self, plan: Plan) -> Tensor:
        """Logits of a plan that only decodes."""
        graph = self.graphs[next(b for b in self.buckets if b >= len(plan.rows))]
        slot = self.table.slots(plan.rows, plan.start)
        return graph.step(plan.rows, plan.start, slot, self.table.ids[plan.rows])
