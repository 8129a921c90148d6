"The paper's 14 networks: built by name, frozen group by group, sent through the loop and put back to the bit"
from types import SimpleNamespace

import pytest
import torch
from fastai.callback.core import Callback
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import TensorDataset

from closed_loop.adapt import FrozenEval
from closed_loop.core import cli_predict
from closed_loop.layers import deep_groups, freeze, last_linear, layer_groups
from closed_loop.paper.networks import NETWORKS, count, network

pytest.importorskip('timm')
C = 6
HEAVY = ('ResNet-101', 'ResNet-152', 'ResNeXt-101', 'ResNeXt-101-WSL')  # only their last body group is trained here


@pytest.fixture(autouse=True)
def one_thread():
    n = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n)


def of_groups(net, groups, what='named_parameters'):
    "Names of the parameters or buffers of layer groups"
    gs = layer_groups(net)
    return {f'{p}.{k}' for g in groups for p in gs[g] for k, _ in getattr(net.get_submodule(p), what)()}


def norms(net, groups):
    gs = layer_groups(net)
    return [m for g in groups for p in gs[g] for m in net.get_submodule(p).modules() if isinstance(m, _BatchNorm)]


def images(n, size, seed):
    g = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(n, 3, size, size, generator=g), torch.arange(n) % C)


class Spy(Callback):
    "Which tensors a task has changed, before they are put back"
    order = 100
    def before_fit(self): self.base = {k: v.clone() for k, v in self.model.state_dict().items()}
    def after_fit(self): self.moved = {k for k, v in self.model.state_dict().items() if not torch.equal(v, self.base[k])}


@pytest.mark.parametrize('name', NETWORKS)
def test_every_group_can_be_the_first_to_train(name):
    with torch.device('meta'): net = network(name, C)
    groups = list(layer_groups(net))
    everything = {k for k, _ in net.named_parameters()}
    assert of_groups(net, groups) == everything
    for i, g in enumerate(groups):
        assert deep_groups(net, g) == groups[i:] == deep_groups(net, len(groups)-1-i)
        frozen = freeze(net, g)
        assert {k for k, p in net.named_parameters() if p.requires_grad} == of_groups(net, groups[i:])
        net.train()
        hold = FrozenEval(frozen)
        hold.learn = SimpleNamespace(model=net)
        hold.before_train()
        assert not any(m.training for m in norms(net, groups[:i])) and all(m.training for m in norms(net, groups[i:]))
    freeze(net)
    assert all(p.requires_grad for p in net.parameters())


@torch.no_grad()
def settled(net, x):
    "Give random weights the statistics of `x`: without them a deep network's answers are all 100 % sure, or not numbers"
    bns = [m for m in net.modules() if isinstance(m, _BatchNorm)]
    was = [m.momentum for m in bns]
    for m in bns: m.momentum = 1.
    for m in net.modules(): m.training = isinstance(m, _BatchNorm)
    net(x)
    for m, mom in zip(bns, was): m.momentum = mom
    last_linear(net).weight.mul_(.05)  # timm starts it large
    return net.eval()


def one_task(net, layers, size):
    "A run with one task for every image; the result and what the task had changed before it was undone"
    spy = Spy()
    res = cli_predict(net, images(18, size, 0), images(4, size, 1), preset='paper', eps=1., K=2, Q=1, epochs=1, bs=6,
                      layers=layers, device='cpu', cbs=[spy], progress=False)
    assert len(res.plan) == 1 and len(res.hard) == 4 and res.second.shape == (4, C) and res.second.isfinite().all()
    return res, spy.moved


@pytest.mark.parametrize('name', NETWORKS)
def test_one_task_and_back(name):
    size = NETWORKS[name].least
    torch.manual_seed(0)
    net = settled(network(name, C), images(18, size, 2).tensors[0])
    groups = list(layer_groups(net))
    base = {k: v.clone() for k, v in net.state_dict().items()}
    for layers in (1,) if name in HEAVY else ('all', groups[len(groups)//2], 0):
        res, moved = one_task(net, layers, size)
        deep = deep_groups(net, layers)
        trained = {k for k in of_groups(net, deep) if 'AuxLogits' not in k}
        assert moved <= of_groups(net, deep) | of_groups(net, deep, 'named_buffers')
        assert len(moved & trained) > .9*len(trained), sorted(trained - moved)[:5]
        assert any('running_mean' in k for k in moved) == bool(norms(net, deep))
        assert not torch.equal(res.first[res.hard], res.second)
        assert all(torch.equal(v, base[k]) for k, v in net.state_dict().items())
        assert not any(m.training for m in net.modules())
        assert all(p.requires_grad and p.grad is None for p in net.parameters())


@pytest.mark.parametrize('name', NETWORKS)
def test_sizes_agree_with_the_paper(name):
    row, c = NETWORKS[name], count(name)
    for ours, paper in ((c.params/1e6, row.params), (c.flops/1e9, row.flops)):
        assert abs(ours/paper-1) < .02 or row.note, f'{ours} against {paper}'


@pytest.mark.parametrize('error,says', [(OSError('no route'), 'cannot be fetched'), (TimeoutError(), 'cannot be fetched'),
                                        (RuntimeError('invalid hash value (expected "a", got "b")'), 'came incomplete')])
@pytest.mark.parametrize('name', ['DenseNet-121', 'ResNeXt-101-WSL', 'EfficientNet-B0'])
def test_a_hub_that_fails_is_named(name, error, says, monkeypatch):
    import timm.models._builder
    def fail(*args, **kwargs): raise error
    for f in ('torch.hub.load_state_dict_from_url', 'torchvision.models._api.load_state_dict_from_url',
              'timm.models._builder.load_state_dict_from_url', 'timm.models._builder.load_state_dict_from_hf'): monkeypatch.setattr(f, fail)
    with pytest.raises(ValueError) as e: network(name, weights='paper')
    assert f'{name} {says}' in str(e.value) and 'https://' in str(e.value) and f"network('{name}', weights=" in str(e.value)
    assert '\n' not in str(e.value)
