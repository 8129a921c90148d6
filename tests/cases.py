"""Every way to call it wrongly, or just unusually, and what should come of it

A case is data: a name, a call in a small shared world, and an outcome. `tests/test_inputs.py` checks them all, and the docs' page of
messages (`nbs/42_messages.ipynb`) shows what people read. Nothing here needs pytest."""
import argparse, contextlib, copy, io, json, math, os, re, resource, shutil, signal, sys, tempfile, traceback, warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import torch
from fastai.callback.core import Callback
from fastai.callback.data import WeightedDL
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader as FastDL
from PIL import Image
from torch import nn
from torch.utils.data import (BatchSampler, ConcatDataset, DataLoader, Dataset, DistributedSampler, IterableDataset, RandomSampler, Sampler,
                              SequentialSampler, Subset, SubsetRandomSampler, TensorDataset, WeightedRandomSampler)
from torchvision.datasets import ImageFolder

import closed_loop
from closed_loop.config import register
from closed_loop.core import cli_estimate, cli_predict
from closed_loop.look import eval_mode
from closed_loop.paper.store import Store
from closed_loop.result import load_result

C, SIDE, MEAN, STD = 6, 16, [.5, .5, .5], [.25, .25, .25]
QUICK = dict(preset='paper', quantile=.2, K=3, Q=2, epochs=1, bs=16, progress=False, device='cpu')
OURS = str(Path(closed_loop.__file__).parent)
SOME = [7, 3, 21, 0, 28, 14, 9, 2, 17, 11]   # ten test images, in no order


# ---- the world

