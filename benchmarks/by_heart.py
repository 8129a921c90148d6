"""A network that knows its training images by heart, with and without a calibration set: what do held-out training images still tell?

    python benchmarks/by_heart.py --seeds 3
"""
import argparse, warnings

import fastai.callback.progress, fastai.callback.schedule
import pandas as pd
import torch
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from torch import nn

from closed_loop.core import cli_predict
from closed_loop.data.glyphs import cache_dir, glyph_aug, glyph_net, glyphs
from closed_loop.loaders import BatchDL, as_dl
from closed_loop.look import look
from common import write


def network(seed, train, epochs):
    "A glyph network trained without augmentation until it makes no mistake on its training images"
    f = cache_dir()/f'by_heart-n{len(train)}-e{epochs}-s{seed}.pt'
    torch.manual_seed(seed)
    net = glyph_net(len(train.classes))
    if f.exists(): net.load_state_dict(torch.load(f, weights_only=True))
    else:
        dl = BatchDL(train, bs=64, shuffle=True)
        dl.rng.seed(seed)
        learn = Learner(DataLoaders(dl, dl, device='cpu'), net, nn.CrossEntropyLoss())
        with learn.no_bar(), learn.no_logging(): learn.fit_one_cycle(epochs, 1e-2)
        f.parent.mkdir(parents=True, exist_ok=True); torch.save(net.state_dict(), f)
    return net.eval()


def rows(seed, args):
    "Both ways for one seed"
    train,test = glyphs(args.n, seed=seed),glyphs(20, 'test', seed=seed)
    net = network(seed, train, args.epochs)
    z,y = look(net, as_dl(train)); trained = 100*(z.argmax(1)==y).float().mean().item()
    for name,calib in dict(calib=glyphs(10,'calib',seed=seed), none=None).items():
        r = cli_predict(net, glyphs(args.n, seed=seed, transform=glyph_aug()), test, calib=calib, Q=args.Q, seed=seed, progress=False, device='cpu')
        f,views = r.flips(),r.with_rule('conditional', alpha=0.).flips()
        yield dict(seed=seed, calibration=name, training_top1=trained, top1=100*f.before, gain=100*f.gain, F2T=f.F2T, T2F=f.T2F, views_alone=100*views.gain,
                   hard=len(r.hard), tasks=len(r.plan), probes=len(r.probes.targets) if r.probes else 0, alpha=r.weights['alpha'] if r.probes else 0.)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for k,v in dict(seeds=3, first=1, n=40, epochs=30, Q=12).items(): p.add_argument(f'--{k}', type=int, default=v)
    args = p.parse_args(); warnings.simplefilter('ignore')
    df = pd.DataFrame([r for s in range(args.first, args.first+args.seeds) for r in rows(s, args)])
    write('by_heart', df); print(df.round(2).to_string(index=False)); print(df.groupby('calibration').gain.agg(['mean','std']).round(2))


if __name__ == '__main__': main()
