"""What only a GPU can show: `make test-gpu`. Skipped without one; `TEST_DEVICE=cpu` goes through the same calls without."""
import os

import numpy as np
import pytest
import torch
from fastai.callback.core import Callback
from PIL import Image
from torch.utils.data import TensorDataset
from torchvision import models

from closed_loop import keep
from closed_loop.core import cli_estimate, cli_predict
from closed_loop.inputs import open_problem
from closed_loop.look import amp_dtype, in_precision, look

DEV = os.environ.get('TEST_DEVICE', 'cuda')
GPU = DEV != 'cpu'
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(GPU and not torch.cuda.is_available(), reason='torch finds no GPU')]
FEW = dict(eps=1., K=3, Q=2, epochs=2, bs=16, rule='conditional', device=DEV, progress=False)
KINDS = dict(full=None, bf16=torch.bfloat16, fp16=torch.float16)


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
    "Six classes of noisy colours as JPEG files of several sizes"
    root, rng = tmp_path_factory.mktemp('images'), np.random.default_rng(0)
    for part, n in (('train', 24), ('val', 6)):
        for c in range(6):
            (root/part/f'c{c}').mkdir(parents=True)
            for i in range(n):
                x = rng.integers(0, 90, (150+8*(i % 4), 180, 3)) + 25*np.array([c, 5-c, c % 3])
                Image.fromarray(x.astype('uint8')).save(root/part/f'c{c}'/f'{i}.jpg')
    return root/'train', root/'val'


@pytest.fixture
def net():
    torch.manual_seed(0)
    return models.resnet18(num_classes=6).eval()


@pytest.fixture
def tensors():
    g = torch.Generator().manual_seed(0)
    y = torch.arange(120) % 6
    x = torch.randn(120, 3, 64, 64, generator=g)+y[:, None, None, None]/3
    return TensorDataset(x[:90], y[:90]), TensorDataset(x[90:], y[90:])


def state(net): return {k: (v.clone(), v.device, v.stride()) for k, v in net.state_dict().items()}


def same_state(net, before):
    "Every bit, on the device and in the memory format it had"
    return all(torch.equal(v, before[k][0]) and (v.device, v.stride()) == before[k][1:] for k, v in net.state_dict().items())


@pytest.mark.parametrize('preset', ['default', 'thorough', 'paper'])
@pytest.mark.parametrize('num_workers', [0, 2])
def test_folders(folders, net, preset, num_workers):
    "From files to answers, decoded on the way or by loader processes; the network comes back as it was"
    before = state(net)
    res = cli_predict(net, *folders, preset=preset, size=112, num_workers=num_workers, **FEW)
    assert len(res.hard) == 36 and res.second.isfinite().all() and not res.diverged
    assert res.first.device.type == res.second.device.type == res.probs.device.type == 'cpu'
    assert same_state(net, before)


def test_channels_last_comes_back(tensors):
    net = models.resnet18(num_classes=6).to(memory_format=torch.channels_last)
    before = state(net)
    cli_predict(net, *tensors, **FEW)
    assert same_state(net, before)


def test_validated_rule(folders, net):
    "The validated rule: held-out training images, distorted on the device"
    res = cli_predict(net, *folders, size=112, **{**FEW, 'rule': 'validated', 'holdout': .3})
    assert res.probes is not None and res.probs.isfinite().all()


def test_the_same_as_on_a_cpu(tensors, net):
    "Full precision agrees with a CPU to the accuracy of its multiplications"
    kw = {**FEW, 'preset': 'paper', 'epochs': 1, 'lr': 1e-3}
    there, here = cli_predict(net, *tensors, **kw), cli_predict(net, *tensors, **{**kw, 'device': 'cpu'})
    assert torch.allclose(there.first, here.first, atol=2e-2, rtol=2e-2)
    assert torch.allclose(there.second.softmax(1), here.second.softmax(1), atol=5e-2)


@pytest.mark.parametrize('precision', ['full', 'bf16', 'fp16', 'auto'])
def test_precision(tensors, net, precision):
    if precision == 'fp16' and not GPU: pytest.skip('a CPU has no gradient scaling')
    res = cli_predict(net, *tensors, precision=precision, **FEW)
    full = cli_predict(net, *tensors, precision='full', **FEW)
    assert res.second.dtype == torch.float32 and res.second.isfinite().all()
    assert torch.allclose(res.first, full.first, atol=.1, rtol=.1)
    with in_precision(precision): kind = amp_dtype(DEV)
    assert kind == KINDS[precision] if precision in KINDS else GPU == (kind is not None)


