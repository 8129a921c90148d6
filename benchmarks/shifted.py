"""Corrupted test images: base, BatchNorm adaptation, Tent, TTT, CLI and TTT + CLI, with both presets.

    python benchmarks/shifted.py --data glyphs
    python benchmarks/shifted.py --data path/to/tiny-imagenet-60
"""
import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from accuracy import folder_problem, parser as problem
from closed_loop.data.corruptions import corrupt, seed_of
from closed_loop.data.glyphs import cache_dir
from closed_loop.paper.lab import Bench, Lab, glyph_bench
from closed_loop.paper.shifted import imagenet_c
from common import write


def folder_bench(args):
    "A small ResNet trained from scratch on a folder at 32 pixels, as in accuracy.py"
    a = problem('').parse_args(['--data',args.data])
    model,train,_,test,_ = folder_problem(args.seed, a)
    test = test.some(np.linspace(0, len(test)-1, args.n_test).round().astype(int))
    def shifted(net, name, severity):
        ds = test.some(slice(None)); ds.source = 'generated'
        ds.x = torch.stack([torch.from_numpy(corrupt(x.permute(1,2,0).numpy(), name, severity, seed_of(args.seed,i))).permute(2,0,1) for i,x in enumerate(test.x)])
        return ds
    return Bench(Path(args.data).name, ['small'], lambda net: model, lambda net: (train,test), shifted, 'full', ('small',), 'small', flip=True,
        ident=dict(data=Path(args.data).name, train=len(train), test=len(test)))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--data', default='glyphs', help='glyphs, or a folder with train/ and val/')
    for k,v in dict(Q=5, epochs=3, n_test=320, seed=1).items(): p.add_argument(f'--{k}', type=int, default=v)
    p.add_argument('--proportion', type=float, default=.2, help='share of the training images of a task')
    p.add_argument('--severities', type=int, nargs='*', default=[1,2,3])
    p.add_argument('--name')
    args = p.parse_args(); dfs = []
    bench = glyph_bench('full', args.seed, args.n_test) if args.data=='glyphs' else folder_bench(args)
    bench.branch = dict(epochs=2, expand=False)   # the paper's five epochs of all four rotations take too long here
    name = args.name or f'shifted_{"glyphs" if args.data=="glyphs" else "folder"}'
    for preset in ('paper','default'):
        out = cache_dir()/'shifted'/f'{bench.name}-{preset}-Q{args.Q}-e{args.epochs}-p{args.proportion}-n{args.n_test}-s{args.seed}'
        few = dict(holdout=.01) if preset=='default' else {}   # test-time training makes a step for every held-out image
        lab = Lab(bench, out, preset, args.seed, 'cpu', Q=args.Q, epochs=args.epochs, proportion=args.proportion, **few)
        df = imagenet_c(lab, severities=args.severities, methods=['cli','ttt','yardsticks'] if preset=='paper' else ['cli','ttt'])
        df['method'] = [f'{m}, {preset}' if 'CLI' in m else m for m in df.method]
        dfs.append(df if preset=='paper' else df[df.method.str.contains('CLI')])
        write(name, pd.concat(dfs).drop(columns=['mark']))
    df = pd.concat(dfs)
    print(df.pivot_table(index='method', columns='severity', values='acc', sort=False).round(2).assign(mean=lambda d: d.mean(axis=1).round(2)).to_string())


if __name__ == '__main__': main()
