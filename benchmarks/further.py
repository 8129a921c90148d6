"""Learning curves of training further on all classes: the mean of the weights on the way, and a learning rate that falls. On labelled images of seed 0, apart from the test set.

    python benchmarks/further.py --data path/to/tiny-imagenet-60
"""
import pandas as pd

from accuracy import folder_problem, glyph_problem, parser
from closed_loop.adapt import rollback
from closed_loop.generalist import doublings, learn_further, score_of, train_further
from closed_loop.inputs import open_all
from closed_loop.look import look
from closed_loop.probes import look_at_probes
from common import write

PROBLEMS = {'glyphs, narrow':dict(base='narrow'), '60 classes, not to the end':dict()}
FALLING = 500,2000   # updates, each from the beginning


def curves(name, data, most, **how):
    "Score and accuracy of labelled images after so many updates, both ways"
    a = parser('').parse_args(['--data', data if name.startswith('60') else 'glyphs', *(str(o) for k,v in how.items() for o in (f'--{k}',v))])
    model,train,calib,test,flip = folder_problem(0, a) if name.startswith('60') else glyph_problem(a.base, 0, a)
    problem,cfg = open_all(model, train, test, calib, generalist='auto', flip=flip)
    pr = look_at_probes(problem, cfg, look(model, problem.test_dl)[0])
    def row(way, t, z, s=None): return dict(problem=name, way=way, updates=t, score=score_of(z,pr.targets) if s is None else s, right=100*((z if z.dim()==1 else z.argmax(1))==pr.targets).float().mean().item())
    yield row('as it came', 0, pr.first)
    with rollback(model): curve,said = learn_further(problem, cfg, pr, most, at=doublings(most), ends=lambda k: False)
    yield from (row('mean of the weights', t, z, s) for (t,s),z in zip(curve,said))
    for n in FALLING:
        with rollback(model):
            train_further(model, problem.aux, n, cfg.bs, cfg.lr, cfg.seed, average=False, mom=cfg.mom, wd=cfg.wd)
            yield row('falling rate', n, look(model, pr.dl)[0])


def main():
    p = parser(__doc__); p.add_argument('--most', type=int, default=8000, help='updates'); args = p.parse_args(); rows = []
    for name,how in PROBLEMS.items():
        if name.startswith('60') and args.data=='glyphs': continue
        rows += curves(name, args.data, args.most, **how)
        df = pd.DataFrame(rows); write('further', df); print(df.round(3).to_string(), flush=True)


if __name__ == '__main__': main()
