"""Does it hold at ImageNet's size? Counters rather than seconds where a GPU would be needed.

    python benchmarks/scale.py                          # everything, about half an hour on one core
    python benchmarks/scale.py --only plan temperature

A fake ImageNet (hard links to a few JPEG files) is made in a temporary folder and removed afterwards. Logits are simulated, the network is a
stub with the shapes of ResNet-18 or ResNet-50 that counts the images it sees. Whole plans are counted by the cost model; a model of one
sixteenth (classes of 80 images, a sixteenth of the memory) is run in full size of images, a few tasks long, and its counters are compared
with what the cost model says.
"""
import argparse, json, os, resource, subprocess, sys, tempfile, time, warnings
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch import nn

from closed_loop import result
from closed_loop.config import make_config
from closed_loop.confidence import find_hard, fit_temperature
from closed_loop.core import cli_estimate, cli_predict, look_and_plan, second_look
from closed_loop.data.decoded import Decoded
from closed_loop.data.glyphs import glyph_aug, glyph_model, glyphs
from closed_loop.auxset import AuxSet
from closed_loop.inputs import Problem, config_for, open_problem
from closed_loop.keep import ActivationSet, Keepable, keep_what
from closed_loop.layers import split_model
from closed_loop.loaders import as_dl
from closed_loop.plan import Plan, Task, make_plan
from closed_loop.probes import Probes, assign_probes, both_looks
from closed_loop.result import CLIResult
from closed_loop.run import ready
from closed_loop.schedule import order_tasks, run_plan
from common import RESULTS, provenance, write

ROWS = []
C, N, TEST, IMAGES = 1000, 1280, 50, 48      # classes, training and test images of each, JPEG files that all of them are links to
SHAPES = {'ResNet-18': (128,28,28), 'ResNet-50': (512,28,28)}      # what leaves the second group for an image of 224 pixels
PART = 16                                    # the small model: a sixteenth of the images and of the memory


def bar(name, what, value, target, ok, **detail):
    "One bar, printed and kept"
    ROWS.append(dict(bar=name, what=what, value=value, target=target, met=bool(ok), detail='; '.join(f'{k} {v}' for k,v in detail.items()), command=provenance()['command']))
    print(f"{name:11} {value:9.3f}  target {target:14} {'met' if ok else 'MISSED':7} {what}: {ROWS[-1]['detail']}", flush=True)


