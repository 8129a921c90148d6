"""Which fine-tuning makes the better specialist? Judged on labelled images that are neither training nor test images.

    python benchmarks/recipe.py --data glyphs
    python benchmarks/recipe.py --data path/to/tiny-imagenet-60 --Q 4

The weight of the second look is fitted on one half of those images and judged on the other, and the other way round.
"""
import copy, time

import pandas as pd
import torch
import torch.nn.functional as F
from fastai.callback.core import Callback

from accuracy import folder_problem, glyph_problem, parser
from closed_loop.core import cli_predict
from closed_loop.data.glyphs import glyphs
from closed_loop.decide import conditional, finite_or_first, fit_conditional, likelihoods
from closed_loop.look import main_logits
from common import RESULTS, write


class L2SP(Callback):
    "Pull the weights back to where they started"
    def __init__(self, anchor): self.anchor = anchor
    def before_fit(self): self.start = [p.detach().clone() for p in self.model.parameters()]
    def before_step(self):
        for p,p0 in zip(self.model.parameters(), self.start): p.grad.add_(p.detach()-p0, alpha=self.anchor)


class WiSE(Callback):
    "Keep only this share of the way from the base weights"
    def __init__(self, share): self.share = share
    def before_fit(self): self.start = [t.detach().clone() for t in self.model.state_dict().values()]
    def after_fit(self):
        for t,t0 in zip(self.model.state_dict().values(), self.start):
            if t.is_floating_point(): t.copy_(t0.lerp(t, self.share))


class Distil(Callback):
    "Stay close to the base model's opinion about all classes"
    order = -80   # before the task's other classes are masked out
    def __init__(self, weight): self.weight = weight
    def before_fit(self): self.base = copy.deepcopy(self.model).eval()
    def after_pred(self):
        with torch.no_grad(): p = self.base(self.xb[0]).softmax(1)
        self.kl = F.kl_div(main_logits(self.pred).log_softmax(1), p, reduction='batchmean')
    def after_loss(self): self.learn.loss_grad += self.weight*self.kl
    def after_fit(self): del self.base


RECIPES = {'thorough':{}, 'batches of 256':dict(bs=256), 'batches of 256, lr 0.1':dict(bs=256,lr=.1), 'batches of 32, lr 0.02':dict(bs=32,lr=.02), 'lr 0.02':dict(lr=.02),
    'frozen BatchNorm, lr 0.02':dict(bn='freeze',lr=.02), 'no SupCon':dict(lam=0.), 'loss over all':dict(loss_over='all'), '2 epochs':dict(epochs=2), '10 epochs':dict(epochs=10),
    **{f'eps {e}':dict(eps=e) for e in (.5,.85,.95)},
    'layer2 on':dict(layers='layer2'), 'layer3 on':dict(layers='layer3'), 'layer4 on':dict(layers='layer4'),
    'layer2 on, V 4':dict(layers='layer2',V=4), 'layer3 on, V 4':dict(layers='layer3',V=4), 'layer3 on, V 1':dict(layers='layer3',V=1), 'layer4 on, V 4':dict(layers='layer4',V=4),
    **{f'a third, {s}':dict(proportion=.33,subset=s) for s in ('random','nearest','margin')}, 'half, nearest, 10 epochs':dict(proportion=.5,subset='nearest',epochs=10), 'half, random, 10 epochs':dict(proportion=.5,epochs=10), 'layer3 on, V 4, half, nearest, 10 epochs':dict(layers='layer3',V=4,proportion=.5,subset='nearest',epochs=10), 'a third, nearest, 15 epochs':dict(proportion=.33,subset='nearest',epochs=15),
    'L2-SP 0.01':dict(cbs=[L2SP(.01)]), 'L2-SP 0.1':dict(cbs=[L2SP(.1)]), 'WiSE 0.5':dict(cbs=[WiSE(.5)]), 'WiSE 0.8':dict(cbs=[WiSE(.8)]), 'distillation 1':dict(cbs=[Distil(1.)])}


def most_likely(z0, z1, S, y):
    "The most likely weight and temperature, without caution"
    T0,grid = likelihoods(z0, z1, S, y); a,T = max(grid, key=lambda k: grid[k].mean())
    return dict(alpha=a, T=T, T0=T0)

FITS = dict(validated=fit_conditional, likely=most_likely, half=lambda *_: dict(alpha=.5,T=1.,T0=1.), views=lambda *_: dict(alpha=0.,T=1.,T0=1.))


def crossed(fit, z0, z1, S, y):
    "Probabilities of each half, by what suits the other half"
    p,half = torch.zeros_like(z0),torch.arange(len(y))%2==0
    for h in (half,~half): p[h] = conditional(z0[h].float(), finite_or_first(z0,z1)[h], S[h], **fit(z0[~h],z1[~h],S[~h],y[~h]))
    return p


def judge(name, r, seconds):
    "One row: what the specialists know, and what each way to weigh them is worth"
    z0,z1,S,y,first = r.base,r.second,r.S,r.targets[r.hard],r.first[r.hard].argmax(1)
    inside = S.gather(1,y[:,None])[:,0]
    def within(z): return 100*(z.masked_fill(~S,-1e9).argmax(1)==y)[inside].float().mean().item()
    d = dict(recipe=name, hard=len(y), N=len(r), base_within=within(z0), second_within=within(z1), seconds=seconds)
    for k,f in FITS.items():
        p = crossed(f, z0, z1, S, y); a,ll = p.argmax(1),p.gather(1,y[:,None]).clamp(min=1e-9).log()
        d.update({f'{k}_gain':100*((a==y).sum()-(first==y).sum()).item()/len(r), f'{k}_T2F':int(((first==y)&(a!=y)).sum()), f'{k}_ll':ll.mean().item()})
    return d


def problem(args):
    "Network, training images, and labelled images that are neither training nor test images"
    is_glyphs = args.data=='glyphs'
    model,train,calib,_,flip = glyph_problem(args.base,args.first,args) if is_glyphs else folder_problem(args.first,args)
    return model, train, glyphs(30, 'tune', seed=args.first) if is_glyphs else calib, flip


def main():
    p = parser(__doc__); p.add_argument('--only', nargs='*', help='names of recipes')
    args = p.parse_args(); rows = []
    model,train,calib,flip = problem(args)
    name = args.name or f"recipe_{'glyphs_'+args.base if args.data=='glyphs' else 'folder'}"
    what = dict(seed=args.first, Q=args.Q or 40, K=args.K, eps=args.eps or .7, epochs=args.epochs or 5)
    if (RESULTS/f'{name}.csv').exists(): rows = pd.read_csv(RESULTS/f'{name}.csv').to_dict('records')   # go on where it was
    if any(r[k]!=v for r in rows for k,v in what.items()): raise SystemExit(f"{name}.csv holds recipes of other settings than {what}: give another --name, or delete it")
    for recipe in args.only or RECIPES:
        if any(r['recipe']==recipe for r in rows): continue
        t = time.perf_counter()
        r = cli_predict(model, train, calib, progress=False, device='cpu', flip=flip, preset='thorough', **{'layers':'all', 'V':0, **what, 'rule':'conditional', **RECIPES[recipe]})
        rows.append({**what, **judge(recipe, r, time.perf_counter()-t)}); print({k:round(v,3) if isinstance(v,float) else v for k,v in rows[-1].items()}, flush=True)
        write(name, pd.DataFrame(rows))


if __name__ == '__main__': main()
