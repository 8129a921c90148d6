"""Corrupted test images: what adapts a network to them, alone and with a second look on top.

    python benchmarks/shifted.py --data glyphs --seeds 1 2 3
    python benchmarks/shifted.py --data path/to/tiny-imagenet-60 --n_test 500 --Q 3 --epochs 2 --width 8 --base_epochs 40 --proportion 0.5 --seeds 1 2 3

Every condition is written as soon as it is there, and a run that was stopped goes on where it was. Severity 0 is the clean test set.
With `--again` it goes on from the stored table; rows of the methods that follow are computed anew.
"""
import argparse, json, time, warnings
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from accuracy import folder_problem, parser as problem
from closed_loop.core import cli_predict
from closed_loop.inputs import open_all
from closed_loop.data.corruptions import CORRUPTIONS, corrupt, seed_of
from closed_loop.data.glyphs import cache_dir, glyph_aug, glyph_model, glyphs
from closed_loop.loaders import as_dl
from closed_loop.look import Views, look
from closed_loop.adapt import rollback
from fastai.torch_core import no_random
from closed_loop.paper.baselines import bn_adapt, tent
from closed_loop.paper.bench import _corrupt_glyphs
from closed_loop.paper.rotation import TTTNet, train_branch
from closed_loop.paper.ttt import _TestStats, ttt_look, ttt_settings
from closed_loop.shift import ShiftedLook, notice_shift
from common import RESULTS, write


class Data:
    "A network, its training images and its test images, clean and corrupted"
    def __init__(self, args, seed):
        self.seed,self.glyphs = seed,args.data=='glyphs'
        if self.glyphs:
            self.model,self.flip = glyph_model(seed=seed, progress=False),False
            self.train,self.test = glyphs(args.n_train, seed=seed, transform=glyph_aug()),glyphs(max(1,round(args.n_test/160)),'test',seed=seed)
        else:
            self.model,self.train,_,test,_ = folder_problem(seed, problem('').parse_args(['--data',args.data,'--width',str(args.width),'--base_epochs',str(args.base_epochs)]))
            self.test,self.flip = test.some(np.linspace(0, len(test)-1, min(args.n_test,len(test))).round().astype(int)),True
        self.y = torch.as_tensor(self.test.targets)

    def shifted(self, name, severity):
        if severity==0: return self.test
        if self.glyphs: return _corrupt_glyphs(self.test, name, severity, self.seed)
        ds = self.test.some(slice(None))
        ds.x = torch.stack([torch.from_numpy(corrupt(x.permute(1,2,0).numpy(), name, severity, seed_of(self.seed,i))).permute(2,0,1) for i,x in enumerate(self.test.x)])
        return ds

    def auto(self, test):
        "What `shift='auto'` does is one of two other rows: which?"
        problem,cfg = open_all(self.model, self.train, test, None, 'default', seed=self.seed)
        with problem.at_work('cpu', cfg.precision) as dev, no_random(cfg.seed): return 'style + CLI, default' if notice_shift(problem,dev,seed=cfg.seed)[0] else 'CLI, default'

    @lru_cache(None)
    def net(self):
        "The network with a rotation branch; two epochs, each image turned once"
        net = TTTNet(self.model, seed=self.seed)
        train_branch(net, self.train, 2, expand=False, device='cpu', seed=self.seed, progress=False)
        return net.eval()

    @lru_cache(1)
    def ttt(self, test):
        "Answers of online test-time training, and the weights that it leaves"
        net,how = self.net(),dict(flip=self.flip)
        with rollback(net) as snap:
            z = ttt_look(net, snap, as_dl(test,64), online=True, shuffle=True, seed=self.seed, **ttt_settings(net, online=True, **how))[0]
            return z,{k:v.clone() for k,v in net.state_dict().items()}

    def as_left(self, test, model, dl=None, device='cpu'):
        "Give a model the weights that test-time training of these images leaves, as `shift='ttt'` does"
        model.load_state_dict({k.removeprefix('model.'):v for k,v in self.ttt(test)[1].items() if k.startswith('model.')})

    def on_ttt(self, f, test):
        "Something computed on the model that test-time training of these images leaves"
        with rollback(self.net()) as _:
            self.net().load_state_dict(self.ttt(test)[1])
            return f(self.net().model)


