"""Learning curves of training further on all classes: the mean of the weights on the way, and a learning rate that falls. On labelled images of seed 0, apart from the test set.

    python benchmarks/further.py --data path/to/tiny-imagenet-60
"""
import pandas as pd

from accuracy import folder_problem, glyph_problem, parser
from closed_loop.adapt import KeepBest, rollback
from closed_loop.generalist import doublings, score_of, train_further
from closed_loop.inputs import open_all
from closed_loop.look import Views, look
from closed_loop.probes import look_at_probes
from common import write

PROBLEMS = {'glyphs, narrow':dict(base='narrow'), '60 classes, not to the end':dict(), '60 classes, narrow':dict(width=8, base_epochs=40), '60 classes, to the end':dict(base_epochs=30)}
FALLING = 500,2000   # updates, each from the beginning


def curves(name, data, most, falling, **how):
    "Score, accuracy and right answers destroyed of labelled images after so many updates, over one look and several views"
    a = parser('').parse_args(['--data', data if name.startswith('60') else 'glyphs', *(str(o) for k,v in how.items() for o in (f'--{k}',v))])
    model,train,calib,test,flip = folder_problem(0, a) if name.startswith('60') else glyph_problem(a.base, 0, a)
    problem,cfg = open_all(model, train, test, calib, generalist='auto', flip=flip)
    pr = look_at_probes(problem, cfg, look(model, problem.test_dl)[0])
    was = pr.first.argmax(1)==pr.targets
    def of(z, views=''): ok = z.argmax(1)==pr.targets; return {f'score{views}':score_of(z,pr.targets), f'right{views}':100*ok.float().mean().item(), f'T2F{views}':int((was&~ok).sum())}
    def row(way, t): return dict(problem=name, way=way, updates=t, **of(look(model,pr.dl)[0]), **of(look(Views(model,cfg.views,cfg.flip),pr.dl)[0],'_views'))
    yield row('as it came', 0)
    rows = []
    def score(): rows.append(row('mean of the weights', 0)); return 0.
    def ends(best): rows[-1]['updates'] = best.done; return False
    with rollback(model): train_further(model, problem.aux, most, cfg.bs, cfg.lr, cfg.seed, looks=[KeepBest(score, at=doublings(most), ends=ends)], mom=cfg.mom, wd=cfg.wd)
    yield from rows
    for n in FALLING if falling else ():
        with rollback(model):
            train_further(model, problem.aux, n, cfg.bs, cfg.lr, cfg.seed, average=False, mom=cfg.mom, wd=cfg.wd)
            yield row('falling rate', n)


def main():
    p = parser(__doc__); p.add_argument('--most', type=int, default=8000, help='updates'); args = p.parse_args(); rows = []
    for name,how in PROBLEMS.items():
        if name.startswith('60') and args.data=='glyphs': continue
        rows += curves(name, args.data, args.most, name in list(PROBLEMS)[:2], **how)
        df = pd.DataFrame(rows); write('further', df); print(df.round(3).to_string(), flush=True)


if __name__ == '__main__': main()