def test_half_precision_is_native():
    "A GPU that only emulates bfloat16 (V100, T4) is given float16"
    if not GPU: pytest.skip('of a GPU')
    with in_precision('auto'): kind = amp_dtype(DEV)
    assert kind == (torch.bfloat16 if torch.cuda.get_device_capability() >= (8, 0) else torch.float16)


@pytest.mark.parametrize('room', ['on the GPU', 'in memory'])
def test_kept_activations(tensors, net, room, monkeypatch):
    "The same answers wherever activations are kept, in batches that were never pinned twice"
    if room == 'in memory' and GPU: monkeypatch.setattr(torch.cuda, 'mem_get_info', lambda *a: (0, 2**34))
    kw = dict(FEW, V=1, precision='full')
    res, fresh = cli_predict(net, *tensors, cache=1, **kw), cli_predict(net, *tensors, cache=0, **kw)
    assert torch.allclose(res.second, fresh.second, atol=5e-2, rtol=5e-2)
    if GPU: assert (keep.keep_where(DEV, 2**20, 2**30)[0] == 'cpu') == (room == 'in memory')


@pytest.mark.parametrize('precision', ['full', 'auto', 'bf16'])
@pytest.mark.parametrize('preset', ['default', 'paper'])
def test_ctrl_c(tensors, net, preset, precision):
    "Stopped in the middle of a batch: the network is as it was, and mixed precision is off"
    class Stop(Callback):
        def after_pred(self):
            if self.iter == 1: raise KeyboardInterrupt
    before = state(net)
    with pytest.raises(KeyboardInterrupt): cli_predict(net, *tensors, preset=preset, precision=precision, cbs=[Stop()], **FEW)
    assert same_state(net, before)
    assert not torch.is_autocast_enabled(torch.device(DEV).type) and torch.is_grad_enabled()
    x = torch.ones(2, 2, device=DEV)
    assert (x@x).dtype == torch.float32


def test_compile(tensors, net):
    before = state(net)
    fast, plain = (cli_predict(net, *tensors, compile=c, precision='full', **FEW) for c in (True, False))
    assert torch.allclose(fast.second.softmax(1), plain.second.softmax(1), atol=5e-2)
    assert same_state(net, before)


@pytest.mark.parametrize('preset', ['default', 'paper'])
def test_twice_is_the_same(tensors, net, preset):
    a, b = (cli_predict(net, *tensors, preset=preset, **FEW) for _ in range(2))
    assert torch.equal(a.first, b.first) and torch.equal(a.preds, b.preds)
    assert torch.allclose(a.second, b.second, atol=1e-2, rtol=1e-2)


def test_a_name_without_number_is_the_same_device(tensors, net):
    "A network that is on the first GPU stays there when asked for `cuda`"
    net = net.to(DEV)
    before = state(net)
    cli_predict(net, *tensors, **FEW)
    assert same_state(net, before)


def test_estimate(folders, net):
    e = cli_estimate(net, *folders, size=112, **{k: v for k, v in FEW.items() if k != 'progress'})
    assert e.seconds > 0 and len(e.plan)


def test_memory_comes_back(tensors, net):
    "After a run nothing is left on the GPU but what torch itself keeps"
    if not GPU: pytest.skip('of a GPU')
    cli_predict(net, *tensors, **FEW)
    torch.cuda.empty_cache()
    used = torch.cuda.memory_allocated()
    cli_predict(net, *tensors, **FEW)
    assert torch.cuda.memory_allocated() <= used+2**20


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason='needs two GPUs')
@pytest.mark.parametrize('home', ['cpu', 'cuda:0', 'cuda:1'])
def test_two_devices(folders, net, home):
    "On the second GPU, from anywhere and back"
    net = net.to(home)
    before = state(net)
    res = cli_predict(net, *folders, size=112, **{**FEW, 'device': 'cuda:1'})
    assert res.second.isfinite().all() and same_state(net, before)
    p = open_problem(net, *folders, size=112, decode=1.)
    with p.at_work('cuda:1') as dev: assert dev.index == 1 and look(p.model, p.test_dl, dev)[0].isfinite().all()
