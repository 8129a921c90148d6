"""What makes the better specialists for their price: classes of a task, layers, kept versions, updates. On labelled images apart from the test set.

    python benchmarks/specialist.py --data glyphs --base narrow --Q 12 --tries "K=10" "K=15"
    python benchmarks/specialist.py --data path/to/tiny-imagenet-60 --width 16 --base_epochs 30 --Q 8 --name specialist_tiny60_end
"""
import pandas as pd
import torch

from accuracy import looks, parser, row
from closed_loop.confidence import fit_temperature
from closed_loop.decide import favour
from closed_loop.loaders import as_dl
from closed_loop.look import Views, look
from common import RESULTS, write
from spend import problem

CAUTIONS = 1.,1.1,1.25,1.5
TRIES = ('K=10','K=15','V=0','layers=3','layers=all V=0','steps=2000')


def settings(said):
    "Settings of a run, from words such as K=15"
    def value(v): return int(v) if v.isdigit() else float(v) if v.replace('.','',1).isdigit() else v
    return {k:value(v) for k,v in (o.split('=') for o in said.split())}


def main():
    p = parser(__doc__); p.add_argument('--tries', nargs='+', default=list(TRIES), help='what differs from the default preset')
    args = p.parse_args(); tag,name = args.base,args.name or f'specialist_glyphs_{args.base}'
    model,train,calib,tune,flip = problem(args); args.base = f'{tag} classes'   # what is kept is not of the test images
    y,f = torch.as_tensor(tune.targets),RESULTS/f'{name}.csv'
    first,views = (look(m, as_dl(tune))[0] for m in (model,Views(model,.07,flip)))
    rows = pd.read_csv(f).to_dict('records') if args.again and f.exists() else []
    def add(what, c, preds, probs, *spent): rows.append(dict(seed=args.first, caution=c, N=len(y), **row(what, first, preds, y, *spent), log_likelihood=probs.gather(1,y[:,None]).clamp_min(1e-9).log().mean().item()))
    p = (views/fit_temperature(views,y)).softmax(1)
    for c in CAUTIONS if not rows else (): add('views', c, favour(p,first.argmax(1),c).argmax(1), p)
    for what in args.tries:
        if any(r['method']==what for r in rows): continue
        r = looks(model, train, tune, calib, args.first, args, flip=flip, preset='default', generalist=0, **settings(what))
        for c in CAUTIONS: o = r.with_rule('validated', caution=c); add(what, c, o.preds, o.probs, o.plan, o.price, o.seconds)
        write(name, pd.DataFrame(rows), args.again); print(pd.DataFrame(rows[-4:]).round(3).to_string(), flush=True)


if __name__ == '__main__': main()
