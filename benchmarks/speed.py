"""What the second look costs, as ratios measured side by side: medians of repeated, interleaved runs.

    python benchmarks/speed.py                                            # bars that need only built-in data
    python benchmarks/speed.py --data path/to/tiny-imagenet-60            # and those that need JPEG files
    python benchmarks/speed.py --only overhead idle
"""
import argparse, copy, gc, json, resource, subprocess, sys, time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from fastai.data.load import DataLoader
from torchvision import models, transforms as T
from torchvision.datasets import ImageFolder

from closed_loop.adapt import Snapshot, adapt, adapt_learner, rollback
from closed_loop.auxset import AuxSet
from closed_loop.confidence import find_hard
from closed_loop.config import make_config
from closed_loop.core import cli_estimate, cli_predict
from closed_loop.data.folders import folder_datasets, folder_tfms
from closed_loop.data.glyphs import glyph_aug, glyph_model, glyphs
from closed_loop.estimate import measure_speed
from closed_loop.inputs import Problem
from closed_loop.layers import FeatureHook, split_model
from closed_loop.loaders import as_dl
from closed_loop.look import look
from closed_loop.paper.networks import count
from closed_loop.plan import Plan, Task, make_plan
from closed_loop.run import ready
from closed_loop.schedule import run_plan
from closed_loop.supcon import supcon_loss
from common import RESULTS, provenance, write

ROWS = []


def bar(name, what, value, target, ok, **detail):
    "One bar, printed and kept"
    ROWS.append(dict(bar=name, what=what, value=value, target=target, met=bool(ok), detail='; '.join(f'{k} {v}' for k,v in detail.items()), command=provenance()['command']))
    print(f"{name:9} {value:8.3f}  target {target:10} {'met' if ok else 'MISSED':7} {ROWS[-1]['detail']}", flush=True)


def side_by_side(*fs, repeats=5):
    "Median seconds of each, run in turns, once to warm up; and the spread of the first to second ratio"
    ts = [[] for _ in fs]
    for f in fs: f()
    for _ in range(repeats):
        for t,f in zip(ts,fs): s = time.perf_counter(); f(); t.append(time.perf_counter()-s)
    r = np.array(ts[0])/np.array(ts[1]) if len(fs)>1 else np.ones(1)
    return [float(np.median(t)) for t in ts], float(np.median(r)), f'{r.min():.2f}-{r.max():.2f}'


def overhead(args):
    "A task through the Learner against a bare loop over ready tensors"
    for width,bs in ((16,256),(16,64)):
        model,train = glyph_model(progress=False),glyphs(400, transform=glyph_aug())
        aux,classes = AuxSet(train),list(range(10)); dl = aux.loader(classes, bs=bs)
        snap = Snapshot(model); learn = adapt_learner(model, loss_over='task'); batches = list(dl)
        others = torch.ones(160, dtype=torch.bool); others[classes] = False
        def with_learner(): adapt(learn, batches, 1, .05, 0, classes); snap.restore_values()
        def bare():
            model.train(); opt = torch.optim.SGD(model.parameters(), .05, momentum=.9, weight_decay=1e-4)
            for i,(x,y) in enumerate(batches):
                opt.param_groups[0]['lr'] = .05*(1+np.cos(np.pi*i/len(batches)))/2
                with FeatureHook(model) as h: z = model(x); loss = F.cross_entropy(z.masked_fill(others,float('-inf')),y)+supcon_loss(F.normalize(h.z.flatten(1),dim=1),y)
                loss.backward(); opt.step(); opt.zero_grad()
            snap.restore_values()
        (a,b),r,spread = side_by_side(with_learner, bare, repeats=args.repeats)
        bar('overhead', f'Learner / bare loop, one task of 4,000 glyphs in batches of {bs}', r, '<= 1.10', r<=1.10, learner=f'{a:.2f} s', bare=f'{b:.2f} s', spread=spread)


