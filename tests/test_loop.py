"Contracts of the whole loop, for people who bring their own model and data"
import copy, os, signal, subprocess, sys, textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset
from torchvision import models

from closed_loop.core import cli_predict
from closed_loop.layers import deep_groups, layer_groups
from closed_loop.fates import flips
from closed_loop.result import load_result

ROOT = Path(__file__).resolve().parent.parent
QUICK = dict(preset='paper', quantile=.2, K=3, Q=2, epochs=1, bs=16, progress=False, device='cpu')


@pytest.fixture(scope='module')
def data():
    g = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 6
    x = torch.randn(60, 3, 32, 32, generator=g)
    x[:, 0] += .5*y[:, None, None]
    return x, y


def bits(m): return {k: v.clone() for k, v in m.state_dict().items()}
def same(m, b): return all(torch.equal(v, b[k]) for k, v in m.state_dict().items())


@pytest.mark.parametrize('arch', ['resnet18', 'shufflenet_v2_x0_5', 'mobilenet_v3_small', 'densenet121'])
def test_networks_go_through_and_come_back(arch, data):
    x, y = data
    net = models.get_model(arch, num_classes=6, weights=None)
    b = bits(net)
    res = cli_predict(net, TensorDataset(x, y), TensorDataset(x[:20], y[:20]), layers=1, **QUICK)
    assert res.second.isfinite().all() and len(res.hard) == 4
    assert same(net, b) and net.training and all(p.grad is None for p in net.parameters())


def test_a_vit_is_cut_into_blocks(data):
    timm = pytest.importorskip('timm')
    x, y = data
    net = timm.create_model('vit_tiny_patch16_224', img_size=32, num_classes=6, depth=3)
    assert [g for g in layer_groups(net) if g.startswith('blocks')] == ['blocks.0', 'blocks.1', 'blocks.2']
    b = bits(net)
    cli_predict(net, TensorDataset(x, y), TensorDataset(x[:20], y[:20]), layers='blocks.2', **QUICK)
    assert same(net, b)


def vision_model(arch):
    "A network of six classes from torchvision, timm or fastai"
    torch.manual_seed(0)
    if arch == 'fastai': from fastai.vision.learner import create_vision_model; return create_vision_model(models.resnet18, 6, pretrained=False)
    if arch == 'vit': return pytest.importorskip('timm').create_model('vit_tiny_patch16_224', img_size=32, num_classes=6, depth=3)
    return models.get_model(arch, num_classes=6, weights=None)


@pytest.mark.parametrize('arch', ['resnet18', 'shufflenet_v2_x0_5', 'mobilenet_v3_small', 'fastai', 'vit'])
def test_frozen_layers_computed_once_change_nothing(arch, data, recwarn):
    x, y = data
    net = vision_model(arch)
    for m in net.modules():
        if isinstance(m, nn.Dropout): m.p = 0.   # draws random numbers of its own
    b = bits(net)
    plain, once = (cli_predict(net, TensorDataset(x, y), TensorDataset(x[:20], y[:20]), layers=1, bn='freeze', V=v, **QUICK) for v in (0, 1))
    assert same(net, b) and torch.allclose(plain.second, once.second, atol=2e-3), (plain.second-once.second).abs().max()
    assert not [w for w in recwarn if 'cannot be split' in str(w.message)]


def test_fastai_vision_model_is_cut_into_stages():
    from fastai.vision.learner import create_vision_model
    net = create_vision_model(models.resnet18, 5, pretrained=False)
    gs = list(layer_groups(net))
    assert gs[-1] == '1' and deep_groups(net, 1) == ['0.7', '1']