def GB(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss/2**20


def apart(f, *args):
    "What a function of this file returns in a process of its own, so that its peak memory is its own"
    code = f'import sys, json; sys.path.insert(0,{str(Path(__file__).parent)!r}); import scale; print("\\n"+json.dumps(scale.{f.__name__}(*{args!r})))'
    res = subprocess.run([sys.executable,'-W','ignore','-c',code], capture_output=True, text=True)
    if res.returncode: raise RuntimeError(res.stderr[-2000:])
    return json.loads(res.stdout.strip().splitlines()[-1])


# ---- a fake ImageNet

def sources(folder):
    "JPEG files of ImageNet's usual size: soft colours with some noise"
    rng = np.random.default_rng(0); folder.mkdir(parents=True)
    for i in range(IMAGES):
        x = np.asarray(Image.fromarray(rng.integers(0,256,(12,16,3),dtype=np.uint8)).resize((500,375), Image.Resampling.BICUBIC))
        Image.fromarray((x+rng.integers(-20,20,x.shape)).clip(0,255).astype('uint8')).save(folder/f'{i}.jpg', quality=90)
    return [str(folder/f'{i}.jpg') for i in range(IMAGES)]


def fake(folder, n=N, test=TEST):
    "A folder with `train` and `val` of hard links"
    files = sources(folder/'files')
    for part,m in (('train',n),('val',test)):
        for c in range(C):
            d = folder/part/f'n{c:08}'; d.mkdir(parents=True)
            for i in range(m): os.link(files[(c*m+i)%IMAGES], f'{d}/n{c:08}_{i}.JPEG')
    return folder


def logits(n=C*TEST, seed=1, noise=1.6, scale=2.):
    "Logits of `n` images and their classes: classes come in groups of look-alikes; a quarter of the images is hard at 0.85"
    g = torch.Generator().manual_seed(0)
    centre = torch.randn(C//5,64,generator=g).repeat_interleave(5,0)+.5*torch.randn(C,64,generator=g)
    g.manual_seed(seed); y,z = torch.randint(C,(n,),generator=g),torch.empty(n,C)
    for ix in torch.arange(n).split(5000): z[ix] = ((centre[y[ix]]+noise*torch.randn(len(ix),64,generator=g))@centre.T-centre.pow(2).sum(1)/2)/scale
    return z,y


# ---- a network that counts

class Sees(nn.Module):
    "Stands for frozen layers: counts images, answers with one number"
    def __init__(self, shape): super().__init__(); self.w,self.shape,self.seen = nn.Parameter(torch.ones(1)),shape,0
    def forward(self, x): self.seen += len(x); return (self.w+x[:,:1,:1,:1]*1e-3).expand(-1,*self.shape)


class Few(nn.Module):
    "Stands for deep layers: a few channels of what comes in"
    def __init__(self, c): super().__init__(); self.f = nn.Conv2d(4,c,1)
    def forward(self, x): return self.f(x[:,:4,:7,:7])


class Stub(nn.Module):
    "A network in groups like a ResNet's, with the shape that leaves its second one"
    def __init__(self, shape):
        super().__init__()
        self.trunk,self.layer3,self.layer4,self.fc = Sees(shape),Few(8),Few(8),nn.Linear(8,C)
    def forward(self, x): return self.fc(self.layer4(self.layer3(self.trunk(x))).mean((2,3)))


@contextmanager
def counting(net):
    "Counts images through the trunk, decoded files, and bytes that batches bring to the device"
    n,old = dict(passes=0, decodes=0, bytes=0),(Decoded.decode,Decoded.batch,ActivationSet.batch)
    def decode(self, idxs, *a, **kw): n['decodes'] += len(idxs); return old[0](self, idxs, *a, **kw)
    def brings(f, each):
        def batch(self, idxs): res = f(self,idxs); n['bytes'] += each(self,res); return res
        return batch
    Decoded.decode,Decoded.batch,ActivationSet.batch = decode,brings(old[1], lambda ds,b: len(b[0])*3*ds.side**2),brings(old[2], lambda ds,b: b[0].nbytes)
    before = net.trunk.seen
    try: yield n
    finally: Decoded.decode,Decoded.batch,ActivationSet.batch = old; n['passes'] = net.trunk.seen-before


def stub_look(model, dl, device='cpu'):
    "Goes through a loader as a first look does, and answers with simulated logits"
    n = sum(len(b[0]) for b in dl)
    return logits(n)


# ---- trunk passes and decodes

def whole_plan(preset='default'):
    "The plan of the simulated test set, with its probes"
    z,_ = logits(); cfg = make_config(preset, K=10); hard = find_hard(z, cfg.eps)
    plan = make_plan(z, hard, cfg.planner, cfg.K, cfg.Q, cfg.seed, cfg.merge, cfg.cover)
    return plan,cfg


def kept(shape, gb, plan, counts, cfg):
    "What the cost model keeps, with half precision as on a GPU"
    each = int(np.prod(shape))*2*cfg.V
    return keep_what([Keepable('activations',each,cfg.V,gb*2**30), Keepable('pixels',3*256**2,1,gb*2**30)], plan, counts, cfg.epochs)


def passes_of(k, cfg): return cfg.V*k.made+cfg.epochs*k.fresh if k.what=='activations' else cfg.epochs*(k.kept+k.fresh)


def decodes_of(k, cfg): return k.made+cfg.epochs*k.fresh if k.what!='nothing' else cfg.epochs*k.fresh


def small_run(folder, name, gb, tasks=3):
    "A few tasks of the small model, with counters"
    net = Stub(SHAPES[name]); torch.manual_seed(0)
    p = open_problem(net, Path(folder)/'train', Path(folder)/'val', decode=gb/PART, num_workers=0)
    cfg = config_for(p, 'default', cache=gb/PART, precision='bf16')
    with p.at_work('cpu', cfg.precision) as dev:
        with counting(net) as look: start = look_and_plan(p, cfg, dev, stub_look)
        start.plan = Plan(order_tasks(start.plan)[:tasks], start.plan.planner, start.plan.K)
        with counting(net) as tried, ready(p, cfg, dev, plan=start.plan) as run: k = run.aux.keeping   # a few images see whether the network can be cut
        with counting(net) as n: second_look(p, start, cfg, dev)
    plan,counts = start.plan,p.aux.counts(); views = 5*sum(len(t)+len(t.probes) for t in plan)
    members,probes,price = len(plan.members),sum(len(t.probes) for t in plan),plan.price(counts)
    return dict(what=k.what, why=k.why, **n, views=views, price=price, epochs=cfg.epochs, tried=tried['passes'], said=views+tried['passes']+passes_of(k,cfg), first=look['decodes'],
                test=len(p.test_dl.dataset), probes=len(start.probes.targets), seen=members+probes, rss=GB())


def cells(args):
    "Every network and limit: trunk passes and decodes of the whole plan, and of a few tasks for real"
    plan,cfg = whole_plan(); plan,counts = order_tasks(plan),[N]*C
    without = cfg.epochs*sum(counts[c] for t in plan for c in t.classes)
    for name,shape in SHAPES.items():
        for gb in (4,16,64):
            k = kept(shape, gb, plan, counts, cfg); n = passes_of(k,cfg)
            bar('passes', f'trunk passes of training images / those without a cache, {name}, {gb} GB, {len(plan)} tasks of 12,800 images, by the cost model', n/without, '<= 1', n<=without,
                keeps=k.what, passes=f'{n:,} of {without:,}', why=k.why)
            d = decodes_of(k,cfg); once = len(plan)*10*N
            bar('decodes', f'decodes of training images / each task\'s once, {name}, {gb} GB, by the cost model', d/once, '<= 1.1', d<=1.1*once, keeps=k.what, decodes=f'{d:,}')
    counted(args)


def counted(args):
    "The small model, for real"
    with tempfile.TemporaryDirectory(dir=args.tmp) as d:
        f = fake(Path(d)/'small', N//PART, 1)
        for name in SHAPES:
            for gb in (4,16,64):
                r = apart(small_run, str(f), name, gb)
                allowed = r['tried']+r['views']+r['epochs']*r['price']; what = f'{name}, {gb} GB, three tasks of the sixteenth, counted'
                bar('passes', f'trunk passes / those without a cache, {what}', r['passes']/allowed, '<= 1', r['passes']<=allowed, keeps=r['what'], passes=f"{r['passes']:,}",
                    said=f"{r['said']:,} by the cost model", views=f"{r['views']:,}", copied=f"{r['bytes']/2**30:.2f} GB")
                need = r['test']+r['probes']+r['seen']+r['price']; got = r['first']+r['decodes']
                bar('decodes', f'decodes / (test + probes + members + training images once), {what}', got/need, '<= 1.1', got<=1.1*need, first_look=f"{r['first']:,}", second_look=f"{r['decodes']:,}",
                    test=r['test'], probes=r['probes'], members=r['seen'], training=r['price'])


# ---- memory

def big_tasks(folder, name, gb, tasks=2, epochs=2):
    "Peak memory of whole tasks of 12,800 images"
    net = Stub(SHAPES[name]); start = GB()
    p = open_problem(net, Path(folder)/'train', Path(folder)/'val', decode=gb)
    cfg = config_for(p, 'default', cache=gb, precision='bf16', epochs=epochs)
    first,y = logits(); plan,_ = whole_plan(); opened = GB()
    plan = Plan(order_tasks(plan)[:tasks], plan.planner, plan.K)
    with p.at_work('cpu', cfg.precision) as dev, counting(net) as n, ready(p, cfg, dev, plan=plan) as run:
        what,why = run.aux.keeping.what,run.aux.keeping.why
        run_plan(run, plan, C, progress=False)
    return dict(peak=GB(), start=start, opened=opened, what=what, why=why, images=plan.price(p.aux.counts()), members=len(plan.members), **n)


def many_views(name, members=2000):
    "Peak memory of looking at one task's members before and after adapting"
    net = Stub(SHAPES[name]); x = torch.zeros(members,3,224,224,dtype=torch.uint8)
    class Bytes(torch.utils.data.Dataset):
        targets,classes = torch.arange(members)%C,[str(c) for c in range(C)]
        def __len__(self): return members
        def batch(self, idxs): return x[idxs].float(),self.targets[idxs]
        def __getitem__(self, i): return x[i].float(),int(self.targets[i])
    ds = Bytes(); cfg = make_config('default', K=2, epochs=1, flip=True, precision='bf16', rule='conditional'); p = Problem(net, AuxSet(ds,C), as_dl(ds,64))
    plan = Plan([Task(list(range(members)),[0,1])])
    with p.at_work('cpu', cfg.precision) as dev, ready(p, cfg, dev, plan=plan) as run:
        few = Plan([Task(list(range(8)),[0,1])]); run_plan(run, few, C, progress=False); before = GB()
        run_plan(run, plan, C, progress=False)
    return dict(growth=GB()-before, at_once=members*10*int(np.prod(SHAPES[name]))*2/2**30)


def views(args):
    "Views of a task's members are streamed"
    for name in SHAPES:
        r = apart(many_views, name)
        bar('views', f'GB more at the peak for 2,000 members in 10 views, {name}', r['growth'], '<= 1', r['growth']<=1, at_once=f"{r['at_once']:.1f} GB")


def memory(args):
    "Opening, and peak memory at 4 GB, with whole classes"
    with tempfile.TemporaryDirectory(dir=args.tmp) as d:
        f = fake(Path(d)/'whole'); opening(f)
        r = apart(big_tasks, str(f), 'ResNet-18', 4)
        bar('memory', 'peak RSS in GB at cache=4, two whole tasks of ResNet-18, two epochs', r['peak'], '<= 6', r['peak']<=6, imports=f"{r['start']:.2f} GB", opened=f"{r['opened']:.2f} GB", keeps=r['what'], images=f"{r['images']:,}", decodes=f"{r['decodes']:,}")


# ---- opening, planning, answering

def open_it(folder):
    net,start = Stub(SHAPES['ResNet-18']),GB(); t = time.process_time()
    p = open_problem(net, Path(folder)/'train', Path(folder)/'val', decode='auto'); p.aux.counts(); p.paths
    return dict(seconds=time.process_time()-t, growth=GB()-start, n=len(p.aux)+len(p.test_dl.dataset))


def opening(folder):
    "Processor time of opening a fake ImageNet"
    r = apart(open_it, str(folder))
    bar('open', f"processor seconds to open {r['n']:,} files", r['seconds'], '<= 60', r['seconds']<=60, memory=f"{r['growth']:.2f} GB")


def plan_it(share):
    z,y = logits(scale={.25:2.,.5:3.6}[share]); cfg,start = make_config('default', K=10),GB(); t = time.process_time()
    hard = find_hard(z, cfg.eps); plan = make_plan(z/1.1, hard, cfg.planner, cfg.K, cfg.Q, cfg.seed, cfg.merge, cfg.cover)
    zp,yp = logits(5000,2); assign_probes(plan, Probes(None,zp,yp,fit_temperature(zp,yp)), cfg, z)
    return dict(seconds=time.process_time()-t, growth=GB()-start, hard=len(hard), tasks=len(plan))


def planning(args):
    "Hard images, plan and probes of the default preset"
    for share in (.25,.5):
        r = apart(plan_it, share)
        bar('plan', f"processor seconds to plan, default preset, {r['hard']:,} of 50,000 images hard, 1,000 classes", r['seconds'], '<= 60, 3 GB', r['seconds']<=60 and r['growth']<=3, memory=f"{r['growth']:.2f} GB", tasks=r['tasks'])


def temper():
    z,y = logits(128_000); start = GB(); t = time.process_time(); T = fit_temperature(z,y)
    return dict(seconds=time.process_time()-t, growth=GB()-start, T=T)


def temperature(args):
    "One number from many logits"
    r = apart(temper)
    bar('temperature', 'processor seconds to fit it to 128,000 x 1,000 logits', r['seconds'], '<= 3, no copy', r['seconds']<=3 and r['growth']<.25, memory=f"{r['growth']:.2f} GB", T=round(r['T'],2))


def answer_it():
    import closed_loop.report
    z,y = logits(); plan,cfg = whole_plan(); hard = torch.tensor(sorted(plan.members)); zp,yp = logits(5000,2)
    probes = Probes(None,zp,yp,1.,views=zp.clone()); plan = assign_probes(plan, probes, cfg, z); idx = sorted(i for t in plan for i in t.probes)
    def again(o): return o+.3*torch.randn(o.shape, generator=torch.Generator().manual_seed(0))
    res = CLIResult(z, hard, again(z[hard]), plan, cfg, y, [f'n{c:08}' for c in range(C)], [f'{i}.JPEG' for i in range(len(z))], {'second look':1.}, 1, both_looks(plan,probes,again(zp[idx])), z.clone())
    start,n,decide = GB(),[0],result.decide
    def counted(*a, **kw): n[0] += 1; return decide(*a, **kw)
    result.decide = counted; t = time.process_time(); res.preds; once = time.process_time()-t
    t = time.process_time(); res.preds; again_ = time.process_time()-t; t = time.process_time()
    with tempfile.TemporaryDirectory() as d: res.report(d)
    return dict(once=once, again=again_, report=time.process_time()-t, decided=n[0], growth=GB()-start, hard=len(hard))


def answers(args):
    "`res.preds` and a report"
    r = apart(answer_it)
    bar('answers', f"processor seconds of res.preds, 50,000 x 1,000, {r['hard']:,} hard", r['once'], '<= 5', r['once']<=5, again=f"{r['again']:.2f} s", memory=f"{r['growth']:.2f} GB")
    bar('report', 'times that two looks became one answer, for res.preds twice and a report', r['decided'], '<= 1', r['decided']<=1, report=f"{r['report']:.1f} s")


# ---- many tasks, and a cache that overflows

def tiny_tasks(Q):
    model,train,test = glyph_model(progress=False),glyphs(4),glyphs(20,'test'); peaks = {}
    plan = Plan([Task([q],[(q*3+k)%160 for k in range(2)]) for q in range(Q)]); aux = AuxSet(train)
    def at(done, total, comment): peaks[done] = GB()
    with ready(Problem(model, aux, as_dl(test,64)), make_config('default', epochs=1, rule='conditional'), plan=plan) as run: run_plan(run, plan, 160, progress=at)
    return {str(q):peaks[q] for q in (Q//10,Q)}


def tasks(args):
    "Memory after 200 and after 2,000 tasks of one process"
    few,many = apart(tiny_tasks, 2000).values()
    bar('tasks', 'peak RSS after 2,000 tiny tasks / after 200', many/few, '<= 1.05', many/few<=1.05, many=f'{1024*many:.0f} MB', few=f'{1024*few:.0f} MB')


def overflow(args):
    "Glyphs: room for 4 of 10 classes against no cache at all, and what the estimate says of both"
    n = 60; model,train,test,calib = glyph_model(progress=False),glyphs(n,transform=glyph_aug()),glyphs(10,'test'),glyphs(5,'calib')
    x = torch.stack([train[i][0] for i in range(2)]); trunk,_ = split_model(model, 2, x); each = trunk(x)[0].nbytes
    room = 4.5*n*4*each/2**30; kw = dict(calib=calib, Q=12, epochs=5, device='cpu'); ts,es = {},{}
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        for _ in range(args.repeats):
            for cache in (room,0):
                e = cli_estimate(model, train, test, cache=cache, **kw); r = cli_predict(model, train, test, progress=False, cache=cache, **kw)
                ts.setdefault(cache,[]).append(r.times['second look']); es.setdefault(cache,[]).append(e.seconds/r.times['second look'])
    ratio = float(np.median(np.array(ts[room])/np.array(ts[0])))
    bar('overflow', f'seconds with room for 4 of 10 classes / without a cache, glyphs, {len(r.plan)} tasks', ratio, '<= 1.1', ratio<=1.1, room=f'{np.median(ts[room]):.1f} s', none=f'{np.median(ts[0]):.1f} s')
    for cache,what in ((room,'room for 4 of 10 classes'),(0,'no cache')):
        m = float(np.median(es[cache])); bar('overflow', f'estimated / measured seconds, {what}', m, '0.7 - 1.3', .7<=m<=1.3, spread=f'{min(es[cache]):.2f}-{max(es[cache]):.2f}')


BARS = dict(plan=planning, temperature=temperature, answers=answers, tasks=tasks, overflow=overflow, views=views, cells=cells, memory=memory)
OWN = dict(answers=('answers','report'), cells=('passes','decodes'), memory=('open','memory'))   # what a function's bars are called, if not as itself


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--only', nargs='*', choices=BARS, help='some bars')
    p.add_argument('--repeats', type=int, default=3)
    p.add_argument('--tmp', help='where the fake ImageNet is made for a while; 1.3 million hard links; the usual temporary folder if not given')
    args = p.parse_args(); f = RESULTS/'scale.csv'
    for name in args.only or BARS:
        BARS[name](args); mine = OWN.get(name,(name,))
        old = pd.read_csv(f) if f.exists() else pd.DataFrame()
        if len(old): old = old[~old.bar.isin(mine)]
        write('scale', pd.concat([old, pd.DataFrame([r for r in ROWS if r['bar'] in mine])]))   # bar by bar, so that one can be measured again


if __name__ == '__main__': main()