def idle(args):
    "Nothing is hard: the default preset, which looks for a shift in samples of a fixed size, and the loop without that; seconds, and images that pass the network"
    model,train = glyph_model(progress=False),glyphs(100)
    for n,what,kw in ((60,'',{}), (300,'',{}), (60,' (shift=None, generalist=0)',dict(shift=None,generalist=0))):
        dl = as_dl(glyphs(n,'test'), 256)
        def loop(): cli_predict(model, train, dl, eps=0, progress=False, device='cpu', **kw)
        (a,b),r,spread = side_by_side(loop, lambda: look(model, dl), repeats=3*args.repeats)
        bar('idle', f'cli_predict without hard images{what} / a forward pass, {160*n:,} glyphs', r, '<= 1.05', r<=1.05, loop=f'{a:.2f} s', forward=f'{b:.2f} s', spread=spread)
        seen = []
        h = model.register_forward_pre_hook(lambda m,x: seen.append(len(x[0]))); loop(); h.remove()
        r = sum(seen)/160/n
        bar('idle', f'images that pass the network without hard images{what} / test images, {160*n:,} glyphs', r, '<= 1.05', r<=1.05, images=sum(seen))


def task_plan(Q, members=20, K=10, C=160): return Plan([Task(list(range(q*members,(q+1)*members)), [(q*K+k)%C for k in range(K)]) for q in range(Q)])


def run_glyphs(plan, n=40, cache=.02, **kw):
    "Seconds of a hand-made plan"
    model,train,test = glyph_model(progress=False),glyphs(n, transform=glyph_aug()),glyphs(10,'test')
    cfg = make_config('default', epochs=2, rule='conditional', cache=cache, **kw); aux,dl = AuxSet(train),as_dl(test,256)
    t = time.perf_counter()
    with ready(Problem(model, aux, dl), cfg) as run: run_plan(run, plan, 160, progress=False)
    return time.perf_counter()-t


def memory(args):
    "Peak memory with many and few tasks, each in a process of its own"
    def peak(Q):
        code = f'import sys; sys.path.insert(0,{str(Path(__file__).parent)!r}); import speed, resource; speed.run_glyphs(speed.task_plan({Q})); print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)'
        return int(subprocess.run([sys.executable,'-W','ignore','-c',code], capture_output=True, text=True, check=True).stdout.split()[-1])/1024
    many,few = np.median([peak(40) for _ in range(3)]),np.median([peak(4) for _ in range(3)])
    bar('memory', 'peak RSS with 40 tasks / with 4 tasks, 20 MB of cache', many/few, '<= 1.1', many/few<=1.1, many=f'{many:.0f} MB', few=f'{few:.0f} MB')