def test_second_look_equals_a_hand_written_loop(data):
    "One task, re-done with plain PyTorch: the auxiliary set in the loader's order, SGD, cosine, CE + SupCon"
    from closed_loop.auxset import AuxSet
    from closed_loop.supcon import supcon_loss
    x, y = data
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(3*32*32, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6))
    res = cli_predict(net, TensorDataset(x, y), TensorDataset(x[:20], y[:20]), preset='paper', eps=1., K=3, Q=1, epochs=2, bs=10, progress=False, device='cpu')
    ref = copy.deepcopy(net).train()
    dl = AuxSet(TensorDataset(x, y), bs=10).loader(res.plan[0].classes, seed=0)
    opt = torch.optim.SGD(ref.parameters(), .01, momentum=.9, weight_decay=1e-4)
    T, i = 2*len(dl), 0
    for _ in range(2):
        for xb, yb in dl:
            opt.param_groups[0]['lr'] = .01*(1+np.cos(np.pi*i/T))/2
            z = ref[:4](xb)
            loss = nn.functional.cross_entropy(ref[4](z), yb) + supcon_loss(z, yb, .07)
            opt.zero_grad(); loss.backward(); opt.step(); i += 1
    with torch.no_grad(): want = ref.eval()(x[:20][res.hard])
    assert torch.allclose(res.second, want, atol=1e-5)


def test_members_keep_their_own_rows(data):
    "Second-look logits belong to the image they are stored for, whatever the order of tasks"
    x, y = data
    net = nn.Sequential(nn.Flatten(), nn.Linear(3*32*32, 6))
    tr, te = TensorDataset(x, y), TensorDataset(x[:20], y[:20])
    res = cli_predict(net, tr, te, preset='paper', eps=1., K=3, Q=5, lr=1e-12, epochs=1, bs=16, progress=False, device='cpu')
    assert len(res.plan) > 1 and len(res.hard) > 5
    assert torch.allclose(res.second, res.first[res.hard], atol=1e-4)


def test_ctrl_c_leaves_the_model_whole(tmp_path):
    "A real SIGINT in the middle of training"
    code = textwrap.dedent('''
        import os, signal, torch
        from torch import nn
        from torch.utils.data import TensorDataset
        from fastai.callback.core import Callback
        from closed_loop.core import cli_predict
        class Ctrl(Callback):
            def after_step(self): os.kill(os.getpid(), signal.SIGINT)
        signal.signal(signal.SIGINT, signal.default_int_handler)   # a shell's background jobs ignore it
        torch.manual_seed(0)
        x, y = torch.randn(60, 10), torch.arange(60) % 6
        net = nn.Sequential(nn.Linear(10, 8), nn.BatchNorm1d(8), nn.Linear(8, 6))
        b = {k: v.clone() for k, v in net.state_dict().items()}
        try: cli_predict(net, TensorDataset(x, y), TensorDataset(x, y), preset='paper', eps=1., K=3, Q=2, cbs=[Ctrl()], progress=False)
        except KeyboardInterrupt: print('interrupted', all(torch.equal(v, b[k]) for k, v in net.state_dict().items()))
    ''')
    out = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=120)
    assert out.stdout.strip().endswith('interrupted True'), out.stdout + out.stderr


def test_an_error_in_the_data_leaves_the_model_whole(data):
    x, y = data

    class Bad(Dataset):
        targets = y
        def __len__(self): return len(y)
        def __getitem__(self, i):
            if i == 33: raise OSError('truncated file')
            return x[i], int(y[i])
    net = models.shufflenet_v2_x0_5(num_classes=6, weights=None)
    b = bits(net)
    with pytest.raises(OSError, match='truncated'):
        cli_predict(net, Bad(), TensorDataset(x[:20], y[:20]), **{**QUICK, 'K': 6})
    assert same(net, b) and all(p.requires_grad for p in net.parameters())