def stripes(n, seed):
    "Pixels (n, 3, 16, 16) and labels: stripes of three widths, lying or standing, under noise"
    g, y, v = torch.Generator().manual_seed(seed), torch.arange(n) % C, torch.arange(float(SIDE))
    wave = torch.sin(2*math.pi*(v/torch.tensor([3., 4.5, 7.])[y//2, None] + torch.rand(n, 1, generator=g)))
    x = torch.where((y % 2 == 0)[:, None, None], wave[:, :, None], wave[:, None, :])
    x = 128 + 20*x[:, None] + 70*torch.randn(n, 3, SIDE, SIDE, generator=g)
    return x.clamp(0, 255).to(torch.uint8), y


def normal(x): return (x.float()/255-MEAN[0])/STD[0]
def images(n, seed): x, y = stripes(n, seed); return TensorDataset(normal(x), y)


@register('network')
def case_net(C):
    "Two convolutions, for images of any size"
    return nn.Sequential(nn.Conv2d(3, 12, 5, padding=2), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 16, 3, stride=2, padding=1),
                         nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, C))


@register('network')
def case_flat(C):
    "One linear layer, for images of 16 pixels only"
    return nn.Sequential(nn.Flatten(), nn.Linear(3*SIDE*SIDE, C))


def fit(net, data, steps, lr=.01):
    "Train for a moment, the same way each time"
    x, y = data.tensors
    opt = torch.optim.AdamW(net.parameters(), lr)
    for i in range(steps):
        b = torch.randint(len(y), (64,), generator=torch.Generator().manual_seed(i))
        opt.zero_grad(); nn.functional.cross_entropy(net(x[b]), y[b]).backward(); opt.step()
    opt.zero_grad()
    return net.eval()


def state(m):
    "All of a network that must be the same afterwards"
    return dict(weights={k: v.detach().clone() for k, v in m.state_dict().items()}, modes=[o.training for o in m.modules()],
                grads=[(p.requires_grad, p.grad is None, p.dtype) for p in m.parameters()],
                hooks=[len(o._forward_hooks)+len(o._forward_pre_hooks) for o in m.modules()])


def moved(a, b):
    "What differs between two states of a network"
    w = [k for k, v in a['weights'].items() if k not in b['weights'] or not torch.equal(v.nan_to_num(), b['weights'][k].nan_to_num())]
    return w + [k for k in ('modes', 'grads', 'hooks') if a[k] != b[k]]


class Refused(ValueError):
    "What a command said before it left with code 2"


class World:
    "Six classes, a network that knows them, 60 training, 30 test and 60 calibration images; folders when they are asked for"
    def __init__(self, path=None):
        self.tmp = None if path else tempfile.TemporaryDirectory()
        self.path, self.n, self.watched = Path(path or self.tmp.name), 0, []
        self.pool, self.test, self.calib = images(600, 0), images(30, 1), images(60, 2)
        self.x, self.y = (o[:60] for o in self.pool.tensors)
        self.train, (self.xt, self.yt) = TensorDataset(self.x, self.y), self.test.tensors
        torch.manual_seed(0)
        self.net = fit(case_net(C), self.pool, 100)
        self.net[1].train()   # a mode of its own, to be found as it was

    # calls
    def watch(self, model):
        "Remember how a network is, to see afterwards that it still is so"
        if isinstance(model, nn.Module) and not any(m is model for m, _ in self.watched):
            with contextlib.suppress(Exception):   # some have no weights to compare
                s = state(model)
                if not moved(s, s): self.watched.append((model, s))
        return model

    def changed(self): return [k for m, s in self.watched for k in moved(s, state(m))]

    def predict(self, model=None, train=None, test=None, **kw):
        model = self.net if model is None else model
        return cli_predict(self.watch(model), self.train if train is None else train, self.test if test is None else test, **{**QUICK, **kw})

    def default(self, model=None, train=None, test=None, **kw):
        kw = {'eps': .95, **kw}   # few images are less sure than the preset's 0.7
        return cli_predict(self.watch(model or self.net), train or self.train, test or self.test, progress=False, device='cpu', **kw)

    def estimate(self, model=None, **kw):
        kw = {k: v for k, v in {**QUICK, **kw}.items() if k != 'progress'}
        return cli_estimate(self.watch(model or self.net), self.train, kw.pop('test', self.test), **kw)

    @cached_property
    def plain(self): return self.predict()

    # networks
    def copy(self): return copy.deepcopy(self.net)
    def of(self, f): return Out(self.copy(), f).eval()

    @cached_property
    def by_heart(self):
        "A network that knows 240 training images by heart, these images, and others"
        data = images(240, 5)
        torch.manual_seed(0)
        return fit(case_net(C), data, 300), data, images(240, 6)

    @cached_property
    def learned(self):
        "A network that has nothing left to learn: it is right about every labelled image, whatever the machine"
        torch.manual_seed(0)
        return fit(case_net(C), self.pool, 300)

    # folders
    def new(self, name='folder'):
        "A folder that nobody has used"
        self.n += 1
        (p := self.path/f'{self.n}'/name).mkdir(parents=True)
        return p

    def write(self, root, n, seed, flat=False):
        x, y = stripes(n, seed)
        for i in range(n):
            (d := root if flat else root/f'c{y[i]}').mkdir(parents=True, exist_ok=True)
            Image.fromarray(x[i].permute(1, 2, 0).numpy()).save(d/f'{i:03}.png')
        return root

    @cached_property
    def folders(self):
        d = self.new('data')
        torch.save(self.net.state_dict(), d/'bare.pth')
        torch.save(self.net.state_dict(), d/'net.pth')
        (d/'net.json').write_text(json.dumps(dict(size=SIDE, mean=MEAN, std=STD)))
        return SimpleNamespace(train=self.write(d/'train', 60, 0), test=self.write(d/'test', 30, 1), flat=self.write(d/'flat', 30, 1, True),
                               calib=self.write(d/'calib', 60, 2), bare=d/'bare.pth', weights=d/'net.pth')

    def mine(self, name): return Path(shutil.copytree(getattr(self.folders, name), self.new()/name))   # to be spoiled
    def sorted(self, z): return z[torch.argsort(self.yt, stable=True)]   # in the folders' order

    # commands
    def command(self, **options):
        "`closed_loop_predict` as it is typed: what it said, its code and its folder"
        from closed_loop.commands import closed_loop_predict
        f = self.folders
        usual = dict(train=f.train, test=f.test, arch='case_net', weights=f.weights, preset='paper', eps=.7, K=3, Q=2, epochs=1, bs=16,
                     out=options.get('out') or self.new()/'out')
        argv = ['closed_loop_predict']
        for k, v in {**usual, **options}.items():
            if v is not None: argv += [f"--{k.replace('_', '-')}"] + ([] if v is True else [str(v)])
        out, err, code = io.StringIO(), io.StringIO(), 0
        with mock.patch.object(sys, 'argv', argv), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try: closed_loop_predict()
            except SystemExit as e: code = e.code or 0
            except KeyboardInterrupt: code = 'KeyboardInterrupt'   # not for the tests to stop at
        return SimpleNamespace(out=usual['out'] if 'out' not in options else Path(options['out']), code=code, said=out.getvalue(), err=err.getvalue())

    def typed(self, **options):
        "The same, for commands that are expected to work, or to leave with code 2 and a line"
        r = self.command(**options)
        if r.code == 2: raise Refused(r.err.strip().split('closed_loop: ')[-1])   # warnings may come before it
        if r.code: raise RuntimeError(f'exit code {r.code}: {r.err}')
        return r

    def load(self, obj, name='w.pth', arch='case_net', save=torch.save):
        "A network from a file that holds `obj`"
        from closed_loop.paper.networks import network
        f = self.new()/name
        save(obj, f)
        return network(arch, C, f)

    def learner(self, **kw):
        "A fastai `Learner` over the folders"
        from fastai.vision.all import ImageDataLoaders, Learner, Normalize
        dls = ImageDataLoaders.from_folder(self.folders.train, train='.', valid_pct=.2, seed=0, batch_tfms=Normalize.from_stats(MEAN, STD), bs=16, device='cpu')
        return Learner(dls, self.watch(self.copy()), **kw)


# ---- things to pass

class Out(nn.Module):
    "A network whose answer is dressed up by `f`: (features, logits) -> output"
    def __init__(self, net, f): super().__init__(); self.body, self.head, self.f = net[:-1], net[-1], f
    def forward(self, x): z = self.body(x); return self.f(z, self.head(z))


class Extra(nn.Module):
    "A classifier with another linear layer behind it, used or not"
    def __init__(self, net, use=False): super().__init__(); self.net, self.rotation, self.use = net, nn.Linear(16, 4), use
    def forward(self, x): z = self.net[:-1](x); return (self.net[-1](z), self.rotation(z)) if self.use else self.net[-1](z)


def conv_head(net, flat=True):
    "The same network with a 1×1 convolution for a linear layer"
    head = nn.Conv2d(16, C, 1)
    head.weight.data, head.bias.data = net[-1].weight.data[:, :, None, None].clone(), net[-1].bias.data.clone()
    return nn.Sequential(*net[:7], head, *([nn.Flatten()] if flat else [])).eval()


class Data(Dataset):
    "Items made by `f(i)`, with whatever attributes"
    def __init__(self, n, f, **attrs): self.n, self.f = n, f; vars(self).update(attrs)
    def __len__(self): return self.n
    def __getitem__(self, i):
        if not 0 <= i < self.n: raise IndexError(i)
        return self.f(i)


class Pictures(Dataset):
    "As torchvision's datasets are: raw targets, and a `target_transform` that items go through"
    def __init__(self, x, targets, target_transform=None): self.x, self.targets, self.transform, self.target_transform = x, targets, None, target_transform
    def __len__(self): return len(self.x)
    def __getitem__(self, i): y = int(self.targets[i]); return self.x[i], self.target_transform(y) if self.target_transform else y


class Columns(Data):
    "As Hugging Face's datasets are: dicts, and a column by its name"
    def __getitem__(self, i): return [self.f(j)[i] for j in range(self.n)] if isinstance(i, str) else super().__getitem__(int(i))


class Backwards(Sampler):
    def __init__(self, n): self.n = n
    def __len__(self): return self.n
    def __iter__(self): return iter(range(self.n-1, -1, -1))


class Moody(Backwards):
    def __iter__(self): return iter(torch.randperm(30)[:self.n].tolist())


class Endless(IterableDataset):
    def __iter__(self): return iter([(torch.zeros(3, SIDE, SIDE), 0)]*4)


class Explode(Callback):
    "A task that goes astray at a learning rate above `lr`"
    def __init__(self, lr): self.limit = lr
    def after_step(self):
        if self.opt.hypers[0]['lr'] > self.limit: next(self.model.parameters()).data.fill_(float('nan'))


def to_dict(items): x, y = zip(*items); return dict(pixel_values=torch.stack(x), labels=torch.stack(y))


def dicts(x, y, data, kind=Data):
    "`data` as dicts with keys `x` and, unless it is None, `y`"
    a, b = data.tensors
    return kind(len(b), lambda i: {x: a[i], **({y: int(b[i])} if y else {})})


def targets(w, y, x=None): return TensorDataset(w.xt if x is None else x, y)
def hurt(x, y, c=0): x = x.clone(); x[y == c] = float('inf'); return x
def two(data): x, y = data.tensors; return TensorDataset(x[y < 2], y[y < 2])


def two_net(w):
    net = w.copy()
    head = nn.Linear(16, 2)
    head.weight.data, head.bias.data = net[-1].weight.data[:2].clone(), net[-1].bias.data[:2].clone()
    return net[:-1].append(head).eval()


def turned(w):
    "A network whose class c is everybody else's class c+1"
    net = w.copy()
    for p in net[-1].parameters(): p.data = p.data.roll(1, 0)
    return net


def spoiled(data): return TensorDataset(*[3+.05*data.tensors[0], data.tensors[1]])
def ema(sd): return {'n_averaged': torch.tensor(3), **{f'module.{k}': v for k, v in sd.items()}}


class Trap:
    "What a pickle from a stranger may do when it is opened"
    def __init__(self, path): self.path = path
    def __reduce__(self): return os.mkdir, (str(self.path),)


def trapped(w):
    d = w.new()/'sprung'
    try: w.load(dict(state_dict=w.net.state_dict(), args=Trap(d)))
    finally: assert not d.exists(), 'the trap was sprung'


def half_file(w, name, save):
    "A weights file of which the second half is missing"
    def cut(obj, f): save(obj, f); f.write_bytes(f.read_bytes()[:f.stat().st_size//2])
    return w.load(w.net.state_dict(), name, save=cut)


def safetensors(sd, f): from safetensors.torch import save_file; save_file(sd, f)


def efficientnet(w, arch, source=None):
    "Weights of an EfficientNet under the names of its first PyTorch port, for `arch`: the same shapes in the same order, whoever computes with them"
    from closed_loop.paper.networks import build
    sd = build(source or arch, C).state_dict()
    keys = [k for k in sd if not k.endswith('num_batches_tracked')]
    names = ['_conv_stem.weight', *[f"_blocks.{i}.{k.rsplit('.', 1)[1]}" for i, k in enumerate(keys[1:])]]
    return w.load({n: sd[k] for n, k in zip(names, keys)}, arch=arch)


def ttt_file(w):
    "As the authors of TTT save theirs"
    net = {f'module.{k}': v for k, v in w.net.state_dict().items()}
    return dict(args=argparse.Namespace(lr=.1), err_cls=[np.float64(.3)], err_ssh=[.2], optimizer={}, net=net, head=case_flat(4).state_dict())


@contextlib.contextmanager
def full_disk():
    "No file can grow, as on a full disk"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try: yield
    finally: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def not_run(f=None):
    "`cli_predict` replaced: to see what comes before it, or what happens when it fails"
    def never(*args, **kwargs): raise AssertionError('the first look was taken')
    with mock.patch('closed_loop.core.cli_predict', f or never): yield


def within(cm, f):
    with cm: return f()


def fails(e):
    def f(*args, **kwargs): raise e
    return f


def terminated(w):
    "SIGTERM in the middle of a run"
    old = signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(RuntimeError('nobody minds SIGTERM')))
    try:
        with not_run(lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGTERM)): return w.command()
    finally: signal.signal(signal.SIGTERM, old)


def no_report(w):
    "A run whose report cannot be written"
    with mock.patch('closed_loop.result.CLIResult.report', fails(RuntimeError('no font\nof that name'))): return w.command()


def at_once(w):
    "A second command with the same `--out` while the first is running"
    out, second = w.new()/'out', []
    def meanwhile(*args, **kwargs):
        with mock.patch('closed_loop.core.cli_predict', cli_predict): second.append(w.command(out=out))
        return cli_predict(*args, **kwargs)
    with not_run(meanwhile): w.command(out=out)
    if second[0].code: raise Refused(second[0].err.strip().split('closed_loop: ')[-1])
    return second[0]


def with_file(folder, *names, data=b'not an image'):
    for n in names:
        p = os.path.join(os.fsencode(folder), os.fsencode(n))
        with open(p, 'wb') as f: f.write(data)
    return folder


def png(w): return (w.folders.flat/'000.png').read_bytes()


def saved(w, vocab=None, **kw):
    r = w.predict(**kw)
    if vocab: r.vocab = vocab
    return r.save(w.new())


def store(w, name):
    "A store with a damaged file"
    d = w.new()
    s = Store(d, a=1)
    s.get('u', lambda f: [dict(b=2)])
    next(d.rglob(name)).write_text('{"half')
    return Store(d, a=1).get('u', lambda f: [dict(b=2)])


def own(w, **attrs): net = w.copy(); vars(net).update(attrs); return net
def named(data, vocab): return Data(len(data), lambda i: data[i], targets=data.tensors[1], classes=vocab)


def columns(data):
    d = dicts('pixel_values', 'label', data, Columns)
    d.column_names, d.features = ['pixel_values', 'label'], dict(label=SimpleNamespace(names=list('abcdef')))
    return d


def nan_net(w): net = w.copy(); net[0].weight.data[0] = float('nan'); return net
def spectral(w): net = w.copy(); torch.nn.utils.parametrizations.spectral_norm(net[3]); return fit(net.train(), w.pool, 40)
def with_class(root, name, data=None): (root/name).mkdir(); return with_file(root, f'{name}/1.png', data=data) if data else root
def not_utf8(root): os.rename(os.fsencode(root/'c5'), os.path.join(os.fsencode(root), b'caf\xe9')); return root


def back(r, vocab, types=True):
    "Class names are as they were, in their types too"
    names = r.to_frame()['first']
    return r.vocab == vocab and (not types or [type(o) for o in r.vocab] == [type(o) for o in vocab]) and list(names) == [vocab[i] for i in r.first.argmax(1)]


def folder(w, name):
    from torchvision import transforms as T
    return ImageFolder(getattr(w.folders, name), T.Compose([T.ToTensor(), T.Normalize(MEAN, STD)]))


def sidecar(w, text):
    d = w.new()
    shutil.copy(w.folders.bare, d/'net.pth')
    (d/'net.json').write_text(text)
    return w.typed(weights=d/'net.pth')


def nan_weights(w):
    f = w.new()/'nan.pth'
    torch.save(nan_net(w).state_dict(), f)
    return w.typed(weights=f, size=SIDE)


def flat_typed(w, **kw):
    f = w.new()/'flat.pth'
    torch.save(case_flat(C).state_dict(), f)
    return w.typed(arch='case_flat', weights=f, **kw)


def traced(w):
    "All that a command shows with --debug"
    try: r = w.command(debug=True)
    except RuntimeError: return traceback.format_exc()
    return r.err


def case_exploding(w):
    "A network without BatchNorm, which a large step throws off"
    torch.manual_seed(0)
    return fit(nn.Sequential(nn.Conv2d(3, 8, 5), nn.LeakyReLU(), nn.Conv2d(8, 8, 3), nn.LeakyReLU(), *case_net(C)[-3:-1], nn.Linear(8, C)), w.pool, 150)


# ---- the table

@dataclass
class Case:
    "One call, and what should come of it"
    name: str
    call: object           # world -> result
    says: str = None       # refused, with these words
    warns: str = None      # answered, with a warning that has these words
    ok: object = None      # (result, world) -> true if it is as it should be
    quiet: bool = False    # and not a word is said
    section: str = ''
    needs: str = None      # a package without which it is left out


def rows(r): return len(r.first)
def like_plain(r, w): return torch.equal(r.first, w.plain.first) and torch.equal(r.second, w.plain.second)
def nearly(r, w): return torch.allclose(r.first, w.plain.first, atol=1e-4) and torch.allclose(r.second, w.plain.second, atol=1e-2)
def same_answers(r, w): return torch.equal(r.first.argmax(1), w.plain.first.argmax(1)) and r.second.isfinite().all()
def some_rows(r, w): return rows(r) == len(SOME) and torch.equal(r.targets, w.yt[SOME])
def fits(m, w): return all(torch.equal(v, w.net.state_dict()[k]) for k, v in m.state_dict().items())
def right(r): return r.flips().before > .75
def answered(r, w): return right(r) and r.second.isfinite().all()
def column(r, k): import pandas as pd; return list(pd.read_csv(r.out/'predictions.csv', encoding_errors='surrogateescape')[k])
def all_there(r, n): return len(column(r, 'path')) == n and all(os.path.exists(p) for p in column(r, 'path')) and (r.out/'index.html').exists()
def told(r, *words): return r.code == 0 and all(o in r.said+r.err for o in words)
def used_own(r, w): return told(r, '16', '0.5', '0.25') and (r.out/'predictions.csv').exists() and np.mean(np.array(column(r, 'first')) == column(r, 'target')) > .75
def class_sets(r): return {frozenset(t.classes) for t in r.plan}


TABLE = {}
TIMM = dict(input_size=(3, SIDE, SIDE), mean=tuple(MEAN), std=tuple(STD), interpolation='bilinear', crop_pct=1.)

TABLE['Samplers'] = [
    Case('training images and test images in one dataset, kept apart by a sampler',
         lambda w: w.predict(train=DataLoader(ConcatDataset([w.train, w.test]), 16, sampler=SubsetRandomSampler(range(60)))), ok=like_plain, quiet=True),
    Case('a test loader with SubsetRandomSampler', lambda w: w.predict(test=DataLoader(w.test, 4, sampler=SubsetRandomSampler(SOME))), ok=some_rows),
    Case('a test loader with a list for a sampler', lambda w: w.predict(test=DataLoader(w.test, 4, sampler=SOME)), ok=some_rows),
    Case('a calibration loader with a sampler', lambda w: w.predict(calib=DataLoader(w.calib, 4, sampler=SubsetRandomSampler(range(12))), quantile=1.),
         ok=lambda r, w: torch.equal(r.probes.first, w.predict(calib=Subset(w.calib, range(12)), quantile=1.).probes.first) and len(r.probes.targets) <= 12),
    Case('a batch sampler over a sampler', lambda w: w.predict(test=DataLoader(w.test, batch_sampler=BatchSampler(SubsetRandomSampler(SOME), 4, False))),
         ok=some_rows),
    Case('batches listed by hand', lambda w: w.predict(test=DataLoader(w.test, batch_sampler=[SOME[:4], SOME[4:]])), ok=some_rows),
    Case('a batch sampler as training data',
         lambda w: w.predict(train=DataLoader(ConcatDataset([w.train, w.test]), batch_sampler=BatchSampler(range(60), 7, False))), ok=like_plain),
    Case('a Subset inside a ConcatDataset, as training data',
         lambda w: w.predict(train=ConcatDataset([Subset(w.pool, range(30)), Subset(w.train, range(30, 60))])), ok=like_plain),
    Case('a Subset inside a ConcatDataset, as test set', lambda w: w.predict(test=ConcatDataset([Subset(w.test, SOME[:5]), Subset(w.test, SOME[5:])])),
         ok=some_rows),
    Case('a loader of a Subset with a sampler', lambda w: w.predict(test=DataLoader(Subset(w.test, SOME+[1, 4]), 4, sampler=SubsetRandomSampler(range(10)))),
         ok=some_rows),
    Case('SequentialSampler', lambda w: w.predict(test=DataLoader(w.test, 64, sampler=SequentialSampler(w.test))), ok=like_plain),
    Case("a test loader's shuffle and drop_last are ignored", lambda w: w.predict(test=DataLoader(w.test, 8, shuffle=True, drop_last=True)), ok=like_plain),
    Case("a training loader's shuffle and drop_last are ignored", lambda w: w.predict(train=DataLoader(w.train, 16, shuffle=True, drop_last=True)),
         ok=like_plain),
    Case("a fastai loader's shuffle and drop_last are ignored", lambda w: w.predict(test=FastDL(w.test, bs=8, shuffle=True, drop_last=True)), ok=like_plain),
    Case('a sampler of its own order', lambda w: w.predict(test=DataLoader(w.test, 4, sampler=Backwards(30))),
         ok=lambda r, w: torch.equal(r.targets, w.yt.flip(0))),
    Case('DistributedSampler, one of two', lambda w: w.predict(test=DataLoader(w.test, 4, sampler=DistributedSampler(w.test, 2, 1, shuffle=False))),
         ok=lambda r, w: torch.equal(r.targets, w.yt[1::2])),
    Case('WeightedRandomSampler', lambda w: w.predict(train=DataLoader(w.train, 16, sampler=WeightedRandomSampler([1.]*60, 60))),
         says='WeightedRandomSampler does not give a fixed set'),
    Case('WeightedRandomSampler, for the test set', lambda w: w.predict(test=DataLoader(w.test, 16, sampler=WeightedRandomSampler([1.]*30, 30))),
         says='WeightedRandomSampler'),
    Case('RandomSampler with replacement', lambda w: w.predict(train=DataLoader(w.train, 16, sampler=RandomSampler(w.train, replacement=True))),
         says='RandomSampler does not give a fixed set'),
    Case('RandomSampler of a few', lambda w: w.predict(test=DataLoader(w.test, 16, sampler=RandomSampler(w.test, num_samples=10))),
         says='RandomSampler does not give a fixed set'),
    Case('a sampler that changes its mind', lambda w: w.predict(test=DataLoader(w.test, 16, sampler=Moody(10))), says='Moody does not give a fixed set'),
    Case('a sampler that repeats itself', lambda w: w.predict(test=DataLoader(w.test, 16, sampler=[0, 0, 1])), says='fixed set'),
    Case('a sampler beyond the end', lambda w: w.predict(test=DataLoader(w.test, 16, sampler=[0, 30])), says='fixed set'),
    Case('an IterableDataset', lambda w: w.predict(test=Endless()), says='Endless cannot be indexed'),
    Case('a loader of an IterableDataset', lambda w: w.predict(train=DataLoader(Endless(), 2)), says='IterableDataset'),
    Case('a loader with batch_size=None', lambda w: w.predict(test=DataLoader(w.test, batch_size=None)), says='batch_size=None'),
    Case('a fastai loader of the first ten', lambda w: w.predict(test=FastDL(w.test, bs=4, n=10)), ok=lambda r, w: torch.equal(r.targets, w.yt[:10])),
    Case('a fastai loader that draws by weight',
         lambda w: w.predict(train=DataLoaders(WeightedDL(w.train, bs=16, shuffle=True, wgts=np.ones(60)), FastDL(w.test, bs=16))),
         says='WeightedDL does not give a fixed set'),
    Case('an empty sampler', lambda w: w.predict(test=DataLoader(w.test, 4, sampler=SubsetRandomSampler([]))), says='the test set is empty'),
    Case('a loader generator instead of a loader', lambda w: w.predict(test=iter(DataLoader(w.test, 4))), says='cannot be indexed'),
]

TABLE['Preprocessing'] = [
    Case('a sidecar JSON beside the weights', lambda w: w.typed(), ok=used_own),
    Case('size, mean and deviation as options', lambda w: w.typed(weights=w.folders.bare, size=16, mean='0.5,0.5,0.5', std='0.25,0.25,0.25'), ok=used_own),
    Case('an option is stronger than the sidecar', lambda w: w.typed(size=24), ok=lambda r, w: told(r, '24 pixels')),
    Case('nothing known: the usual, and said so', lambda w: within(not_run(fails(ValueError('enough'))), lambda: w.command(weights=w.folders.bare)),
         ok=lambda r, w: "ImageNet's usual" in r.said+r.err and '224' in r.said+r.err),
    Case('size, mean and deviation as arguments', lambda w: w.predict(train=w.folders.train, test=w.folders.test, size=SIDE, mean=MEAN, std=STD),
         ok=lambda r, w: torch.allclose(r.first, w.sorted(w.plain.first), atol=1e-5)),
    Case('a network that carries its preprocessing',
         lambda w: w.predict(own(w, preprocessing=dict(size=SIDE, mean=MEAN, std=STD)), w.folders.train, w.folders.test),
         ok=lambda r, w: torch.allclose(r.first, w.sorted(w.plain.first), atol=1e-5)),
    Case("a network with timm's pretrained_cfg",
         lambda w: w.predict(own(w, pretrained_cfg=TIMM), w.folders.train, w.folders.test),
         ok=lambda r, w: torch.allclose(r.first, w.sorted(w.plain.first), atol=1e-5)),
    Case('a calibration folder goes through the same',
         lambda w: w.predict(own(w, preprocessing=dict(size=SIDE, mean=MEAN, std=STD)), w.folders.train, w.folders.test, calib=w.folders.calib, quantile=1.),
         ok=lambda r, w: (r.probes.first.argmax(1) == r.probes.targets).float().mean() > .75),
    Case('mirroring left out', lambda w: w.typed(no_flip=True), ok=used_own),
    Case('a mean of two channels', lambda w: w.predict(train=w.folders.train, test=w.folders.test, size=SIDE, mean=[.5, .5], std=STD), says='mean='),
    Case('a deviation of zero', lambda w: w.predict(train=w.folders.train, test=w.folders.test, size=SIDE, mean=MEAN, std=[0., 1., 1.]), says='std='),
    Case('an interpolation nobody knows', lambda w: w.predict(train=w.folders.train, test=w.folders.test, size=SIDE, interpolation='sharp'),
         says="interpolation='sharp'"),
    Case('a typed mean that is no number', lambda w: w.typed(mean='a,b,c'), says='a,b,c'),
    Case('a sidecar that is no JSON', lambda w: sidecar(w, '{"size": 16,'), says='net.json'),
    Case('a sidecar with a size that is no size', lambda w: sidecar(w, '{"size": "big"}'), says='size'),
    Case('size=0', lambda w: w.predict(train=w.folders.train, test=w.folders.test, size=0), says='size=0'),
    Case('size=-5, typed', lambda w: w.typed(size=-5), says='--size -5'),
    Case('a size that the network cannot take', lambda w: w.predict(case_flat(C), w.folders.train, w.folders.test, size=20), says='20'),
    Case('a size that the network cannot take, typed', lambda w: flat_typed(w, size=20), says='20'),
]

TABLE['First look'] = [
    Case('all is well', lambda w: w.predict(), ok=lambda r, w: '%' in str(r.check), quiet=True),
    Case('the classes are in another order', lambda w: w.predict(turned(w)), warns='another order', ok=lambda r, w: 'another order' in str(r.check)),
    Case('the classes are in another order, without test labels', lambda w: w.predict(turned(w), test=TensorDataset(w.xt)), warns='another order'),
    Case('images are not normalised as in training', lambda w: w.predict(train=spoiled(w.train), test=spoiled(w.test)), warns='normalis'),
    Case('only test images are not normalised', lambda w: w.predict(test=spoiled(w.test)), warns='normalis'),
    Case('a network that has learned nothing', lambda w: w.predict(torch.manual_seed(0) and case_net(C).eval()), warns='guessing'),
    Case('an estimate looks too', lambda w: w.estimate(turned(w)), warns='another order', ok=lambda r, w: 'another order' in str(r.check)),
    Case('an estimate without test labels', lambda w: w.estimate(test=TensorDataset(w.xt)),
         ok=lambda r, w: '%' in str(r.check) and 'training' in str(r.check), quiet=True),
    Case('a dry run says it', lambda w: w.typed(dry_run=True), ok=lambda r, w: told(r, 'first look', '%')),
    Case('a 16-pixel network at 64 pixels',
         lambda w: cli_estimate(w.watch(w.net), w.folders.train, w.folders.test, size=64, preset='paper', K=3, Q=2, epochs=1, bs=16, device='cpu'), warns='size'),
    Case('test images that are not numbers', lambda w: w.predict(test=TensorDataset(hurt(w.xt, w.yt)*0, w.yt)), says='NaN'),
    Case('a network whose weights are not numbers', lambda w: w.predict(nan_net(w)), says='NaN'),
]

TABLE['Labels'] = [
    Case('training targets that disagree with the items', lambda w: w.predict(train=Data(60, lambda i: (w.x[i], int(w.y[i])), targets=w.y.flip(0))),
         says='disagree'),
    Case('a wrapper that keeps the order of its targets but not of its items',
         lambda w: w.predict(train=Data(60, lambda i: w.train[59-i], targets=w.y.tolist())), says='disagree'),
    Case('a target_transform is applied', lambda w: w.predict(train=Pictures(w.x, w.y+1, lambda y: y-1)), ok=like_plain),
    Case('a target_transform of the test set is applied', lambda w: w.predict(test=Pictures(w.xt, w.yt+1, lambda y: y-1)),
         ok=lambda r, w: torch.equal(r.targets, w.yt)),
    Case('a target_transform behind a Subset', lambda w: w.predict(train=Subset(Pictures(w.x, w.y+1, lambda y: y-1), range(60))), ok=like_plain),
    Case('test labels of -1', lambda w: w.predict(test=targets(w, torch.full((30,), -1))), says='test label -1'),
    Case('one test label of -1', lambda w: w.predict(test=targets(w, torch.cat([w.yt[:-1], torch.tensor([-1])]))), says='test label -1'),
    Case('test labels from 1 to 6', lambda w: w.predict(test=targets(w, w.yt+1)), says='test label 6'),
    Case('test labels that are fractions', lambda w: w.predict(test=targets(w, w.yt+.5)), says='test labels'),
    Case('test labels that are one-hot', lambda w: w.predict(test=targets(w, torch.eye(C)[w.yt])), says='one-hot'),
    Case('test labels in a column', lambda w: w.predict(test=targets(w, w.yt[:, None])), says='test labels of shape'),
    Case('test items (x, index, y)', lambda w: w.predict(test=TensorDataset(w.xt, torch.arange(30), w.yt)), says='an item of 3 parts'),
    Case('training items (x, index, y)', lambda w: w.predict(train=TensorDataset(w.x, torch.arange(60), w.y)), says='an item of 3 parts'),
    Case('test labels that are words', lambda w: w.predict(test=Data(30, lambda i: (w.xt[i], 'cat'))), says="labels such as 'cat' are no numbers"),
    Case('test labels that are not numbers', lambda w: w.predict(test=targets(w, torch.full((30,), float('nan')))), says='test labels'),
    Case('a test set without labels', lambda w: w.predict(test=TensorDataset(w.xt)),
         ok=lambda r, w: r.targets is None and torch.equal(r.second, w.plain.second)),
    Case('a test set of bare images', lambda w: w.predict(test=Data(30, lambda i: w.xt[i])),
         ok=lambda r, w: r.targets is None and torch.equal(r.second, w.plain.second)),
    Case('calibration labels of -1', lambda w: w.predict(calib=TensorDataset(w.xt, w.yt-1)), says='calib label -1'),
    Case('calibration labels out of range', lambda w: w.predict(calib=TensorDataset(w.xt, w.yt+1)), says='calib label 6'),
    Case('a calibration set without labels', lambda w: w.predict(calib=TensorDataset(w.xt)), says='calib has no labels'),
    Case('training labels out of range', lambda w: w.predict(train=TensorDataset(w.x, w.y+1)), says='training label 6'),
    Case('training labels of -1', lambda w: w.predict(train=TensorDataset(w.x, w.y-1)), says='training label -1'),
    Case('training labels that are one-hot', lambda w: w.predict(train=TensorDataset(w.x, torch.eye(C)[w.y])), says='one-hot'),
    Case('training labels that are fractions', lambda w: w.predict(train=TensorDataset(w.x, w.y+.5)), says='training labels'),
    Case('training images without labels', lambda w: w.predict(train=TensorDataset(w.x)), says='no labels'),
    Case('a class without training images', lambda w: w.predict(train=TensorDataset(w.x[w.y != 2], w.y[w.y != 2]), K=6), says='no training image'),
    Case('more class names than answers', lambda w: w.predict(train=Data(60, lambda i: w.train[i], targets=w.y, classes=list('abcdefg'))), says='7 classes'),
    Case('the test set has other class names', lambda w: w.predict(train=named(w.train, list('abcdef')), test=named(w.test, list('abcdfe'))),
         says="class 4 of test is 'f'"),
    Case('an empty test set', lambda w: w.predict(test=Subset(w.test, [])), says='the test set is empty'),
    Case('an empty training set', lambda w: w.predict(train=Subset(w.train, [])), says='the training set is empty'),
]

TABLE['Diverged tasks'] = [
    Case('an inf in the training images of a class', lambda w: w.predict(train=TensorDataset(hurt(w.x, w.y), w.y), quantile=1.), warns='diverged',
         ok=lambda r, w: len(r.diverged) > 0 and r.probs.isfinite().all()
         and all(torch.equal(r.preds[r.plan[i].members], r.first.argmax(1)[r.plan[i].members]) for i in r.diverged)),
    Case('an inf in one training image, default preset', lambda w: w.default(train=TensorDataset(hurt(w.x, w.y), w.y), calib=w.calib, eps=1.), warns='diverged',
         ok=lambda r, w: len(r.diverged) > 0 and r.probs.isfinite().all()),
    Case('the verdict counts them', lambda w: w.predict(train=TensorDataset(hurt(w.x, w.y), w.y), quantile=1.),
         warns='diverged', ok=lambda r, w: 'diverged' in repr(r)),
    Case('the report names them', lambda w: (w.predict(train=TensorDataset(hurt(w.x, w.y), w.y), quantile=1.).report(w.new()/'r')), warns='diverged',
         ok=lambda r, w: 'diverged' in Path(r).read_text(encoding='utf-8')),
    Case('a saved result remembers them', lambda w: load_result(w.predict(train=TensorDataset(hurt(w.x, w.y), w.y), quantile=1.).save(w.new())),
         warns='diverged',
         ok=lambda r, w: len(r.diverged) > 0),
    Case('a task that only a smaller learning rate can do', lambda w: w.predict(cbs=[Explode(.005)]),
         ok=lambda r, w: list(r.diverged) == [] and r.second.isfinite().all()),
    Case('a learning rate that explodes and a tenth of it that does not', lambda w: w.predict(case_exploding(w), lr=5., epochs=4),
         ok=lambda r, w: list(r.diverged) == [] and r.second.isfinite().all()),
    Case('all tasks diverge', lambda w: w.predict(cbs=[Explode(0.)]),
         warns='diverged', ok=lambda r, w: len(r.diverged) == len(r.plan) and torch.equal(r.preds, r.first.argmax(1))),
]

TABLE['Few classes'] = [
    Case('six classes, default preset', lambda w: w.default(calib=w.calib, eps=.8), warns='all 6 classes', ok=lambda r, w: len(r.plan) == 1),
    Case('six classes, specialists', lambda w: w.default(calib=w.calib, K=2), ok=lambda r, w: all(len(t.classes) == 2 for t in r.plan)),
    Case('six classes and K=6: one task, not twelve', lambda w: w.default(calib=w.calib, K=6), ok=lambda r, w: len(r.plan) == 1),
    Case('two classes, default preset', lambda w: w.default(two_net(w), two(w.train), two(w.test), calib=two(w.calib), eps=1.),
         ok=lambda r, w: r.probs.shape[1] == 2 and r.probs.isfinite().all()),
    Case('two classes, paper preset', lambda w: w.predict(two_net(w), two(w.train), two(w.test), K=2, Q=1), ok=lambda r, w: r.second.isfinite().all()),
    Case('the paper preset says what it repeats', lambda w: w.predict(K=6), warns='same classes', ok=lambda r, w: len(r.plan) == 2),
    Case('the paper preset without K',
         lambda w: cli_predict(w.watch(w.net), w.train, w.test, preset='paper', Q=2, epochs=1, eps=1., progress=False, device='cpu'), warns='same classes'),
    Case('K larger than the classes', lambda w: w.predict(K=9), says='K=9'),
    Case('a network with one answer', lambda w: w.predict(nn.Sequential(*w.copy()[:-1], nn.Linear(16, 1))), says='(2, 1)'),
]

TABLE['Without a calibration set'] = [
    Case('a network that knows its training images by heart', lambda w: w.default(*w.by_heart, holdout=.6), warns='all 6 classes',
         ok=lambda r, w: r.probes is not None and len(r.probes.targets) >= 20 and r.flips().gain > -.02),
    Case('a network that does not', lambda w: w.default(train=w.pool, generalist=0, K=3), quiet=True,
         ok=lambda r, w: r.probes is not None and len(r.probes.targets) >= 20 and len(r.plan) > 1 and r.flips().gain > -.02),
    Case('one that has nothing left to learn', lambda w: w.default(w.learned, train=w.pool, K=3), quiet=True,
         ok=lambda r, w: r.further.steps and not r.further.kept and torch.equal(r.preds, w.default(w.learned, train=w.pool, generalist=0, K=3).preds)),
    Case('too few training images to hold any out', lambda w: w.default(train=Subset(w.train, range(12))),
         warns='no task is run', ok=lambda r, w: torch.equal(r.preds, r.first.argmax(1))),
]

TABLE["A network's output"] = [
    Case('probabilities', lambda w: w.predict(w.of(lambda f, z: z.softmax(1))), warns='probabilities', ok=same_answers),
    Case('log probabilities', lambda w: w.predict(w.of(lambda f, z: z.log_softmax(1))), ok=same_answers, quiet=True),
    Case('(features, logits)', lambda w: w.predict(w.of(lambda f, z: (f, z))), ok=nearly, quiet=True),
    Case('(logits, features)', lambda w: w.predict(w.of(lambda f, z: (z, f))), ok=nearly, quiet=True),
    Case('a list', lambda w: w.predict(w.of(lambda f, z: [f, z])), ok=nearly, quiet=True),
    Case("a dict with 'logits'", lambda w: w.predict(w.of(lambda f, z: dict(logits=z, other=z*2))), ok=nearly, quiet=True),
    Case('a dict with one tensor that fits', lambda w: w.predict(w.of(lambda f, z: dict(features=f, out=z))), ok=nearly, quiet=True),
    Case('an object with .logits', lambda w: w.predict(w.of(lambda f, z: SimpleNamespace(logits=z, hidden=f))), ok=nearly, quiet=True),
    Case('a dict of probabilities', lambda w: w.predict(w.of(lambda f, z: dict(probs=z.softmax(1)))), warns='probabilities', ok=same_answers),
    Case('two tensors that fit, in a dict', lambda w: w.predict(w.of(lambda f, z: dict(a=z, b=z*2))), says='logits='),
    Case('two tensors that fit, in a tuple', lambda w: w.predict(w.of(lambda f, z: (z*2, z))), says='logits='),
    Case('two tensors that fit, and logits=', lambda w: w.predict(w.of(lambda f, z: dict(a=z, b=z*2)), logits=lambda o: o['a']), ok=nearly, quiet=True),
    Case('logits= that takes the wrong one', lambda w: w.predict(w.of(lambda f, z: dict(a=z, b=f[:, 0])), logits=lambda o: o['b']), says='logits= gives (2,)'),
    Case('logits= that fails', lambda w: w.predict(w.of(lambda f, z: dict(a=z)), logits=lambda o: o['c']), says='logits='),
    Case('logits= that is no function', lambda w: w.predict(logits='a'), says='logits='),
    Case('a map of answers, as in segmentation', lambda w: w.predict(w.of(lambda f, z: z[:, :, None, None].expand(-1, -1, 4, 4))), says='logits='),
    Case('nothing', lambda w: w.predict(w.of(lambda f, z: None)), says='NoneType'),
    Case('more answers than classes have labels', lambda w: w.predict(nn.Sequential(*w.copy()[:-1], nn.Linear(16, 10)).eval()), says='no training image'),
    Case('fewer answers than classes', lambda w: w.predict(nn.Sequential(*w.copy()[:-1], nn.Linear(16, 4))), says='4'),
    Case('a linear layer behind the classifier, not used', lambda w: w.predict(Extra(w.copy()).eval()), ok=nearly, quiet=True),
    Case('a linear layer behind the classifier, used', lambda w: w.predict(Extra(w.copy(), use=True).eval()), ok=nearly, quiet=True),
    Case('(features, logits), default preset', lambda w: w.default(w.of(lambda f, z: (f, z)), calib=w.calib), ok=answered),
]

TABLE['Any nn.Module'] = [
    Case('a 1×1 convolution for a head', lambda w: w.predict(conv_head(w.net)), ok=nearly, quiet=True),
    Case('a 1×1 convolution for a head, not flattened', lambda w: w.predict(conv_head(w.net, flat=False)), ok=nearly, quiet=True),
    Case('a 1×1 convolution, default preset', lambda w: w.default(conv_head(w.net), calib=w.calib), ok=lambda r, w: right(r) and len(r.plan)),
    Case('a network without nn.Linear, a share of nearest images', lambda w: w.predict(conv_head(w.net), proportion=.5, subset='nearest'), ok=answered),
    Case('a half-precision network', lambda w: w.predict(w.copy().half()), says='float32'),
    Case('a bfloat16 network', lambda w: w.predict(w.copy().bfloat16()), says='float32'),
    Case('a network in double precision', lambda w: w.predict(w.copy().double()), says='float32'),
    Case('a compiled network', lambda w: w.predict(torch.compile(w.watch(w.copy()), backend='eager')), ok=nearly, quiet=True),
    Case('DataParallel', lambda w: w.predict(nn.DataParallel(w.copy())), ok=nearly, quiet=True),
    Case('DataParallel of a compiled network', lambda w: w.predict(nn.DataParallel(torch.compile(w.copy(), backend='eager'))), ok=nearly, quiet=True),
    Case('TorchScript, traced', lambda w: w.predict(torch.jit.trace(w.copy().eval(), w.xt[:2])), says='TorchScript'),
    Case('TorchScript, scripted', lambda w: w.predict(torch.jit.script(w.copy())), says='TorchScript'),
    Case('inside no_grad', lambda w: within(torch.no_grad(), w.predict), ok=like_plain, quiet=True),
    Case('inside inference_mode', lambda w: within(torch.inference_mode(), w.predict), ok=like_plain, quiet=True),
    Case('inside inference_mode, default preset', lambda w: within(torch.inference_mode(), lambda: w.default(calib=w.calib)),
         ok=lambda r, w: right(r) and len(r.plan)),
    Case('an estimate inside no_grad', lambda w: within(torch.no_grad(), w.estimate), ok=lambda r, w: r.seconds > 0),
    Case('a frozen network', lambda w: w.predict(w.copy().requires_grad_(False)), ok=like_plain),
    Case('a network in training mode', lambda w: w.predict(w.copy().train()), ok=like_plain),
    Case('spectral norm', lambda w: w.predict(spectral(w)), ok=answered),
    Case('a network without parameters', lambda w: w.predict(nn.Sequential(nn.AdaptiveAvgPool2d((1, 2)), nn.Flatten())), says='no parameters'),
    Case('a function for a network', lambda w: w.predict(lambda x: w.net(x)), says='expected an nn.Module'),
    Case('a class for a network', lambda w: w.predict(nn.Linear), says='expected an nn.Module'),
    Case('a file name for a network', lambda w: w.predict('resnet18.pth'), says='expected an nn.Module'),
    Case('a state dict for a network', lambda w: w.predict(w.net.state_dict()), says='expected an nn.Module'),
    Case('a network on the meta device', lambda w: w.predict(case_net(C).to('meta')), says='meta'),
    Case('a lazy layer without weights', lambda w: w.predict(nn.Sequential(*w.copy()[:-1], nn.LazyLinear(C))), says='weights'),
    Case('no training data', lambda w: cli_predict(w.net, None, w.test), says='needs train and test data'),
    Case('no test data', lambda w: cli_predict(w.net, w.train), says='needs train and test data'),
]

TABLE['Batches'] = [
    Case("dicts with 'image' and 'label'", lambda w: w.predict(train=dicts('image', 'label', w.train), test=dicts('image', 'label', w.test)),
         ok=like_plain, quiet=True),
    Case("dicts with 'pixel_values' and 'labels'",
         lambda w: w.predict(train=dicts('pixel_values', 'labels', w.train), test=dicts('pixel_values', 'labels', w.test)), ok=like_plain, quiet=True),
    Case("dicts with 'img' and 'target'", lambda w: w.predict(train=dicts('img', 'target', w.train), test=dicts('img', 'target', w.test)), ok=like_plain),
    Case("dicts with 'x' and 'y'", lambda w: w.predict(train=dicts('x', 'y', w.train), test=dicts('x', 'y', w.test)), ok=like_plain),
    Case('dicts without labels', lambda w: w.predict(test=dicts('image', None, w.test)),
         ok=lambda r, w: r.targets is None and torch.equal(r.second, w.plain.second)),
    Case('dicts as calibration set', lambda w: w.predict(calib=dicts('image', 'label', w.calib), quantile=1.), ok=lambda r, w: len(r.probes.targets) > 0),
    Case('a dataset as Hugging Face gives it', lambda w: w.predict(train=columns(w.train), test=columns(w.test)),
         ok=lambda r, w: like_plain(r, w) and r.vocab == list('abcdef')),
    Case('a loader that collates to dicts',
         lambda w: w.predict(test=DataLoader(w.test, 8, collate_fn=to_dict)), ok=like_plain),
    Case('dicts with other names', lambda w: w.predict(test=dicts('photo', 'label', w.test)), says='photo'),
    Case('training dicts without labels', lambda w: w.predict(train=dicts('image', None, w.train)), says='no labels'),
    Case('numpy images', lambda w: w.predict(train=Data(60, lambda i: (w.x[i].numpy(), int(w.y[i]))), test=Data(30, lambda i: (w.xt[i].numpy(), int(w.yt[i])))),
         ok=like_plain),
    Case('images of bytes', lambda w: w.predict(train=TensorDataset(w.x.byte(), w.y), test=TensorDataset(w.xt.byte(), w.yt)), says='uint8'),
    Case('images of double precision', lambda w: w.predict(train=TensorDataset(w.x.double(), w.y), test=TensorDataset(w.xt.double(), w.yt)), says='float64'),
    Case('grey images', lambda w: w.predict(train=TensorDataset(w.x[:, :1], w.y), test=TensorDataset(w.xt[:, :1], w.yt)), says='(1, 16, 16)'),
    Case('training images of another shape', lambda w: w.predict(case_flat(C), train=TensorDataset(w.x[..., :8], w.y)), says='(3, 16, 8)'),
    Case('test images of several sizes', lambda w: w.predict(test=Data(30, lambda i: (w.xt[i, :, :16-i % 2], int(w.yt[i])))), says='size'),
    Case('images that are not tensors yet', lambda w: w.predict(train=ImageFolder(w.folders.train), test=ImageFolder(w.folders.test)), says='transform'),
]

REFUSED = dict(
    seed=(-1, 'now', 1.5), num_workers=(-1, 'two'), bs=(0, -4, 2.5), epochs=(0, 1.5), K=(0, 'three'), Q=(0,), quantile=(2.,), lr=(0., -.1, float('nan'), 'fast'), tau=(0.,), V=(-1,),
    layers=('layer9', -1, 1.5), preset=('fast',), rule=('best',), planner=('best',), criterion=('best',), subset=('best',), bn=('half',), loss_over=('none',), threads=('many',),
    proportion=(0.,), caution=(.5,), holdout=(1.,), views=(.9,), alpha=(2.,), mom=(1.5,), wd=(-1.,), lam=(-1.,), cache=(-1., 'much'), shift=('rain',), prior=(-1.,), generalist=('some', -1), minutes=(0, -1), executor=('cloud',), cover=(.9,), budget=(100,), epsilon=(.5,),
    device=('gpu', 'cuda:97'))

TABLE['Settings'] = [
    *[Case(f'{k}={v!r}', lambda w, k=k, v=v: w.predict(**{k: v}), says=f'{k}=' if isinstance(v, str) else f'{k}={v!r}') for k, vs in REFUSED.items() for v in vs],
    Case('eps=2.0', lambda w: w.predict(quantile=None, eps=2.), says='eps=2.0'),
    Case('decode=-1', lambda w: w.predict(train=w.folders.train, test=w.folders.test, size=SIDE, decode=-1), says='decode=-1'),
    Case('cache_dir that is a file', lambda w: w.predict(layers=1, V=1, cache_dir=with_file(w.new(), 'here')/'here'), says='cache_dir='),
    Case('store that is a file', lambda w: w.predict(store=with_file(w.new(), 'here')/'here'), says='here'),
    Case('numbers of numpy', lambda w: w.predict(K=np.int64(3), Q=np.int64(2), seed=np.int64(0), lr=np.float32(.01)), ok=nearly),
]

TABLE['Folders'] = [
    Case('a folder that does not exist', lambda w: w.predict(train='nowhere', test=w.folders.test), says="'nowhere' is not a folder"),
    Case('a file for a folder', lambda w: w.predict(train=w.folders.weights, test=w.folders.test), says='is not a folder'),
    Case('training images without class folders', lambda w: w.predict(train=w.folders.flat, test=w.folders.test), says='no class folders'),
    Case('a class without images', lambda w: w.predict(train=with_class(w.mine('train'), 'c7'), test=w.folders.test), says='is a class without images'),
    Case('a test class that is not a training class', lambda w: w.predict(train=w.folders.train, test=with_class(w.mine('test'), 'dog')),
         says='is not a class of the training set'),
    Case('a test folder with class folders and loose images',
         lambda w: w.predict(train=w.folders.train, test=with_file(w.mine('test'), 'loose.png', data=png(w)), size=SIDE), says='both class folders and loose images'),
    Case('a test folder without images', lambda w: w.predict(train=w.folders.train, test=w.new()), says='holds no images'),
    Case('an image that cannot be read', lambda w: w.predict(train=w.folders.train, test=with_file(w.mine('flat'), 'bad.png'), size=SIDE, mean=MEAN, std=STD),
         says='bad.png'),
    Case('an image that cannot be read, typed', lambda w: w.typed(test=with_file(w.mine('flat'), 'bad.png')), says='--skip-bad'),
    Case('an image that cannot be read, and --skip-bad', lambda w: w.typed(test=with_file(w.mine('flat'), 'bad.png'), skip_bad=True),
         ok=lambda r, w: told(r, 'bad.png') and len(column(r, 'path')) == 30),
    Case('more classes in the folder than in the weights', lambda w: w.typed(train=with_class(w.mine('train'), 'c7', png(w))), says='7 classes'),
    Case('a folder and a dataset', lambda w: w.predict(train=w.folders.train), says='pass folders for both'),
    Case('a calibration folder and datasets', lambda w: w.predict(calib=w.folders.calib), says='is a folder but train and test are not'),
    Case('a .gif is counted', lambda w: w.typed(test=with_file(w.mine('flat'), 'moving.gif')),
         ok=lambda r, w: told(r, '.gif') and len(column(r, 'path')) == 30),
    Case('a loose image among class folders is counted', lambda w: w.typed(train=with_file(w.mine('train'), 'loose.png', data=png(w))),
         ok=lambda r, w: told(r, 'loose')),
    Case('an unknown suffix is counted', lambda w: w.typed(train=with_file(w.mine('train'), 'c0/notes.txt', 'c1/photo.heic')),
         ok=lambda r, w: told(r, '.heic')),
    Case('a file name that is not UTF-8', lambda w: w.typed(test=with_file(w.mine('flat'), b'caf\xe9.png', data=png(w))), ok=lambda r, w: all_there(r, 31)),
    Case('a class folder that is not UTF-8', lambda w: w.typed(train=not_utf8(w.mine('train')), test=w.folders.flat), ok=lambda r, w: all_there(r, 30)),
    Case('a file name with a newline', lambda w: w.typed(test=with_file(w.mine('flat'), 'two\nlines.png', data=png(w))), ok=lambda r, w: all_there(r, 31)),
    Case('a bad file name with a newline', lambda w: w.typed(test=with_file(w.mine('flat'), 'two\nlines.png')), says='lines.png'),
    Case("a Learner answers a folder by class, with its labels", lambda w: w.learner().cli_predict(w.folders.test, **QUICK),
         ok=lambda r, w: [r.vocab[y] for y in r.targets] == [Path(p).parent.name for p in r.paths] and right(r)),
    Case('a Learner answers a flat folder', lambda w: w.learner().cli_predict(str(w.folders.flat), **QUICK),
         ok=lambda r, w: r.targets is None and rows(r) == 30),
    Case('a Learner and a folder with an unknown class', lambda w: w.learner().cli_predict(with_class(w.mine('test'), 'dog', png(w)), **QUICK), says='dog'),
    Case('a Learner and a folder that does not exist', lambda w: w.learner().cli_predict('nowhere', **QUICK), says='nowhere'),
    Case('a Learner and a folder without images', lambda w: w.learner().cli_predict(w.new(), **QUICK), says='no images'),
    Case('a Subset of ImageFolder keeps its paths', lambda w: w.predict(train=folder(w, 'train'), test=Subset(folder(w, 'test'), [29, 0])),
         ok=lambda r, w: [Path(p).name for p in r.paths] == ['029.png', '000.png']),
    Case('a loader with a sampler of ImageFolder keeps its paths',
         lambda w: w.predict(train=folder(w, 'train'), test=DataLoader(folder(w, 'test'), 4, sampler=SubsetRandomSampler([29, 0]))),
         ok=lambda r, w: [Path(p).name for p in r.paths] == ['029.png', '000.png']),
    Case('two ImageFolders in a ConcatDataset keep their paths',
         lambda w: w.predict(train=folder(w, 'train'), test=ConcatDataset([folder(w, 'test'), Subset(folder(w, 'test'), [0])])),
         ok=lambda r, w: len(r.paths) == 31),
]

NAMES = dict(numbers=[10, 20, 30, 40, 50, 60], tuples=[(i, 'a') for i in range(6)], mixed=[True, False, None, 'a', 1.5, 2], numpy=list(np.array(list('uvwxyz'))))

TABLE['Class names'] = [
    *[Case(f'class names: {k}', lambda w, v=v: w.predict(train=named(w.train, v), test=named(w.test, v)),
           ok=lambda r, w, v=v: back(r, v)) for k, v in NAMES.items()],
    *[Case(f'class names, saved: {k}', lambda w, v=v: load_result(saved(w, train=named(w.train, v))),
           ok=lambda r, w, v=v: back(r, v, types=type(v[0]) is not np.str_))
      for k, v in NAMES.items()],
]

TABLE['Checkpoints'] = [
    Case('a bare state dict', lambda w: w.load(w.net.state_dict()), ok=fits),
    Case('an argparse.Namespace beside the weights', lambda w: w.load(dict(model=w.net.state_dict(), args=argparse.Namespace(lr=.1, data=Path('x')), epoch=3)),
         ok=fits),
    Case('numpy scalars beside the weights',
         lambda w: w.load(dict(state_dict=w.net.state_dict(), best_acc1=np.float64(76.1), epoch=np.int64(3), seen=np.float32(1.))), ok=fits),
    Case("only EMA weights, as timm's script saves them", lambda w: w.load(dict(state_dict_ema=w.net.state_dict(), arch='case_net', args=argparse.Namespace())),
         ok=fits),
    Case("only EMA weights, as torchvision's script saves them", lambda w: w.load(dict(model_ema=ema(w.net.state_dict()), epoch=1)), ok=fits),
    Case('weights of DataParallel', lambda w: w.load(dict(net={f'module.{k}': v for k, v in w.net.state_dict().items()}, acc=76.1)), ok=fits),
    Case('weights of torch.compile', lambda w: w.load({f'_orig_mod.{k}': v for k, v in w.net.state_dict().items()}), ok=fits),
    Case('an optimiser beside the weights',
         lambda w: w.load(dict(state_dict=w.net.state_dict(), optimizer=torch.optim.SGD(w.net.parameters(), .1).state_dict(), version='1.0')), ok=fits),
    Case('safetensors', lambda w: w.load(w.net.state_dict(), 'w.safetensors', save=safetensors), ok=fits),
    Case('a whole pickled network', lambda w: w.load(w.copy()), says='not on the list'),
    Case('a pickle with a trap in it', trapped, says='not on the list'),
    Case('a file that does not exist', lambda w: w.typed(weights='nothing.pth'), says='nothing.pth'),
    Case('half a file', lambda w: half_file(w, 'w.pth', torch.save), says='cannot be read'),
    Case('half a safetensors file', lambda w: half_file(w, 'w.safetensors', safetensors), says='cannot be read'),
    Case('an empty file', lambda w: w.load(b'', save=lambda o, f: f.write_bytes(o)), says='cannot be read'),
    Case('an image for weights', lambda w: w.typed(weights=w.folders.flat/'000.png'), says='cannot be read'),
    Case('no weights in the file', lambda w: w.load(dict(epoch=3, note='tomorrow')), says='not a state dict'),
    Case('a list', lambda w: w.load([1, 2]), says='hold a list'),
    Case('another number of classes', lambda w: w.load(case_net(9).state_dict()), says='another number of classes'),
    Case('another network', lambda w: w.load(case_flat(C).state_dict()), says='wrong arch'),
    Case('a network nobody knows', lambda w: w.typed(arch='resnet19'), says='--arch resnet19'),
    Case('a timm network nobody knows', lambda w: w.typed(arch='timm:resnet19'), says='--arch timm:resnet19', needs='timm'),
    Case('weights that are not numbers', nan_weights, says='NaN'),
    Case('a file of the TTT authors', lambda w: w.load(ttt_file(w)), ok=fits),
    Case('an EfficientNet of another family', lambda w: efficientnet(w, 'efficientnet_b0'), says='efficientnet_b0'),
]

TABLE['The out folder'] = [
    Case('a file in its place', lambda w: within(not_run(), lambda: w.typed(out=with_file(w.new(), 'out')/'out')), says='is a file'),
    Case('a file in the place of its parent', lambda w: within(not_run(), lambda: w.typed(out=with_file(w.new(), 'out')/'out'/'deep')), says='out'),
    Case('a folder that cannot be written', lambda w: within(not_run(), lambda: w.typed(out='/proc/closed_loop')), says='/proc/closed_loop'),
    Case('a full disk', lambda w: within(not_run(), lambda: (w.folders, within(full_disk(), w.typed))), says='cannot be written'),
    Case("somebody else's files", lambda w: within(not_run(), lambda: w.typed(out=with_file(w.new(), 'thesis.docx'))), says='thesis.docx'),
    Case("somebody else's files, and --overwrite", lambda w: w.typed(out=with_file(w.new(), 'thesis.docx'), overwrite=True),
         ok=lambda r, w: (r.out/'predictions.csv').exists() and (r.out/'thesis.docx').exists()),
    Case('our own files', lambda w: w.typed(out=w.typed().out), ok=lambda r, w: (r.out/'predictions.csv').exists()),
    Case('two commands at once', at_once, ok=lambda r, w: (r.out/'predictions.csv').exists()),
    Case('a report that fails loses nothing', no_report,
         ok=lambda r, w: (r.out/'predictions.csv').exists() and 'no font' in r.err and len(r.err.strip().splitlines()) == 1),
    Case('a saved result without one of its files', lambda w: (f := saved(w), (f/'run.json').unlink(), load_result(f)), says='run.json'),
    Case('a saved result with a damaged file', lambda w: (f := saved(w), (f/'looks.safetensors').write_bytes(b'{}'), load_result(f)), says='looks.safetensors'),
    Case('a saved result with a damaged plan', lambda w: (f := saved(w), (f/'plan.json').write_text('{'), load_result(f)), says='plan.json'),
    Case('a folder that holds no result', lambda w: load_result(w.new()), says='is not there'),
    Case('a damaged file of a store', lambda w: store(w, 'unit.json'), says='unit.json'),
    Case('damaged settings of a store', lambda w: store(w, 'settings.json'), says='settings.json'),
]

TABLE['The command'] = [
    Case('--train is missing', lambda w: w.typed(train=None), says='--train missing'),
    Case('any failure is a line', lambda w: within(not_run(fails(RuntimeError('CUDA error: out of memory\nby a long way'))), w.typed), says='out of memory'),
    Case('any failure has code 2', lambda w: within(not_run(fails(KeyError('x'))), w.command),
         ok=lambda r, w: r.code == 2 and len(r.err.strip().splitlines()) == 1),
    Case('--debug shows where', lambda w: within(not_run(fails(RuntimeError('lost'))), lambda: traced(w)), ok=lambda r, w: 'Traceback' in r and 'lost' in r),
    Case('Ctrl-C', lambda w: within(not_run(fails(KeyboardInterrupt())), w.command), ok=lambda r, w: r.code == 130 and len(r.err.strip().splitlines()) <= 1),
    Case('SIGTERM', terminated, ok=lambda r, w: r.code == 143 and len(r.err.strip().splitlines()) <= 1),
    Case('redirected output shows progress', lambda w: w.typed(), ok=lambda r, w: re.search(r'task.*\b2\b.*\b2\b|\b2\b.*\b2\b.*task', r.said+r.err)),
    Case('help shows dashes', lambda w: w.command(help=True), ok=lambda r, w: r.code == 0 and '--skip-bad' in r.said and not re.search(r'--\w+_', r.said)),
    Case('an option nobody knows', lambda w: w.command(speed='high'), ok=lambda r, w: r.code == 2 and '--speed' in r.err),
    Case('--K nine', lambda w: w.command(K='nine'), ok=lambda r, w: r.code == 2 and 'nine' in r.err),
    Case('--seed -1', lambda w: w.typed(seed=-1), says='--seed -1'),
    Case('--num-workers -1', lambda w: w.typed(num_workers=-1), says='--num-workers -1'),
    Case('--calib of a folder without labels', lambda w: w.typed(calib=w.folders.flat), says='calib'),
    Case('--preset fast', lambda w: w.typed(preset='fast'), says='--preset fast'),
]

for _section, _cases in TABLE.items():
    for _c in _cases: _c.section = _section
CASES = [c for cs in TABLE.values() for c in cs]


# ---- running a case

def _ours(e): return OURS in traceback.extract_tb(e.__traceback__)[-1].filename or isinstance(e, Refused)


def sentence(text):
    "What keeps a message from being one sentence for people, or nothing"
    raw = (r'Traceback|\bmat1\b|size mismatch|object is not|has no attribute|takes \d+ positional|unexpected keyword| at 0x[0-9a-f]+|'
           r'not supported between|cannot be interpreted|too many dimensions|not callable|not iterable|Errno')
    if not text.strip(): return 'says nothing'
    if '\n' in text.strip(): return 'has several lines'
    if re.search(r'[.!?] [A-Z]', text): return 'has several sentences'
    m = re.search(raw, re.sub(r'\(.*?\)', '', text))   # a library's own words may be quoted in brackets
    return f'shows {m[0]!r}' if m else ''


def run(case, world):
    "What comes of a case: refused, warned, answered, raw (an error that is not ours) or wrong; and what was said"
    world.watched = []
    torch.manual_seed(0)
    def tidy(s): return re.sub(r'process \d+ on [^ :]+', 'process 4711 on this-machine', re.sub(rf'{re.escape(str(world.path))}/\d+/', '', str(s)))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        try: res = case.call(world)
        except (ValueError, TypeError) as e: return ('refused' if _ours(e) else 'raw'), tidy(e)
        except Exception as e: return 'raw', tidy(f'{type(e).__name__}: {e}')
        try: fine = case.ok is None or case.ok(res, world)
        except Exception as e: return 'wrong', tidy(f'{type(e).__name__}: {e}')
    said = [tidy(o.message) for o in seen if OURS in str(o.filename) or o.category is UserWarning]
    if not fine: return 'wrong', ' | '.join([tidy(short(res)), *said])
    return ('warned', ' | '.join(dict.fromkeys(said))) if said else ('answered', '')


def short(res):
    if isinstance(res, SimpleNamespace) and hasattr(res, 'err'): return f'code {res.code}: {res.said[-600:]} {res.err[-600:]}'
    with contextlib.suppress(Exception): return repr(res)[:300]
    return type(res).__name__


def verdict(case, outcome, message):
    "What is wrong with what came of a case, or nothing"
    if case.says is not None:
        if outcome != 'refused': return f'expected a refusal with {case.says!r}; {outcome}: {message}'
        if bad := sentence(message): return f'the message {bad}: {message}'
        return '' if case.says in message else f'expected {case.says!r} in: {message}'
    if case.warns is not None:
        if outcome != 'warned': return f'expected a warning with {case.warns!r}; {outcome}: {message}'
        return '' if case.warns in message else f'expected {case.warns!r} in: {message}'
    if outcome not in ('answered', 'warned'): return f'{outcome}: {message}'
    return f'expected no warning: {message}' if case.quiet and outcome == 'warned' else ''