def growth(args):
    "Time against tasks, hard images and classes"
    def slope(name, xs, f):
        ts = [float(np.median([f(x) for _ in range(3)])) for x in xs]
        e = float(np.polyfit(np.log(xs), np.log(ts), 1)[0])
        bar('growth', f'exponent of time against number of {name}', e, '<= 1.05', e<=1.05, sizes=xs, seconds=[round(t,2) for t in ts])
    run_glyphs(task_plan(1))
    slope('tasks', [4,8,16,32], lambda Q: run_glyphs(task_plan(Q)))
    slope('hard images', [100,200,400,800], lambda n: run_glyphs(task_plan(4, n//4)))
    slope('classes per task', [4,8,16,32], lambda K: run_glyphs(task_plan(4, K=K), cache=1.))


def quality(args):
    "Net gain with ready-made augmentations and with fresh ones, the looks of benchmarks/accuracy.py"
    from accuracy import glyph_problem, looks, parser
    a,d = parser('').parse_args(['--Q','12','--epochs','5']),[]
    for seed in (1,2,3):
        model,train,calib,test,_ = glyph_problem('middling', seed, a)
        gain = {V:100*looks(model, train, test, calib, seed, a, preset='default', flip=False, V=V, checks=0, generalist=0).flips().gain for V in (4,0)}
        d.append(gain[4]-gain[0]); print(seed, gain, flush=True)
    bar('quality', 'net gain, 4 ready-made augmentations minus fresh ones, glyphs, three seeds', float(np.mean(d)), '>= -0.1', np.mean(d)>=-.1, seeds=[round(x,2) for x in d])


def planning(args):
    "Planning at ImageNet's size, from benchmarks/planning.py"
    p = pd.read_csv(RESULTS/'planning.csv'); p = p[p.C==1000]
    for _,r in p.iterrows(): bar('plan', f'{r.planner}: {r.Q} tasks for {r.hard:,} hard images of {r.N:,}, 1,000 classes (planning.csv)', r.seconds, '<= 60 s, 4 GB', r.seconds<=60 and r.peak_GB<=4, GB=round(r.peak_GB,2))


# ---- from JPEG files, ResNet-18 at 64 pixels

def plain_task(model, folder, classes, n, epochs=1, layers='all', bs=256):
    "A task as a plain fastai and torchvision pipeline does it: a Learner of its own, every image decoded in every epoch; seconds"
    ds = ImageFolder(folder, folder_tfms(64, aug=True)); y = np.array(ds.targets)
    idxs = [int(i) for c in classes for i in (y==c).nonzero()[0][:n]]
    t = time.perf_counter()
    with rollback(model): adapt(adapt_learner(model, layers), DataLoader(torch.utils.data.Subset(ds,idxs), bs=bs, shuffle=True, num_workers=0), epochs, .01)
    return time.perf_counter()-t


def madds(model, layers, x):
    "Multiply-adds of trunk and head, for one image"
    total = count(model, x.shape[-1]).madds; m = copy.deepcopy(model).eval(); seen = []
    _,head = split_model(m, layers, x)
    hs = [k.register_forward_hook(lambda k,i,o: seen.append(o[0].numel()*k.weight[0].numel())) for k in head.modules() if isinstance(k,(torch.nn.Conv2d,torch.nn.Linear))]
    with torch.no_grad(): m(x[:1])
    for h in hs: h.remove()
    return total-sum(seen), sum(seen)


def engine(args):
    "Same plan, same deep layers, same epochs: plain pipeline against the cached engine"
    torch.manual_seed(0); model = models.resnet18(num_classes=60); n,epochs,V = 64,5,2
    train,test = folder_datasets(Path(args.data)/'train', Path(args.data)/'val', size=64, decode=1.)
    aux,dl = AuxSet(train, 60),as_dl(test, 64); aux.index = [ix[:n] for ix in aux.index]
    plan = Plan([Task([q],[(2*q+k)%8 for k in range(4)]) for q in range(4)])      # four tasks of four classes, eight classes in all
    def plain(): return [plain_task(model, Path(args.data)/'train', t.classes, n, epochs, 'layer4', 64) for t in plan]
    def cached():
        cfg = make_config('paper', layers='layer4', V=V, epochs=epochs, bs=64)
        with ready(Problem(model, aux, dl), cfg) as run: run_plan(run, plan, 60, progress=False)
    (a,b),r,spread = side_by_side(plain, cached, repeats=2)
    trunk,deep = madds(model, 'layer4', torch.randn(2,3,64,64)); images = len(plan)*4*n*epochs
    counted = images*(trunk+3*deep)/(images*3*deep+8*n*V*trunk)
    bar('engine', 'plain pipeline / cached engine over the ratio of multiply-adds, ResNet-18, layer4', r/counted, '>= 0.8', r/counted>=.8, measured=f'{r:.2f}', counted=f'{counted:.2f}', plain=f'{a:.1f} s', cached=f'{b:.1f} s', spread=spread)


def total(args):
    "Whole presets on ResNet-18 at 64 pixels: seconds per image measured on a few batches, multiplied by the plans' sizes"
    from accuracy import folder_problem, looks, parser
    a = parser('').parse_args(['--data',args.data]); small,train,calib,test,_ = folder_problem(1, a)
    first = look(small, as_dl(test))[0]
    def hard(preset): return find_hard(first, make_config(preset).eps)
    kmeans,cover = make_plan(first, hard('paper'), 'kmeans', 10, 400),make_plan(first, hard('default'), 'coverage', 10, 100, cover=.95, merge=True)
    torch.manual_seed(0); model = models.resnet18(num_classes=60); folder = Path(args.data)/'train'
    tr,te = folder_datasets(folder, Path(args.data)/'val', size=64, decode=1.); aux,dl = AuxSet(tr,60),as_dl(te,64)
    def plain(): return plain_task(copy.deepcopy(model), folder, [0,1], 256)/512
    pers,speeds = [],[]   # in turn, so that both see the same machine
    with ready(Problem(model, aux, dl), make_config('default', flip=True)) as run:
        for c in range(0,10*args.repeats,10): pers.append(plain()); speeds.append(measure_speed(run, Plan([Task(list(range(40)),[(c+i)%60 for i in range(10)])])))
    per,speed = float(np.median(pers)),{k:float(np.median([s[k] for s in speeds])) for k in speeds[0]}
    paper,ours,N = per*kmeans.price([500]*60)*5,cover.estimate(speed, [450]*60, 5),len(first)
    rs = [p/s['train'] for p,s in zip(pers,speeds)]
    bar('total', 'paper / default preset, five epochs each, ResNet-18 at 64 pixels from JPEG files; both multiplied from a few batches', paper/ours, '>= 8', paper/ours>=8, paper=f'{len(kmeans)} tasks, {per*1000:.1f} ms per training image, {paper/N:.2f} s per test image',
        default=f'{len(cover)} tasks, {speed["train"]*1000:.1f} ms per training image, {speed["make"]*1000:.1f} ms once, {speed["look"]*1000:.0f} ms per look, {ours/N:.2f} s per test image', spread=f'{min(rs):.2f}-{max(rs):.2f} of the two times per training image')


def estimate(args):
    "The price named before the run against the time it took"
    for preset in ('paper','default'):
        model,train,test,calib = glyph_model(progress=False),glyphs(100,transform=glyph_aug()),glyphs(10,'test'),glyphs(5,'calib')
        kw = dict(calib=calib, preset=preset, Q=12, epochs=3, generalist=0, device='cpu'); rs = []
        for _ in range(args.repeats): e = cli_estimate(model, train, test, **kw); r = cli_predict(model, train, test, progress=False, **kw); rs.append(e.seconds/r.times['second look'])
        m = float(np.median(rs)); bar('estimate', f'estimated / measured seconds of the second look, {preset} preset', m, '0.7 - 1.3', .7<=m<=1.3, spread=f'{min(rs):.2f}-{max(rs):.2f}')


GROUPS = {'convolution, backward':('convolution_backward',), 'convolution, forward':('mkldnn_convolution','thnn_conv','slow_conv'), 'BatchNorm':('batch_norm',),
    'data':('DataLoader','aten::index','aten::pad','aten::flip'), 'optimiser':('Optimizer','aten::_foreach'), 'ReLU, pooling, adding':('threshold','relu','clamp_min','pool','aten::add')}


def profile(args):
    "Where a task's time goes: every epoch through the whole network, and only the deep layers over kept activations"
    from torch.profiler import profile as Profile, ProfilerActivity
    model,train,test = glyph_model(progress=False),glyphs(100, transform=glyph_aug()),glyphs(2,'test'); rows = []
    for name,kw in (('paper',dict(preset='paper')),('default',dict(preset='default',rule='conditional'))):
        aux,dl = AuxSet(train),as_dl(test,64); plan = Plan([Task(list(range(20)),list(range(10)))])
        with ready(Problem(model, aux, dl), make_config(**kw, epochs=3)) as run:
            run_plan(run, plan, 160, progress=False)      # what is computed once is computed here
            with Profile(activities=[ProfilerActivity.CPU]) as p: run_plan(run, plan, 160, progress=False)
        ops = [(e.key,e.self_cpu_time_total/1e6) for e in p.key_averages()]; total = sum(t for _,t in ops); left = total
        for g,keys in GROUPS.items():
            t = sum(t for o,t in ops if any(k in o for k in keys)); left -= t; rows.append(dict(preset=name, part=g, seconds=t, share=t/total))
        rows.append(dict(preset=name, part='everything else', seconds=left, share=left/total))
    df = pd.DataFrame(rows); write('speed_profile', df); print(df.round(3).to_string())


BARS = dict(overhead=overhead, idle=idle, memory=memory, growth=growth, estimate=estimate, quality=quality, plan=planning, engine=engine, total=total, profile=profile)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--data', help='folder with train/ and val/ of JPEG files')
    p.add_argument('--only', nargs='*', choices=BARS, help='some bars')
    p.add_argument('--repeats', type=int, default=5)
    args = p.parse_args(); f = RESULTS/'speed.csv'
    for name in args.only or BARS:
        if name in ('engine','total') and not args.data: print(f'{name}: needs --data'); continue
        BARS[name](args)
        if name=='profile': continue   # a table of its own
        old = pd.read_csv(f) if f.exists() else pd.DataFrame()
        if len(old): old = old[old.bar!=name]
        write('speed', pd.concat([old, pd.DataFrame([r for r in ROWS if r['bar']==name])]))   # bar by bar, so that one can be measured again


if __name__ == '__main__': main()
