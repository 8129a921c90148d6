"The paper's 14 networks: built by name, frozen group by group, sent through the loop and put back to the bit; and weights from files"
import argparse, json, os
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fastai.callback.core import Callback
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import TensorDataset

from closed_loop.adapt import FrozenEval
from closed_loop.core import cli_predict
from closed_loop.data.preprocessing import Preprocessing, preprocessing_of
from closed_loop.layers import deep_groups, freeze, last_linear, layer_groups
from closed_loop.paper.networks import NETWORKS, build, count, load_model, network
from closed_loop.paper.weights import load_weights, read_weights

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


NET = 'shufflenet_v2_x0_5'


def said(f, *args, **kw):
    "The one sentence of an error"
    with pytest.raises(ValueError) as e: f(*args, **kw)
    assert '\n' not in str(e.value)
    return str(e.value)


class Trojan:
    "Makes a folder when it is unpickled"
    def __init__(self, path): self.path = str(path)
    def __reduce__(self): return os.mkdir, (self.path,)


@pytest.mark.parametrize('new', [True, False], ids=['zip', 'legacy'])
@pytest.mark.parametrize('where', ['args', 'state_dict', 'inside a namespace'])
def test_a_checkpoint_cannot_run_a_program(new, where, tmp_path):
    ran, weights, bad = tmp_path/'ran', build(NET, C).state_dict(), Trojan(tmp_path/'ran')
    ck = dict(state_dict=weights, args=argparse.Namespace(hook=bad) if where == 'inside a namespace' else None)
    if where != 'inside a namespace': ck[where] = bad
    torch.save(ck, tmp_path/'bad.pth', _use_new_zipfile_serialization=new)
    assert 'mkdir, which is not on the list' in said(load_model, NET, tmp_path/'bad.pth', C)
    assert not ran.exists()
    torch.load(tmp_path/'bad.pth', weights_only=False)
    assert ran.exists()  # so it would have run


def test_a_refused_class_is_named(tmp_path):
    torch.save(dict(state_dict=build(NET, C).state_dict(), log=SimpleNamespace(a=1)), tmp_path/'odd.pth')
    assert 'hold types.SimpleNamespace, which' in said(read_weights, tmp_path/'odd.pth')


def test_files_of_training_scripts(tmp_path):
    net, avg = build(NET, C).state_dict(), build(NET, C).state_dict()
    args = argparse.Namespace(lr=np.float32(.1), epochs=9)
    def behind(sd): return {f'module.{k}': v for k, v in sd.items()}
    files = dict(torchvision=dict(model=net, args=args, model_ema={'n_averaged': torch.tensor(3), **behind(avg)}),
                 timm=dict(state_dict=net, args=args, metric=np.float64(77), state_dict_ema=avg),
                 ttt=dict(args=args, err_cls=np.float64(.3), net=behind(net), head={'fc.weight': torch.zeros(2)}))
    for n, ck in files.items():
        torch.save(ck, tmp_path/n)
        only = {k: v for k, v in ck.items() if k not in ('model', 'state_dict')}
        torch.save(only, tmp_path/f'{n}_only')
        for file, ema, want in ((n, False, net), (n, True, avg), (f'{n}_only', False, avg)):
            if n == 'ttt' and want is avg: continue
            got = load_model(NET, tmp_path/file, C, ema=ema).state_dict()
            assert all(torch.equal(v, got[k]) for k, v in want.items()), (n, file, ema)
    assert 'hold no averaged weights' in said(load_model, NET, tmp_path/'ttt', C, ema=True)


def efficientnet_pytorch(net):
    "Weights of a network of timm under names of EfficientNet-PyTorch"
    old = dict(conv_stem='_conv_stem', conv_head='_conv_head', classifier='_fc', conv_dw='_depthwise_conv', conv_pwl='_project_conv')
    def name(k):
        *at, mod, leaf = k.split('.')
        if not at: return f"{dict(bn1='_bn0', bn2='_bn1').get(mod) or old[mod]}.{leaf}"
        thin = at[1] == '0'
        mod = dict(bn1='_bn1', bn2='_bn2', conv_pw='_project_conv').get(mod) if thin and mod in ('bn1', 'bn2', 'conv_pw') else \
            dict(bn1='_bn0', bn2='_bn1', bn3='_bn2', conv_pw='_expand_conv').get(mod) or old[mod]
        return f'_blocks.{[0, 1, 3, 5, 8, 11, 15][int(at[1])]+int(at[2])}.{mod}.{leaf}'
    return {name(k): v for k, v in net.state_dict().items()}


def test_efficientnets_of_another_family(tmp_path):
    tf = settled(build('timm:tf_efficientnet_lite0', C), images(8, 64, 0).tensors[0])
    names = list(sd := efficientnet_pytorch(tf))
    torch.save(sd, tmp_path/'lite0.pth')
    torch.save({k: sd[k] for k in sorted(names)}, tmp_path/'sorted.pth')
    x = images(4, 64, 1).tensors[0]
    with torch.no_grad():
        for f in ('lite0', 'sorted'): assert torch.equal(load_model('timm:tf_efficientnet_lite0', tmp_path/f'{f}.pth', C)(x), tf(x))
        other = build('timm:efficientnet_lite0', C).eval()
        other.load_state_dict(tf.state_dict())
        assert (other(x)-tf(x)).abs().max() > .01*tf(x).std()  # the reason why
    for arch in ('timm:efficientnet_lite0', 'efficientnet_b0', 'timm:tf_efficientnet_b0'):
        msg = said(load_model, arch, tmp_path/'lite0.pth', C)
        assert arch in msg and msg.endswith('use timm:tf_efficientnet_lite0')
    for m in tf.modules():
        if isinstance(m, _BatchNorm): m.eps = 1e-5
    assert 'and the model is another network' in said(load_weights, tf, tmp_path/'lite0.pth')
    assert 'another number of classes' in said(load_model, 'timm:tf_efficientnet_lite0', tmp_path/'lite0.pth', C+1)


def test_a_network_knows_its_images(tmp_path):
    torch.save(build(NET, C).state_dict(), tmp_path/'net.pth')
    assert preprocessing_of(load_model(NET, tmp_path/'net.pth', C)) == Preprocessing(source="assumed: ImageNet's usual")
    (tmp_path/'net.json').write_text(json.dumps(dict(size=32, mean=[.5]*3, std=[.25]*3, interpolation='bicubic')))
    p = preprocessing_of(load_model(NET, tmp_path/'net.pth', C))
    assert p == Preprocessing(32, None, (.5,)*3, (.25,)*3, 'bicubic', 'from net.json')
    (tmp_path/'net.json').write_text('{"crop": 32}')
    assert said(load_model, NET, tmp_path/'net.pth', C).startswith("net.json: 'crop' is unknown: expected size,")
    torch.save(build(NET, 1000).state_dict(), tmp_path/'big.pth')
    assert "as for torchvision's" in preprocessing_of(load_model(NET, tmp_path/'big.pth', 1000)).source
    p = preprocessing_of(build('timm:tf_efficientnet_lite0', 1000), size=160)
    assert (p.size, p.resize, p.mean, p.interpolation) == (160, None, (.5,)*3, 'bicubic') and 'size as given' in p.source
