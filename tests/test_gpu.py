"""On a CUDA device alone: our kernel, captured graphs, NVML's readings."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from gpu_probe import memory  # noqa: E402
from gpu_probe.check import Check, worst_error  # noqa: E402
from gpu_probe.device import Device, triton  # noqa: E402
from gpu_probe.loop import Server  # noqa: E402
from gpu_probe.models import SHAPES, Decoder  # noqa: E402
from sim.state import Limits  # noqa: E402
from sim.workload import Workload  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device answers"),
]


def test_the_kernel_gives_a_plain_forwards_logits():
    kernel = triton()
    if kernel is None:
        pytest.skip("Triton is not installed")
    torch.set_float32_matmul_precision("highest")
    assert worst_error("cuda", torch.float32, kernel, graphs=False) < 1e-5
    assert worst_error("cuda", torch.float32, kernel, graphs=True) < 1e-5


@pytest.mark.parametrize("graphs", [False, True])
def test_replayed_graphs_give_a_plain_forwards_logits(graphs):
    prompt, output = np.arange(3, 15), np.arange(4, 16)
    server = Server(Workload(np.zeros(12), prompt, output, output), "vllm_v1", Limits(8, 64))
    model = Decoder(SHAPES["tiny"], device="cuda", longest=64)
    device = Device(model, server, graphs=graphs, keep_logits=True)
    for _ in server.steps(device.forward, lambda: 0.0):
        pass
    assert device.worst_error(server) < 1e-5


def test_nvml_reads_the_card():
    card, why = memory.nvml()
    assert card, why
    assert card.read()["used"] > 0


@pytest.mark.parametrize("stage", ["ceilings", "correctness"])
def test_the_checks_first_stages_hold(stage):
    made = Check("cuda", "llama-3.1-8b", 60)
    getattr(made, stage)()
    assert all(verdict["holds"] for verdict in made.verdicts)
