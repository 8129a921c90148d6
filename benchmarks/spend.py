"""What a budget is best spent on: passes over all classes first, updates of each specialist, layers. On labelled images apart from the test set.

    python benchmarks/spend.py --data glyphs --base narrow --Q 12
    python benchmarks/spend.py --data glyphs --base narrow --passes 0 --tries default:1000:4 --eps .85 --thresholds .6 .7 --name spend_eps_glyphs_narrow
    python benchmarks/spend.py --data path/to/tiny-imagenet-60 --width 8 --base_epochs 40 --Q 8 --name spend_tiny60_narrow
"""
from itertools import product

import torch
import pandas as pd

from accuracy import folder_problem, glyph_problem, kept, looks, parser, remembered, row, timed, trained
from closed_loop.adapt import rollback
from closed_loop.data.glyphs import glyphs
from closed_loop.explore import as_if
from closed_loop.loaders import as_dl
from closed_loop.look import Views, look
from common import write


def problem(args):
    "Network, training images, and two labelled sets apart from the test set: one to judge by, one to measure on"
    if args.data=='glyphs':
        model,train,calib,_,flip = glyph_problem(args.base, args.first, args)
        return model, train, calib, glyphs(20,'tune',seed=args.first), flip
    model,train,calib,_,flip = folder_problem(args.first, args)
    half = torch.randperm(len(calib), generator=torch.Generator().manual_seed(0))
    return model, train, calib.some(half[::2]), calib.some(half[1::2]), flip


def main():
    p = parser(__doc__)
    p.add_argument('--passes', type=float, nargs='+', default=[0,2,5], help='over all training images, before anybody specialises')
    p.add_argument('--tries', nargs='+', default=['default:300','default:1000','thorough:1000'], help='preset:updates of each task, and :looks at its probes on the way')
    p.add_argument('--thresholds', type=float, nargs='*', default=[], help='lower ones than that of the run (--eps), for the same tasks')
    args = p.parse_args()
    model,train,calib,tune,flip = problem(args)
    y,seed,rows,tag = torch.as_tensor(tune.targets),args.first,[],args.base
    name = args.name or f'spend_glyphs_{args.base}'
    first = look(model, as_dl(tune))[0]
    for passes in args.passes:
        steps = round(passes*len(train)/64); args.base = f'{tag} spend {steps}'
        further,t = remembered(kept(args,seed=seed), trained, model, train, steps, seed, 'all') if steps else (model.state_dict(),0.)
        with rollback(model):
            model.load_state_dict(further)
            for n,m in dict(alone=model, views=Views(model,.07,flip)).items():
                z,tl = timed(look, m, as_dl(tune)); rows.append(dict(passes=passes, caution=1., **row(n, first, z[0].argmax(1), y, price=64*steps, seconds=t+tl)))
            for what in args.tries:
                preset,s,*checks = what.split(':')
                r = looks(model, train, tune, calib, seed, args, flip=flip, preset=preset, steps=int(s), generalist=0, **{'checks':int(c) for c in checks})
                for e,c in product([*args.thresholds,r.cfg.eps], (1.,1.1,1.25)):
                    o = as_if(r, None if e==r.cfg.eps else e, rule='validated', caution=c)   # below the threshold of the run, with its tasks
                    rows.append(dict(passes=passes, eps=e, caution=c, hard=len(o.hard), **row(f'{preset}, {s} updates{", the best of "+checks[0] if checks else ""}', first, o.preds, y, o.plan, 64*steps+o.price, t+o.seconds)))
        df = pd.DataFrame(rows); write(name, df); print(df[['passes','method','eps','caution','gain','F2T','T2F','price','ms_per_image']].round(2).to_string(), flush=True)


if __name__ == '__main__': main()