def test_a_learner_answers_a_folder(tmp_path):
    from PIL import Image
    from fastai.vision.all import ImageDataLoaders, Learner, Resize
    for i in range(24):
        for split in ('train', 'new'):
            f = tmp_path/split/(f'c{i % 3}' if split == 'train' else '.')/f'{i}.png'
            f.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((40, 40, 3), 80*(i % 3)+i, dtype=np.uint8)).save(f)
    dls = ImageDataLoaders.from_folder(tmp_path/'train', train='.', valid_pct=.25, seed=0, item_tfms=Resize(32), bs=4, device='cpu')
    net = models.resnet18(num_classes=3)
    b = bits(net)
    res = Learner(dls, net).cli_predict(tmp_path/'new', **{**QUICK, 'Q': 1, 'bs': 4})
    assert len(res) == 24 and res.targets is None and res.vocab == ['c0', 'c1', 'c2'] and same(net, b)
    assert sorted(Path(p).name for p in res.paths) == sorted(f'{i}.png' for i in range(24))


def test_saved_results_come_back(data, tmp_path):
    x, y = data
    net = nn.Sequential(nn.Flatten(), nn.Linear(3*32*32, 6))
    res = cli_predict(net, TensorDataset(x, y), TensorDataset(x[:20], y[:20]), **QUICK)
    res.save(tmp_path/'r')
    back = load_result(tmp_path/'r')
    assert torch.equal(back.probs, res.probs) and back.flips() == res.flips() and back.cfg == res.cfg


def test_a_pilot_chooses_and_the_run_goes_on(unsure_model, tmp_path, capsys):
    "Within a budget, and from the store as it was chosen first; the model is as it was"
    before = {k: v.clone() for k, v in unsure_model.state_dict().items()}
    tr, te, ca = (TensorDataset(*blobs(n, s)) for n, s in ((1200, 1), (400, 2), (300, 3)))
    kw = dict(calib=ca, K=4, steps=40, views=0., pilot=True, progress=False, device='cpu')
    res = cli_predict(unsure_model, tr, te, store=tmp_path/'a', **kw)
    said = capsys.readouterr().out
    assert 'chosen: ' in said and not res.cfg.pilot and res.flips().gain+res.parts()['training further'] > 0
    again = cli_predict(unsure_model, tr, te, store=tmp_path/'a', **kw)
    assert again.cfg == res.cfg and torch.equal(again.preds, res.preds)
    for budget in (3000, 30_000):
        paid = cli_predict(unsure_model, tr, te, budget=budget, **kw)
        assert 0 < paid.price <= 1.1*budget, (paid.price, budget)   # a task has its updates to the nearest epoch
    assert all(torch.equal(v, before[k]) for k, v in unsure_model.state_dict().items())


@pytest.mark.parametrize('settings', [{}, dict(steps=4, generalist=8, K=3, quantile=.5)])
def test_nobody_is_asked_twice(settings, data, tmp_path):
    "The network as it came sees each image once; from a store, none but the few by which data is checked"
    x, y = data
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 6))
    test, asked, own = x[:40]+.01, [], net[0].weight.detach().clone()
    def count(m, a):
        if not torch.is_grad_enabled() and torch.equal(m[0].weight, own): asked.extend(o.numpy().tobytes() for o in a[0])
    net.register_forward_pre_hook(count)
    kw = {**QUICK, 'preset': 'default', 'quantile': 0, 'views': 0., 'flip': False, 'store': tmp_path/'a', **settings}
    def run():
        asked.clear()
        res = cli_predict(net, TensorDataset(x, y), TensorDataset(test, y[:40]), calib=TensorDataset(x-.01, y), **kw)
        return res, [asked.count(o.numpy().tobytes()) for o in test]
    res, n = run()
    assert n[2:] == [1]*38, n   # two are tried when the data is opened
    again, n = run()
    assert n[2:] == [0]*38 and torch.equal(again.probs, res.probs)
    assert not settings or len(res.hard) and res.further.steps == 8


