"""How a shift is noticed, and how long and how boldly to train on images that look like the test images; on seed 0, which no table reports.

    python benchmarks/style.py notice --data glyphs
    python benchmarks/style.py updates --data path/to/tiny-imagenet-60 --n_test 500 --width 8 --base_epochs 40
"""
import argparse, copy, re, time, warnings

import numpy as np
import pandas as pd
import torch

import fastai.callback.progress, fastai.callback.schedule
from fastai.data.core import DataLoaders
from fastai.learner import Learner

from closed_loop.data.corruptions import CORRUPTIONS
from closed_loop.data.glyphs import glyph_classes, glyph_net, glyphs
from closed_loop.data.style import fit_style, image_moments
from closed_loop.generalist import train_further
from closed_loop.inputs import open_problem
from closed_loop.loaders import BatchDL, as_dl, then, with_test_tfms
from closed_loop.shift import ShiftedLook, notice_shift, sample_of
from common import write
from shifted import Data

TRIED = [('gaussian_noise',4),('defocus_blur',2),('fog',2),('pixelate',4),('contrast',4),('snow',2),('jpeg_compression',4)]


def part(ds, idxs):
    "Some images of a dataset that is kept in memory"
    ds = copy.copy(ds); ds.x,ds.targets = ds.x[idxs],torch.as_tensor(ds.targets)[idxs]
    return ds


def by_heart():
    "A network that is right about its training images and about a third of all others, of 24 letters"
    some = glyph_classes()[:24]; train,test = glyphs(30, classes=some),glyphs(25, 'test', classes=some)
    torch.manual_seed(0); dl = BatchDL(train, bs=64, shuffle=True); dl.rng.seed(0)
    learn = Learner(DataLoaders(dl, dl, device='cpu'), glyph_net(24), torch.nn.CrossEntropyLoss())
    with learn.no_bar(), learn.no_logging(): learn.fit_one_cycle(20, 1e-2)
    return learn.model.eval(),train,test


def notice(d):
    "How many times as far as training images: clean images of a few classes, and corrupted ones of all"
    rng,y = np.random.default_rng(1),d.y.numpy()
    def ratios(test, seed, model=d.model, train=d.train): return {k:float(v) for k,v in re.findall(r'(statistics|pixels) ([\d.]+) times', notice_shift(open_problem(model, train, test), seed=seed)[1])}
    for k in (1,2,5,10,20,40,None):
        for s in range(6):
            some = y if k is None else np.flatnonzero(np.isin(y, rng.permutation(y.max()+1)[:k]))
            yield dict(images='clean' if k is None else f'clean, {k} classes', draw=s, **ratios(part(d.test, rng.permutation(np.arange(len(y)) if k is None else some)[:512]), s))
    if d.glyphs:
        net,train,test = by_heart()
        for s in range(6): yield dict(images='clean, known by heart', draw=s, **ratios(test, s, net, train))
    for severity in (1,3):
        for c in CORRUPTIONS: yield dict(images=f'severity {severity}', draw=c, **ratios(d.shifted(c,severity), 0))


def updates(d):
    "Accuracy after training on images that look like the test images, by updates and learning rate"
    see = ShiftedLook(0., views=.07, flip=d.flip)
    def right(model, te): return 100*(see(model, as_dl(te))[0].argmax(1)==d.y).float().mean().item()
    for c,severity in TRIED:
        te = d.shifted(c, severity); yield dict(corruption=c, severity=severity, steps=0, lr=0., acc=right(d.model,te), seconds=0.)
        p = open_problem(d.model, d.train, te); own = image_moments(sample_of(with_test_tfms(p.aux.dl,p.test_dl)))
        p.aux.dl = then(p.aux.dl, fit_style(own, image_moments(sample_of(p.test_dl))))
        for steps,lr in ((125,.02),(125,.05),(500,.02),(500,.05),(2000,.02)):
            model,t = copy.deepcopy(d.model),time.perf_counter(); train_further(model, p.aux, steps, 64, lr, average=False)
            yield dict(corruption=c, severity=severity, steps=steps, lr=lr, acc=right(model.eval(),te), seconds=time.perf_counter()-t)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('what', choices=('notice','updates')); p.add_argument('--data', default='glyphs', help='glyphs, or a folder with train/ and val/')
    for k,v in dict(n_test=1120, n_train=100, width=16, base_epochs=12).items(): p.add_argument(f'--{k}', type=int, default=v)
    args = p.parse_args(); warnings.simplefilter('ignore'); rows = []; name = 'glyphs' if args.data=='glyphs' else 'tiny60'
    for r in dict(notice=notice, updates=updates)[args.what](Data(args, 0)):
        rows.append(r); print(r, flush=True); write(f'style_{args.what}_{name}', pd.DataFrame(rows).round(3))
    by,of = (['images'],['statistics','pixels']) if args.what=='notice' else (['steps','lr'],['acc'])
    print(pd.DataFrame(rows).groupby(by, sort=False)[of].agg(['min','median','max']).round(2).to_string())


if __name__ == '__main__': main()
