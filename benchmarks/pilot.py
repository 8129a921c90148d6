"""What the estimate expects against what a run gains: the default preset on several problems, and what the pilot costs.

    python benchmarks/pilot.py --data path/to/tiny-imagenet-60
"""
import pandas as pd

from accuracy import folder_problem, glyph_problem, looks, parser
from closed_loop.core import cli_estimate
from closed_loop.fates import flips
from closed_loop.pilot import THOROUGH
from common import RESULTS, write

PROBLEMS = {'glyphs, narrow, 1':dict(base='narrow', seed=1), 'glyphs, narrow, 2':dict(base='narrow', seed=2), '60 classes, narrow':dict(width=8, base_epochs=40, Q=8), '60 classes, to the end':dict(base_epochs=30, Q=8),
            'glyphs, underfit':dict(base='underfit', seed=2, Q=12), 'glyphs, middling':dict(base='middling', seed=2, Q=12), 'glyphs, strong':dict(base='strong', Q=12), '60 classes, not to the end':dict(seed=2, Q=8)}


def one(name, data=None, seed=1, few=False, **how):
    "Expected and realised gain of one problem, in points, for every way of the estimate's table"
    a = parser('').parse_args(['--data', data if name.startswith('60') else 'glyphs', *(str(o) for k,v in how.items() for o in (f'--{k}',v))])
    model,train,calib,test,flip = (folder_problem if name.startswith('60') else lambda s, a: glyph_problem(a.base, s, a))(seed, a)
    def run(preset='default', **kw): return looks(model, train, test, calib, seed, a, preset=preset, flip=flip, **kw)   # as benchmarks/accuracy.py --worth keeps it
    whole = run(); kept = whole.further is not None and whole.further.kept
    e = cli_estimate(model, train, test, calib=calib, flip=flip, device='cpu', seed=seed, K=a.K, **({'Q':a.Q} if a.Q else {})).pilot
    own = 'training further, then second look' if kept else 'second look'

    def realised(way):
        r = whole if way in (own,'several views') and not (kept and way=='several views') else run('thorough') if way==THOROUGH and not kept else run(**e.settings[way])
        f = flips(r.first.argmax(1) if r.came is None else r.came, r.base_probs.argmax(1) if way=='several views' else r.preds, r.targets)
        return 100*f.gain,100*f.T2F/f.N
    skip = ('%',THOROUGH) if kept else (', then ',)   # where training further helps, the whole second look without it is enough to compare with
    ways = [w for w in e.table.index if w!='nothing' and not any(o in w for o in skip) and (not few or w in (own,'several views',e.best,THOROUGH))]
    got = {w:realised(w) for w in ways}; top = max(g for g,_ in got.values())
    def row(w, g, lost): x = e.table.loc[w]; return dict(problem=name, way=w, expected=x.gain, error=x.error, realised=g, off=(x.gain-g)/max(x.error,1e-9), expected_T2F=x.T2F, T2F=lost, seconds=x.seconds, run=w==own, advised=w==e.best, short=top-g, advice=e.advice, pilot_seconds=e.seconds, run_seconds=whole.seconds, share=e.seconds/whole.seconds)
    return [row(w,*o) for w,o in got.items()]


def main():
    p = parser(__doc__); p.add_argument('--only', nargs='+', default=list(PROBLEMS)); p.add_argument('--few', action='store_true', help='realise the whole second look, a thorough one, views and the advice only'); args = p.parse_args()
    df = pd.DataFrame(dict(problem=[]))
    for name in args.only:
        if name.startswith('60') and args.data=='glyphs': continue
        new = pd.DataFrame(one(name, args.data, few=args.few, **PROBLEMS[name]))
        df = pd.read_csv(RESULTS/'pilot.csv') if args.again else df   # others may have written meanwhile
        df = pd.concat([df[df.problem!=name],new]); df = df.iloc[df.problem.map(list(PROBLEMS).index).argsort(kind='stable')]
        write('pilot', df, args.again); print(df.drop(columns='advice').round(2).to_string(), flush=True)


if __name__ == '__main__': main()
