"""How much to trust the second look, and how dear a right answer is: judged on labelled images that are neither training nor test images.

    python benchmarks/caution.py --data glyphs --base strong --Q 12
    python benchmarks/caution.py --data path/to/tiny-imagenet-60 --Q 5

One run of the default preset; weight and temperatures are fitted on one half of the images and judged on the other, and the other way round.
"""
from functools import partial

import pandas as pd

from accuracy import parser
from closed_loop.commands import said
from closed_loop.core import cli_predict
from closed_loop.decide import favour, fit_conditional
from closed_loop.fates import flips
from common import write
from recipe import crossed, problem

SLACKS,CAUTIONS = (0.,.5,1.,2.),(1.,1.1,1.25,1.5,2.)


def main():
    args = parser(__doc__).parse_args(); rows = []
    model,train,calib,flip = problem(args)
    r = cli_predict(model, train, calib, progress=False, device='cpu', flip=flip, rule='conditional', Q=args.Q or 40, K=args.K, epochs=args.epochs or 5, seed=args.first, **said(eps=args.eps))
    y,first = r.targets[r.hard],r.first[r.hard].argmax(1)
    for slack in SLACKS:
        p = crossed(partial(fit_conditional,slack=slack), r.base, r.second, r.S, y)
        for caution in CAUTIONS:
            f = flips(first, favour(p,first,caution).argmax(1), y)
            rows.append(dict(seed=args.first, Q=args.Q or 40, slack=slack, caution=caution, hard=len(y), N=len(r), gain=100*(f.F2T-f.T2F)/len(r), F2T=f.F2T, T2F=f.T2F))
    write(args.name or f"caution_{'glyphs_'+args.base if args.data=='glyphs' else 'folder'}", pd.DataFrame(rows))
    print(pd.DataFrame(rows).round(2).to_string(index=False))


if __name__ == '__main__': main()
