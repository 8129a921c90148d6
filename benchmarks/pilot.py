"""What the estimate expects against what a run gains: the default preset on several problems, and what the pilot costs.

    python benchmarks/pilot.py --data path/to/tiny-imagenet-60
"""
import pandas as pd

from accuracy import folder_problem, glyph_problem, looks, parser
from closed_loop.core import cli_estimate
from closed_loop.result import flips
from common import write

PROBLEMS = {'glyphs, narrow, 1':dict(base='narrow', seed=1), 'glyphs, narrow, 2':dict(base='narrow', seed=2), 'glyphs, narrow, 3':dict(base='narrow', seed=3), 'glyphs, underfit':dict(base='underfit', Q=12),
            'glyphs, middling':dict(base='middling', Q=12), 'glyphs, strong':dict(base='strong', Q=12), '60 classes, narrow':dict(width=8, base_epochs=40, Q=8), '60 classes, not to the end':dict(Q=8)}


def one(name, args, data=None, seed=1, **how):
    "Expected and realised gain of one problem, in points"
    a = parser('').parse_args(['--data', data if name.startswith('60') else 'glyphs', *(str(o) for k,v in how.items() for o in (f'--{k}',v))])
    model,train,calib,test,flip = (folder_problem if name.startswith('60') else lambda s, a: glyph_problem(a.base, s, a))(seed, a)
    r = looks(model, train, test, calib, seed, a, preset='default', flip=flip)   # as benchmarks/accuracy.py --worth keeps it
    kept = r.further is not None and r.further.kept
    base = r.further.base if kept else r.first.argmax(1)
    e = cli_estimate(model, train, test, calib=calib, flip=flip, device='cpu', seed=seed, K=a.K, **({'Q':a.Q} if a.Q else {})).pilot
    way = 'training further, then second look' if kept else 'second look'
    views = r.with_rule('conditional', alpha=0.)
    got = {way:flips(base, r.preds, r.targets), **({} if kept else {'several views':flips(base, views.preds, r.targets)})}
    def row(w, f): x = e.table.loc[w]; return dict(problem=name, way=w, expected=x.gain, error=x.error, realised=100*f.gain, off=(x.gain-100*f.gain)/max(x.error,1e-9), expected_T2F=x.T2F, T2F=100*f.T2F/f.N, seconds=x.seconds, advice=e.advice, best=e.best, pilot_seconds=e.seconds, run_seconds=r.seconds, share=e.seconds/r.seconds)
    return [row(w,f) for w,f in got.items()]


def main():
    p = parser(__doc__); p.add_argument('--only', nargs='+', default=list(PROBLEMS)); args = p.parse_args(); rows = []
    for name in args.only:
        if name.startswith('60') and args.data=='glyphs': continue
        rows += one(name, args, args.data, **PROBLEMS[name])
        df = pd.DataFrame(rows); write('pilot', df); print(df.drop(columns='advice').round(2).to_string(), flush=True)


if __name__ == '__main__': main()
