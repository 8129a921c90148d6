"""Few classes: is a task of all of them better than specialists for two, three or five?

    python benchmarks/few_classes.py
"""
import argparse, time, warnings

import fastai.callback.progress, fastai.callback.schedule
import pandas as pd
import torch
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from torch import nn

from closed_loop.core import cli_predict
from closed_loop.data.glyphs import glyph_aug, glyph_classes, glyph_net, glyphs
from closed_loop.loaders import BatchDL
from common import write

ALIKE = ('ILJTil1!tj', 'OQDGUuVvYy') # ten classes each, many of them look-alikes


def problem(seed, args):
    "A small network for ten classes, its images, and labelled ones to judge by"
    known = glyph_classes(); some = ([c for c in known if c in ALIKE[seed%2]]+[c for c in known if c not in ALIKE[seed%2]])[:10]
    def images(n, split, **kw): return glyphs(n, split, seed=seed, classes=some, level=args.level, **kw)
    train,test,calib = images(300,'train'),images(200,'test'),images(40,'calib')
    torch.manual_seed(seed); net = glyph_net(10, 12)
    dl = BatchDL(train, bs=64, shuffle=True); dl.rng.seed(seed)
    learn = Learner(DataLoaders(dl, dl, device='cpu'), net, nn.CrossEntropyLoss())
    with learn.no_bar(), learn.no_logging(): learn.fit_one_cycle(args.epochs, 1e-2)
    return net.eval(), images(300,'train',transform=glyph_aug()), test, calib


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--seeds', type=int, default=2); p.add_argument('--epochs', type=int, default=25); p.add_argument('--level', type=float, default=1.2)
    args = p.parse_args(); warnings.simplefilter('ignore'); rows = []
    for seed in range(args.seeds):
        net,train,test,calib = problem(seed, args)
        for K in (None,2,3,5,10):
            t = time.perf_counter(); r = cli_predict(net, train, test, calib=calib, K=K, seed=seed, progress=False, device='cpu'); f = r.flips()
            rows.append(dict(seed=seed, classes=10, K='chosen' if K is None else K, plan_K=r.plan.K, tasks=len(r.plan), price=r.price, top1=100*f.before, gain=100*f.gain, F2T=f.F2T, T2F=f.T2F,
                             views_alone=100*r.with_rule('conditional',alpha=0.).flips().gain, hard=len(r.hard), seconds=time.perf_counter()-t))
            print(rows[-1], flush=True)
    write('few_classes', pd.DataFrame(rows))


if __name__ == '__main__': main()