def test_a_run_without_time_goes_on_as_it_began(unsure_model, tmp_path):
    "Training further is not begun later: the tasks would be those of another network"
    torch.manual_seed(0)
    net = copy.deepcopy(unsure_model)   # one that has learned nothing
    for m in net: getattr(m, 'reset_parameters', lambda: None)()
    tr, te, ca = (TensorDataset(*blobs(n, s)) for n, s in ((1200, 1), (400, 2), (300, 3)))
    kw = dict(calib=ca, K=4, steps=40, views=0., progress=False, device='cpu', store=tmp_path/'a')
    late = cli_predict(net, tr, te, minutes=1e-7, **kw)
    assert late.unfinished and 'no time' in str(late.further)
    whole = cli_predict(net, tr, te, **kw)
    assert not whole.unfinished and torch.equal(whole.first, late.first) and not whole.further.kept
    assert cli_predict(net, tr, te, **{**kw, 'store': None}).further.kept   # it would have been, with time


def test_no_updates_are_several_views(unsure_model):
    "steps=0: the views of every image, and no training image is passed"
    images = lambda n, s: TensorDataset(blobs(n, s)[0][:, None, None].expand(-1, 1, 8, 8), blobs(n, s)[1])
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 12))
    res = cli_predict(net, images(240, 1), images(120, 2), steps=0, generalist=0, K=4, rule='conditional', alpha=0., caution=1., progress=False, device='cpu')
    assert res.price == 0 and not res.plan and not len(res.hard)
    assert torch.equal(res.preds, res.first_tta.argmax(1)) and torch.allclose(res.probs, res.first_tta.exp(), atol=1e-5)
    with pytest.raises(ValueError, match='steps=0 without views'): cli_predict(net, images(240, 1), images(120, 2), steps=0, views=0.)


def test_smoke_runtime():
    sys.path.insert(0, str(ROOT/'tests'))
    import smoke_runtime
    smoke_runtime.main()


def blobs(n, seed, pairs=6, noise=.55):
    "Classes in pairs of look-alikes, told apart by a weak direction"
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % (2*pairs)
    c = torch.randn(pairs, 8, generator=torch.Generator().manual_seed(0))*2
    x = c[y//2] + noise*torch.randn(n, 8, generator=g)
    x[:, 0] += (y % 2)*.8
    return x, y


@pytest.fixture(scope='module')
def unsure_model():
    "A small network stopped early: unsure within pairs, sure between them"
    x, y = blobs(3000, 1)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 12))
    opt = torch.optim.SGD(net.parameters(), .05, momentum=.9)
    for i in range(60):
        b = torch.randint(3000, (128,), generator=torch.Generator().manual_seed(i))
        opt.zero_grad(); nn.functional.cross_entropy(net(x[b]), y[b]).backward(); opt.step()
    return net.eval()


def test_default_preset_mends_more_than_it_destroys(unsure_model):
    tr, te, ca = (TensorDataset(*blobs(n, s)) for n, s in ((3000, 1), (2000, 2), (600, 3)))
    res = cli_predict(unsure_model, tr, te, calib=ca, K=4, progress=False, device='cpu')
    paper = cli_predict(unsure_model, tr, te, preset='paper', K=4, Q=max(1, len(res.plan)), progress=False, device='cpu')
    f, g = flips(paper.first.argmax(1), res.preds, res.targets), paper.flips()   # with what training further has mended
    assert f.gain > 0 and f.F2T > 1.5*f.T2F and f.T2F < g.T2F, (f, g)


@pytest.mark.parametrize('calib', [True, False])
def test_a_second_look_that_learned_nonsense_is_not_believed(unsure_model, calib):
    x, y = blobs(3000, 1)
    wrong = y[torch.randperm(3000, generator=torch.Generator().manual_seed(0))]
    ca = TensorDataset(*blobs(600, 3)) if calib else None
    te = TensorDataset(*blobs(2000, 2))
    res = cli_predict(unsure_model, TensorDataset(x, wrong if calib else y), te, calib=ca, K=4, lr=.05 if calib else 100., wd=1e-4, progress=False, device='cpu')
    assert len(res.hard) > 100 and res.flips().T2F <= 5, res