def methods(d, args):
    "Name -> test images -> (N, C) logits or probabilities"
    views = dict(views=.07, flip=d.flip)
    own = dict(Q=args.Q, epochs=args.epochs, proportion=args.proportion, generalist=0, seed=d.seed)
    def how(preset): return own if preset=='paper' else dict(own, flip=d.flip)
    def cli(preset, **kw): return lambda te, model=d.model: cli_predict(model, d.train, te, preset=preset, progress=False, device='cpu', **how(preset), **kw).probs
    default,adapted = lru_cache(1)(cli('default',shift=None)),lru_cache(1)(cli('default',shift='bn'))
    styled = lru_cache(1)(lambda te: cli_predict(d.model, d.train, te, progress=False, device='cpu', **how('default')|dict(generalist='auto',shift='style')))
    def then(f): return lambda te: d.on_ttt(lambda model: f(te, model), te)   # as `ttt_then_cli`, without training again for each row
    return {'base':lambda te: look(d.model, as_dl(te))[0], 'base + views':lambda te: look(Views(d.model,**views), as_dl(te))[0],
        'BN':lambda te: bn_adapt(d.model, te, seed=d.seed), 'BN + views':lambda te: ShiftedLook(0.,**views)(d.model, as_dl(te))[0],
        'Tent':lambda te: tent(d.model, te, seed=d.seed), 'CLI, paper':cli('paper',eps=.6), 'CLI, default':default,
        'BN + CLI, paper':cli('paper',eps=.6,shift='bn'), 'BN + CLI, default':adapted, 'Tent + CLI, paper':cli('paper',eps=.6,shift='tent'), 'Tent + CLI, default':cli('default',shift='tent'),
        'style + views':lambda te: styled(te).first, 'style + CLI, default':lambda te: styled(te).probs, 'auto + CLI, default':None, 'TTT':lambda te: d.ttt(te)[0],
        'TTT + CLI, paper':then(cli('paper',eps=.6,cbs=[_TestStats()])), 'TTT + CLI, default':lambda te: cli('default',shift=partial(d.as_left,te))(te)}


def table(df):
    "Means over corruptions, severities and seeds, and the spread over seeds"
    one = df[df.severity>0].groupby(['method','seed'],sort=False).acc.mean().unstack()
    clean = df[df.severity==0].groupby('method').acc.mean()
    return pd.DataFrame(dict(clean=clean.reindex(one.index), corrupted=one.mean(axis=1), sd=one.std(axis=1), seeds=one.notna().sum(axis=1))).round(2)


def complete(df):
    "Without those severities of a method and a seed that lack a corruption: their means would be of others"
    have = df.groupby(['method','seed','severity']).corruption.transform('nunique')
    return df[(df.severity==0) | (have==df[df.severity>0].corruption.nunique())]


def key(r): return r['seed'],r['corruption'],r['severity'],r['method']


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--data', default='glyphs', help='glyphs, or a folder with train/ and val/')
    for k,v in dict(Q=8, epochs=3, n_test=1120, n_train=100, width=16, base_epochs=12).items(): p.add_argument(f'--{k}', type=int, default=v)
    p.add_argument('--seeds', type=int, nargs='*', default=[1])
    p.add_argument('--severities', type=int, nargs='*', default=[3,1,5])
    p.add_argument('--corruptions', nargs='*', default=list(CORRUPTIONS))
    p.add_argument('--methods', nargs='*', help='some of them')
    p.add_argument('--proportion', type=float, default=1., help='share of the training images for all tasks')
    p.add_argument('--again', nargs='*', help='go on from the stored table, but for the rows of these methods')
    args = p.parse_args(); warnings.simplefilter('ignore')
    name = f'shifted_{"glyphs" if args.data=="glyphs" else "tiny60"}'; settings = '-'.join(f'{k}{getattr(args,k)}' for k in ('Q','epochs','n_test','n_train','width','base_epochs','proportion'))
    f = cache_dir()/f'{name}-{settings}.jsonl'
    done = [json.loads(l) for l in f.read_text().splitlines()] if f.exists() else []
    have = {key(r) for r in done}
    if args.again is not None: done += [r for r in pd.read_csv(RESULTS/f'{name}.csv').to_dict('records') if r['method'] not in args.again and key(r) not in have]
    have = {key(r):r['acc'] for r in done}
    for seed in args.seeds:
        d = Data(args, seed); ms = methods(d, args)
        for c,s in [('none',0)]+[(c,s) for s in args.severities for c in args.corruptions]:
            todo = [m for m in args.methods or ms if (seed,c,s,m) not in have]
            if not todo: continue
            te = d.shifted(c, s)
            for m in todo:
                t = time.perf_counter(); same = d.auto(te) if m.startswith('auto') else m
                acc = have.get((seed,c,s,same)); acc = 100*(ms[same](te).argmax(1)==d.y).float().mean().item() if acc is None else acc
                have[seed,c,s,m] = acc
                done.append(dict(seed=seed, corruption=c, severity=s, method=m, acc=round(acc,3), seconds=round(time.perf_counter()-t,2), n=len(te)))
                with f.open('a') as o: o.write(json.dumps(done[-1])+'\n')
            write(name, complete(pd.DataFrame(done)))
    if done: write(name, complete(pd.DataFrame(done)))
    print(table(complete(pd.DataFrame(done))).to_string())


if __name__ == '__main__': main()
